// SPDX-License-Identifier: Apache-2.0
#include "layout/word_permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "layout/pack_plan.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

std::vector<std::uint32_t> random_words(std::mt19937& random, std::size_t count) {
  std::vector<std::uint32_t> words(count);
  for (auto& word : words) word = static_cast<std::uint32_t>(random());
  return words;
}

/// The permutation bit by bit.
std::vector<std::uint32_t> by_definition(const std::vector<int>& to,
                                         const std::vector<std::uint32_t>& words) {
  std::vector<std::uint32_t> out(words.size());
  for (std::size_t from = 0; from < words.size() * 32; ++from) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < to.size(); ++i) at |= (from >> i & 1) << to[i];
    out[at / 32] |= (words[from / 32] >> from % 32 & 1) << at % 32;
  }
  return out;
}

TEST(WordPermutation, a_plan_moves_every_bit_where_its_number_says_and_back) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<int> to(5 + trial % 4);
    std::iota(to.begin(), to.end(), 0);
    std::shuffle(to.begin(), to.end(), random);
    const auto plan = plan_words(to);
    const auto before = random_words(random, std::size_t{1} << (to.size() - 5));
    auto words = before;
    permute(plan, words.data());
    ASSERT_EQ(words, by_definition(to, before)) << to_string(plan);
    permute_back(plan, words.data());
    ASSERT_EQ(words, before) << to_string(plan);
  }
}

TEST(WordPermutation, bytes_and_words_cost_less_than_bits) {
  EXPECT_EQ(plan_words({0, 1, 2, 3, 4, 6, 5}).cost_per_word(), 0);  // another order of words
  EXPECT_EQ(plan_words({0, 1, 2, 4, 3}).cost_per_word(), 1);        // of bytes
  EXPECT_EQ(plan_words({0, 1, 2, 3, 5, 4}).cost_per_word(), 1);     // of halves of two words
  EXPECT_EQ(plan_words({5, 1, 2, 3, 4, 0}).cost_per_word(), 2);
  EXPECT_EQ(plan_words({1, 0, 2, 3, 4}).cost_per_word(), 4);
}

TEST(WordPermutation, what_is_no_permutation_is_refused) {
  EXPECT_THROW(plan_words({0, 1, 2, 3, 3}), InvalidArgument);
  EXPECT_THROW(plan_words({0, 1, 2, 3}), InvalidArgument);
}

class WholeWords : public testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(BitsAndOperands, WholeWords,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(16, 8)));

/// What the kernels of codegen/weights/image_words.h do, one quad of lanes at a time.
TEST_P(WholeWords, permuting_the_words_of_two_rows_gives_those_of_four_lanes) {
  const auto [bits, operand_bits] = GetParam();
  const int b = bits;
  std::mt19937 random(b);
  const auto rows = random_words(random, 64 * 2 * b);
  std::vector<std::uint32_t> image(image_words(64, 64, b)), ours(image.size()), back(rows.size());
  pack_image(rows.data(), 64, 64, b, 0, image.data(), operand_bits);
  const auto plan = image_permutation(b, operand_bits);
  for (int u = 0; u < 4; ++u) {
    for (int g = 0; g < 8; ++g) {
      std::vector<std::uint32_t> words(4 * b);
      const auto row = [&](int i) {
        return (16 * u + g + 8 * (i / (2 * b))) * 2 * b + i % (2 * b);
      };
      for (int i = 0; i < 4 * b; ++i) words[i] = rows[row(i)];
      permute(plan, words.data());
      for (int j = 0; j < 4 * b; ++j) {
        const int index = u * b + j % b;  // of the lane
        ours[index / 4 * 128 + (4 * g + j / b) * 4 + index % 4] = words[j];
      }
      permute_back(plan, words.data());
      for (int i = 0; i < 4 * b; ++i) back[row(i)] = words[i];
    }
  }
  EXPECT_EQ(ours, image);
  EXPECT_EQ(back, rows);
}

TEST(WholeWords, cost_less_than_an_instruction_for_each_code) {
  EXPECT_EQ(image_permutation(1).cost_per_word(), 12);  // for 32 codes
  EXPECT_EQ(image_permutation(2).cost_per_word(), 8);   // for 16
  EXPECT_THROW(image_permutation(3), Unsupported);
  EXPECT_THROW(image_permutation(8), Unsupported);
}

}  // namespace
}  // namespace ladder
