// SPDX-License-Identifier: Apache-2.0
//
// Codes of float8_e4m3 that an instruction of the device converts: the same numbers as by fields.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>

#include "expr/constructors.h"
#include "pipelines/lower.h"
#include "pipelines/schedule.h"
#include "program/linear_case.h"
#include "program/slips.h"

namespace ladder {
namespace {

using testing::LinearCase;

int conversions(Program& program) {
  int count = 0;
  testing::for_each_op<UnpackFloat>(program.body,
                                    [&](UnpackFloat& i) { count += i.fields.converted ? 1 : 0; });
  return count;
}

TEST(Converted, is_float8_e4m3_where_a_device_converts_it) {
  const auto count = [](const char* type, const char* on, Scalar activation = Scalar::f16) {
    const auto decisions = decide(linear_of(ttype(type), 128, 512, activation, 16), device(on));
    auto program = lower(decisions, best_schedule(decisions));
    return conversions(program);
  };
  const char* e4m3 = "float8_e4m3,channel,scale=float16";
  for (const char* on : {"h200", "l40s", "b200", "rtx5090"}) EXPECT_GE(count(e4m3, on), 1) << on;
  EXPECT_GE(count("mxfp8_e4m3", "h200", Scalar::bf16), 1);
  EXPECT_EQ(count(e4m3, "a100"), 0);
  EXPECT_EQ(count("float8_e5m2,channel,scale=float16", "h200"), 0);
  EXPECT_EQ(count("float7_e4m2,channel,scale=float16", "h200"), 0);
}

TEST(Converted, makes_every_number_and_what_else_it_might_be_shows) {
  for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
    for (const std::int64_t m : {1, 13, 40}) {
      const auto problem =
          linear_of(ttype("float8_e4m3,group=128,scale=float16"), 168, 736, activation, m);
      const auto decisions = decide(problem, device("h200"));
      const auto schedule = best_schedule(decisions);
      const auto integers = LinearCase::integers(problem, m);
      const auto caught = [&](const std::function<void(FloatFields&)>& slip) -> std::string {
        Program program = lower(decisions, schedule);
        EXPECT_GE(conversions(program), 1);
        testing::for_each_op<UnpackFloat>(program.body, [&](UnpackFloat& i) { slip(i.fields); });
        try {
          verify(program, device("h200").shared_per_block_bytes);
        } catch (const std::exception& error) {
          return error.what();
        }
        return integers.run(program, schedule) == integers.exact() ? "" : "wrong numbers";
      };
      EXPECT_EQ(caught([](FloatFields&) {}), "");
      EXPECT_THAT(caught([](FloatFields& f) { f.factor /= 2; }),
                  ::testing::HasSubstr("gives no values of e4m3"));
      EXPECT_THAT(caught([](FloatFields& f) { f.special = 0; }),
                  ::testing::HasSubstr("gives no values of e4m3"));
    }
  }
}

}  // namespace
}  // namespace ladder
