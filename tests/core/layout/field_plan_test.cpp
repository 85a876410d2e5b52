// SPDX-License-Identifier: Apache-2.0
#include "layout/field_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/error.h"

namespace ladder {
namespace {

TEST(FieldPlan, reads_the_fields_that_moving_bits_gives) {
  std::mt19937 random(2);
  for (int bits = 2; bits <= 8; ++bits) {
    const BitPlan& codes = bit_plan(bits);
    for (int place = 0; place + bits <= 16; ++place) {
      const FieldPlan& plan = field_plan(bits, place);
      for (int round = 0; round < 50; ++round) {
        std::array<std::uint32_t, 8> words;
        for (auto& word : words) word = random();
        for (int pair = 0; pair < kPairsPerUnit; ++pair) {
          const auto both = read_pieces(move_bits(codes, pair, 0, bits - 1, place), words.data()) |
                            read_pieces(move_bits(codes, pair, bits - 1, 1, 15), words.data());
          ASSERT_EQ(read_fields(plan, words.data(), pair), both) << bits << ' ' << place;
        }
      }
    }
  }
}

// Pair by pair: two masks each, and the shifts.
TEST(FieldPlan, shares_what_pairs_of_few_bits_have_in_common) {
  struct Row {
    int bits, place, masks, right, left;
  };
  for (const auto& [bits, place, masks, right, left] : {
           Row{4, 9, 24, 4, 16},  // e2m1 in f16: of 32, 4, 24
           {4, 6, 24, 4, 16},     // and in bf16
           {3, 10, 24, 5, 15},    // e2m0 in f16
           {3, 7, 24, 5, 15},     // and in bf16
           {8, 7, 32, 8, 16},     // e4m3: no two of a word
       }) {
    const FieldPlan& plan = field_plan(bits, place);
    EXPECT_EQ(plan.mask_count(), masks) << bits << ' ' << place;
    EXPECT_EQ(plan.right_shift_count(), right) << bits << ' ' << place;
    EXPECT_EQ(plan.left_shift_count(), left) << bits << ' ' << place;
  }
  EXPECT_EQ(field_plan(8, 8).mask_count(), 16);  // e5m2: where both distances are one
}

TEST(FieldPlan, has_no_room_above_the_sign) {
  EXPECT_THROW(field_plan(8, 9), InvalidArgument);
  EXPECT_THROW(field_plan(9, 0), InvalidArgument);
}

}  // namespace
}  // namespace ladder
