// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/wavefronts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "expr/constructors.h"
#include "integer_layer.h"
#include "pipelines/lower.h"
#include "program/traffic.h"

namespace ladder {
namespace {

TEST(SharedWavefronts, are_those_of_activations_matrices_and_ring) {
  const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 8, 4096, 4096);
  const DecodeSchedule schedule{.tokens = 8,
                                .warps_n = 4,
                                .warps_k = 1,
                                .blocks_per_warp = 2,
                                .weights = weights::Ring{.k_tiles = 4, .stages = 3},
                                .reduction = Reduction::cluster,
                                .route = Route::in_place,
                                .ctas_per_sm = 3};
  // 512 columns: 8 rows of 1 KiB; four warps read 64 matrices each, without conflicts; 64 KiB of
  // weights go in and out.
  EXPECT_EQ(shared_wavefronts(schedule, problem), 8 * 1024 / 128 + 4 * 64 + 2 * 65536 / 128);
}

TEST(SharedWavefronts, of_a_schedule_are_never_more_than_its_program_takes) {
  for (int bits : {1, 4, 7}) {
    for (std::int64_t m : {1, 16}) {
      const Problem problem =
          testing::integer_layer(bits, 1 << (bits - 1), 128, Scalar::f16, m, 8192, 8192);
      int kept = 0;
      for (const auto& candidate : candidates(decide(problem, device("h200")))) {
        if (!candidate.dropped.empty() || ++kept > 6) break;
        const auto program = lower(decide(problem, device("h200")), candidate.schedule);
        const auto counted = total(program, traffic(program, m), Level::shared);
        EXPECT_LE(shared_wavefronts(std::get<DecodeSchedule>(candidate.schedule), problem),
                  counted.wavefronts)
            << to_string(candidate.schedule);
      }
      EXPECT_GT(kept, 0);
    }
  }
}

TEST(SharedWavefronts, count_the_look_ups_of_a_table) {
  for (const char* type : {"nf4,scale=float16", "float8_e4m3fnuz,scale=float16"}) {
    const auto problem = linear_of(ttype(type), 1024, 1024, Scalar::f16, 1);
    int kept = 0;
    for (const auto& candidate : candidates(decide(problem, device("h200")))) {
      if (!candidate.dropped.empty() || ++kept > 6) break;
      const auto& schedule = std::get<DecodeSchedule>(candidate.schedule);
      const auto program = lower(decide(problem, device("h200")), schedule);
      const auto pairs =
          schedule.tile_rows() * schedule.cta_columns() * schedule.tiles_per_cta() / 2;
      std::int64_t wavefronts = 0;
      for (const auto& row : traffic(program, 1)) {
        const auto& buffer = program.buffers[row.buffer];
        if (buffer.name == "code_table" && !row.write) wavefronts += row.count.wavefronts;
      }
      EXPECT_EQ(wavefronts, pairs / 32 * (problem.weight.bits > 4 ? 2 : 1)) << to_string(schedule);
      EXPECT_LT(wavefronts, shared_wavefronts(schedule, problem)) << to_string(schedule);
      EXPECT_LE(shared_wavefronts(schedule, problem),
                total(program, traffic(program, 1), Level::shared).wavefronts);
    }
    EXPECT_GT(kept, 0);
  }
}

TEST(SharedWavefronts, grow_with_the_tokens_and_do_not_bind_decoding_of_one_bit) {
  // Matrices grow with the tokens, codes do not.
  const Problem few = testing::integer_layer(1, 1, 128, Scalar::f16, 8, 8192, 8192);
  auto schedule = std::get<DecodeSchedule>(best_schedule(decide(few, device("h200"))));
  const auto before = cost(schedule, decide(few, device("h200")));
  EXPECT_LT(before.shared_seconds, before.issue_seconds);
  Problem many = few;
  schedule.tokens *= 2, many.m *= 2;
  EXPECT_GT(cost(schedule, decide(many, device("h200"))).shared_seconds,
            1.5 * before.shared_seconds);
}

// Two look-ups a pair: at a slower clock, they would be what a schedule waits for, and its estimate
// says so. (Faster memory would need more warps to hide it, which by itself makes it longer.)
TEST(SharedWavefronts, bind_the_estimate_where_they_take_longest) {
  Device slow = device("h200");
  slow.f32_flops /= 16;
  const auto problem =
      linear_of(ttype("float8_e4m3fnuz,scale=float16"), 28672, 8192, Scalar::f16, 8);
  int bound = 0;
  for (const auto& candidate : candidates(decide(problem, slow))) {
    if (!candidate.dropped.empty()) break;
    const Cost& c = candidate.cost;
    EXPECT_GE(c.seconds, c.shared_seconds + c.fixed_seconds) << to_string(candidate.schedule);
    bound += c.shared_seconds > std::max(c.issue_seconds, c.memory_seconds) ? 1 : 0;
  }
  EXPECT_GT(bound, 0);
}

}  // namespace
}  // namespace ladder
