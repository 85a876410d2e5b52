// SPDX-License-Identifier: Apache-2.0
#include "layout/conflicts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"

namespace ladder {
namespace {

/// Addresses f(lane) of a warp.
template <class F>
std::vector<std::int64_t> lanes(const F& f, int count = 32) {
  std::vector<std::int64_t> out;
  for (int lane = 0; lane < count; ++lane) out.push_back(f(lane));
  return out;
}

TEST(BankConflicts, a_stride_of_words_conflicts_by_its_power_of_two) {
  for (auto [stride, wavefronts] : {std::pair{1, 1},
                                    {2, 2},
                                    {3, 1},
                                    {4, 4},
                                    {5, 1},
                                    {6, 2},
                                    {8, 8},
                                    {16, 16},
                                    {32, 32},
                                    {33, 1},
                                    {64, 32}}) {
    EXPECT_EQ(shared_wavefronts(lanes([&](int l) { return 4 * stride * l; }), 4), wavefronts)
        << stride;
  }
}

TEST(BankConflicts, lanes_that_want_one_word_share_its_read) {
  EXPECT_EQ(shared_wavefronts(lanes([](int) { return 512; }), 4), 1);
  EXPECT_EQ(shared_wavefronts(lanes([](int l) { return l % 8 * 4; }), 4), 1);
  EXPECT_EQ(shared_wavefronts(lanes([](int l) { return 2 * l; }), 2), 1);  // halves of words
  EXPECT_EQ(shared_wavefronts(lanes([](int l) { return l / 2 * 128; }), 4), 16);
}

TEST(BankConflicts, wide_accesses_are_served_by_halves_and_quarters_of_a_warp) {
  EXPECT_EQ(shared_wavefronts(lanes([](int l) { return 8 * l; }), 8), 2);
  EXPECT_EQ(shared_wavefronts(lanes([](int l) { return 16 * l; }), 16), 4);
  // Lanes of different quarters do not meet.
  EXPECT_EQ(shared_wavefronts(lanes([](int l) { return l % 8 * 16 + l / 8 * 1024; }), 16), 4);
  // Lanes l and l + 4 of one quarter do.
  EXPECT_EQ(shared_wavefronts(lanes([](int l) { return 32 * l; }), 16), 8);
  EXPECT_EQ(shared_phases(lanes([](int l) { return 32 * l; }), 16), 4);
}

TEST(BankConflicts, idle_lanes_cost_nothing) {
  const auto first_eight = lanes([](int l) { return l < 8 ? 16 * l : kIdleLane; });
  EXPECT_EQ(shared_wavefronts(first_eight, 16), 1);
  EXPECT_EQ(shared_phases(first_eight, 16), 1);
  EXPECT_EQ(count_access(lanes([](int) { return kIdleLane; }), 4), AccessCount{});
}

/// Against counting words bank by bank, over random addresses.
TEST(BankConflicts, a_phase_takes_the_most_words_of_any_bank) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int bytes = 1 << trial % 5;
    const auto addresses = lanes([&](int) { return random() % 512 / bytes * bytes; });
    int wanted = 0;
    const int together = bytes == 16 ? 8 : bytes == 8 ? 16 : 32;
    for (int first = 0; first < 32; first += together) {
      std::set<std::int64_t> words[32];
      for (int l = first; l < first + together; ++l) {
        for (int i = 0; i < bytes; ++i) {
          const auto word = (addresses[l] + i) / 4;
          words[word % 32].insert(word);
        }
      }
      std::size_t most = 0;
      for (const auto& bank : words) most = std::max(most, bank.size());
      wanted += static_cast<int>(most);
    }
    EXPECT_EQ(shared_wavefronts(addresses, bytes), wanted);
  }
}

TEST(BankConflicts, transposing_a_tile_wants_rows_of_33_words) {
  const auto columns = column_spatial({32, 1}) * local({1, 32});  // each lane a row: reads columns
  const auto plain = count_access(TileAccess{columns, {32, 1}, 4, 1});
  EXPECT_EQ(plain.accesses, 32);
  EXPECT_EQ(plain.wavefronts, 32 * 32);
  EXPECT_EQ(plain.phases, 32);
  EXPECT_EQ(count_access(TileAccess{columns, {33, 1}, 4, 1}).wavefronts, 32);
  const auto rows = spatial({1, 32}) * local({32, 1});
  EXPECT_EQ(count_access(TileAccess{rows, {33, 1}, 4, 1}).wavefronts, 32);
}

/// Eight rows of 16 bytes, as load-matrix reads them, out of rows of 128 bytes.
TEST(BankConflicts, the_rows_of_a_matrix_want_padding_or_a_swizzle) {
  const auto rows = spatial({8, 1}) * local({1, 8});
  EXPECT_EQ(count_access(TileAccess{rows, {64, 1}, 2, 8}).wavefronts, 8);
  EXPECT_EQ(count_access(TileAccess{rows, {72, 1}, 2, 8}).wavefronts, 1);
  EXPECT_EQ(count_access(TileAccess{rows, {64, 1}, 2, 8, swizzle(10, 3, 4, 3)}).wavefronts, 1);
  EXPECT_EQ(count_access(TileAccess{rows, {64, 1}, 2, 8, swizzle(10, 2, 4, 3)}).wavefronts, 2);
  EXPECT_EQ(count_access(TileAccess{rows, {32, 1}, 2, 8, swizzle(9, 2, 4, 3)}).wavefronts, 1);
}

TEST(GlobalTransactions, count_the_sectors_and_lines_that_are_touched) {
  const auto count = [](const std::vector<std::int64_t>& addresses, int bytes) {
    return global_transactions(addresses, bytes);
  };
  EXPECT_EQ(count(lanes([](int l) { return 4 * l; }), 4), (GlobalTransactions{4, 1}));
  EXPECT_EQ(count(lanes([](int l) { return 16 + 4 * l; }), 4), (GlobalTransactions{5, 2}));
  EXPECT_EQ(count(lanes([](int l) { return 16 * l; }), 16), (GlobalTransactions{16, 4}));
  EXPECT_EQ(count(lanes([](int l) { return 128 * l; }), 4), (GlobalTransactions{32, 32}));
  EXPECT_EQ(count(lanes([](int) { return 64; }), 4), (GlobalTransactions{1, 1}));
}

TEST(GlobalTransactions, the_least_sectors_hold_what_was_wanted) {
  EXPECT_EQ(least_sectors(lanes([](int l) { return 128 * l; }), 4), 4);
  EXPECT_EQ(least_sectors(lanes([](int) { return 64; }), 16), 1);
  EXPECT_EQ(least_sectors(lanes([](int l) { return l < 3 ? 16 * l : kIdleLane; }), 16), 2);
}

TEST(GlobalTransactions, a_tile_adds_up_its_accesses) {
  const auto rows = spatial({32, 1}) * local({1, 8});  // a lane per row of 8 elements
  const auto one = count_access(TileAccess{rows, {4096, 1}, 2, 8});
  EXPECT_EQ(one, (AccessCount{1, 32, 4, 32, 16, 32}));  // half of every sector is wasted
  const auto words = count_access(TileAccess{rows, {4096, 1}, 2, 2});
  EXPECT_EQ(words.accesses, 4);
  EXPECT_EQ(words.sectors, 4 * 32);
  EXPECT_EQ(words.least_sectors, 4 * 4);
}

TEST(BankConflicts, what_no_instruction_does_is_refused) {
  EXPECT_THROW(shared_wavefronts(lanes([](int l) { return 12 * l; }), 12), InvalidArgument);
  EXPECT_THROW(shared_wavefronts(lanes([](int l) { return 4 * l; }), 8), InvalidArgument);
  EXPECT_THROW(shared_wavefronts(lanes([](int l) { return 4 * l; }, 33), 4), InvalidArgument);
  EXPECT_THAT(
      ([] {
        count_access(TileAccess{spatial({32, 1}) * local({1, 2}), {1, 32}, 4, 2});
      }),
      testing::ThrowsMessage<InvalidArgument>("slots 0 and 1 of thread 0 do not lie together"));
}

}  // namespace
}  // namespace ladder
