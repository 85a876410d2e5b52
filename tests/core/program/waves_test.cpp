// SPDX-License-Identifier: Apache-2.0
//
// Kernels for waves of 64 lanes, which read the weight image that was made for 32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

#include "layout/weight_image.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/slips.h"
#include "program/wave_cases.h"
#include "program/wave_exact.h"

namespace ladder {
namespace {

using testing::expect_exact;
using testing::LinearCase;

bool has_waves(const std::vector<Candidate>& all) {
  return std::ranges::any_of(all, [](const Candidate& each) {
    return each.dropped.empty() && std::holds_alternative<WaveSchedule>(each.schedule);
  });
}

/// Whether the device has a kernel of waves for 16 tokens: of few lanes what clang spills is
/// refused.
bool is_served(const char* type, const Device& machine) {
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    try {
      const Problem problem = linear_of(ttype(type), 4096, 4096, activation, 16);
      if (has_waves(candidates(decide(problem, machine)))) return true;
    } catch (const Unsupported&) {
      continue;  // wider than float16
    }
  }
  return false;
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
      if (++seed % 3 != 0 && machine.warp == 64) continue;  // of 32 lanes few shapes are served
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
  if (machine.warp == 64) {
    EXPECT_GE(exact, 2U);  // shapes of wide ones have too many registers
  } else {
    EXPECT_EQ(exact > 0, is_served(type, machine));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Waves,
                         ::testing::Combine(::testing::Values("mi210", "mi300x", "mi355x",
                                                              "rx7900xtx", "rx9070xt", "v100"),
                                            ::testing::ValuesIn(testing::kKindsOfTypes)),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

// Of any number of tokens: by tiles as large as a workgroup takes, and by rounded operands, which
// are those of a dequantised weight.
TEST(Waves, of_large_tiles_and_rounded_operands_are_exact) {
  unsigned exact = 0, turn = 0;
  for (const char* name : {"mi210", "mi300x", "rx9070xt"}) {
    for (const char* type : {"uint4,group=64,scale=float16", "mxfp4", "uint3,channel,scale=float32",
                             "int2,group=32,scale=float16", "float6_e3m2,group=128,scale=bfloat16",
                             "uint4,group=128,scale=float16,zero=integer"}) {
      for (const auto& shape : testing::kLargeWaveShapes) {
        for (const auto place : {ScalePlace::usual, ScalePlace::rounded}) {
          const auto* scale = ttype(type).scale;
          const bool bf16 = scale == &element("bfloat16") || scale == &element("e8m0");
          for (auto [problem, schedule] :
               testing::wave_case(shape, ttype(type), bf16 ? Scalar::bf16 : Scalar::f16,
                                  ++turn % 2 == 0 ? Reduction::none : Reduction::ordered,
                                  Route::multiply_add, device(name), 2, {}, place)) {
            problem.permuted_columns = turn % 3 == 0;
            expect_exact(problem, schedule, device(name), turn);
            exact += schedule.scale_place == ScalePlace::rounded ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GE(exact, 4U);
}

TEST(WavesOfFewTokens, multiply_every_type_exactly) {
  unsigned turn = 0, parts = 0;
  for (const char* name : {"mi210", "mi300x", "mi355x"}) {
    const Device& machine = device(name);
    for (const char* type : testing::kKindsOfTypes) {
      unsigned exact = 0;
      for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
        for (const auto products : {WaveProducts::blocks, WaveProducts::dots}) {
          for (int i = 0; i < 2; ++i) {
            try {
              for (const auto& [problem, schedule] :
                   testing::few_tokens_case(ttype(type), activation, products, turn++, machine)) {
                expect_exact(problem, schedule, machine, turn);
                ++exact;
              }
            } catch (const Unsupported&) {
              continue;  // wider than float16
            }
          }
        }
      }
      parts += exact;
      // Of wide ones some shapes have too many registers.
      EXPECT_GE(exact, 1U) << name << ", " << type;
    }
  }
  EXPECT_GE(parts, 300U);
}

// Lanes that share a row have other columns of it.
TEST(WavesOfFewTokens, are_caught_where_sums_of_other_columns_are_one_part) {
  const Device& machine = device("mi300x");
  for (const auto products : {WaveProducts::blocks, WaveProducts::dots}) {
    const auto cases = testing::few_tokens_case(ttype("uint4,group=64,scale=float16"), Scalar::f16,
                                                products, 2, machine);
    ASSERT_EQ(cases.size(), 1U);
    const auto& [problem, schedule] = cases.front();
    const auto data = LinearCase::integers(problem, problem.m);
    const auto slipped = [&](const std::function<void(Program&)>& mutate) {
      Program program = lower(decide(problem, machine), schedule);
      mutate(program);
      return testing::objection_to(program, schedule, data);
    };
    const auto of = [](Program& program, const char* name) -> Layout& {
      return std::ranges::find(program.registers, name, &Register::name)->layout;
    };
    EXPECT_EQ(slipped([](Program&) {}), "");
    EXPECT_NE(slipped([&](Program& p) {
                for (Digit& digit : of(p, "acc").threads) digit.stride *= digit.dim == 0 ? 0 : 1;
              }),
              "");
    EXPECT_NE(slipped([&](Program& p) {
                for (Digit& digit : of(p, "b").threads) digit.stride *= digit.dim == 2 ? 0 : 1;
              }),
              "");
    EXPECT_NE(slipped([&](Program& p) {
                testing::for_each_op<Mma>(p.body, [](Mma& i) {
                  i.row = tile_instruction(Scalar::f16, device("mi300x"));
                });
              }),
              "");
  }
}

TEST(WavesOfFewTokens, are_among_the_candidates_of_devices_that_have_them) {
  const auto has = [](const char* name, Scalar activation, std::int64_t m, WaveProducts products) {
    const Problem problem =
        linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, activation, m);
    return std::ranges::any_of(candidates(decide(problem, device(name))), [&](const auto& each) {
      const auto* s = std::get_if<WaveSchedule>(&each.schedule);
      return s != nullptr && each.dropped.empty() && s->products == products;
    });
  };
  for (const char* name : {"mi210", "mi300x", "mi355x"}) {
    for (const std::int64_t m : {1, 4, 5}) {
      for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
        const bool pairs = activation == Scalar::f16 || std::string_view(name) == "mi355x";
        EXPECT_EQ(has(name, activation, m, WaveProducts::dots), m == 1 && pairs) << name << m;
        EXPECT_EQ(has(name, activation, m, WaveProducts::blocks), m <= 4) << name << m;
      }
    }
  }
  EXPECT_FALSE(has("rx9070xt", Scalar::f16, 1, WaveProducts::dots));
  EXPECT_FALSE(has("v100", Scalar::f16, 1, WaveProducts::blocks));
}

// CDNA 4 takes as long for 32 columns as for 16.
TEST(Waves, take_the_instruction_of_twice_the_columns_where_groups_have_them) {
  const auto of = [](const char* name, const char* type, Scalar activation) {
    const Problem problem = linear_of(ttype(type), 128, 512, activation, 32);
    return decide(problem, device(name)).of(Route::multiply_add).core.instruction->name;
  };
  EXPECT_EQ(of("mi355x", "uint4,channel", Scalar::f16), "v_mfma_f32_16x16x32_f16");
  EXPECT_EQ(of("mi355x", "mxfp4", Scalar::bf16), "v_mfma_f32_16x16x32_bf16");
  EXPECT_EQ(of("mi355x", "nvfp4", Scalar::bf16), "v_mfma_f32_16x16x16_bf16");
  EXPECT_EQ(of("mi300x", "mxfp4", Scalar::bf16), "v_mfma_f32_16x16x16_bf16");
}

// Two groups of 16 tiles of 64 tokens: of the second a tile has a token, or none has.
TEST(Waves, of_tokens_in_groups_are_exact_and_end_at_once_without_tokens) {
  constexpr std::array<int, 7> kShape = {64, 64, 1, 2, 1, 32, 2};
  const Device& machine = device("mi300x");
  const auto cases = testing::wave_case(kShape, ttype("uint4,channel,scale=float16"), Scalar::f16,
                                        Reduction::none, Route::multiply_add, machine, 2);
  ASSERT_EQ(cases.size(), 1U);
  const auto& [problem, schedule] = cases.front();
  EXPECT_EQ(grid_of(schedule, problem).together, 16);
  const Program program = lower(decide(problem, machine), schedule);
  for (const std::int64_t m : {std::int64_t{70}, std::int64_t{1025}}) {
    const auto data = LinearCase::integers(problem, m, static_cast<unsigned>(m));
    EXPECT_EQ(data.run(program, schedule), data.exact()) << m;
  }
  EXPECT_THAT(to_string(program), ::testing::HasSubstr("blocks from token "));
}

// The barrier between the last read of the only stage and what is written there next.
TEST(Waves, of_one_stage_need_both_barriers) {
  constexpr std::array<int, 7> kShape = {32, 64, 1, 1, 2, 1, 1};
  const Device& machine = device("mi300x");
  const auto cases = testing::wave_case(kShape, ttype("uint4,group=64,scale=float16"), Scalar::f16,
                                        Reduction::none, Route::multiply_add, machine);
  ASSERT_EQ(cases.size(), 1U);
  const auto& [problem, schedule] = cases.front();
  const auto data = LinearCase::integers(problem, problem.m);
  Program program = lower(decide(problem, machine), schedule);
  EXPECT_EQ(testing::objection_to(program, schedule, data), "");
  for (int which = 0; which < 2; ++which) {
    Program slipped = program;
    int barriers = 0;
    const auto loop = std::ranges::find_if(slipped.body, [](const Statement& statement) {
      return std::holds_alternative<For>(statement.op);
    });
    ASSERT_NE(loop, slipped.body.end());
    std::erase_if(std::get<For>(loop->op).body, [&](const Statement& statement) {
      return std::holds_alternative<Barrier>(statement.op) && barriers++ == which;
    });
    EXPECT_EQ(barriers, 2);
    EXPECT_NE(testing::objection_to(slipped, schedule, data), "") << which;
  }
}

// A lane of a wave of 32 has the words of several lanes of the image, of 3 bits from within chunks.
TEST(Waves, of_32_lanes_are_caught_with_codes_of_another_lane_block_or_step) {
  const auto caught = [](const char* name, const std::function<void(Program&)>& mutate) {
    const Device& machine = device(name);
    const auto cases =
        testing::wave_case(testing::kWaveShapes[0], ttype("uint3,group=64,scale=float16"),
                           Scalar::f16, Reduction::none, Route::multiply_add, machine);
    if (cases.empty()) return std::string("no case");
    const auto& [problem, schedule] = cases.front();
    Program program = lower(decide(problem, machine), schedule);
    mutate(program);
    return testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m));
  };
  for (const char* name : {"rx7900xtx", "rx9070xt", "v100"}) {
    EXPECT_EQ(caught(name, [](Program&) {}), "") << name;
    const auto of_lanes = [](Program& program) {
      const auto words = std::ranges::find(program.registers, "words", &Register::name);
      for (Digit& digit : words->layout.slots) digit.stride = digit.dim == 3 ? 0 : digit.stride;
    };
    EXPECT_NE(caught(name, of_lanes), "") << name;
    const auto of_block = [](Program& program) {
      testing::for_each_op<LoadUnits>(program.body, [](LoadUnits& i) { i.at[1] = 0; });
    };
    EXPECT_EQ(caught(name, of_block), "wrong numbers") << name;
    const auto of_step = [](Program& program) {
      testing::for_each_op<Unpack>(program.body, [](Unpack& i) { i.step = 0; });
    };
    EXPECT_EQ(caught(name, of_step), "wrong numbers") << name;
  }
}

TEST(Waves, read_by_maps_that_are_bijections_but_for_the_padding_of_shared_memory) {
  for (const char* name : {"mi210", "mi300x", "rx9070xt"}) {
    for (const bool bytes : {false, true}) {
      if (bytes && tile_instruction(Scalar::s8, device(name)) == nullptr) continue;
      Problem problem = linear_of(ttype("uint3,group=64,scale=float16"), 256, 512, Scalar::f16, 20);
      if (bytes) problem.round_x(Scalar::s8);
      const auto decisions = decide(problem, device(name));
      const auto maps = maps_of(std::get<WaveSchedule>(best_schedule(decisions)), decisions);
      ASSERT_EQ(maps.size(), 8U);
      for (const auto& [what, map] : maps) {
        // Two waves of 32 lanes have the same activations.
        const bool by_both = device(name).warp == 32 && what.starts_with("activations: to");
        EXPECT_EQ(inverse(map).has_value(),
                  what.find("in shared memory") == std::string::npos && !by_both)
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
  for (const char* name : {"mi210", "mi300x", "rx7900xtx"}) {
    for (const std::int64_t m : {1, 3, 48, 200, 1000}) {
      const Problem problem =
          linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::bf16, m);
      for (const Schedule& schedule : space(decide(problem, device(name)))) {
        EXPECT_EQ(schedule_of(to_string(schedule)), schedule) << to_string(schedule);
      }
    }
  }
}

TEST(Waves, serve_every_number_of_tokens_of_every_type) {
  for (const char* name : {"mi210", "mi250", "mi300x", "mi355x", "rx7900xtx", "rx9070xt"}) {
    for (const char* type : testing::kKindsOfTypes) {
      for (const std::int64_t m : {1, 16, 17, 64, 100, 256, 257, 2048, 8192}) {
        const Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, m);
        const auto all = candidates(decide(problem, device(name)));
        // Of narrow groups waves of 32 lanes refuse what clang spills (docs/amd.md).
        const bool spills =
            problem.group_size() < kBlock && std::ranges::any_of(all, [](const auto& candidate) {
              return candidate.dropped.find("lanes: clang spills") != std::string::npos;
            });
        EXPECT_TRUE(has_waves(all) || spills)
            << name << ", " << type << ", " << m << " tokens: " << all.front().dropped;
      }
    }
  }
}

}  // namespace
}  // namespace ladder
