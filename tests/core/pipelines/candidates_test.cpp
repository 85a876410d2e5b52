// SPDX-License-Identifier: Apache-2.0
//
// What decode schedules take from Algorithm 1, and what its own tiles lack for a few tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "codegen/target.h"
#include "device/hint.h"
#include "expr/constructors.h"
#include "layout/weight_image.h"
#include "pipelines/decode/shared_memory.h"
#include "pipelines/schedule.h"
#include "schedule/tile_plan.h"

namespace ladder {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// Devices that decode kernels are written for.
std::vector<const Device*> targets() {
  std::vector<const Device*> out;
  for (const Device& device : devices()) {
    if (device.family != Family::nvidia || !no_target(device).empty()) continue;
    if (!tile_instruction(Scalar::f16, device)->by_waves()) out.push_back(&device);
  }
  return out;
}

OperandDecisions decided(const char* type, std::int64_t m, std::int64_t n, std::int64_t k,
                         const Device& device) {
  return decide(linear_of(ttype(type), n, k, Scalar::f16, m), device).of(Route::multiply_add);
}

// 64 columns of float16 are one run, which every level moves whole; 64 rows and columns are whole
// tiles of the hint.
TEST(Candidates, blocks_of_the_image_are_whole_runs_and_tiles_of_every_devices_hint) {
  for (const Device* device : targets()) {
    const auto decisions = decided("uint4", 8, 64, 64, *device);
    const auto& row = *decisions.core.instruction;
    const Hint& found = decisions.hint;
    EXPECT_EQ(found.run_bytes() * 8 / row.operand_bits(), kBlock) << device->name;
    const auto elements = found.run_bytes() * found.shape[0] * 8 / row.operand_bits();
    EXPECT_EQ(kBlock * kBlock % elements, 0) << device->name;
    EXPECT_EQ(kBlock, kUnits * row.m) << device->name;
  }
}

// Of every width and kind: none falls back to products by single warps.
TEST(Candidates, have_tiles_of_warpgroups_on_hopper) {
  for (const char* type :
       {"uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "int7", "int8", "float6_e3m2",
        "float5_e2m2", "nf4", "mxfp4", "nvfp4", "uint4,group=128,scale=float16,zero=integer",
        "uint3,group=128,scale=float16,zero=integer", "uint4,group=128,scale=float16,zero=original",
        "uint4,group=32,scale=bfloat16,zero=rescale"}) {
    for (std::int64_t m : {40, 64, 128, 256}) {
      const auto problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, m);
      const auto all = candidates(decide(problem, device("h200")));
      EXPECT_TRUE(std::ranges::any_of(
          all,
          [](const Candidate& candidate) {
            const auto* tile = std::get_if<TileSchedule>(&candidate.schedule);
            return candidate.dropped.empty() && tile != nullptr && tile->warpgroups;
          }))
          << type << ", " << m << " tokens";
    }
  }
}

/// A candidate of rounded activations is left that tiles by warpgroups, or by warps.
bool has_tile(const char* type, Scalar x, std::int64_t m, const Device& device, bool warpgroups) {
  Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, m);
  problem.round_x(x);
  return std::ranges::any_of(candidates(decide(problem, device)), [&](const Candidate& candidate) {
    const auto* tile = std::get_if<TileSchedule>(&candidate.schedule);
    return candidate.dropped.empty() && tile != nullptr && tile->warpgroups == warpgroups;
  });
}

constexpr const char* kIntegers[] = {"uint1",
                                     "uint2,group=128,scale=float16",
                                     "int3,group=32,scale=float16",
                                     "uint4,group=128,scale=float16",
                                     "uint4,group=128,scale=float16,zero=integer",
                                     "uint5,channel",
                                     "uint6,group=64,scale=bfloat16",
                                     "int7,channel",
                                     "int8",
                                     "uint8,group=128,scale=float16,zero=integer",
                                     "ternary,group=128,scale=float16",
                                     "uint3,group=64,scale=float16,zero=rescale"};
constexpr const char* kFloats[] = {"mxfp4",
                                   "float8_e4m3,channel",
                                   "float3_e1m1",
                                   "float5_e2m2",
                                   "float6_e3m2",
                                   "float6_e2m3",
                                   "uint4",
                                   "int4,group=32,scale=bfloat16",
                                   "uint4,group=128,scale=float16,zero=integer"};

TEST(Candidates, of_rounded_activations_have_tiles_of_warpgroups_on_hopper) {
  for (std::int64_t m : {32, 64, 192, 512, 2048, 4096}) {
    for (const char* type : kIntegers) {
      EXPECT_TRUE(has_tile(type, Scalar::s8, m, device("h200"), true)) << type << ", " << m;
    }
    for (const char* type : kFloats) {
      EXPECT_TRUE(has_tile(type, Scalar::e4m3, m, device("h200"), true)) << type << ", " << m;
    }
  }
}

TEST(Candidates, of_rounded_activations_have_tiles_by_warps_elsewhere) {
  for (std::int64_t m : {32, 256, 4096}) {
    for (const char* type : kIntegers) {
      EXPECT_TRUE(has_tile(type, Scalar::s8, m, device("a100"), false)) << type << ", " << m;
    }
    for (const char* type : kFloats) {
      EXPECT_TRUE(has_tile(type, Scalar::e4m3, m, device("l40s"), false)) << type << ", " << m;
    }
  }
  EXPECT_THAT([] { has_tile("mxfp4", Scalar::e4m3, 32, device("a100"), false); },
              ::testing::ThrowsMessage<Unsupported>(HasSubstr("no tile program multiplies e4m3")));
}

TEST(Candidates, are_whole_instructions_runs_and_granules_of_what_algorithm_1_derives) {
  for (const Device* device : targets()) {
    for (const char* type : {"uint1", "uint2,group=128,scale=float16", "uint3", "uint4", "uint5",
                             "uint6", "uint7", "int8", "nf4", "mxfp4"}) {
      for (std::int64_t m : {1, 9, 16}) {
        const Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::f16, m);
        const Decisions of_all = decide(problem, *device);
        for (const auto& [schedule, cost, dropped] : candidates(of_all)) {
          if (!dropped.empty()) continue;
          const auto& s = std::get<DecodeSchedule>(schedule);
          const auto decisions = of_all.of(s.route);
          const auto& row = *decisions.core.instruction;
          const Hint& found = decisions.hint;
          EXPECT_EQ(s.tokens % row.n, 0) << to_string(s);
          EXPECT_EQ(s.tile_rows() % row.m, 0) << to_string(s);
          EXPECT_EQ(kBlock * s.blocks_per_warp % row.k, 0) << to_string(s);
          const auto staged = staged_columns(s) * bytes_of(problem.activation());
          EXPECT_EQ(staged % found.run_bytes(), 0) << to_string(s);
          // A lane's words of one block: whole granules, each one load.
          EXPECT_EQ(s.m16_tiles * problem.weight.bits * 4 % found.granularity_bytes, 0)
              << to_string(s);
        }
      }
    }
  }
}

TEST(Candidates, convert_weights_where_algorithm_1_says_that_a_few_tokens_should) {
  for (const Device* device : targets()) {
    for (const char* type : {"uint1", "uint2", "uint3", "uint4", "uint6", "int8", "nf4"}) {
      for (std::int64_t m : {1, 8, 16, 32}) {
        const auto decisions = decided(type, m, 8192, 8192, *device);
        ASSERT_FALSE(decisions.places.empty());
        EXPECT_EQ(decisions.places.front().place, ConvertPlace::shared_to_registers)
            << device->name << ' ' << type << ' ' << m << '\n'
            << to_string(decisions.places.front());
        EXPECT_EQ(decisions.place, ConvertPlace::shared_to_registers);
      }
    }
  }
}

// Roller's tile has all of K, so a layer of few rows has few of them; schedules split K as well.
TEST(Candidates, split_k_where_the_tiles_of_algorithm_1_would_leave_multiprocessors_idle) {
  const Device& h200 = device("h200");
  EXPECT_LT(1024 / decided("uint4", 1, 1024, 4096, h200).block[1], h200.multiprocessors);
  const auto best = std::get<DecodeSchedule>(
      best_schedule(decide(linear_of(ttype("uint4"), 1024, 4096, Scalar::f16, 1), h200)));
  EXPECT_GT(best.warps_k * best.splits(4096), 1) << to_string(best);
}

// The option is one dimension: the same space with it, in the same order, and without it elsewhere.
TEST(Candidates, are_launched_dependently_where_that_is_asked_for_and_the_device_can) {
  for (const Device* device : targets()) {
    for (std::int64_t m : {1, 16}) {
      const Problem problem =
          linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, m);
      const auto alone = candidates(decide(problem, *device)),
                 asked = candidates(decide(problem, *device), true);
      ASSERT_EQ(alone.size(), asked.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_FALSE(std::get<DecodeSchedule>(alone[i].schedule).dependent_launch);
        auto schedule = std::get<DecodeSchedule>(alone[i].schedule);
        schedule.dependent_launch = device->dependent_launch();
        EXPECT_EQ(asked[i].schedule, Schedule(schedule))
            << device->name << ' ' << to_string(schedule);
        EXPECT_EQ(asked[i].dropped, alone[i].dropped) << to_string(schedule);
      }
    }
  }
}

TEST(Objection, is_to_a_dependent_launch_on_a_device_without) {
  const Problem problem = linear_of(ttype("uint4,channel"), 64, 1024, Scalar::f16, 8);
  const DecodeSchedule s{
      .tokens = 8, .warps_n = 1, .warps_k = 8, .blocks_per_warp = 2, .dependent_launch = true};
  EXPECT_EQ(objection(s, decide(problem, device("h200"))), "");
  EXPECT_EQ(objection(s, decide(problem, device("a100"))), "no dependent launch");
}

// A schedule that somebody wrote down is refused, however wrong, before anything divides by it.
TEST(Objection, names_the_number_that_is_no_count) {
  const Device& h200 = device("h200");
  const Problem problem = linear_of(ttype("uint4,channel"), 64, 8192, Scalar::f16, 8);
  const DecodeSchedule split{.tokens = 8,
                             .warps_n = 1,
                             .warps_k = 8,
                             .blocks_per_warp = 4,
                             .reduction = Reduction::cluster};
  ASSERT_EQ(objection(split, decide(problem, h200)), "");
  const auto refused = [&](auto change) {
    auto s = split;
    change(s);
    return objection(s, decide(problem, h200));
  };
  for (int DecodeSchedule::*count : {&DecodeSchedule::tokens, &DecodeSchedule::warps_n,
                                     &DecodeSchedule::warps_k, &DecodeSchedule::blocks_per_warp,
                                     &DecodeSchedule::m16_tiles, &DecodeSchedule::ctas_per_sm}) {
    EXPECT_THAT(refused([&](DecodeSchedule& s) { s.*count = 0; }), HasSubstr(" 0, not at least 1"));
  }
  EXPECT_EQ(refused([](DecodeSchedule& s) { s.m16_tiles = 8; }), "8 m16 tiles do not divide 4");
  EXPECT_EQ(
      refused([](DecodeSchedule& s) { s.m16_tiles = 1, s.blocks_per_warp = 1, s.warps_k = 64; }),
      "2048 threads, of at most 1024");
}

// The same of what only one way has.
TEST(Objection, names_the_number_of_a_way_that_is_no_count) {
  const auto refused = [](const Weights& weights, const Activations& activations) {
    const DecodeSchedule s{.tokens = 8,
                           .warps_n = 1,
                           .warps_k = 8,
                           .blocks_per_warp = 1,
                           .weights = weights,
                           .activations = activations};
    const Problem problem = linear_of(ttype("uint4,channel"), 64, 2048, Scalar::f16, 8);
    return objection(s, decide(problem, device("h200")));
  };
  const weights::RegisterStages right{.k_tiles = 4, .stages = 2};
  ASSERT_EQ(refused(right, activations::AtOnce{}), "");
  const std::pair<Weights, const char*> of_weights[] = {
      {weights::DoubleBuffered{.k_tiles = 1}, "k-tiles through registers 1, not at least 2"},
      {weights::Ring{.k_tiles = 0, .stages = 2}, "k-tiles 0, not at least 1"},
      {weights::Ring{.k_tiles = 4, .stages = 1}, "stages 1, not at least 2"},
      {weights::RegisterStages{.k_tiles = 0, .stages = 2}, "k-tiles 0, not at least 1"},
      {weights::RegisterStages{.k_tiles = 4, .stages = 0}, "register stages 0, not at least 1"},
      {weights::RegisterStages{.k_tiles = 4, .stages = 2, .tiles_per_cta = 0},
       "tiles per CTA 0, not at least 1"},
      {weights::RegisterStages{.k_tiles = 4, .stages = 2, .reduction_buffers = 0},
       "reduction buffers 0, not at least 1"}};
  for (const auto& [weights, why] : of_weights) {
    EXPECT_EQ(refused(weights, activations::AtOnce{}), why);
  }
  const std::pair<Activations, const char*> of_activations[] = {
      {activations::Staged{.stages = 0}, "activation stages 0, not at least 1"},
      {activations::Signalled{.stages = 0, .consumer_lag = 1},
       "activation stages 0, not at least 1"},
      {activations::Signalled{.stages = 4, .consumer_lag = 0}, "consumer lag 0, not at least 1"},
      {activations::BulkCopy{.multicast = 0}, "multicast 0, not at least 1"}};
  for (const auto& [activations, why] : of_activations) {
    EXPECT_EQ(refused(right, activations), why);
  }
}

TEST(Objection, names_the_columns_of_a_layer_that_has_one_k_tile) {
  const auto refusals = [](std::int64_t k) {
    Problem problem = linear_of(ttype("uint4,group=32,scale=float16"), 512, k, Scalar::f16, 64);
    problem.round_x(Scalar::e4m3);
    std::set<std::string> reasons;
    for (const auto& each : candidates(decide(problem, device("h200")))) {
      reasons.insert(each.dropped);
    }
    return reasons;
  };
  EXPECT_THAT(refusals(64),
              Contains("the layer's 64 columns are no more than one k-tile of 128, and "
                       "tiles have at least 2"));
  for (const std::int64_t k : {64, 256}) {
    EXPECT_THAT(refusals(k), Not(Contains(HasSubstr("stages 1,")))) << k;
  }
  EXPECT_THAT(refusals(256), Contains(""));
}

TEST(Objection, names_more_tiles_of_rows_than_a_grid_has_places) {
  const auto& type = ttype("uint4,group=128,scale=float16");
  const DecodeSchedule s{.tokens = 8,
                         .warps_n = 1,
                         .warps_k = 8,
                         .blocks_per_warp = 2,
                         .weights = weights::DoubleBuffered{.k_tiles = 4}};
  const auto of_rows = [&](std::int64_t n) {
    return objection(s, decide(linear_of(type, n, 4096, Scalar::f16, 8), device("h200")));
  };
  EXPECT_EQ(of_rows(65535 * 64), "");
  EXPECT_EQ(of_rows(65535 * 64 + 1), "65536 tiles of rows, of at most 65535");
}

// A block of eight warps by 64 rows: registers and threads of one multiprocessor hold so many.
TEST(Objection, names_what_a_multiprocessor_has_too_little_of) {
  const Device& h200 = device("h200");
  const auto problem =
      linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, 8);
  DecodeSchedule s{.tokens = 8,
                   .warps_n = 1,
                   .warps_k = 8,
                   .blocks_per_warp = 2,
                   .weights = weights::DoubleBuffered{.k_tiles = 4}};
  ASSERT_EQ(objection(s, decide(problem, h200)), "");
  s.ctas_per_sm = h200.threads / 256;
  EXPECT_THAT(objection(s, decide(problem, h200)),
              HasSubstr("bytes of shared memory for each of 8"));
  s.ctas_per_sm = h200.threads / 256 + 1;
  EXPECT_EQ(objection(s, decide(problem, h200)), "too many threads");
  Device small = h200;
  s.ctas_per_sm = 1, small.registers = 256 * 64;
  EXPECT_THAT(objection(s, decide(problem, small)), HasSubstr(" registers a thread"));
  small.registers = h200.registers, small.shared_per_block_bytes = 1024;
  EXPECT_THAT(objection(s, decide(problem, small)), HasSubstr(" bytes of shared memory"));
}

TEST(DecodeSchedule, is_found_by_its_print) {
  for (const char* type : {"uint2,group=128,scale=float16", "uint3", "nvfp4"}) {
    for (std::int64_t m : {1, 16}) {
      const auto decisions =
          decide(linear_of(ttype(type), 8192, 8192, Scalar::f16, m), device("h200"));
      for (const Schedule& schedule : space(decisions, m == 1)) {
        ASSERT_EQ(schedule_of(to_string(schedule)), schedule) << to_string(schedule);
      }
    }
  }
}

// Every pair of ways, also those that objection() refuses.
TEST(DecodeSchedule, of_any_ways_is_found_by_its_print) {
  const Weights of_weights[] = {weights::AtOnce{}, weights::DoubleBuffered{.k_tiles = 4},
                                weights::Ring{.k_tiles = 4, .stages = 3},
                                weights::RegisterStages{.k_tiles = 4, .stages = 2},
                                weights::RegisterStages{.k_tiles = 4,
                                                        .stages = 2,
                                                        .tiles_per_cta = 3,
                                                        .reduction_buffers = 2,
                                                        .block_by_block = true}};
  const Activations of_activations[] = {activations::AtOnce{}, activations::Staged{.stages = 3},
                                        activations::Signalled{.stages = 4, .consumer_lag = 1},
                                        activations::BulkCopy{.multicast = 1},
                                        activations::BulkCopy{.multicast = 2, .by_k_tiles = true}};
  std::set<std::string> prints;
  for (const Weights& weights : of_weights) {
    for (const Activations& activations : of_activations) {
      const DecodeSchedule s{.tokens = 8,
                             .warps_n = 1,
                             .warps_k = 8,
                             .blocks_per_warp = 1,
                             .weights = weights,
                             .activations = activations};
      EXPECT_EQ(decode_schedule_of(to_string(s)), s) << to_string(s);
      prints.insert(to_string(s));
    }
  }
  EXPECT_EQ(prints.size(), std::size(of_weights) * std::size(of_activations));
}

TEST(DecodeSchedule, is_none_for_other_text) {
  const std::string right =
      "tokens 8, warps 1x8, m16 tiles 2, blocks 2, k-tiles 4, register stages 2, none, "
      "multiply_add, 2 per multiprocessor";
  ASSERT_TRUE(schedule_of(right));
  for (std::size_t length = 0; length < right.size(); ++length) {
    EXPECT_EQ(schedule_of(right.substr(0, length)), std::nullopt) << length;
  }
  const auto with = [&](std::string_view what, std::string_view instead) {
    std::string text = right;
    return schedule_of(text.replace(text.find(what), what.size(), instead));
  };
  EXPECT_EQ(schedule_of(right + ' '), std::nullopt);
  EXPECT_EQ(with("tokens 8", "tokens 08"), std::nullopt);
  EXPECT_EQ(with("tokens 8", "tokens +8"), std::nullopt);
  EXPECT_EQ(with("tokens 8", "tokens 99999999999"), std::nullopt);
  EXPECT_EQ(with("m16 tiles 2", "m16 tiles 4"), std::nullopt);  // is not printed
  EXPECT_EQ(with("none", "some"), std::nullopt);
  EXPECT_EQ(with("register stages 2", "register stages 2, stages 2"), std::nullopt);
  EXPECT_EQ(with("m16 tiles 2, blocks 2", "blocks 2, m16 tiles 2"), std::nullopt);
  EXPECT_EQ(with("k-tiles 4, register stages 2", "one k-tile, register stages 2"), std::nullopt);
  EXPECT_TRUE(with("tokens 8", "tokens -8"));  // which objection() refuses
}

}  // namespace
}  // namespace ladder
