// SPDX-License-Identifier: Apache-2.0
#include "layout/weight_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/error.h"
#include "device/device.h"
#include "layout/bit_plan.h"
#include "layout/in_place.h"

namespace ladder {
namespace {

struct Widths {
  int bits, operand_bits;
};

void PrintTo(const Widths& widths, std::ostream* out) {
  *out << widths.bits << " bits for operands of " << widths.operand_bits;
}

std::vector<Widths> all_widths() {
  std::vector<Widths> out;
  for (int operand_bits : {16, 8}) {
    for (int bits = 1; bits <= 8; ++bits) out.push_back({bits, operand_bits});
  }
  return out;
}

class EveryWidth : public testing::TestWithParam<Widths> {};
INSTANTIATE_TEST_SUITE_P(Bits, EveryWidth, testing::ValuesIn(all_widths()));

TEST_P(EveryWidth, the_plan_uses_each_bit_of_its_words_once) {
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
TEST_P(EveryWidth, unpacking_reads_every_code_of_every_pair) {
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
            ASSERT_THAT(unpack_pair(plan, words.data(), pair), testing::ElementsAre(code, other));
          } else {
            ASSERT_THAT(unpack_quad(plan, words.data(), pair),
                        testing::ElementsAre(code, other, code, other));
          }
        }
      }
    }
  }
}

TEST_P(EveryWidth, pairs_of_one_accumulator_lie_at_one_offset) {
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
  EXPECT_THAT(plan.pairs[0].pieces, testing::ElementsAre(UnpackPiece{0, -4, 0xf0f0f0f0}));
  EXPECT_THAT(plan.pairs[1].pieces, testing::ElementsAre(UnpackPiece{0, 0, 0xf0f0f0f0}));
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
  EXPECT_THAT(plan.pairs[5].pieces, testing::ElementsAre(UnpackPiece{1, 0, 0x00f000f0}));
  EXPECT_THAT(plan.pairs[6].pieces, testing::ElementsAre(UnpackPiece{1, 8, 0x000f000f}));
}

TEST(BitPlan, nine_bits_are_refused) {
  EXPECT_THAT([] { bit_plan(9); },
              testing::ThrowsMessage<Unsupported>("no weight image for codes of 9 bits"));
}

TEST(BitPlan, operands_of_other_widths_and_wrong_windows_are_refused) {
  EXPECT_THAT([] { bit_plan(4, 32); },
              testing::ThrowsMessage<Unsupported>("no weight image for operands of 32 bits"));
  EXPECT_THROW(block_fragment(4), Unsupported);
  EXPECT_THROW(unpack_plan(bit_plan(5, 8), kE4m3Window), Unsupported);
  EXPECT_THROW(unpack_plan(bit_plan(5, 8), kFloat16Window), InvalidArgument);
  EXPECT_THROW(unpack_plan(bit_plan(5, 8), kByteWindow, Align::rows), InvalidArgument);
  EXPECT_THROW(unpack_plan(bit_plan(5), kBfloat16Window, Align::rows, 4), Unsupported);
  const std::uint32_t words[4] = {};
  EXPECT_THROW(unpack_pair(unpack_plan(bit_plan(4, 8), kByteWindow), words, 0), InvalidArgument);
  EXPECT_THROW(unpack_quad(unpack_plan(4, kByteWindow), words, 0), InvalidArgument);
}

std::vector<std::uint32_t> random_rows(std::int64_t n, std::int64_t k, int bits) {
  std::mt19937 random(bits);
  const auto words = (k * bits + 31) / 32;
  std::vector<std::uint32_t> rows(n * words);
  for (auto& word : rows) word = random();
  const int tail = static_cast<int>(k * bits % 32);
  if (tail != 0) {
    for (std::int64_t row = 0; row < n; ++row) rows[(row + 1) * words - 1] &= (1u << tail) - 1;
  }
  return rows;
}

// One block, several, and neither a multiple of the block nor of a word.
TEST_P(EveryWidth, an_image_unpacks_to_the_rows_it_was_packed_from) {
  const auto [bits, operand_bits] = GetParam();
  for (auto [n, k] : {std::pair{64, 64}, {128, 192}, {70, 99}, {1, 1}, {65, 63}, {3, 130}}) {
    const auto rows = random_rows(n, k, bits);
    std::vector<std::uint32_t> image(image_words(n, k, bits)), back(rows.size());
    pack_image(rows.data(), n, k, bits, 0, image.data(), operand_bits);
    unpack_image(image.data(), n, k, bits, back.data(), operand_bits);
    EXPECT_EQ(back, rows) << n << " x " << k;
  }
}

/// Every K that ends at another bit of a word, of a lane's codes or of a block, and its N.
TEST_P(EveryWidth, an_image_of_any_shape_unpacks_to_its_rows) {
  const auto [bits, operand_bits] = GetParam();
  for (std::int64_t k = 1; k <= 130; ++k) {
    const std::int64_t n = 1 + k * 7 % 66;
    const auto rows = random_rows(n, k, bits);
    std::vector<std::uint32_t> image(image_words(n, k, bits)), back(rows.size());
    pack_image(rows.data(), n, k, bits, 0, image.data(), operand_bits);
    unpack_image(image.data(), n, k, bits, back.data(), operand_bits);
    ASSERT_EQ(back, rows) << n << " x " << k;
  }
}

TEST_P(EveryWidth, image_place_agrees_with_the_packer) {
  const auto [bits, operand_bits] = GetParam();
  const std::int64_t n = 128, k = 128;
  const auto rows = random_rows(n, k, bits);
  std::vector<std::uint32_t> image(image_words(n, k, bits));
  pack_image(rows.data(), n, k, bits, 0, image.data(), operand_bits);
  for (std::int64_t row = 0; row < n; row += 7) {
    for (std::int64_t column = 0; column < k; ++column) {
      for (int bit = 0; bit < bits; ++bit) {
        const auto at = image_place(k, bits, row, column, bit, operand_bits);
        const auto canonical = column * bits + bit;
        EXPECT_EQ(image[at.word] >> at.bit & 1,
                  rows[row * (k * bits / 32) + canonical / 32] >> canonical % 32 & 1);
      }
    }
  }
}

TEST_P(EveryWidth, padding_holds_the_pad_code) {
  const auto [bits, operand_bits] = GetParam();
  const std::uint32_t pad = (1u << bits) / 2;
  std::vector<std::uint32_t> row((65 * bits + 31) / 32), wide((128 * bits) / 32 * 64);
  std::vector<std::uint32_t> image(image_words(1, 65, bits));
  pack_image(row.data(), 1, 65, bits, pad, image.data(), operand_bits);
  unpack_image(image.data(), 64, 128, bits, wide.data(), operand_bits);
  for (std::int64_t r = 0; r < 64; ++r) {
    for (std::int64_t c = 0; c < 128; ++c) {
      std::uint32_t code = 0;
      for (int i = 0; i < bits; ++i) {
        const auto at = (r * 128 + c) * bits + i;
        code |= (wide[at / 32] >> at % 32 & 1) << i;
      }
      ASSERT_EQ(code, r < 1 && c < 65 ? 0 : pad);
    }
  }
}

TEST(WeightImage, a_block_is_whole_a_operands_of_the_instructions_that_multiply_it) {
  int checked = 0;
  for (const auto& row : matrix_instructions()) {
    if (row.family != Family::nvidia || row.fragment != Fragment::warp || row.m != 16) continue;
    if (row.operand_bits() * row.k != 256) continue;
    ++checked;
    const auto instructions = block_fragment(row.operand_bits()) / row.a();
    ASSERT_TRUE(instructions) << row.name;
    EXPECT_THAT(instructions->shape, testing::ElementsAre(4, 64 / row.k)) << row.name;
    EXPECT_EQ(instructions->thread_count(), 1) << row.name;
  }
  EXPECT_GE(checked, 4);  // two of halves, two of bytes
}

TEST(ScaleImage, a_lane_finds_the_scales_of_its_rows_side_by_side) {
  const std::int64_t n = 100, groups = 3;
  std::vector<std::uint16_t> scales(n * groups), image(groups * 2 * 64);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint16_t>(i + 1);
  pack_scales(scales.data(), n, groups, 0, image.data());
  const auto fragment = scale_fragment();
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t block = 0; block < 2; ++block) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int j = 0; j < 8; ++j) {
          const auto row = block * 64 + fragment(lane, j)[0];
          EXPECT_EQ(image[(group * 2 + block) * 64 + lane / 4 * 8 + j],
                    row < n ? scales[row * groups + group] : 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ladder
