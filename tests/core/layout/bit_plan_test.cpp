// SPDX-License-Identifier: Apache-2.0
#include "layout/bit_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "layout/in_place.h"
#include "layout/weight_image.h"
#include "layout/widths.h"

namespace ladder {
namespace {

using testing::Widths;

class PlanOfEveryWidth : public ::testing::TestWithParam<Widths> {};
INSTANTIATE_TEST_SUITE_P(Bits, PlanOfEveryWidth, ::testing::ValuesIn(testing::all_widths()));

TEST_P(PlanOfEveryWidth, the_plan_uses_each_bit_of_its_words_once) {
  const auto [bits, operand_bits] = GetParam();
  const auto& plan = bit_plan(bits, operand_bits);
  ASSERT_EQ(plan.pairs.size(), static_cast<std::size_t>(operand_bits));
  std::set<std::pair<int, int>> used;
  for (const auto& pair : plan.pairs) {
    EXPECT_EQ(pair.size(), static_cast<std::size_t>(bits));
    for (const auto& place : pair) {
      used.insert({place.word, place.bit});
      EXPECT_LT(place.bit, operand_bits);
    }
  }
  EXPECT_EQ(static_cast<int>(used.size()), operand_bits * bits);
  EXPECT_EQ(used.rbegin()->first, bits - 1);
}

/// The ways to read a plan: windows of 16-bit operands; of u8, s8 and e4m3.
std::vector<UnpackPlan> unpack_plans(const Widths& widths) {
  const auto& plan = bit_plan(widths.bits, widths.operand_bits);
  if (widths.operand_bits == 16) {
    return {unpack_plan(plan, kFloat16Window), unpack_plan(plan, kBfloat16Window),
            unpack_plan(plan, kFloat16Window, Align::rows)};
  }
  std::vector<UnpackPlan> out = {unpack_plan(plan, kByteWindow),
                                 unpack_plan(plan, kByteWindow, Align::top)};
  if (widths.bits <= kE4m3Window) out.push_back(unpack_plan(plan, kE4m3Window));
  return out;
}

/// Every code at every pair in every window, beside it its complement; the other bits all ones,
/// then all zeros.
TEST_P(PlanOfEveryWidth, unpacking_reads_every_code_of_every_pair) {
  const auto [bits, operand_bits] = GetParam();
  const auto& places = bit_plan(bits, operand_bits);
  for (const auto& plan : unpack_plans(GetParam())) {
    for (int pair = 0; pair < operand_bits; ++pair) {
      EXPECT_LE(plan.pairs[pair].offset + bits, plan.window);
      for (std::uint32_t code = 0; code < 1u << bits; ++code) {
        const std::uint32_t other = ~code & ((1u << bits) - 1);
        for (std::uint32_t fill : {0u, ~0u}) {
          std::vector<std::uint32_t> words(bits, fill);
          for (int half = 0; half < 32 / operand_bits; ++half) {
            for (int i = 0; i < bits; ++i) {
              const auto at = places.pairs[pair][i];
              const std::uint32_t mask = 1u << (operand_bits * half + at.bit);
              const bool set = ((half % 2 == 0 ? code : other) >> i & 1) != 0;
              words[at.word] = set ? words[at.word] | mask : words[at.word] & ~mask;
            }
          }
          if (operand_bits == 16) {
            ASSERT_THAT(unpack_pair(plan, words.data(), pair), ::testing::ElementsAre(code, other));
          } else {
            ASSERT_THAT(unpack_quad(plan, words.data(), pair),
                        ::testing::ElementsAre(code, other, code, other));
          }
        }
      }
    }
  }
}

TEST_P(PlanOfEveryWidth, pairs_of_one_accumulator_lie_at_one_offset) {
  for (const auto& plan : unpack_plans(GetParam())) {
    // Products of bfloat16 codes in place underflow: they are aligned by a multiply-add.
    if (plan.operand_bits == 16 && plan.window == kBfloat16Window) continue;
    for (std::size_t pair = 0; pair < plan.pairs.size(); ++pair) {
      EXPECT_EQ(plan.pairs[pair].offset, plan.pairs[pair ^ 2].offset) << to_string(plan);
    }
  }
}

TEST(BitPlan, signed_bytes_read_every_code_at_the_top_of_its_byte) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const auto& quad : unpack_plan(bit_plan(bits, 8), kByteWindow, Align::top).pairs) {
      EXPECT_EQ(quad.offset, 8 - bits);
    }
  }
}

/// Per unit of 32 codes. Unsigned bytes need no shift where the codes lie side by side in a byte
/// and every offset has two quads.
TEST(BitPlan, bytes_cost_what_the_counts_in_its_table_say) {
  struct Row {
    int bits, in_place_masks, in_place_shifts, top_masks, top_shifts;
  };
  const Row rows[] = {{1, 8, 1, 8, 7},    {2, 8, 0, 8, 6},    {3, 10, 3, 10, 9},  {4, 8, 0, 8, 4},
                      {5, 12, 7, 12, 11}, {6, 12, 6, 12, 10}, {7, 14, 7, 14, 13}, {8, 8, 0, 8, 0}};
  for (auto [bits, masks, shifts, top_masks, top_shifts] : rows) {
    const auto& places = bit_plan(bits, 8);
    const auto in_place = unpack_plan(places, kByteWindow);
    const auto top = unpack_plan(places, kByteWindow, Align::top);
    EXPECT_EQ(in_place.mask_count(), masks) << to_string(in_place);
    EXPECT_EQ(in_place.shift_count(), shifts) << to_string(in_place);
    EXPECT_EQ(top.mask_count(), top_masks) << to_string(top);
    EXPECT_EQ(top.shift_count(), top_shifts) << to_string(top);
  }
}

TEST(BitPlan, four_bits_of_a_signed_byte_are_a_mask_or_a_shift_and_a_mask) {
  const auto plan = unpack_plan(bit_plan(4, 8), kByteWindow, Align::top);
  EXPECT_THAT(plan.pairs[0].pieces, ::testing::ElementsAre(UnpackPiece{0, -4, 0xf0f0f0f0}));
  EXPECT_THAT(plan.pairs[1].pieces, ::testing::ElementsAre(UnpackPiece{0, 0, 0xf0f0f0f0}));
}

TEST(BitPlan, costs_what_the_counts_in_its_table_say) {
  struct Row {
    int bits, masks, shifts;  // per unit of 32 codes, float16 window
  };
  for (auto [bits, masks, shifts] : {Row{1, 16, 1}, {2, 16, 2}, {4, 16, 4}, {8, 16, 8}}) {
    const auto plan = unpack_plan(bits, kFloat16Window);
    EXPECT_EQ(plan.mask_count(), masks) << bits;
    EXPECT_EQ(plan.shift_count(), shifts) << bits;
  }
  EXPECT_EQ(unpack_plan(3, kFloat16Window).mask_count(), 18);
  EXPECT_EQ(unpack_plan(3, kFloat16Window).shift_count(), 5);
}

TEST(BitPlan, by_rows_every_step_has_the_offsets_of_the_first) {
  for (int bits = 1; bits <= 8; ++bits) {
    const auto plan = unpack_plan(bit_plan(bits), kFloat16Window, Align::rows);
    for (int pair = 2; pair < kPairsPerUnit; ++pair) {
      EXPECT_EQ(plan.pairs[pair].offset, plan.pairs[pair % 2].offset) << to_string(plan);
    }
  }
}

TEST(BitPlan, by_rows_costs_what_the_counts_in_its_table_say) {
  struct Row {
    int bits, masks, shifts, left;  // per unit of 32 codes, float16 window
  };
  for (auto [bits, masks, shifts, left] :
       {Row{1, 16, 7, 4}, {2, 16, 6, 2}, {3, 18, 11, 3}, {4, 16, 4, 0}, {8, 16, 8, 0}}) {
    const auto plan = unpack_plan(bit_plan(bits), kFloat16Window, Align::rows);
    EXPECT_EQ(plan.mask_count(), masks) << bits;
    EXPECT_EQ(plan.shift_count(), shifts) << bits;
    EXPECT_EQ(plan.shift_count() - plan.right_shift_count(), left) << bits;
  }
}

TEST(InPlace, every_code_is_its_base_and_a_multiple_of_one_power_of_two) {
  for (Scalar operand : {Scalar::f16, Scalar::bf16}) {
    for (int bits = 1; bits <= 8; ++bits) {
      EXPECT_EQ(fits_in_place(bits, operand), operand == Scalar::f16 || bits <= 4) << bits;
      if (!fits_in_place(bits, operand)) continue;
      const InPlace& codes = in_place(bits, operand);
      for (int parity = 0; parity < 2; ++parity) {
        const int offset = codes.plan.pairs[parity].offset;
        for (std::uint32_t code = 0; code < 1u << bits; ++code) {
          EXPECT_EQ(to_number(operand, code << offset | codes.joined),
                    codes.base + std::ldexp(code, codes.exponent[parity]));
        }
        EXPECT_LE(codes.base, std::ldexp(16, codes.exponent[parity]));
      }
    }
  }
}

TEST(BitPlan, four_bits_are_one_word_per_k_step) {
  const auto plan = unpack_plan(4, kFloat16Window);
  EXPECT_THAT(plan.pairs[5].pieces, ::testing::ElementsAre(UnpackPiece{1, 0, 0x00f000f0}));
  EXPECT_THAT(plan.pairs[6].pieces, ::testing::ElementsAre(UnpackPiece{1, 8, 0x000f000f}));
}

TEST(BitPlan, nine_bits_are_refused) {
  EXPECT_THAT([] { bit_plan(9); },
              ::testing::ThrowsMessage<Unsupported>("no weight image for codes of 9 bits"));
}

TEST(BitPlan, operands_of_other_widths_and_wrong_windows_are_refused) {
  EXPECT_THAT([] { bit_plan(4, 32); },
              ::testing::ThrowsMessage<Unsupported>("no weight image for operands of 32 bits"));
  EXPECT_THROW(block_fragment(4), Unsupported);
  EXPECT_THROW(unpack_plan(bit_plan(5, 8), kE4m3Window), Unsupported);
  EXPECT_THROW(unpack_plan(bit_plan(5, 8), kFloat16Window), InvalidArgument);
  EXPECT_THROW(unpack_plan(bit_plan(5, 8), kByteWindow, Align::rows), InvalidArgument);
  EXPECT_THROW(unpack_plan(bit_plan(5), kBfloat16Window, Align::rows, 4), Unsupported);
  const std::uint32_t words[4] = {};
  EXPECT_THROW(unpack_pair(unpack_plan(bit_plan(4, 8), kByteWindow), words, 0), InvalidArgument);
  EXPECT_THROW(unpack_quad(unpack_plan(4, kByteWindow), words, 0), InvalidArgument);
}

}  // namespace
}  // namespace ladder
