// SPDX-License-Identifier: Apache-2.0
//
// What Algorithm 1 decides once, and that schedules follow it: each is asked about decisions that
// no device of the table gives, too.
#include "schedule/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/error.h"
#include "device/row.h"
#include "expr/constructors.h"
#include "expr/decoding.h"
#include "integer_layer.h"
#include "layout/weight_image.h"
#include "pipelines/lower.h"
#include "schedule/tile_plan.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const Device& h200() { return device("h200"); }

Problem linear(std::string_view type, std::int64_t m, Scalar activation = Scalar::f16) {
  return linear_of(ttype(type), 4096, 4096, activation, m);
}

// The operand type is decided by what holds every value, the way of decoding by the format.
TEST(Decisions, of_operands_are_those_of_decoding_for_every_type) {
  int served = 0;
  for (const Element* stored : elements()) {
    if (stored->encoding == Encoding::exponent) continue;  // of scales
    for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
      try {
        const Problem problem = linear_of({stored}, 64, 64, activation, 8);
        // Of a format whose top exponent float16 lacks, operands are halves of the values: exact.
        const bool halved = decoding_of(problem).fields.halved;
        const auto decisions = decide(problem, h200()).of(Route::multiply_add);
        EXPECT_EQ(tile_operand(*decisions.core.instruction), activation) << stored->name;
        EXPECT_EQ(decisions.core.exact, decoding_error(problem) == 0 && !halved) << stored->name;
        ++served;
      } catch (const Unsupported&) {
        continue;  // wider than the operand, or than eight bits
      }
    }
  }
  EXPECT_GT(served, 40);
}

// Powers of two multiply sums, so half a step of a zero point is no other type.
TEST(Decisions, are_of_the_values_that_codes_stand_for) {
  Problem problem = linear("uint3", 8);
  testing::set_integers(problem, 3, 7, 1, -4);
  const TileType b = tile_type(problem.weight);
  EXPECT_EQ(b, (TileType{&element("uint3"), 3.5}));
  for (std::uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(value_of(problem.weight, code),
              (decode(*b.element, code) - b.zero) * std::ldexp(1, 1 - 4));
  }
  EXPECT_EQ(tile_type(linear("int4", 8).weight), (TileType{&element("uint4"), 8}));
  EXPECT_EQ(tile_type(linear("nf4", 8).weight), TileType{&element("nf4")});
}

TEST(Decisions, of_few_tokens_and_of_the_plan_that_explain_prints_are_the_same) {
  for (const Device& device : devices()) {
    if (!has_tile_programs(device)) continue;
    for (const char* type : {"uint1", "uint4", "int8", "nf4", "mxfp4", "ternary"}) {
      for (std::int64_t m : {1, 8, 16, 32}) {
        const Problem problem = linear(type, m);
        const auto decisions = decide(problem, device).of(Route::multiply_add);
        EXPECT_EQ(decisions.place, ConvertPlace::shared_to_registers) << device.name << type << m;
        EXPECT_EQ(to_string(tile_plan(problem, device).decisions, problem, device),
                  to_string(decisions, problem, device));
      }
    }
  }
}

TEST(Decisions, of_more_tokens_than_kernels_serve_are_to_convert_once) {
  const Problem problem = linear("uint4", kMostTokens + 1);
  for (const Device* device : {&h200(), &ladder::device("a100")}) {
    const auto decisions = decide(problem, *device).of(Route::multiply_add);
    EXPECT_EQ(decisions.place, ConvertPlace::once);
    EXPECT_EQ(tile_plan(problem, *device).decisions.place, ConvertPlace::once);
    const auto all = candidates(decide(problem, *device));
    EXPECT_TRUE(is_dense(all.front().schedule));
    for (const Candidate& candidate : all) {
      if (is_dense(candidate.schedule)) continue;
      EXPECT_EQ(candidate.dropped,
                "weights of 8193 tokens are converted once in global memory: kernels that do serve "
                "at most 8192 tokens");
    }
  }
  EXPECT_EQ(tile_plan(problem, h200()).decisions.core.instruction, &row("wgmma.m64nNk16.f16"));
}

TEST(Decisions, of_tiles_of_warps_are_for_as_many_tokens_as_were_measured) {
  const auto kept = [](std::int64_t m) {
    const auto all = candidates(decide(linear("uint4", m), device("a100")));
    return std::ranges::count_if(
        all, [](const Candidate& c) { return c.dropped.empty() && !is_dense(c.schedule); });
  };
  EXPECT_GT(kept(256), 0);
  EXPECT_EQ(kept(257), 0);
}

// A library multiplies dense weights by an instruction that no tile program has: what it saves is
// soon more than what converting takes.
TEST(Decisions, of_many_tokens_are_to_convert_once_where_a_library_multiplies_faster) {
  const auto place = [](const Device& device, std::int64_t m) {
    const Problem problem = linear_of(ttype("uint4"), 8192, 8192, Scalar::f16, m);
    return decide(problem, device).of(Route::multiply_add).place;
  };
  EXPECT_EQ(place(h200(), 192), ConvertPlace::shared_to_registers);
  EXPECT_EQ(place(h200(), 256), ConvertPlace::once);
  EXPECT_EQ(place(device("a100"), 256), ConvertPlace::shared_to_registers);
}

TEST(Decisions, of_digits_are_those_of_bytes) {
  const auto decisions = decide(linear("uint2", 1), h200()).of(Route::digits);
  EXPECT_EQ(decisions.core.instruction, tile_instruction(Scalar::s8));
  EXPECT_EQ(decisions.hint, hint(h200(), *tile_instruction(Scalar::s8)));
}

/// A schedule of the space, and what was decided for it.
struct Followed {
  Decisions decisions = decide(linear("uint4,group=64,scale=float16", 8), h200());
  DecodeSchedule schedule{.tokens = 8,
                          .warps_n = 1,
                          .warps_k = 8,
                          .blocks_per_warp = 2,
                          .m16_tiles = 2,
                          .weights = weights::RegisterStages{.k_tiles = 4, .stages = 2}};
  std::string objection() const { return ladder::objection(schedule, decisions); }
};

TEST(Objection, is_to_kernels_where_weights_are_to_be_converted_elsewhere) {
  Followed with;
  ASSERT_EQ(with.objection(), "");
  with.decisions.whole.place = ConvertPlace::once;
  EXPECT_EQ(with.objection(), "weights of 8 tokens are converted once in global memory");
}

TEST(Objection, is_to_tiles_that_are_not_whole_instructions_of_the_core) {
  Followed with;
  with.schedule.tokens = 12;
  EXPECT_EQ(with.objection(), "12 tokens are not whole instructions of 8");
  with.schedule.tokens = 8;
  with.decisions.whole.core.instruction = &row("wgmma.m64nNk16.f16");
  EXPECT_EQ(with.objection(), "a warp's 32 x 128 are not whole instructions of 64 x 16");
  MatrixInstruction longer = *tile_instruction(Scalar::f16);
  longer.k = 256;
  with.decisions.whole.core.instruction = &longer;
  EXPECT_EQ(with.objection(), "a warp's 32 x 128 are not whole instructions of 16 x 256");
  // Groups end with a step of it.
  longer.k = 128;
  EXPECT_EQ(with.objection(), "groups of 64 are not steps of 128");
  longer.k = 64;
  EXPECT_EQ(with.objection(), "");
}

TEST(Objection, is_to_activations_that_are_not_whole_tiles_of_the_hint) {
  Followed with;
  with.decisions.whole.hint.shape = {4, 512};
  EXPECT_EQ(with.objection(), "");  // 4096 columns of two bytes
  with.decisions.whole.hint.shape = {4, 1024};
  EXPECT_EQ(with.objection(),
            "activations of 8 rows of 8192 bytes are not whole tiles of the hint, 4 runs of "
            "16384");
  with.decisions.whole.hint.shape = {16, 8};
  EXPECT_EQ(with.objection(),
            "activations of 8 rows of 8192 bytes are not whole tiles of the hint, 16 runs "
            "of 128");
}

TEST(Objection, is_to_words_of_a_lane_that_are_not_whole_granules_of_the_hint) {
  Followed with;
  with.decisions.whole.hint = {32, {4, 4}};
  EXPECT_EQ(with.objection(), "");
  with.decisions.whole.hint = {64, {4, 2}};
  EXPECT_EQ(with.objection(), "2 m16 tiles of 4 bits are not whole pieces of 64 bytes");
}

TEST(Objection, is_to_a_bulk_copy_of_rows_that_are_not_whole_granules_of_the_hint) {
  Followed with;
  with.schedule.activations = activations::BulkCopy{.multicast = 1};
  ASSERT_EQ(with.objection(), "");
  with.decisions.whole.hint = {3 * 16, {4, 1}};  // rows are 8192 bytes
  EXPECT_EQ(with.objection(), "4096 columns are not whole rows of 4096");
}

// Banks twice as wide: a granule of 32 bytes, which two m16 tiles of two bits are not.
TEST(Candidates, follow_the_hint_of_a_device_of_wider_granules) {
  Device wide = h200();
  wide.shared.bank_bytes = 32;
  const Problem problem = linear("uint2,group=128,scale=float16", 8);
  ASSERT_EQ(decide(problem, wide).of(Route::in_place).hint.granularity_bytes, 32);
  const auto kept_of_two = [&](const Device& device) {
    const auto all = candidates(decide(problem, device));
    return std::ranges::count_if(all, [](const Candidate& candidate) {
      return candidate.dropped.empty() &&
             std::get<DecodeSchedule>(candidate.schedule).m16_tiles == 2;
    });
  };
  EXPECT_GT(kept_of_two(h200()), 0);
  EXPECT_EQ(kept_of_two(wide), 0);
  // What a bulk copy serves goes on with all rows of a block.
  const auto by_bulk_copy = [&](const Device& device, int m16_tiles) {
    return std::ranges::any_of(
        candidates(decide(problem, device)), [&](const Candidate& candidate) {
          const auto& s = std::get<DecodeSchedule>(candidate.schedule);
          return s.bulk_copy() != nullptr && s.m16_tiles == m16_tiles && candidate.dropped.empty();
        });
  };
  EXPECT_TRUE(by_bulk_copy(h200(), 2));
  EXPECT_FALSE(by_bulk_copy(h200(), 4));
  EXPECT_TRUE(by_bulk_copy(wide, 4));
}

TEST(Cost, counts_the_steps_of_the_core) {
  const Followed with;
  Decisions halved = with.decisions;
  halved.whole.core.instruction = &row("mma.m16n8k8.f16");
  const auto issue = [&](const Decisions& decisions) {
    return cost(with.schedule, decisions).issue_seconds;
  };
  MatrixInstruction wider = *tile_instruction(Scalar::f16);
  wider.n = 16;
  Decisions fewer = with.decisions;
  fewer.whole.core.instruction = &wider;
  EXPECT_GT(issue(halved), issue(with.decisions));
  // Twice the steps and half the columns: the difference is what matrix instructions take.
  EXPECT_DOUBLE_EQ(issue(halved) - issue(with.decisions),
                   2 * (issue(with.decisions) - issue(fewer)));
}

TEST(Lower, multiplies_by_the_core_of_the_route) {
  const Problem problem = linear("uint2,channel,scale=float16", 1);
  const auto fragment_of = [&](Route route) {
    const DecodeSchedule s{.tokens = 8,
                           .warps_n = 1,
                           .warps_k = 8,
                           .blocks_per_warp = 2,
                           .weights = weights::DoubleBuffered{.k_tiles = 4},
                           .route = route};
    const Program program = lower(decide(problem, h200()), s);
    const auto b = std::ranges::find(program.registers, "b", &Register::name);
    return b->layout.shape;
  };
  const auto &halves = *tile_instruction(Scalar::f16), &bytes = *tile_instruction(Scalar::s8);
  EXPECT_EQ(fragment_of(Route::multiply_add), (Shape{8, halves.n, halves.k}));
  EXPECT_EQ(fragment_of(Route::digits), (Shape{8, bytes.n, bytes.k}));
}

// 4104 columns of two bytes are whole granules of 16, not of 32.
TEST(Lower, copies_rows_that_are_whole_granules_of_the_hint_asynchronously) {
  Device wide = h200();
  wide.shared.bank_bytes = 32;
  const Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 64, 4104, Scalar::f16, 8);
  const DecodeSchedule s{.tokens = 8,
                         .warps_n = 1,
                         .warps_k = 8,
                         .blocks_per_warp = 2,
                         .weights = weights::DoubleBuffered{.k_tiles = 5}};
  const auto asynchronous = [&](const Device& device) {
    const Program program = lower(decide(problem, device), s);
    return std::ranges::any_of(program.body, [](const Statement& statement) {
      return std::holds_alternative<CopyAsync>(statement.op);
    });
  };
  EXPECT_TRUE(asynchronous(h200()));
  EXPECT_FALSE(asynchronous(wide));
}

TEST(Decisions, are_none_on_a_device_without_tile_programs) {
  for (const char* name : {"x86_avx2", "x86_avx512"}) {
    EXPECT_THAT([&] { decide(linear("uint4", 8), device(name)); },
                ThrowsMessage<Unsupported>(std::string("no tile program multiplies on ") + name));
  }
}

}  // namespace
}  // namespace ladder
