// SPDX-License-Identifier: Apache-2.0
//
// Kernels for waves of 64 lanes, which read the weight image that was made for 32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/wave_cases.h"

namespace ladder {
namespace {

using testing::LinearCase;

void expect_exact(const Problem& problem, const WaveSchedule& schedule, const Device& device,
                  unsigned seed) {
  const Program program = lower(decide(problem, device), schedule);
  EXPECT_EQ(program.threads, schedule.threads());
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  ASSERT_NO_THROW(verify(program, device.shared_per_block_bytes)) << to_string(problem);
  const auto data = LinearCase::integers(problem, problem.m, seed);
  const auto y = data.run(program, schedule);
  const auto wanted = data.exact();
  const auto reference = evaluate(problem, data.data);
  const bool rounded = decoding_error(problem) > 0 || (problem.weight.element != nullptr &&
                                                       problem.weight.element->exponent_bits > 4);
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!rounded) {
      ASSERT_EQ(y[i], wanted[i]) << to_string(problem) << "; " << to_string(schedule) << "; " << i;
    } else if (std::fabs(reference.y[i]) <= data.largest()) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i)) << to_string(problem);
    }
  }
}

class Waves : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Waves, multiply_every_type_exactly) {
  const auto& [name, type] = GetParam();
  const Device& machine = device(name);
  // Each type in a third of the shapes, another one for each device and activation.
  auto seed = static_cast<unsigned>(std::string_view(type).size() + std::string_view(name).size());
  unsigned exact = 0;
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    for (const auto& shape : testing::kWaveShapes) {
      if (++seed % 3 != 0) continue;
      const auto reduction = seed % 2 == 0 ? Reduction::none : Reduction::ordered;
      for (const Route route : {Route::multiply_add, Route::in_place}) {
        try {
          for (auto [problem, schedule] :
               testing::wave_case(shape, ttype(type), activation, reduction, route, machine)) {
            problem.set_bias(seed % 2 == 0), problem.permuted_columns = seed % 5 == 0;
            expect_exact(problem, schedule, machine, seed);
            ++exact;
          }
        } catch (const Unsupported&) {
          continue;  // wider than float16
        }
      }
    }
  }
  EXPECT_GE(exact, 2U);
}

INSTANTIATE_TEST_SUITE_P(Types, Waves,
                         ::testing::Combine(::testing::Values("mi210", "mi300x"),
                                            ::testing::ValuesIn(testing::kKindsOfTypes)),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(Waves, read_by_maps_that_are_bijections_but_for_the_padding_of_shared_memory) {
  for (const char* name : {"mi210", "mi300x"}) {
    for (const bool bytes : {false, true}) {
      Problem problem = linear_of(ttype("uint3,group=64,scale=float16"), 256, 512, Scalar::f16, 40);
      if (bytes) problem.round_x(Scalar::s8);
      const auto decisions = decide(problem, device(name));
      const auto maps = maps_of(std::get<WaveSchedule>(best_schedule(decisions)), decisions);
      ASSERT_EQ(maps.size(), 8U);
      for (const auto& [what, map] : maps) {
        EXPECT_EQ(inverse(map).has_value(), what.find("in shared memory") == std::string::npos)
            << what;
      }
    }
  }
}

// The order of columns is free, and has to be the same for both operands.
TEST(Waves, are_refused_where_operands_disagree_about_columns) {
  const Device& mi300x = device("mi300x");
  const Problem problem =
      linear_of(ttype("uint4,group=64,scale=float16"), 128, 256, Scalar::f16, 16);
  const auto decisions = decide(problem, mi300x);
  Program program = lower(decisions, best_schedule(decisions));
  const auto b = std::ranges::find(program.registers, "b", &Register::name);
  ASSERT_NE(b, program.registers.end());
  b->layout = lifted(tile_instruction(Scalar::f16, mi300x)->b());  // as columns follow each other
  EXPECT_THAT([&] { verify(program, mi300x.shared_per_block_bytes); },
              ::testing::Throws<InternalError>());
}

// CDNA 2 reads subnormal operands as zero.
TEST(Waves, of_a_device_without_subnormal_operands_have_none) {
  const auto codes = [](const char* name, const char* type, Route route) {
    const Problem problem = linear_of(ttype(type), 128, 256, Scalar::f16, 16);
    const auto decisions = decide(problem, device(name));
    auto schedule = std::get<WaveSchedule>(best_schedule(decisions));
    schedule.route = route;
    return objection(schedule, decisions);
  };
  constexpr const char* kIntegers = "uint4,group=64,scale=float16";
  EXPECT_EQ(codes("mi300x", kIntegers, Route::in_place), "");
  EXPECT_EQ(codes("mi210", kIntegers, Route::multiply_add), "");
  EXPECT_EQ(codes("mi210", kIntegers, Route::in_place),
            "v_mfma_f32_16x16x16f16 reads codes in place, which are subnormals, as zero");
  EXPECT_EQ(codes("mi210", "float6_e3m2,group=64,scale=float16", Route::multiply_add), "");
}

TEST(Waves, of_floats_beyond_the_normal_numbers_are_refused_with_the_value) {
  const Problem problem =
      linear_of(ttype("float8_e5m2,group=64,scale=float16"), 128, 256, Scalar::f16, 16);
  EXPECT_THAT([&] { without_subnormals(decoding_of(problem), problem); },
              ::testing::ThrowsMessage<Unsupported>(
                  "the values of float8_e5m2 span more than the normal numbers of f16: "
                  "1.52588e-05 would be a subnormal operand"));
}

TEST(Waves, are_spelled_as_they_are_read) {
  for (const char* name : {"mi210", "mi300x"}) {
    for (const std::int64_t m : {1, 48, 200}) {
      const Problem problem =
          linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::bf16, m);
      for (const Schedule& schedule : space(decide(problem, device(name)))) {
        EXPECT_EQ(schedule_of(to_string(schedule)), schedule) << to_string(schedule);
      }
    }
  }
}

TEST(Waves, serve_every_number_of_tokens_of_every_type) {
  for (const char* name : {"mi210", "mi250", "mi300x", "mi355x"}) {
    for (const char* type : testing::kKindsOfTypes) {
      for (const std::int64_t m : {1, 16, 17, 64, 100, 256}) {
        const Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, m);
        const auto all = candidates(decide(problem, device(name)));
        EXPECT_TRUE(std::ranges::any_of(all,
                                        [](const Candidate& candidate) {
                                          return candidate.dropped.empty() &&
                                                 std::holds_alternative<WaveSchedule>(
                                                     candidate.schedule);
                                        }))
            << name << ", " << type << ", " << m << " tokens: " << all.front().dropped;
      }
    }
  }
}

}  // namespace
}  // namespace ladder
