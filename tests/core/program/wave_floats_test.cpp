// SPDX-License-Identifier: Apache-2.0
//
// Waves that multiply activations of e4m3: as e4m3fnuz on CDNA 3, which reads half of each operand,
// and as they are on CDNA 4 and RDNA 4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>

#include "base/joined.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/slips.h"
#include "program/wave_cases.h"

namespace ladder {
namespace {

using testing::for_each_op;
using ::testing::HasSubstr;
using testing::LinearCase;

constexpr const char* kDevices[] = {"mi300x", "mi355x", "rx9070xt"};

auto cases_of(const char* name, const char* type, std::size_t shape, unsigned turn = 0) {
  return testing::wave_case(testing::kWaveShapes[shape], ttype(type),
                            turn % 3 == 0 ? Scalar::bf16 : Scalar::f16,
                            turn % 2 == 0 ? Reduction::none : Reduction::ordered, Route::bytes,
                            device(name), 3, Scalar::e4m3);
}

class WavesOfFloatBytes : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(WavesOfFloatBytes, are_exact) {
  const auto& [name, type] = GetParam();
  const Device& machine = device(name);
  auto seed = static_cast<unsigned>(std::string_view(type).size());
  unsigned kept = 0;
  for (std::size_t shape = 0; shape < testing::kWaveShapes.size(); ++shape) {
    ++seed;
    for (auto [problem, schedule] : cases_of(name, type, shape, seed)) {
      problem.set_bias(seed % 2 == 0);
      problem.widen_y(seed % 4 == 0);
      const Program program = lower(decide(problem, machine), schedule);
      EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
      ASSERT_NO_THROW(verify(program, machine.shared_per_block_bytes)) << to_string(problem);
      const auto data = LinearCase::integers(problem, 1 + seed * 7 % problem.m, seed);
      ASSERT_EQ(data.run(program, schedule), data.exact())
          << to_string(problem) << "; " << to_string(schedule);
      ++kept;
    }
  }
  EXPECT_GE(kept, 4U);
}

constexpr auto kCase = [](const auto& info) { return "case_" + std::to_string(info.index); };
INSTANTIATE_TEST_SUITE_P(Floats, WavesOfFloatBytes,
                         ::testing::Combine(::testing::ValuesIn(kDevices),
                                            ::testing::ValuesIn(testing::kFloatsOfBytes)),
                         kCase);
INSTANTIATE_TEST_SUITE_P(Wholes, WavesOfFloatBytes,
                         ::testing::Combine(::testing::ValuesIn(kDevices),
                                            ::testing::ValuesIn(testing::kWholesOfBytes)),
                         kCase);

// A weight that is NaN makes its row NaN, and no other; on CDNA 3 its code would be 480.
TEST(WavesOfFloatBytes, keep_nan_of_weights_and_of_activations) {
  for (const char* name : kDevices) {
    auto [problem, schedule] = cases_of(name, "float8_e4m3,channel", 0).at(0);
    const Program program = lower(decide(problem, device(name)), schedule);
    auto data = LinearCase::integers(problem, 3);
    constexpr std::int64_t kRow = 9;
    data.data.codes[kRow * problem.k + 5] = 0x7f;
    data.data.codes[(kRow + 1) * problem.k + 6] = 0xff;
    data.data.x[2 * problem.k + 7] = 0xff;
    const auto y = data.run(program, schedule);
    for (std::int64_t i = 0; i < 3 * problem.n; ++i) {
      const auto row = i % problem.n;
      EXPECT_EQ(std::isnan(y[static_cast<std::size_t>(i)]),
                i >= 2 * problem.n || row == kRow || row == kRow + 1)
          << i;
    }
  }
}

TEST(WavesOfFloatBytes, are_refused_by_name_where_no_instruction_reads_them) {
  Problem floats = linear_of(ttype("float8_e4m3,channel"), 128, 512, Scalar::f16, 32);
  floats.round_x(Scalar::e4m3);
  for (const char* name : {"mi210", "mi250", "rx7900xtx"}) {
    EXPECT_THAT(
        [&] { decide(floats, device(name)); },
        ::testing::ThrowsMessage<Unsupported>(joined("no tile program multiplies e4m3 on ", name)));
  }
}

TEST(WavesOfFloatBytes, serve_every_number_of_tokens_that_kernels_have) {
  for (const char* name : kDevices) {
    for (const std::int64_t m : {16, 100, 256, 1024, 8192}) {
      for (const char* type : testing::kFloatsOfBytes) {
        Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, m);
        problem.round_x(Scalar::e4m3);
        const auto all = candidates(decide(problem, device(name)));
        EXPECT_EQ(all.front().dropped, "") << name << ", " << type << ", " << m << " tokens";
      }
    }
  }
}

/// What the verifier, the interpreter or the numbers say to a good program after `mutate`.
std::string caught(const char* name, const char* type,
                   const std::function<void(Program&)>& mutate) {
  const auto [problem, schedule] = cases_of(name, type, 2).at(0);
  auto program = lower(decide(problem, device(name)), schedule);
  mutate(program);
  return testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m));
}

void set_scalars(Program& program, Scalar from, Scalar to) {
  for (auto& each : program.registers) {
    if (each.scalar == from) each.scalar = to;
  }
  for (auto& each : program.buffers) {
    if (each.scalar == from) each.scalar = to;
  }
}

constexpr const char* kFloats = "float6_e3m2,group=64,scale=float16";

TEST(WaveFloatByteMutation, none_is_not_reported) {
  for (const char* name : kDevices) EXPECT_EQ(caught(name, kFloats, [](Program&) {}), "") << name;
}

TEST(WaveFloatByteMutation, the_format_of_the_other_machine_is_caught) {
  EXPECT_THAT(
      caught("mi300x", kFloats, [](Program& p) { set_scalars(p, Scalar::e4m3fnuz, Scalar::e4m3); }),
      HasSubstr("scalars that v_mfma_f32_16x16x32_fp8_fp8 does not take"));
  EXPECT_THAT(
      caught("mi355x", kFloats, [](Program& p) { set_scalars(p, Scalar::e4m3, Scalar::e4m3fnuz); }),
      HasSubstr("scalars that v_mfma_f32_16x16x32_fp8_fp8 does not take"));
  // The other instruction, too, is another number.
  const auto* const ocp = tile_instruction(Scalar::e4m3, device("mi355x"));
  EXPECT_EQ(caught("mi300x", kFloats,
                   [&](Program& p) {
                     set_scalars(p, Scalar::e4m3fnuz, Scalar::e4m3);
                     for_each_op<Mma>(p.body, [&](Mma& i) { i.row = ocp; });
                   }),
            "wrong numbers");
}

TEST(WaveFloatByteMutation, a_factor_of_the_halves_that_is_lost_is_caught) {
  EXPECT_EQ(
      caught("mi300x", kFloats,
             [](Program& p) { for_each_op<Scale>(p.body, [](Scale& i) { --i.exponent[0]; }); }),
      "wrong numbers");
}

TEST(WaveFloatByteMutation, another_mantissa_is_caught) {
  EXPECT_EQ(caught("mi300x", kFloats,
                   [](Program& p) {
                     for_each_op<UnpackBytes>(p.body, [](UnpackBytes& i) { i.mantissa_bits = 3; });
                   }),
            "wrong numbers");
}

}  // namespace
}  // namespace ladder
