// SPDX-License-Identifier: Apache-2.0
#include "program/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "integer_layer.h"
#include "pipelines/decode/shared_memory.h"
#include "pipelines/lower.h"

namespace ladder {
namespace {

/// The cheapest schedules of a linear layer.
std::vector<DecodeSchedule> first_choices(const Problem& problem, std::size_t count) {
  std::vector<DecodeSchedule> out;
  for (const auto& candidate : candidates(decide(problem, device("h200")))) {
    if (!candidate.dropped.empty() || out.size() == count) break;
    out.push_back(std::get<DecodeSchedule>(candidate.schedule));
  }
  return out;
}

std::vector<Problem> decode_layers() {
  std::vector<Problem> out;
  for (int bits : {1, 3, 4, 8}) {
    for (auto [n, k] : {std::pair{4096, 4096}, {8192, 8192}, {28672, 8192}, {8192, 28672}}) {
      for (std::int64_t m : {1, 8, 16}) {
        out.push_back(testing::integer_layer(bits, 1 << (bits - 1), 128, Scalar::f16, m, n, k));
      }
    }
  }
  return out;
}

AccessCount of(const Program& program, const std::vector<MemoryTraffic>& rows,
               std::string_view buffer, bool write) {
  AccessCount sum;
  for (const auto& row : rows) {
    if (program.buffers[row.buffer].name == buffer && row.write == write) sum += row.count;
  }
  return sum;
}

/// Shared memory is conflict-free but for one access: a block of a cluster that adds up fewer than
/// 32 rows reads two tokens with one half warp, which lie 4 words apart, 16 words each. It does so
/// once per peer, 4 accesses a block.
TEST(Traffic, decode_kernels_have_no_bank_conflicts_but_where_peers_read_few_rows) {
  for (const Problem& problem : decode_layers()) {
    for (const DecodeSchedule& schedule : first_choices(problem, 6)) {
      const auto program = lower(decide(problem, device("h200")), schedule);
      for (const auto& row : traffic(program, problem.m)) {
        if (program.buffers[row.buffer].level != Level::shared) continue;
        const auto conflicts = row.count.wavefronts - row.count.phases;
        const auto share = schedule.tile_rows() / program.cluster;
        if (!row.write && program.cluster > 1 && share < 32) {
          EXPECT_LE(conflicts, row.count.phases) << to_string(program, {row});
        } else {
          EXPECT_EQ(conflicts, 0) << to_string(schedule) << '\n' << to_string(program, {row});
        }
      }
    }
  }
}

TEST(Traffic, decode_kernels_read_whole_lines_of_the_weight_and_each_once) {
  for (const Problem& problem : decode_layers()) {
    for (const DecodeSchedule& schedule : first_choices(problem, 3)) {
      const auto program = lower(decide(problem, device("h200")), schedule);
      const auto weight = of(program, traffic(program, problem.m), "weight", false);
      EXPECT_EQ(weight.sectors, weight.least_sectors) << to_string(schedule);
      EXPECT_EQ(weight.lines * kLineBytes, weight.sectors * kSectorBytes) << to_string(schedule);
      const auto blocks = schedule.tiles(problem.n) * schedule.splits(problem.k);
      EXPECT_GE(weight.sectors * kSectorBytes * blocks,
                problem.n * problem.k * problem.weight.bits / 8);
    }
  }
}

TEST(Traffic, only_the_tokens_of_the_call_are_read_and_written) {
  const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 8, 8192, 8192);
  auto schedule = first_choices(problem, 1).front();
  if (auto* copy = std::get_if<activations::BulkCopy>(&schedule.activations)) {
    copy->multicast = 1;  // each CTA reads all of its rows
  }
  const auto program = lower(decide(problem, device("h200")), schedule);
  const auto one = traffic(program, 1), eight = traffic(program, 8);
  EXPECT_EQ(of(program, eight, "x", false).sectors, 8 * of(program, one, "x", false).sectors);
  EXPECT_EQ(of(program, eight, "y", true).sectors, 8 * of(program, one, "y", true).sectors);
  EXPECT_EQ(of(program, eight, "weight", false), of(program, one, "weight", false));
}

TEST(Traffic, rows_of_activations_without_padding_conflict_eightfold) {
  const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 8, 8192, 8192);
  auto program = lower(decide(problem, device("h200")), first_choices(problem, 1).front());
  const auto before = of(program, traffic(program, 8), "x_tile", false);
  EXPECT_EQ(before.wavefronts, before.phases);
  for (View& view : program.views) {
    if (program.buffers[view.buffer].name != "x_tile") continue;
    auto& pitch = view.strides[view.strides.size() - 2];
    pitch -= kActivationPadBytes / 2;
  }
  const auto after = of(program, traffic(program, 8), "x_tile", false);
  EXPECT_EQ(after.wavefronts, 8 * before.wavefronts);
  EXPECT_EQ(after.accesses, before.accesses);
}

TEST(Traffic, prints_buffers_counts_and_instructions) {
  const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 8, 4096, 4096);
  const auto program = lower(decide(problem, device("h200")), first_choices(problem, 1).front());
  const auto text = to_string(program, traffic(program, 8));
  EXPECT_THAT(text, ::testing::HasSubstr("reads weight in "));
  EXPECT_THAT(text, ::testing::HasSubstr("writes x_tile in "));
  EXPECT_THAT(text, ::testing::HasSubstr(" wavefronts, 0 conflicts: "));
}

}  // namespace
}  // namespace ladder
