// SPDX-License-Identifier: Apache-2.0
#include "layout/linear_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "base/error.h"
#include "layout/random_layout.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

Layout power_of_two_layout(std::mt19937& random) {
  const auto factor = [&] {
    return random_factor(random, [&] { return std::int64_t{1} << random() % 3; });
  };
  return factor() * factor() * factor();
}

int log2(std::int64_t extent) { return std::countr_zero(static_cast<std::uint64_t>(extent)); }

BitMatrix random_matrix(std::mt19937& random, int rows, int columns) {
  BitMatrix out{rows, {}};
  for (int i = 0; i < columns; ++i) out.columns.push_back(random() & ((1u << rows) - 1));
  return out;
}

TEST(BitMatrix, composition_applies_one_after_the_other) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto f = random_matrix(random, 6, 5), g = random_matrix(random, 5, 7);
    for (std::uint64_t x = 0; x < 128; ++x) ASSERT_EQ((f * g)(x), f(g(x)));
  }
}

TEST(BitMatrix, a_matrix_has_an_inverse_on_both_sides_exactly_when_its_rank_is_full) {
  std::mt19937 random(2);
  int invertible = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const auto f = random_matrix(random, 6, 6);
    const auto back = inverse(f);
    ASSERT_EQ(back.has_value(), rank(f) == 6) << to_string(f);
    if (!back) continue;
    ++invertible;
    EXPECT_EQ(*back * f, identity_bits(6));
    EXPECT_EQ(f * *back, identity_bits(6));
    EXPECT_EQ(*inverse(*back), f);
  }
  EXPECT_GT(invertible, 50);
  EXPECT_FALSE(inverse(random_matrix(random, 6, 5)));
}

TEST(BitMatrix, the_rank_is_the_dimension_of_what_is_reached) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const auto f = random_matrix(random, 6, 4);
    std::vector<bool> seen(64);
    for (std::uint64_t x = 0; x < 16; ++x) seen[f(x)] = true;
    EXPECT_EQ(1 << rank(f), std::count(seen.begin(), seen.end(), true)) << to_string(f);
  }
}

TEST(BitMatrix, matrices_that_do_not_fit_are_refused_with_both_sizes) {
  EXPECT_THAT(
      [] { identity_bits(3) * identity_bits(4); },
      testing::ThrowsMessage<InvalidArgument>("a matrix of 4 rows has no product with one of 3 "
                                              "columns"));
  EXPECT_THROW(identity_bits(2)(4), InvalidArgument);
}

TEST(LinearForm, says_what_the_layout_says) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const auto f = power_of_two_layout(random);
    const auto matrix = linear_form(f);
    for (std::int64_t t = 0; t < f.thread_count(); ++t) {
      for (std::int64_t s = 0; s < f.slot_count(); ++s) {
        const auto at = f(t, s);
        ASSERT_EQ(matrix(t * f.slot_count() + s), at[0] * f.shape[1] + at[1]) << to_string(f);
      }
    }
  }
}

TEST(LinearForm, goes_back_to_the_layout_it_came_from) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    const auto f = power_of_two_layout(random);
    EXPECT_EQ(layout_of(linear_form(f), f.shape, log2(f.slot_count())), f);
  }
}

TEST(LinearForm, of_the_inverse_is_the_inverse) {
  std::mt19937 random(6);
  int bijections = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const auto f = power_of_two_layout(random);
    const auto back = inverse(linear_form(f));
    ASSERT_EQ(back.has_value(), is_bijective(f));
    if (!back) continue;
    ++bijections;
    EXPECT_EQ(linear_form(inverse(f)), *back) << to_string(f);
  }
  EXPECT_GT(bijections, 50);
}

TEST(LinearForm, refuses_what_is_not_linear) {
  EXPECT_THAT([] { linear_form(local({3})); },
              testing::ThrowsMessage<Unsupported>("3 elements are not a power of two"));
  EXPECT_THROW(layout_of(swizzle(6, 2, 0, 3), {64}, 6), Unsupported);
  EXPECT_THROW(layout_of(identity_bits(6), {32}, 6), InvalidArgument);
  EXPECT_THROW(layout_of(identity_bits(6), {63}, 6), InvalidArgument);
}

TEST(Swizzle, undoes_itself_and_keeps_the_other_bits) {
  for (int bits = 0; bits <= 3; ++bits) {
    for (int base = 0; base < 4; ++base) {
      for (int shift = bits; shift < 5; ++shift) {
        const auto f = swizzle(12, bits, base, shift);
        EXPECT_EQ(f * f, identity_bits(12));
        const std::uint64_t moved = ((1u << bits) - 1) << base;
        for (std::uint64_t x = 0; x < 4096; x += 5) {
          ASSERT_EQ(f(x), x ^ (x >> shift & moved));
          ASSERT_EQ(f(x) & ~moved, x & ~moved);
        }
      }
    }
  }
}

TEST(Swizzle, of_128_bytes_spreads_the_eight_rows_of_a_column_over_all_pieces) {
  const auto f = swizzle(10, 3, 4, 3);
  for (std::uint64_t piece = 0; piece < 8; ++piece) {
    std::uint64_t seen = 0;
    for (std::uint64_t row = 0; row < 8; ++row) seen |= 1u << (f(row * 128 + piece * 16) / 16 % 8);
    EXPECT_EQ(seen, 0xffu);
  }
}

TEST(Swizzle, that_would_move_bits_into_themselves_is_refused) {
  EXPECT_THROW(swizzle(10, 3, 4, 2), InvalidArgument);
  EXPECT_THROW(swizzle(9, 3, 4, 3), InvalidArgument);
}

TEST(BitMatrix, prints_its_rows_most_significant_first) {
  EXPECT_EQ(to_string(swizzle(4, 1, 0, 2)), "1000\n0100\n0010\n0101\n");
}

}  // namespace
}  // namespace ladder
