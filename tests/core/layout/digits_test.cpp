// SPDX-License-Identifier: Apache-2.0
#include "layout/digits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/error.h"

namespace ladder {
namespace {

double sum_of(Scalar scalar, std::uint32_t bits, double unit) {
  const auto digits = digits_of(scalar, bits, unit);
  double sum = 0;
  for (int p = 0; p < kMostDigits; ++p) {
    EXPECT_TRUE(digits[p] >= -128 && digits[p] <= 127) << digits[p];
    if (p >= digit_count(scalar)) {
      EXPECT_EQ(digits[p], 0);
    }
    sum += std::ldexp(digits[p], kDigitBits * p + digit_exponent(scalar));
  }
  return sum * unit;
}

TEST(Digits, every_finite_float16_is_the_sum_of_its_digits) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double number = to_number(Scalar::f16, bits);
    if (std::isfinite(number)) {
      ASSERT_EQ(sum_of(Scalar::f16, bits, digit_unit(Scalar::f16, number)), number) << bits;
    }
  }
}

TEST(Digits, a_bfloat16_within_54_binades_of_the_largest_is_the_sum_of_its_digits) {
  for (int largest : {-126, -60, 0, 100, 127}) {
    const double unit = digit_unit(Scalar::bf16, std::ldexp(1.5, largest));
    EXPECT_EQ(unit, std::ldexp(1.0, largest));
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const double number = to_number(Scalar::bf16, bits);
      if (!std::isfinite(number) || std::fabs(number) >= 2 * unit) continue;
      const double sum = sum_of(Scalar::bf16, bits, unit);
      if (number == 0 || std::ilogb(number) >= largest - 54) {
        ASSERT_EQ(sum, number) << bits << " below 2^" << largest;
      } else {
        ASSERT_LE(std::fabs(sum - number), std::ldexp(unit, digit_exponent(Scalar::bf16)));
      }
    }
  }
}

TEST(Digits, the_columns_of_a_step_take_each_place_once) {
  for (int first : {0, 32}) {
    std::set<int> places;
    for (int column = first; column < first + kByteStep; ++column) {
      places.insert(digit_place(column));
    }
    EXPECT_EQ(places.size(), static_cast<std::size_t>(kByteStep));
    EXPECT_EQ(*places.begin(), first);
    EXPECT_EQ(*places.rbegin(), first + kByteStep - 1);
  }
}

// Register r of k-step s has rows of parity r % 2 and columns 32 s + 16 (r / 2) + ..., in the order
// of their places; the 16-bit plan has column 16 t + 8 h + 2 l + i of lane l in half i of pair
// 4 t + 2 h + parity.
TEST(BytePlan, registers_hold_the_codes_whose_digits_lie_beside_them) {
  std::mt19937 random(1);
  for (int bits = 1; bits <= 8; ++bits) {
    const BytePlan& plan = byte_plan(bits);
    const auto halves = unpack_plan(bits, kFloat16Window);
    std::vector<std::uint32_t> words(bits);
    for (auto& word : words) word = random();
    for (int step = 0; step < kByteStepsPerBlock; ++step) {
      for (int r = 0; r < 4; ++r) {
        const auto bytes = read_pieces(plan.registers[step][r], words.data());
        for (int j = 0; j < 4; ++j) {
          const int column = kByteStep * step + 16 * (r / 2) + j % 2 * 8 + j / 2;  // of lane 0
          EXPECT_EQ(digit_place(column), kByteStep * step + 16 * (r / 2) + j);
          const int pair = 4 * (column / 16) + 2 * (column / 8 % 2) + r % 2;
          const auto code = unpack_pair(halves, words.data(), pair)[column % 2];
          EXPECT_EQ(bytes >> 8 * j & 255, code << plan.offset[r % 2])
              << bits << " bits, " << column;
        }
      }
    }
  }
}

TEST(BytePlan, costs_what_the_counts_in_its_table_say) {
  struct Row {
    int bits, masks, shifts;  // per unit of 32 codes
  };
  for (auto [bits, masks, shifts] : {Row{1, 8, 3}, {2, 8, 2}, {3, 18, 11}, {4, 8, 0}, {8, 8, 0}}) {
    EXPECT_EQ(byte_plan(bits).mask_count, masks) << bits;
    EXPECT_EQ(byte_plan(bits).shift_count, shifts) << bits;
  }
  EXPECT_THROW(byte_plan(9), Unsupported);
}

}  // namespace
}  // namespace ladder
