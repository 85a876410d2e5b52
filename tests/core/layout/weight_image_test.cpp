// SPDX-License-Identifier: Apache-2.0
#include "layout/weight_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "device/device.h"
#include "layout/widths.h"

namespace ladder {
namespace {

using testing::Widths;

class EveryWidth : public ::testing::TestWithParam<Widths> {};
INSTANTIATE_TEST_SUITE_P(Bits, EveryWidth, ::testing::ValuesIn(testing::all_widths()));

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
    EXPECT_THAT(instructions->shape, ::testing::ElementsAre(4, 64 / row.k)) << row.name;
    EXPECT_EQ(instructions->thread_count(), 1) << row.name;
  }
  EXPECT_GE(checked, 4);  // two of halves, two of bytes
}

}  // namespace
}  // namespace ladder
