// SPDX-License-Identifier: Apache-2.0
//
// Programs whose scales multiply sums, and those whose scales multiply operands.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "expr/constructors.h"
#include "program/linear_case.h"
#include "program/slips.h"

namespace ladder {
namespace {

using testing::LinearCase;

const Device& h200() { return device("h200"); }

/// Operands hold the scales of all of these.
constexpr const char* kTypes[] = {
    "nvfp4", "float4_e2m1,group=32,scale=float8_e4m3", "float4_e2m1,group=64,scale=float8_e4m3",
    "float4_e2m1,channel,scale=float8_e4m3", "float5_e3m1,group=16,scale=float8_e4m3"};
/// Beside bf16 one product makes operands of these and of their scales, whose powers of two are all
/// that a byte has.
constexpr const char* kPowers[] = {"mxfp4", "float4_e3m0,group=64,scale=e8m0",
                                   "float3_e1m1,group=32,scale=e8m0"};

/// One k-tile, a ring, warps apart by signals, and several tiles per CTA with a bulk copy.
std::vector<DecodeSchedule> ways(ScalePlace place) {
  std::vector<DecodeSchedule> out{
      {.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1},
      {.tokens = 8,
       .warps_n = 2,
       .warps_k = 2,
       .blocks_per_warp = 1,
       .weights = weights::Ring{.k_tiles = 4, .stages = 3}},
      {.tokens = 8,
       .warps_n = 2,
       .warps_k = 2,
       .blocks_per_warp = 1,
       .weights = weights::RegisterStages{.k_tiles = 8, .stages = 2},
       .activations = activations::Signalled{.stages = 4, .consumer_lag = 1}},
      {.tokens = 8,
       .warps_n = 1,
       .warps_k = 2,
       .blocks_per_warp = 2,
       .weights =
           weights::RegisterStages{
               .k_tiles = 2, .stages = 2, .tiles_per_cta = 2, .reduction_buffers = 2},
       .activations = activations::BulkCopy{.multicast = 1},
       .reduction = Reduction::cluster},
  };
  for (DecodeSchedule& schedule : out) schedule.scale_place = place;
  return out;
}

struct Case {
  Problem problem;
  DecodeSchedule schedule;
  Program program;
};

/// Of every type, activation and way; checked.
void for_each_case(ScalePlace place, const std::function<void(const Case&)>& use) {
  const bool powers = place == ScalePlace::rounded;
  for (const char* type : powers ? std::span<const char* const>(kPowers) : kTypes) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      if (powers && activation == Scalar::f16) continue;
      for (const DecodeSchedule& schedule : ways(place)) {
        const std::int64_t splits = schedule.reduction == Reduction::none ? 1 : 2;
        const Problem problem =
            linear_of(ttype(type), 128, schedule.cta_columns() * splits, activation, 8);
        const auto name = std::string(type) + "; " + to_string(schedule);
        EXPECT_EQ(objection(schedule, decide(problem, h200())), "") << name;
        SCOPED_TRACE(name);
        Case c{problem, schedule, lower(decide(problem, h200()), schedule)};
        verify(c.program, h200().shared_per_block_bytes);
        use(c);
      }
    }
  }
}

class ScalesIn : public ::testing::TestWithParam<ScalePlace> {};

TEST_P(ScalesIn, are_exact_on_integers) {
  for_each_case(GetParam(), [](const Case& c) {
    const auto data = LinearCase::integers(c.problem, 3);
    EXPECT_EQ(data.run(c.program, c.schedule), data.exact());
  });
}

TEST_P(ScalesIn, are_within_the_bound_on_random_numbers) {
  for_each_case(GetParam(), [](const Case& c) {
    const auto data = LinearCase::reals(c.problem, 3);
    const auto y = data.run(c.program, c.schedule);
    const auto reference = evaluate(c.problem, data.data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i)) << "y[" << i << "]";
    }
  });
}

/// Every finite value times every finite scale, and a row of ones of x: one column of a group each.
TEST_P(ScalesIn, are_exact_for_every_value_and_every_scale) {
  for_each_case(GetParam(), [](const Case& c) {
    auto data = LinearCase::integers(c.problem, 1);
    const auto groups = c.problem.groups();
    std::fill(data.data.x.begin(), data.data.x.end(), 0);
    data.data.x[c.problem.k - 5] = data.bits(1);
    for (std::uint32_t at = 0; at < 1u << (c.problem.weight.bits + 8); at += c.problem.n) {
      for (std::int64_t row = 0; row < c.problem.n; ++row) {
        const auto both = at + static_cast<std::uint32_t>(row);
        const auto scale = both >> c.problem.weight.bits;
        // An operand of 2^128 and more is infinite.
        const double number = to_number(*c.problem.weight.scale, scale);
        const bool finite = std::isfinite(number) &&
                            number * max_value(*c.problem.weight.element) < std::ldexp(1, 128);
        for (std::int64_t g = 0; g < groups; ++g) {
          data.data.scales[row * groups + g] = finite ? scale : 0;
        }
        const auto code = static_cast<std::uint8_t>(both & ((1u << c.problem.weight.bits) - 1));
        std::fill_n(data.data.codes.begin() + row * c.problem.k, c.problem.k, code);
      }
      ASSERT_EQ(data.run(c.program, c.schedule), data.exact()) << "from " << at;
      if (c.schedule.k_tiles() > 1) break;  // the first rows do for the other ways
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Places, ScalesIn,
                         ::testing::Values(ScalePlace::sums, ScalePlace::operands,
                                           ScalePlace::rounded),
                         [](const auto& info) {
                           return info.param == ScalePlace::sums       ? "sums"
                                  : info.param == ScalePlace::operands ? "operands"
                                                                       : "rounded";
                         });

TEST(ScalePlaces, give_the_same_program_by_either_name) {
  const Problem problem = linear_of(ttype("nvfp4"), 128, 128, Scalar::f16, 8);
  const auto text = [&](ScalePlace place) {
    return to_string(lower(decide(problem, h200()), ways(place).front()));
  };
  EXPECT_EQ(text(ScalePlace::usual), text(ScalePlace::operands));
  EXPECT_NE(text(ScalePlace::usual), text(ScalePlace::sums));
}

/// What is said against a program of nvfp4 in which the operations that scale were changed.
std::string said(ScalePlace place, const std::function<void(UnpackFloat&, Scale&)>& change) {
  const Problem problem = linear_of(ttype("nvfp4"), 64, 128, Scalar::f16, 8);
  const DecodeSchedule schedule = ways(place).front();
  auto program = lower(decide(problem, h200()), schedule);
  testing::for_each_op<UnpackFloat>(program.body, [&](UnpackFloat& decode) {
    testing::for_each_op<Scale>(program.body, [&](Scale& scale) { change(decode, scale); });
  });
  return testing::objection_to(program, schedule, LinearCase::integers(problem, 3));
}

TEST(ScalePlaces, a_scale_that_multiplies_twice_or_not_at_all_is_caught) {
  const auto nothing = [](UnpackFloat&, Scale&) {};
  EXPECT_EQ(said(ScalePlace::sums, nothing), "");
  EXPECT_EQ(said(ScalePlace::operands, nothing), "");
  EXPECT_EQ(said(ScalePlace::sums, [](UnpackFloat&, Scale& sums) { sums.scale = -1; }),
            "wrong numbers");
  EXPECT_EQ(said(ScalePlace::operands, [](UnpackFloat& decode, Scale&) { decode.scales = -1; }),
            "wrong numbers");
  EXPECT_EQ(said(ScalePlace::sums,
                 [](UnpackFloat& decode, Scale& sums) {
                   decode.scales = sums.scale, decode.group = sums.group;
                 }),
            "wrong numbers");
  EXPECT_EQ(said(ScalePlace::operands,
                 [](UnpackFloat& decode, Scale& last) { last.scale = decode.scales; }),
            "wrong numbers");
}

}  // namespace
}  // namespace ladder
