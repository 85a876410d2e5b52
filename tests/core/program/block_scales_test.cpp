// SPDX-License-Identifier: Apache-2.0
//
// Scales of few columns in one byte: of a group's sums, or of the operands themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>

#include "expr/constructors.h"
#include "pipelines/decode/shared_memory.h"
#include "program/slips.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

const Device& h200() { return device("h200"); }

constexpr DecodeSchedule kOnce{.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1};

Program checked(const Problem& problem, const DecodeSchedule& schedule) {
  EXPECT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  return program;
}

class BlockScales : public ::testing::TestWithParam<Scalar> {};

TEST_P(BlockScales, are_exact_on_every_way_through_the_k_tiles) {
  DecodeSchedule apart{.tokens = 8,
                       .warps_n = 2,
                       .warps_k = 2,
                       .blocks_per_warp = 1,
                       .weights = weights::RegisterStages{.k_tiles = 8, .stages = 2},
                       .activations = activations::Signalled{.stages = 4, .consumer_lag = 1}};
  DecodeSchedule bulk{
      .tokens = 8,
      .warps_n = 1,
      .warps_k = 2,
      .blocks_per_warp = 1,
      .m16_tiles = 2,
      .weights =
          weights::RegisterStages{
              .k_tiles = 2, .stages = 1, .tiles_per_cta = 2, .reduction_buffers = 2},
      .activations = activations::BulkCopy{.multicast = 2}};
  DecodeSchedule split = bulk;
  split.weights = weights::RegisterStages{
      .k_tiles = 2, .stages = 2, .tiles_per_cta = 3, .reduction_buffers = 2};
  split.activations = activations::BulkCopy{.multicast = 1}, split.reduction = Reduction::cluster;
  const DecodeSchedule registers{.tokens = 8,
                                 .warps_n = 2,
                                 .warps_k = 2,
                                 .blocks_per_warp = 1,
                                 .weights = weights::DoubleBuffered{.k_tiles = 4},
                                 .reduction = Reduction::ordered};
  for (const char* type : {"mxfp4", "nvfp4", "mxfp6_e3m2"}) {
    for (const DecodeSchedule& schedule : {apart, bulk, split, registers}) {
      const std::int64_t splits = schedule.reduction == Reduction::none ? 1 : 2;
      const Problem problem =
          linear_of(ttype(type), 192, schedule.cta_columns() * splits, GetParam(), 8);
      const auto data = LinearCase::integers(problem, 3);
      EXPECT_EQ(data.run(checked(problem, schedule), schedule), data.exact())
          << type << "; " << to_string(schedule);
    }
  }
}

// One scale a row, the smallest and the largest among them, times a weight and an activation of
// one: the sums of the other groups or warps are zero, which infinity would make NaN.
LinearCase with_each_scale(const Problem& problem) {
  LinearCase data{problem, 1, {}};
  std::uint32_t one = 0;
  while (value_of(problem.weight, one) != 1) ++one;
  data.data.codes.assign(problem.n * problem.k, static_cast<std::uint8_t>(one));
  data.data.x.assign(problem.k, 0);
  data.data.x[37] = data.bits(1);
  if (problem.weight.stored_zero != Zero::none)
    data.data.zeros.assign(problem.n * problem.groups(), 0);
  for (std::uint32_t row = 0; row < problem.n; ++row) {
    const bool finite = std::isfinite(to_number(*problem.weight.scale, row));
    data.data.scales.insert(data.data.scales.end(), problem.groups(), finite ? row : 0);
  }
  return data;
}

TEST_P(BlockScales, are_their_values_from_the_smallest_to_the_largest) {
  for (const char* type : {"mxfp4", "mxfp8_e4m3", "mxint8", "nvfp4"}) {
    const Problem problem = linear_of(ttype(type), 256, 128, GetParam(), 8);
    const auto data = with_each_scale(problem);
    EXPECT_EQ(data.run(checked(problem, kOnce), kOnce), data.exact()) << type;
  }
}

// Of groups and of whole rows, whose sums are scaled where they are; and with stored zero points,
// here all zero.
TEST_P(BlockScales, leave_sums_of_zero_alone_on_every_route) {
  for (const char* type :
       {"float4_e2m1,channel,scale=e8m0", "int8,channel,scale=e8m0", "uint1,channel,scale=e8m0",
        "uint1,group=32,scale=e8m0", "uint4,channel,scale=e8m0,zero=integer",
        "uint4,group=32,scale=e8m0,zero=integer"}) {
    const Problem problem = linear_of(ttype(type), 256, 128, GetParam(), 8);
    const auto data = with_each_scale(problem);
    for (Route route : {Route::multiply_add, Route::in_place}) {
      auto schedule = kOnce;
      schedule.route = route;
      if (!objection(schedule, decide(problem, h200())).empty()) continue;
      EXPECT_EQ(data.run(checked(problem, schedule), schedule), data.exact())
          << type << "; " << to_string(schedule);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, BlockScales, ::testing::Values(Scalar::f16, Scalar::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// What kernels make of a code: csrc/codegen/cuda/prelude_scales.cpp.
TEST(PowersOfTwo, are_numbers_whose_mantissa_is_ones_times_a_half_and_a_little) {
  for (int exponent = -22; exponent <= 20; ++exponent) {
    for (std::uint32_t code = 0; code < 255; ++code) {
      const auto ones = std::bit_cast<float>(code << 23 | 0x007fffffu);
      const auto factor = static_cast<float>(std::ldexp(1 + std::ldexp(1.0, -23), exponent - 1));
      const double wanted = std::ldexp(to_number(Scalar::e8m0, code), exponent);
      EXPECT_EQ(ones * factor, static_cast<float>(wanted)) << code << ", 2^" << exponent;
    }
  }
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(255u << 23 | 0x007fffffu)));
}

/// What the verifier, the interpreter or the numbers say after one slip.
template <class Op>
std::string caught(const std::function<void(Program&, Op&)>& change) {
  const Problem problem = linear_of(ttype("nvfp4"), 64, 128, Scalar::f16, 8);
  auto program = lower(decide(problem, h200()), kOnce);
  testing::for_each_op<Op>(program.body, [&](Op& op) { change(program, op); });
  return testing::objection_to(program, kOnce, LinearCase::integers(problem, 3));
}

TEST(BlockScalesMutation, operands_without_their_scale_or_with_another_are_caught) {
  using Unpacked = UnpackFloat;
  EXPECT_TRUE(decoding_of(linear_of(ttype("nvfp4"), 64, 128, Scalar::f16, 8)).scaled);
  EXPECT_EQ(caught<Unpacked>([](Program&, Unpacked&) {}), "");
  EXPECT_EQ(caught<Unpacked>([](Program&, Unpacked& i) { i.scales = -1; }), "wrong numbers");
  EXPECT_EQ(caught<Unpacked>([](Program&, Unpacked& i) { i.group = 0; }), "wrong numbers");
  EXPECT_THAT(caught<Unpacked>([](Program&, Unpacked& i) { i.group = 4; }),
              HasSubstr("group 4 of 4 with scales"));
  EXPECT_THAT(
      caught<Unpacked>([](Program& p, Unpacked& i) { p.registers[i.scales].scalar = Scalar::u8; }),
      HasSubstr("operands times scales of u8"));
  EXPECT_EQ(caught<Scale>([](Program&, Scale& i) { ++i.exponent[1]; }), "wrong numbers");
}

}  // namespace
}  // namespace ladder
