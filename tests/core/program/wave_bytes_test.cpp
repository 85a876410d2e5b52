// SPDX-License-Identifier: Apache-2.0
//
// Waves that multiply activations of 8 bits, by instructions whose bytes all have a sign.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "integer_layer.h"
#include "program/kinds_of_types.h"
#include "program/slips.h"
#include "program/wave_cases.h"

namespace ladder {
namespace {

using testing::for_each_op;
using ::testing::HasSubstr;
using testing::LinearCase;
using ::testing::Ne;

constexpr const char* kDevices[] = {"mi210", "mi300x", "mi355x", "rx7900xtx", "rx9070xt"};

void expect_exact(const Problem& problem, const WaveSchedule& schedule, const Device& device,
                  std::int64_t m, unsigned seed) {
  const Program program = lower(decide(problem, device), schedule);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  ASSERT_NO_THROW(verify(program, device.shared_per_block_bytes)) << to_string(problem);
  const auto data = LinearCase::integers(problem, m, seed);
  const auto y = data.run(program, schedule), wanted = data.exact();
  ASSERT_EQ(y, wanted) << to_string(problem) << "; " << to_string(schedule);
}

class WavesOfBytes : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(WavesOfBytes, are_exact) {
  const auto& [name, type] = GetParam();
  const Device& machine = device(name);
  auto seed = static_cast<unsigned>(std::string_view(type).size() + std::string_view(name).size());
  unsigned kept = 0;
  for (const auto& shape : testing::kWaveShapes) {
    const auto reduction = ++seed % 2 == 0 ? Reduction::none : Reduction::ordered;
    const auto activation = seed % 3 == 0 ? Scalar::bf16 : Scalar::f16;
    for (auto [problem, schedule] : testing::wave_case(shape, ttype(type), activation, reduction,
                                                       Route::bytes, machine, 3, Scalar::s8)) {
      problem.set_bias(seed % 2 == 0);
      expect_exact(problem, schedule, machine, 1 + seed * 7 % problem.m, seed);
      ++kept;
    }
  }
  EXPECT_GE(kept, machine.warp == 64 ? 4U : 2U);  // shapes of wide ones have too many registers
}

INSTANTIATE_TEST_SUITE_P(Types, WavesOfBytes,
                         ::testing::Combine(::testing::ValuesIn(kDevices),
                                            ::testing::ValuesIn(testing::kIntegersOfBytes)),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

// As of a table of values c - 1.5.
TEST(WavesOfBytes, with_a_zero_point_between_two_codes_are_exact_or_refused) {
  for (const char* name : kDevices) {
    for (int bits = 1; bits <= 8; ++bits) {
      const TType& type = ttype("uint" + std::to_string(bits) + ",group=128,scale=float16");
      unsigned kept = 0;
      for (auto [problem, schedule] :
           testing::wave_case(testing::kWaveShapes[0], type, Scalar::f16, Reduction::none,
                              Route::bytes, device(name), 3, Scalar::s8)) {
        testing::set_integers(problem, bits, 3, 1, -1);
        if (!objection(schedule, decide(problem, device(name))).empty()) continue;
        expect_exact(problem, schedule, device(name), problem.m, ++kept);
      }
      EXPECT_EQ(kept > 0, bits <= 7) << bits;
    }
  }
}

// Steps of 16 columns are CDNA 2's.
TEST(WavesOfBytes, serve_groups_that_are_whole_steps) {
  const TType& type = ttype("uint4,group=16,scale=float16");
  const auto of = [&](const char* name) {
    return testing::wave_case(testing::kWaveShapes[0], type, Scalar::f16, Reduction::none,
                              Route::bytes, device(name), 3, Scalar::s8);
  };
  const auto on_mi210 = of("mi210");
  ASSERT_EQ(on_mi210.size(), 1U);
  expect_exact(on_mi210[0].first, on_mi210[0].second, device("mi210"), 16, 1);
  EXPECT_TRUE(of("mi300x").empty());
}

// CDNA 4 takes as long for 64 columns as for 32.
TEST(WavesOfBytes, take_the_instruction_of_twice_the_columns_where_groups_have_them) {
  const auto of = [](const char* name, const char* type) {
    Problem problem = linear_of(ttype(type), 128, 512, Scalar::f16, 32);
    problem.round_x(Scalar::s8);
    return decide(problem, device(name)).of(Route::bytes).core.instruction->name;
  };
  for (const char* type : {"uint4,channel", "uint4,group=64,scale=float16", "int8,group=128"}) {
    EXPECT_EQ(of("mi355x", type), "v_mfma_i32_16x16x64_i8") << type;
    EXPECT_EQ(of("mi300x", type), "v_mfma_i32_16x16x32_i8") << type;
    EXPECT_EQ(of("rx7900xtx", type), "v_wmma_i32_16x16x16_iu8") << type;
    EXPECT_EQ(of("rx9070xt", type), "v_wmma_i32_16x16x16_iu8") << type;
  }
  EXPECT_EQ(of("mi355x", "uint4,group=32,scale=float16"), "v_mfma_i32_16x16x32_i8");
  Problem narrow = linear_of(ttype("uint4,group=32,scale=float16"), 128, 512, Scalar::f16, 32);
  narrow.round_x(Scalar::s8);
  EXPECT_THAT(decide(narrow, device("mi355x")).of(Route::bytes).core.considered,
              ::testing::Contains(HasSubstr("groups of 32 columns are no whole steps")));
}

TEST(WavesOfBytes, refuse_what_needs_bytes_without_a_sign) {
  const auto why = [](const char* type) {
    Problem problem = linear_of(ttype(type), 128, 512, Scalar::f16, 32);
    problem.round_x(Scalar::s8);
    const auto decisions = decide(problem, device("mi300x"));
    return objection(wave_space(decisions).front(), decisions);
  };
  EXPECT_EQ(why("uint8,group=64,scale=float16,zero=rescale"),
            "scaled zero points of codes of 8 bits, of which v_mfma_i32_16x16x32_i8 takes none "
            "without a sign");
}

TEST(WavesOfBytes, serve_every_number_of_tokens_that_kernels_have) {
  for (const char* name : {"mi210", "mi250", "mi300x", "mi355x", "rx7900xtx", "rx9070xt"}) {
    for (const std::int64_t m : {16, 17, 64, 100, 256, 384, 1024, 8192}) {
      for (const char* type : testing::kIntegersOfBytes) {
        Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, m);
        problem.round_x(Scalar::s8);
        const auto all = candidates(decide(problem, device(name)));
        EXPECT_EQ(all.front().dropped, "") << name << ", " << type << ", " << m << " tokens";
        EXPECT_EQ(route_of(all.front().schedule), Route::bytes);
        EXPECT_EQ(schedule_of(to_string(all.front().schedule)), all.front().schedule);
      }
    }
  }
}

// Two groups of four tiles of 256 tokens: of the second a tile has a token, or none has.
TEST(WavesOfBytes, of_tokens_in_groups_are_exact_and_end_at_once_without_tokens) {
  constexpr std::array<int, 7> kShape = {256, 64, 1, 4, 1, 8, 2};
  const Device& machine = device("mi300x");
  const auto cases = testing::wave_case(kShape, ttype("uint4,channel,scale=float16"), Scalar::f16,
                                        Reduction::none, Route::bytes, machine, 2, Scalar::s8);
  ASSERT_EQ(cases.size(), 1U);
  const auto& [problem, schedule] = cases.front();
  EXPECT_EQ(grid_of(schedule, problem).together, 4);
  for (const std::int64_t m : {std::int64_t{300}, std::int64_t{1025}, problem.m}) {
    expect_exact(problem, schedule, machine, m, static_cast<unsigned>(m));
  }
  const Program program = lower(decide(problem, machine), schedule);
  EXPECT_THAT(to_string(program), HasSubstr("blocks from token "));
  WaveSchedule halves = schedule;
  halves.token_tiles = 9;
  EXPECT_EQ(objection(halves, decide(problem, machine)), "9 token tiles are no groups of 4");
}

RegisterId register_called(const Program& program, std::string_view name) {
  const auto found = std::ranges::find(program.registers, name, &Register::name);
  return static_cast<RegisterId>(found - program.registers.begin());
}

/// What the verifier, the interpreter or the numbers say to a good program after `mutate`.
std::string caught(const char* name, const char* type,
                   const std::function<void(Program&)>& mutate) {
  const auto cases =
      testing::wave_case(testing::kWaveShapes[2], ttype(type), Scalar::f16, Reduction::ordered,
                         Route::bytes, device(name), 3, Scalar::s8);
  if (cases.empty()) return "no case";
  const auto& [problem, schedule] = cases.front();
  auto program = lower(decide(problem, device(name)), schedule);
  mutate(program);
  return testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m));
}

constexpr const char* kPlain = "uint4,group=64,scale=float16";
constexpr const char* kStored = "uint4,group=128,scale=float16,zero=integer";
constexpr const char* kWide = "uint8,group=128,scale=float16";
constexpr const char* kWideStored = "uint8,group=128,scale=float16,zero=integer";

TEST(WaveByteMutation, none_is_not_reported) {
  for (const char* name : kDevices) {
    for (const char* type : {kPlain, kStored, kWide, kWideStored}) {
      EXPECT_EQ(caught(name, type, [](Program&) {}), "") << name << ", " << type;
    }
  }
}

TEST(WaveByteMutation, codes_of_another_step_are_caught) {
  for (const char* name : kDevices) {
    // The whole block is one step of CDNA 4.
    EXPECT_EQ(caught(name, kPlain,
                     [](Program& p) {
                       for_each_op<UnpackBytes>(p.body, [](UnpackBytes& i) { i.step = 0; });
                     }),
              std::string_view(name) == "mi355x" ? "" : "wrong numbers");
    EXPECT_THAT(caught(name, kPlain,
                       [](Program& p) {
                         for_each_op<UnpackBytes>(p.body, [](UnpackBytes& i) { i.step = 4; });
                       }),
                HasSubstr("step 4 of a block of"));
  }
}

// A lane of a wave of 32 has the words of several lanes of the image.
TEST(WaveByteMutation, codes_of_another_lane_of_the_image_are_caught) {
  for (const char* name : {"rx7900xtx", "rx9070xt"}) {
    EXPECT_NE(caught(name, kPlain,
                     [](Program& p) {
                       Layout& words = p.registers[register_called(p, "words")].layout;
                       for (Digit& each : words.slots) {
                         if (each.dim == 3) each.stride = 0;
                       }
                     }),
              "")
        << name;
    // Both operands have the other half of the columns: the words are not theirs.
    EXPECT_NE(caught(name, kPlain,
                     [](Program& p) {
                       Layout& words = p.registers[register_called(p, "words")].layout;
                       for (Digit& each : words.threads) {
                         if (each.dim == 3 && each.extent == 8) each.stride = 2;
                       }
                     }),
              "")
        << name;
  }
}

TEST(WaveByteMutation, a_sign_that_is_flipped_or_not_is_caught) {
  for (const char* type : {kWide, kWideStored}) {
    EXPECT_THAT(caught("mi300x", type,
                       [](Program& p) {
                         for_each_op<UnpackBytes>(p.body,
                                                  [](UnpackBytes& i) { i.below_sign = true; });
                       }),
                HasSubstr("8 bits leave no room for a sign"));
  }
  EXPECT_EQ(caught("mi300x", "uint4,group=64,scale=float16,zero=midpoint",
                   [](Program& p) {
                     for_each_op<UnpackBytes>(p.body, [](UnpackBytes& i) { i.below_sign = true; });
                   }),
            "wrong numbers");
  EXPECT_EQ(caught("mi300x", "uint2,group=64,scale=float16",
                   [](Program& p) {
                     for_each_op<UnpackBytes>(p.body, [](UnpackBytes& i) { i.below_sign = false; });
                   }),
            "wrong numbers");
}

TEST(WaveByteMutation, bytes_without_a_sign_are_caught) {
  EXPECT_THAT(caught("mi210", kPlain,
                     [](Program& p) { p.registers[register_called(p, "a")].scalar = Scalar::u8; }),
              HasSubstr("scalars that v_mfma_i32_16x16x16i8 does not take"));
}

TEST(WaveByteMutation, a_lost_zero_point_is_caught) {
  EXPECT_EQ(caught("mi300x", kStored,
                   [](Program& p) {
                     for_each_op<ZeroOperand>(p.body, [](ZeroOperand& i) { ++i.exponent; });
                   }),
            "wrong numbers");
  EXPECT_EQ(caught("mi300x", kWideStored,
                   [](Program& p) { for_each_op<Offset>(p.body, [](Offset& i) { i.less = 0; }); }),
            "wrong numbers");
  EXPECT_EQ(caught("mi300x", kWide,
                   [](Program& p) {
                     const auto zero = register_called(p, "zero");
                     for_each_op<Fill>(p.body, [&](Fill& i) {
                       if (i.to == zero) i.value[0] = i.value[1] = 63;
                     });
                   }),
            "wrong numbers");
}

// As columns follow each other in the instruction, which has eight of a lane side by side.
TEST(WaveByteMutation, columns_that_operands_disagree_about_are_caught) {
  EXPECT_THAT(caught("mi300x", kPlain,
                     [&](Program& p) {
                       Layout& b = p.registers[register_called(p, "b")].layout;
                       for (Digit& each : b.threads) {
                         if (each.dim == 2 && each.stride == 4) each.stride = 8;
                       }
                       for (Digit& each : b.slots) {
                         if (each.dim == 2 && each.stride == 16) each.stride = 4;
                       }
                     }),
              HasSubstr("b is not laid out as the B operand"));
}

TEST(WaveByteMutation, a_dropped_barrier_is_caught) {
  EXPECT_THAT(caught("mi300x", kPlain,
                     [](Program& p) {
                       std::erase_if(p.body, [](const Statement& s) {
                         return std::holds_alternative<Barrier>(s.op);
                       });
                     }),
              HasSubstr("without a barrier"));
}

}  // namespace
}  // namespace ladder
