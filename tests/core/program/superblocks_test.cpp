// SPDX-License-Identifier: Apache-2.0
//
// Weights of superblocks: scales, and zero points of rescale, are integers in memory, times second
// scales of so many columns (TimesSecond).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <variant>

#include "expr/constructors.h"
#include "layout/image_parts.h"
#include "pipelines/decode/shared_memory.h"
#include "pipelines/schedule.h"
#include "program/linear_case.h"
#include "program/slips.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

constexpr const char* kTypes[] = {"q2_k",
                                  "q3_k",
                                  "q4_k",
                                  "q5_k",
                                  "q6_k",
                                  "uint4,group=64,scale=int8,zero=rescale,scale2=float32:64",
                                  "float4_e2m1,group=32,scale=uint6,scale2=bfloat16:128",
                                  "uint3,group=128,scale=uint8,zero=integer,scale2=float16:512"};

struct Shape {
  const char* device;
  std::int64_t m, n, k;
};
constexpr Shape kShapes[] = {{"h200", 1, 64, 512},     {"h200", 8, 192, 1024},
                             {"h200", 16, 128, 768},   {"h200", 40, 128, 512},
                             {"h200", 200, 192, 1024}, {"a100", 24, 128, 512},
                             {"mi300x", 16, 128, 512}, {"rx7900xtx", 16, 128, 512}};

std::vector<Schedule> proposed(const Problem& problem, const Device& device) {
  std::vector<Schedule> kept;
  for (const Candidate& c : candidates(decide(problem, device))) {
    if (c.dropped.empty() && !is_dense(c.schedule)) kept.push_back(c.schedule);
  }
  return kept;
}

/// The same with scales of float32, and no superblocks.
Problem of_floats(const Problem& problem) {
  TType type = problem.weight.type;
  type.scale = &element("float32"), type.scale2 = nullptr, type.superblock = 0;
  return linear_of(type, problem.n, problem.k, problem.formats.x, problem.m);
}

/// Some schedules of those that are proposed: wherever some are with scales of float32.
void for_each_schedule(const Problem& problem, const Device& device,
                       const std::function<void(const Schedule&)>& use) {
  constexpr std::size_t kSome = 2;
  const auto kept = proposed(problem, device);
  ASSERT_EQ(kept.empty(), proposed(of_floats(problem), device).empty()) << to_string(problem);
  const auto step = std::max<std::size_t>(kept.size() / kSome, 1);
  for (std::size_t i = 0; i < kept.size(); i += step) use(kept[i]);
}

std::int64_t counted_bytes(const Schedule& schedule, const Problem& problem) {
  return std::visit(
      [&](const auto& s) -> std::int64_t {
        if constexpr (requires { shared_bytes(s, problem); }) return shared_bytes(s, problem);
        return 0;
      },
      schedule);
}

class Superblocks : public ::testing::TestWithParam<const char*> {};

TEST_P(Superblocks, are_multiplied_exactly) {
  unsigned seed = 0;
  for (const Shape& shape : kShapes) {
    const Device& on = device(shape.device);
    const auto activation = ++seed % 2 == 0 ? Scalar::bf16 : Scalar::f16;
    const Problem problem = linear_of(ttype(GetParam()), shape.n, shape.k, activation, shape.m);
    const auto c = LinearCase::integers(problem, problem.m, seed);
    for_each_schedule(problem, on, [&](const Schedule& schedule) {
      const Program program = lower(decide(problem, on), schedule);
      ASSERT_NO_THROW(verify(program, on.shared_per_block_bytes)) << to_string(schedule);
      EXPECT_EQ(program.shared_bytes(), counted_bytes(schedule, problem)) << to_string(schedule);
      ASSERT_EQ(c.run(program, schedule), c.exact())
          << shape.device << ": " << to_string(problem) << "; " << to_string(schedule);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Superblocks, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(SuperblocksOf, a_weight_are_bytes_and_second_scales_of_its_image) {
  const Problem problem = linear_of(ttype("q4_k"), 100, 768, Scalar::f16, 8);
  const ImageParts parts = image_parts(problem);
  EXPECT_EQ(parts.scales->scalar, Scalar::u8);
  EXPECT_EQ(parts.scales->elements, 768 / 32 * 128);
  EXPECT_EQ(parts.zeros->scalar, Scalar::u8);
  EXPECT_EQ(parts.scale2->scalar, Scalar::f16);
  EXPECT_EQ(parts.scale2->elements, 2 * 3 * 128);
  EXPECT_EQ(image_parts(linear_of(ttype("q6_k"), 64, 256, Scalar::f16, 8)).scales->scalar,
            Scalar::s8);
  EXPECT_EQ(weight_bytes(problem), 100 * 768 * 4.625 / 8);
  EXPECT_EQ(to_string(problem),
            "y[m<=8, n=100] f16 = sum k=768: x[m, k] f16 * (d[n, k/256] f16 * s[n, k/32] u8 * "
            "(u4[n, k] - 0) - e[n, k/256] f16 * z[n, k/32] u8)");
  EXPECT_EQ(refusal(linear_of(ttype("q4_k"), 64, 32, Scalar::f16, 8)),
            "superblocks of 256 columns, and K is 32, one group");
}

TEST(SuperblocksOf, a_program_show_every_slip) {
  const Problem problem = linear_of(ttype("q4_k"), 64, 1024, Scalar::f16, 8);
  const Device& on = device("h200");
  const auto schedule = best_schedule(decide(problem, on));
  const auto after = [&](const std::function<void(Program&)>& slip) {
    Program program = lower(decide(problem, on), schedule);
    slip(program);
    return testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m));
  };
  const auto each = [&](const std::function<void(TimesSecond&, Program&)>& slip) {
    return after([&](Program& program) {
      testing::for_each_op<TimesSecond>(program.body, [&](TimesSecond& i) { slip(i, program); });
    });
  };
  EXPECT_EQ(after([](Program&) {}), "");
  RegisterId first = -1;
  EXPECT_EQ(
      each([&](TimesSecond& i, Program&) { i.seconds = first = first < 0 ? i.seconds : first; }),
      "wrong numbers");
  EXPECT_THAT(each([](TimesSecond& i, Program& p) { p.registers[i.to].scalar = Scalar::f16; }),
              HasSubstr("f32"));
  EXPECT_THAT(each([](TimesSecond& i, Program& p) { p.registers[i.seconds].scalar = Scalar::u8; }),
              HasSubstr("second scales of u8"));
  EXPECT_THAT(each([](TimesSecond& i, Program&) { i.numbers = i.seconds; }),
              HasSubstr("integers of superblocks of f16"));
  EXPECT_EQ(after([](Program& program) {
              for (View& view : program.views) {
                if (program.buffers[view.buffer].name == "scale2") view.offset = 0;
              }
            }),
            "wrong numbers");
}

}  // namespace
}  // namespace ladder
