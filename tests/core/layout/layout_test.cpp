// SPDX-License-Identifier: Apache-2.0
#include "layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "layout/random_layout.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

/// What the product means, written without digits.
std::vector<std::int64_t> product_by_definition(const Layout& f, const Layout& g, std::int64_t t,
                                                std::int64_t s) {
  auto out = f(t / g.thread_count(), s / g.slot_count());
  const auto inner = g(t % g.thread_count(), s % g.slot_count());
  for (std::size_t d = 0; d < out.size(); ++d) out[d] = out[d] * g.shape[d] + inner[d];
  return out;
}

TEST(LayoutAlgebra, a_product_is_a_tile_of_tiles) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const auto f = random_factor(random) * random_factor(random), g = random_factor(random);
    const auto fg = f * g;
    for (std::int64_t t = 0; t < fg.thread_count(); ++t) {
      for (std::int64_t s = 0; s < fg.slot_count(); ++s) {
        ASSERT_EQ(fg(t, s), product_by_definition(f, g, t, s)) << to_string(fg);
      }
    }
  }
}

TEST(LayoutAlgebra, the_product_is_associative_and_local_1_is_its_unit) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 1000; ++trial) {
    const auto f = random_factor(random), g = random_factor(random), h = random_factor(random);
    EXPECT_EQ((f * g) * h, f * (g * h));
    EXPECT_EQ(f * local({1, 1}), f);
    EXPECT_EQ(local({1, 1}) * f, f);
  }
}

TEST(LayoutAlgebra, dividing_a_product_by_its_right_factor_gives_its_left_factor) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const auto f = random_factor(random) * random_factor(random), g = random_factor(random);
    ASSERT_TRUE((f * g) / g) << to_string(f) << " * " << to_string(g);
    EXPECT_EQ(*((f * g) / g), f) << to_string(f) << " * " << to_string(g);
  }
}

TEST(LayoutAlgebra, a_layout_is_not_divided_by_what_is_no_factor) {
  EXPECT_FALSE(spatial({8, 4}) / local({1, 2}));
  EXPECT_FALSE(local({3, 2}) / local({2, 2}));
  EXPECT_FALSE(local({4}) / local({4, 1}));
}

TEST(LayoutAlgebra, locate_inverts_every_injective_layout) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const auto f = random_layout(random);
    const bool bijective = is_bijective(f);
    for (std::int64_t t = 0; t < f.thread_count(); ++t) {
      for (std::int64_t s = 0; s < f.slot_count(); ++s) {
        const auto place = locate(f, f(t, s));
        ASSERT_EQ(f(place.thread, place.slot), f(t, s));
        EXPECT_TRUE(!bijective || place == (Place{t, s}));
      }
    }
  }
}

TEST(LayoutAlgebra, the_inverse_of_a_bijection_gives_thread_and_slot_of_every_element) {
  std::mt19937 random(6);
  int bijections = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const auto f = random_layout(random);
    if (!is_bijective(f)) {
      EXPECT_THROW(inverse(f), InvalidArgument);
      continue;
    }
    ++bijections;
    const auto back = inverse(f);
    for (std::int64_t t = 0; t < f.thread_count(); ++t) {
      for (std::int64_t s = 0; s < f.slot_count(); ++s) {
        const auto at = f(t, s);
        ASSERT_THAT(back(0, at[0] * f.shape[1] + at[1]), testing::ElementsAre(t, s))
            << to_string(f) << " and " << to_string(back);
      }
    }
  }
  EXPECT_GT(bijections, 100);
}

TEST(LayoutAlgebra, the_product_does_not_commute) {
  EXPECT_NE(local({2, 1}) * spatial({8, 4}), spatial({8, 4}) * local({2, 1}));
}

TEST(LayoutAlgebra, permuting_twice_is_permuting_by_the_composition) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const auto f = lifted(random_factor(random)) * lifted(random_factor(random)) *
                   permuted(lifted(random_factor(random)), {1, 2, 0});
    std::vector<int> p = {0, 1, 2}, q = {0, 1, 2}, both(3);
    std::shuffle(p.begin(), p.end(), random);
    std::shuffle(q.begin(), q.end(), random);
    for (int d = 0; d < 3; ++d) both[d] = q[p[d]];
    EXPECT_EQ(permuted(permuted(f, p), q), permuted(f, both));
  }
}

TEST(Layout, the_accumulator_of_m16n8k16_is_where_the_ptx_manual_puts_it) {
  const auto accumulator = local({2, 1}) * spatial({8, 4}) * local({1, 2});
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {  // row = group + 8 (i / 2), column = 2 (lane % 4) + i % 2
      EXPECT_THAT(accumulator(lane, i),
                  testing::ElementsAre(lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2));
    }
  }
  EXPECT_TRUE(is_bijective(accumulator));
}

TEST(Layout, a_block_fragment_is_sixteen_a_operands_of_m16n8k16) {
  const auto fragment = block_fragment();
  ASSERT_TRUE(is_bijective(fragment));
  for (int lane = 0; lane < 32; ++lane) {
    for (int slot = 0; slot < 128; ++slot) {
      const int u = slot / 32, s = slot / 8 % 4, r = slot / 2 % 4, half = slot % 2;
      EXPECT_THAT(fragment(lane, slot),
                  testing::ElementsAre(16 * u + lane / 4 + 8 * (r & 1),
                                       16 * s + 8 * (r >> 1) + 2 * (lane % 4) + half));
    }
  }
}

TEST(Layout, a_block_fragment_of_bytes_is_eight_a_operands_of_m16n8k32) {
  const auto fragment = block_fragment(8);
  ASSERT_TRUE(is_bijective(fragment));
  for (int lane = 0; lane < 32; ++lane) {
    for (int slot = 0; slot < 128; ++slot) {
      const int u = slot / 32, s = slot / 16 % 2, r = slot / 4 % 4, byte = slot % 4;
      EXPECT_THAT(fragment(lane, slot),
                  testing::ElementsAre(16 * u + lane / 4 + 8 * (r & 1),
                                       32 * s + 16 * (r >> 1) + 4 * (lane % 4) + byte));
    }
  }
}

TEST(Layout, a_view_keeps_the_bits_of_every_thread) {
  EXPECT_TRUE(can_view(spatial({32}) * local({4}), 32, local({8}) * spatial({32}), 16));
  EXPECT_TRUE(can_view(spatial({32}) * local({16}), 32, block_fragment(), 4));
  EXPECT_FALSE(can_view(spatial({32}) * local({16}), 32, block_fragment(), 5));
  EXPECT_FALSE(can_view(spatial({16}) * local({32}), 32, block_fragment(), 4));
}

TEST(Layout, prints_its_digits_outermost_first) {
  EXPECT_EQ(to_string(local({2, 1}) * spatial({8, 4}) * local({1, 2})),
            "[16, 8] = threads(0:8x1, 1:4x2) slots(0:2x8, 1:2x1)");
  EXPECT_EQ(to_string(local({8}) * spatial({8}) * replicated(4, 1)),
            "[64] = threads(0:8x1, replica:4) slots(0:8x8)");
}

TEST(Layout, a_thread_out_of_range_is_refused_with_both_numbers) {
  EXPECT_THAT([] { spatial({4})(4, 0); }, testing::ThrowsMessage<InvalidArgument>("thread 4 of 4"));
}

}  // namespace
}  // namespace ladder
