// SPDX-License-Identifier: Apache-2.0
#include "layout/index_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "layout/random_layout.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

using Coordinates = std::vector<std::int64_t>;

/// Calls visit with every coordinate of the box, row-major.
template <class Visit>
void for_each(const Coordinates& extents, const Visit& visit) {
  Coordinates x(extents.size(), 0);
  for (;;) {
    visit(x);
    std::size_t d = x.size();
    while (d-- > 0 && ++x[d] == extents[d]) x[d] = 0;
    if (d == static_cast<std::size_t>(-1)) return;
  }
}

/// A bijection that splits every coordinate of `extents` into digits and deals them out to outputs
/// in some order.
IndexMap random_bijection(std::mt19937& random, const Coordinates& extents) {
  return index_map(extents, [&](const IndexExprs& x) {
    struct Part {
      IndexExpr value;
      std::int64_t extent;
    };
    std::vector<Part> parts;
    for (std::size_t d = 0; d < x.size(); ++d) {
      auto rest = x[d];
      auto left = extents[d];
      while (left > 1) {
        std::int64_t extent = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(left));
        while (left % extent != 0) ++extent;
        if (extent == 1) continue;
        parts.push_back({rest % extent, extent});
        rest = rest / extent;
        left /= extent;
      }
    }
    std::shuffle(parts.begin(), parts.end(), random);
    IndexExprs out(1 + random() % 3);
    for (const auto& part : parts) {
      auto& to = out[random() % out.size()];
      to = to * part.extent + part.value;
    }
    return out;
  });
}

Coordinates random_extents(std::mt19937& random) {
  static const std::int64_t kExtents[] = {1, 2, 3, 4, 6, 8, 12, 16};
  Coordinates out(1 + random() % 3);
  for (auto& extent : out) extent = kExtents[random() % std::size(kExtents)];
  return out;
}

TEST(IndexMap, the_inverse_of_every_bijection_is_found) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const auto f = random_bijection(random, random_extents(random));
    const auto back = inverse(f);
    ASSERT_TRUE(back) << to_string(f);
    EXPECT_EQ(back->extents, f.shape());
    EXPECT_EQ(*back * f, identity_map(f.extents)) << to_string(f) << "; " << to_string(*back);
    EXPECT_EQ(f * *back, identity_map(f.shape()));
    EXPECT_EQ(*inverse(*back), f);
    for_each(f.extents, [&](const Coordinates& x) { ASSERT_EQ((*back)(f(x)), x) << to_string(f); });
  }
}

TEST(IndexMap, composition_applies_one_after_the_other) {
  std::mt19937 random(2);
  int composed = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const auto g = random_bijection(random, random_extents(random));
    const auto f = random_bijection(random, g.shape());
    IndexMap both;
    try {
      both = f * g;
    } catch (const Unsupported&) {  // a digit of f lies across digits of g
      continue;
    }
    ++composed;
    for_each(g.extents, [&](const Coordinates& x) { ASSERT_EQ(both(x), f(g(x))); });
    EXPECT_EQ(*inverse(both), *inverse(g) * *inverse(f)) << to_string(f) << " * " << to_string(g);
    EXPECT_EQ(both * identity_map(g.extents), both);
    EXPECT_EQ(identity_map(f.shape()) * both, both);
  }
  EXPECT_GT(composed, 600);
}

TEST(IndexMap, composition_is_associative) {
  std::mt19937 random(3);
  int composed = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const auto h = random_bijection(random, {4, 8, 2});
    const auto g = random_bijection(random, h.shape());
    const auto f = random_bijection(random, g.shape());
    EXPECT_EQ((f * g) * h, f * (g * h));  // powers of two always nest
    ++composed;
  }
  EXPECT_EQ(composed, 1000);
}

TEST(IndexMap, what_is_no_bijection_has_no_inverse) {
  const auto none = [](const Coordinates& extents,
                       const std::function<IndexExprs(const IndexExprs&)>& f) {
    return !inverse(index_map(extents, f));
  };
  EXPECT_TRUE(none({8}, [](const IndexExprs& x) { return IndexExprs{x[0] / 2}; }));
  EXPECT_TRUE(none({8}, [](const IndexExprs& x) { return IndexExprs{x[0] / 2, x[0] % 4}; }));
  EXPECT_TRUE(none({8}, [](const IndexExprs& x) { return IndexExprs{x[0] * 2}; }));
  EXPECT_TRUE(none({8}, [](const IndexExprs& x) { return IndexExprs{x[0] + 1}; }));
  EXPECT_TRUE(none({4, 4}, [](const IndexExprs& x) { return IndexExprs{x[0] + x[1]}; }));
  EXPECT_TRUE(none({4, 4}, [](const IndexExprs& x) { return IndexExprs{x[0]}; }));
  EXPECT_TRUE(none({63}, [](const IndexExprs& x) { return IndexExprs{x[0] / 16, x[0] % 16}; }));
}

/// Against the definition, for every sum of two digits with small factors.
TEST(IndexExpr, division_is_floor_division_or_is_refused) {
  int kept = 0, refused = 0;
  for (std::int64_t a = 1; a <= 6; ++a) {
    for (std::int64_t b = 1; b <= 12; ++b) {
      for (std::int64_t by = 1; by <= 12; ++by) {
        for (std::int64_t constant : {0, 1, 12}) {
          const auto x = IndexExpr::of(0, 6), y = IndexExpr::of(1, 5);
          const auto sum = x * a + y * b + constant;
          try {
            const auto quotient = sum / by, remainder = sum % by;
            ++kept;
            for_each({6, 5}, [&](const Coordinates& at) {
              ASSERT_EQ(quotient(at), sum(at) / by);
              ASSERT_EQ(remainder(at), sum(at) % by);
              ASSERT_LE(quotient(at), quotient.high());
            });
          } catch (const Unsupported&) {
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(kept, 300);
  EXPECT_GT(refused, 300);
}

TEST(IndexExpr, digits_that_are_one_number_join) {
  const auto x = IndexExpr::of(0, 63);  // 63 is no multiple of 16
  EXPECT_EQ(x / 16 * 16 + x % 16, x);
  EXPECT_EQ(x / 4 % 4 * 4 + x % 4, x % 16);
  EXPECT_EQ(x + x, x * 2);
  EXPECT_EQ(x + x * -1, IndexExpr(0));
}

TEST(IndexExpr, a_carry_is_refused_with_both_numbers) {
  EXPECT_THAT([] { IndexExpr::of(0, 4) * 3 / 4; },
              testing::ThrowsMessage<Unsupported>(
                  "() -> (x0 * 3) divided by 4: a digit that does not split"));
  EXPECT_THAT([] { (IndexExpr::of(0, 4) + IndexExpr::of(1, 4)) / 4; },
              testing::ThrowsMessage<Unsupported>("() -> (x0 + x1) divided by 4: a carry"));
  EXPECT_THROW(IndexExpr::of(0, 4) / 0, InvalidArgument);
}

TEST(IndexMap, folding_granules_is_the_default_map_of_ladder) {
  // A tile of 16 x 2 granules of 16 bytes becomes 4 rows of 128 bytes.
  const auto f = index_map({16, 2}, [](const IndexExprs& x) {
    const auto flat = x[0] * 2 + x[1];
    return IndexExprs{flat / 8, flat % 8};
  });
  EXPECT_EQ(to_string(f), "(x0, x1) -> (x0 / 4, x0 % 4 * 2 + x1)");
  for_each({16, 2}, [&](const Coordinates& x) {
    const auto e = 2 * x[0] + x[1];
    EXPECT_THAT(f(x), testing::ElementsAre(e / 8, e % 8));
  });
}

/// The order in which ldmatrix reads a 16 x 16 tile of a transposed B, then that of the registers
/// of the instruction: together, who holds what in two m16n8k16.
TEST(IndexMap, composing_two_transforms_gives_the_fragment_of_the_instruction) {
  const auto element = index_map({32, 8}, [](const IndexExprs& x) {
    return IndexExprs{x[0] / 16 * 8 + x[0] % 8, x[0] / 8 % 2 * 8 + x[1]};
  });
  const auto to_lane = index_map({32, 8}, [](const IndexExprs& x) {
    return IndexExprs{x[0] % 8 * 4 + x[1] / 2, x[0] / 8 * 2 + x[1] % 2};
  });
  const auto fragment = element * *inverse(to_lane);
  EXPECT_EQ(layout_of(fragment), local({2, 2}) * spatial({8, 4}) * local({1, 2}));
  for_each({32, 8}, [&](const Coordinates& x) {
    const auto lane = x[0], q = x[1] / 2, half = x[1] % 2;
    EXPECT_THAT(fragment(x),
                testing::ElementsAre(8 * (q / 2) + lane / 4, 8 * (q % 2) + 2 * (lane % 4) + half));
  });
}

TEST(IndexMap, a_convolution_is_a_view_of_its_input) {
  // NHWC, 3 x 3, stride 2, no padding: rows (n, oh, ow) and columns (kh, kw, c) of a matrix.
  const std::int64_t n = 2, oh = 3, ow = 5, c = 4, h = 7, w = 11;
  const auto taps = index_map({n, oh, ow, 3, 3, c}, [](const IndexExprs& x) {
    return IndexExprs{x[0], x[1] * 2 + x[3], x[2] * 2 + x[4], x[5]};
  });
  const auto matrix = index_map({n, oh, ow, 3, 3, c}, [&](const IndexExprs& x) {
    return IndexExprs{(x[0] * oh + x[1]) * ow + x[2], (x[3] * 3 + x[4]) * c + x[5]};
  });
  const auto view = taps * *inverse(matrix);
  EXPECT_EQ(view.extents, (Coordinates{n * oh * ow, 9 * c}));
  EXPECT_EQ(view.shape(), (Coordinates{n, h, w, c}));
  EXPECT_EQ(to_string(view),
            "(x0, x1) -> (x0 / 15, x0 / 5 % 3 * 2 + x1 / 12, x0 % 5 * 2 + x1 / 4 % 3, x1 % 4)");
}

TEST(IndexMap, a_layout_is_an_index_map_of_thread_and_slot) {
  std::mt19937 random(4);
  int bijections = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const auto layout = random_layout(random);
    const auto f = index_map(layout);
    for_each(f.extents,
             [&](const Coordinates& x) { ASSERT_EQ(f(x), layout(x[0], x[1])) << to_string(f); });
    EXPECT_EQ(layout_of(f), layout);
    ASSERT_EQ(inverse(f).has_value(), is_bijective(layout)) << to_string(layout);
    if (!is_bijective(layout)) continue;
    ++bijections;
    const auto back = *inverse(f);
    const auto by_element = inverse(layout);
    for (std::int64_t e = 0; e < layout.element_count(); ++e) {
      ASSERT_EQ(by_element(0, e), back({e / layout.shape[1], e % layout.shape[1]}));
    }
  }
  EXPECT_GT(bijections, 50);
}

TEST(IndexMap, where_a_block_of_the_image_keeps_an_element_is_the_inverse_of_its_fragment) {
  const auto places = *inverse(index_map(block_fragment()));
  for_each({64, 64}, [&](const Coordinates& x) {
    const auto place = locate(block_fragment(), x);
    ASSERT_THAT(places(x), testing::ElementsAre(place.thread, place.slot));
  });
}

TEST(IndexMap, no_layout_shifts_or_uses_a_digit_twice) {
  const auto layout = [](const std::function<IndexExprs(const IndexExprs&)>& f) {
    return layout_of(index_map({4, 4}, f));
  };
  EXPECT_THROW(layout([](const IndexExprs& x) { return IndexExprs{x[0] + 1}; }), Unsupported);
  EXPECT_THROW(layout([](const IndexExprs& x) { return IndexExprs{x[0], x[0] / 2}; }), Unsupported);
  EXPECT_THROW(layout_of(identity_map({4})), InvalidArgument);
}

TEST(IndexMap, coordinates_outside_are_refused_with_both_numbers) {
  EXPECT_THAT([] { identity_map({4})({4}); },
              testing::ThrowsMessage<InvalidArgument>("coordinate 4 of dimension 0 is outside 4"));
  EXPECT_THAT(
      [] { identity_map({4}) * identity_map({5}); },
      testing::ThrowsMessage<InvalidArgument>("results from 0 to 4 for a coordinate below 4"));
}

}  // namespace
}  // namespace ladder
