// SPDX-License-Identifier: Apache-2.0
#include "layout/digits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"
#include "types/element.h"

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

/// `check(code, byte)` for every code of so many bits at every place of a unit, with the byte that
/// the plan makes of it.
template <class Check>
void for_each_code(int bits, const BytePlan& plan, const Check& check) {
  const BitPlan& places = bit_plan(bits);
  const auto codes = 1U << bits;
  for (unsigned first = 0; first < codes; ++first) {
    const auto code_at = [&](int pair, int half) {  // different ones beside each other
      return (first + 5U * static_cast<unsigned>(2 * pair + half)) % codes;
    };
    std::vector<std::uint32_t> words(static_cast<std::size_t>(bits));
    for (int pair = 0; pair < kPairsPerUnit; ++pair) {
      for (int half = 0; half < 2; ++half) {
        for (int bit = 0; bit < bits; ++bit) {
          const BitPlace at = places.pairs[pair][bit];
          words[at.word] |= (code_at(pair, half) >> bit & 1U) << (at.bit + 16 * half);
        }
      }
    }
    for (int step = 0; step < kByteStepsPerBlock; ++step) {
      for (int r = 0; r < 4; ++r) {
        const auto bytes = read_pieces(plan.registers[step][r], words.data());
        for (int j = 0; j < 4; ++j) {
          const int pair = 4 * (2 * step + r / 2) + 2 * (j % 2) + r % 2;
          check(code_at(pair, j / 2), bytes >> 8 * j & 255U);
        }
      }
    }
  }
}

/// A byte with a sign.
int signed_byte(std::uint32_t byte) { return static_cast<std::int8_t>(byte & 255U); }

TEST(SignedBytePlan, every_code_of_every_width_is_its_distance_from_the_middle) {
  for (int bits = 1; bits <= 8; ++bits) {
    for_each_code(bits, signed_byte_plan(bits), [&](std::uint32_t code, std::uint32_t byte) {
      const int from_middle = static_cast<int>(code) - (1 << (bits - 1));
      ASSERT_EQ(signed_byte(byte ^ kSignBits), from_middle * (1 << (8 - bits)))
          << bits << " bits, " << code;
    });
  }
  EXPECT_THROW(signed_byte_plan(9), Unsupported);
}

TEST(OffsetBytePlan, every_code_of_up_to_7_bits_less_every_zero_point_has_a_sign) {
  for (int bits = 1; bits <= kMostOffsetBits; ++bits) {
    const BytePlan& plan = offset_byte_plan(bits);
    const int offset = kMostOffsetBits - bits;
    EXPECT_THAT(plan.offset, ::testing::Each(offset));
    for_each_code(bits, plan, [&](std::uint32_t code, std::uint32_t byte) {
      ASSERT_EQ(byte, code << offset) << bits << " bits";
      for (int zero = 0; zero <= 1 << bits; ++zero) {
        const int left = (static_cast<int>(code) - zero) * (1 << offset);
        ASSERT_EQ(signed_byte(less_zeros(byte, static_cast<std::uint32_t>(zero) << offset)), left)
            << bits << " bits, " << code << " less " << zero;
      }
    });
  }
  EXPECT_THROW(offset_byte_plan(8), InternalError);
}

TEST(LessZeros, takes_from_each_byte_what_is_its_own) {
  for (std::uint32_t code = 0; code < 128; ++code) {
    for (std::uint32_t zero = 0; zero <= 128; ++zero) {
      for (int at = 0; at < 4; ++at) {
        for (const std::uint32_t beside : {0x00000000U, 0x7f7f7f7fU}) {
          for (const std::uint32_t zeros_beside : {0x00000000U, 0x80808080U}) {
            const auto with = [&](std::uint32_t word, std::uint32_t byte) {
              return (word & ~(255U << 8 * at)) | byte << 8 * at;
            };
            const auto left = less_zeros(with(beside, code), with(zeros_beside, zero));
            ASSERT_EQ(signed_byte(left >> 8 * at), static_cast<int>(code - zero));
            const int neighbour = static_cast<int>((beside & 255U) - (zeros_beside & 255U));
            ASSERT_EQ(signed_byte(left >> 8 * ((at + 1) % 4)), neighbour);
          }
        }
      }
    }
  }
  static_assert(less_zeros(0x0f000810U, 0x10100808U) == 0xfff00008U);
}

TEST(FloatBytePlan, every_code_of_every_format_that_e4m3_holds_is_its_value) {
  int formats = 0;
  for (const Element* format : elements()) {
    if (format->encoding != Encoding::floating || format->exponent_bits > kByteExponent ||
        format->mantissa_bits > kByteMantissa) {
      continue;
    }
    const bool fills = format->bits == kDigitBits;
    if (format->specials != (fills ? Specials::nan_only : Specials::none)) continue;
    ++formats;
    const BytePlan& plan = float_byte_plan(format->bits, format->mantissa_bits);
    for_each_code(format->bits, plan, [&](std::uint32_t code, std::uint32_t byte) {
      const double value = decode(*format, code);
      const double of_byte = std::ldexp(to_number(Scalar::e4m3, byte), kByteBias - format->bias);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(of_byte)) << format->name << ' ' << code;
      } else {
        ASSERT_EQ(of_byte, value) << format->name << ' ' << code;
        ASSERT_EQ(std::signbit(of_byte), std::signbit(value)) << format->name << ' ' << code;
      }
    });
  }
  EXPECT_GE(formats, 5);
  EXPECT_THROW(float_byte_plan(8, 2), InternalError);  // e5m2
  EXPECT_THROW(float_byte_plan(8, 4), InternalError);  // e3m4
}

// Of what the instructions of CDNA 3 read; each byte beside neighbours that carry where one may.
TEST(FnuzBytes, are_half_of_every_number_of_e4m3_and_nan_of_nan) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    for (const std::uint32_t other : {0u, 0x7fu, 0x80u, 0xffu}) {
      const auto bytes = fnuz_bytes(other * 0x01010001u | code << 8);
      const double value = to_number(Scalar::e4m3, code);
      const double found =
          std::ldexp(to_number(Scalar::e4m3fnuz, bytes >> 8 & 255U), kFnuzExponent);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(found)) << code;
      } else {
        ASSERT_EQ(found, value) << code;
      }
    }
  }
}

TEST(WholeBytePlan, every_code_less_every_zero_point_that_e4m3_holds_is_their_difference) {
  for (int shift = 0; shift <= 1; ++shift) {
    for (int bits = 1; bits + shift <= kMostWholeBits; ++bits) {
      for_each_code(bits, whole_byte_plan(bits, shift),
                    [&](std::uint32_t code, std::uint32_t byte) {
                      const int whole = static_cast<int>(code) << shift;
                      ASSERT_EQ(static_cast<int>(byte), whole) << bits << " bits";
                      for (int zero = 0; zero <= kMostWhole; ++zero) {
                        if (whole - zero > kMostWhole) continue;
                        // Beside bytes that are below and above their zeros.
                        const auto e4m3 =
                            whole_less_zeros(byte << 8 | 0x100000U | 0x07U,
                                             static_cast<std::uint32_t>(zero) << 8 | 0x10000010U);
                        const double value = to_number(Scalar::e4m3, e4m3 >> 8 & 255U);
                        ASSERT_EQ(std::ldexp(value, -kWholeExponent), whole - zero)
                            << bits << " bits, " << code;
                        ASSERT_FALSE(value == 0 && std::signbit(value));
                        ASSERT_EQ(e4m3 & 0xffff00ffU, 0x90100089U);
                      }
                    });
    }
  }
  EXPECT_THROW(whole_byte_plan(6, 0), InternalError);
  EXPECT_THROW(whole_byte_plan(5, 1), InternalError);
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
