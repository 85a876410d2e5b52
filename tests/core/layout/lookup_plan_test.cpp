// SPDX-License-Identifier: Apache-2.0
#include "layout/lookup_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace ladder {
namespace {

TEST(LookupPlan, gives_the_byte_at_which_the_entry_of_each_pair_begins) {
  std::mt19937 draw(1);
  for (int bits = 1; bits <= 8; ++bits) {
    const auto codes = unpack_plan(bits, kFloat16Window);
    for (bool joint : {true, false}) {
      if (joint && bits > 4) continue;
      const auto plan = lookup_plan(bit_plan(bits), joint);
      ASSERT_EQ(plan.size(), std::size_t{kPairsPerUnit});
      for (int trial = 0; trial < 100; ++trial) {
        std::uint32_t words[8];
        for (auto& word : words) word = draw();
        for (int pair = 0; pair < kPairsPerUnit; ++pair) {
          const auto [low, high] = unpack_pair(codes, words, pair);
          const auto from = read_pieces(plan[pair].pieces, words);
          const auto at = [&](int i) {
            return sum_of_products(from, plan[pair].weights.at(i), plan[pair].by_bytes);
          };
          if (joint) {
            EXPECT_EQ(at(0), (low | high << bits) * kLookupBytes) << bits << ", pair " << pair;
          } else {
            EXPECT_EQ(at(0), low * kLookupBytes) << bits << ", pair " << pair;
            EXPECT_EQ(at(1), high * kLookupBytes) << bits << ", pair " << pair;
          }
        }
      }
    }
  }
}

// What made tables slow was shifting every code into place: 2 to 3 shifts a pair.
TEST(LookupPlan, hardly_shifts) {
  const auto shifts = [](int bits) {
    int count = 0;
    for (const auto& pair : lookup_plan(bit_plan(bits), bits <= 4)) {
      for (const auto& piece : pair.pieces) count += piece.shift != 0;
    }
    return count;
  };
  // Of 4 bits, every second pair by the shift of its word that it shares with one more.
  const int expected[] = {2, 4, 8, 8, 4, 4, 6, 0};
  for (int bits = 1; bits <= 8; ++bits) EXPECT_EQ(shifts(bits), expected[bits - 1]) << bits;
}

TEST(LookupPlan, whole_bytes_need_no_mask) {
  for (const auto& pair : lookup_plan(bit_plan(8), false)) {
    ASSERT_EQ(pair.pieces.size(), 1u);
    EXPECT_EQ(pair.pieces.front().mask, ~0u);
    EXPECT_TRUE(pair.by_bytes);
  }
}

TEST(LookupPlan, refuses_indices_of_more_than_eight_bits) {
  EXPECT_THAT([] { lookup_plan(bit_plan(5), true); },
              ::testing::ThrowsMessage<Unsupported>("no table of pairs of codes of 5 bits"));
}

}  // namespace
}  // namespace ladder
