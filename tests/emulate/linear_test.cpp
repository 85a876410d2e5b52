// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels of the linear layer, run on this processor (machine.h): exactly what their
// expressions are, whatever the order in which warps and copies come.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codegen/cuda/emit.h"
#include "codegen/hip/emit.h"
#include "expr/constructors.h"
#include "linear_emulated.h"
#include "machine.h"
#include "pipelines/schedule.h"
#include "program/gate_cases.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/tail_cases.h"
#include "program/tile_cases.h"
#include "program/turing_cases.h"
#include "program/wave_cases.h"
#include "translate.h"

namespace ladder {
namespace {

using testing::Case;
using testing::expect_exact;
using testing::language_of;
using testing::LinearCase;
using testing::objection_to;

TEST(Emulated, kernels_of_every_shape_of_schedule_are_exact) {
  std::vector<Case> cases;
  for (const auto& [problem, schedule] : testing::lowered_cases())
    cases.push_back({problem, schedule});
  expect_exact(cases, device("h200"));
}

TEST(Emulated, tile_kernels_of_every_shape_are_exact) {
  std::vector<Case> cases;
  for (const auto& [problem, schedule] : testing::tile_cases(4))
    cases.push_back({problem, schedule});
  expect_exact(cases, device("h200"));
}

TEST(Emulated, tails_are_exact) {
  std::vector<Case> cases;
  for (const auto& [problem, schedule] : testing::tail_cases())
    cases.push_back({problem, schedule});
  ASSERT_GE(cases.size(), 10U);
  expect_exact(cases, device("h200"));
}

TEST(Emulated, tile_kernels_of_rounded_operands_are_exact) {
  std::vector<Case> cases;
  unsigned turn = 0;
  for (const char* type :
       {"uint4,group=128,scale=float16", "int3,group=32,scale=bfloat16",
        "uint4,group=64,scale=float16,zero=integer", "nvfp4", "float6_e3m2,group=64,scale=float16",
        "mxfp4", testing::kIntegerScales}) {
    const auto of_shape = [&](const std::array<int, 7>& shape, bool warpgroups) {
      ++turn;
      const auto* scale = ttype(type).scale;
      const bool bf16 = scale == &element("bfloat16") || scale == &element("e8m0") ||
                        (ttype(type).has_integer_scales() && turn % 2 == 0);
      for (const auto& [problem, schedule] :
           testing::tile_case(shape, ttype(type), bf16 ? Scalar::bf16 : Scalar::f16,
                              static_cast<Reduction>(turn % 3), Route::multiply_add, turn % 2 == 0,
                              3, warpgroups, {}, ScalePlace::rounded)) {
        cases.push_back({problem, schedule});
      }
    };
    for (const auto& shape : testing::kRoundedShapes) of_shape(shape, true);
    of_shape(testing::kRoundedByWarps[turn % 2], false);
  }
  ASSERT_GE(cases.size(), 20U);
  expect_exact(cases, device("h200"), 2);
}

/// Cases that `add` makes of each `step` of `of_cases`, right.
void expect_right_of(const auto& add, const char* name, const auto& of_cases, std::size_t step) {
  const Device& on = device(name);
  std::vector<std::pair<Problem, Schedule>> made;
  add(made, of_cases, on, step);
  ASSERT_GE(made.size(), 3U) << name;
  std::vector<Case> cases;
  for (const auto& [problem, schedule] : made) cases.push_back({problem, schedule});
  expect_exact(cases, on, 2);
}

TEST(Emulated, kernels_of_gates_are_right) {
  const auto add = [](auto&... of) { testing::add_gated(of...); };
  expect_right_of(add, "h200", testing::lowered_cases(), 9);
  expect_right_of(add, "h200", testing::tile_cases(), 9);
  expect_right_of(add, "mi300x", testing::wave_cases(device("mi300x"), 3), 1);
  expect_right_of(add, "mi300x", testing::few_tokens_cases(device("mi300x")), 1);
}

TEST(Emulated, kernels_of_functions_of_sums_are_right) {
  const auto add = [](auto&... of) { testing::add_activated(of...); };
  expect_right_of(add, "h200", testing::lowered_cases(), 9);
  expect_right_of(add, "h200", testing::tile_cases(), 9);
  expect_right_of(add, "mi300x", testing::wave_cases(device("mi300x"), 3), 4);
  expect_right_of(add, "mi300x", testing::few_tokens_cases(device("mi300x")), 1);
}

TEST(Emulated, kernels_that_add_a_residual_are_exact) {
  const auto add = [](auto&... of) { testing::add_residuals(of...); };
  expect_right_of(add, "h200", testing::lowered_cases(), 9);
  expect_right_of(add, "h200", testing::tile_cases(), 9);
  expect_right_of(add, "h200", testing::tail_cases(), 3);
  expect_right_of(add, "mi300x", testing::wave_cases(device("mi300x"), 3), 4);
  expect_right_of(add, "mi300x", testing::few_tokens_cases(device("mi300x")), 1);
}

TEST(Emulated, kernels_whose_y_are_codes_are_exact) {
  const auto add = [](auto&... of) { testing::add_quantised(of...); };
  expect_right_of(add, "h200", testing::lowered_cases(), 9);
  expect_right_of(add, "h200", testing::tile_cases(), 9);
  expect_right_of(add, "h200", testing::tail_cases(), 3);
  expect_right_of(add, "t4", testing::turing_shapes(), 6);  // codes by plain arithmetic
  for (const char* name : {"mi210", "mi300x", "rx7900xtx"}) {
    expect_right_of(add, name, testing::wave_cases(device(name), 3), 4);
  }
  expect_right_of(add, "mi300x", testing::few_tokens_cases(device("mi300x")), 1);
}

// Every number that is a sum of few, and what is none: by the instruction, and by plain arithmetic
// of both languages.
TEST(Emulated, codes_of_numbers_of_all_kinds_are_the_nearest) {
  for (const char* name : {"h200", "a100", "mi300x", "rx9070xt"}) {
    const Device& on = device(name);
    for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
      Problem problem = linear_of(ttype("int8,channel,scale=float32"), 256, 64, Scalar::bf16, 16);
      problem.quantise_y(to);
      const Schedule schedule = best_schedule(decide(problem, on));
      const Program program = lower(decide(problem, on), schedule);
      const auto hip = language_of(on) == emulate::Language::hip;
      const auto kernel =
          emulate::load({{hip ? hip::emit(program) : cuda::emit(program), program.name}},
                        language_of(on), on.capability)[0];
      auto data = LinearCase::integers(problem, 16);
      // A row of x has one number, and a row of the weight each code.
      std::fill(data.data.x.begin(), data.data.x.end(), 0);
      for (std::int64_t n = 0; n < problem.n; ++n) {
        for (std::int64_t k = 0; k < problem.k; ++k)
          data.data.codes[n * problem.k + k] = static_cast<std::uint8_t>(n);
        data.data.scales[n] = to_bits(Scalar::f32, std::ldexp(1.0, static_cast<int>(n % 7) - 3));
      }
      constexpr double kNumbers[] = {1,     -1,       0.25,     0x1p-9,     0x1p-12, 3.5,
                                     -2.75, 0x1.5p-4, 0x1.0p-2, 0x1.0ep-11, 117,     -0x1p-8,
                                     1e30,  NAN,      INFINITY, -INFINITY};
      for (std::int64_t m = 0; m < 16; ++m)
        data.data.x[m * problem.k + 7] = to_bits(problem.formats.x, kNumbers[m]);
      for (const float scale : {1.0f, 0.4f, 1e-30f, 1e30f}) {
        data.data.y_scale = scale;
        ASSERT_EQ(objection_to({problem, schedule}, on, program, kernel, data, 1), "")
            << to_string(problem) << " on " << name << " by " << scale;
      }
    }
  }
}

// Where scales multiply, by choice: sums of nvfp4, and operands whose groups are more than a step.
TEST(Emulated, kernels_that_have_scales_in_the_other_place_are_exact) {
  DecodeSchedule once{.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1};
  DecodeSchedule persistent{
      .tokens = 8,
      .warps_n = 1,
      .warps_k = 2,
      .blocks_per_warp = 2,
      .weights =
          weights::RegisterStages{
              .k_tiles = 2, .stages = 2, .tiles_per_cta = 2, .reduction_buffers = 2},
      .activations = activations::BulkCopy{.multicast = 1},
      .reduction = Reduction::cluster};
  std::vector<Case> cases;
  for (DecodeSchedule schedule : {once, persistent}) {
    for (const auto& [type, place] :
         {std::pair{"nvfp4", ScalePlace::sums},
          {"float4_e2m1,group=32,scale=float8_e4m3", ScalePlace::operands},
          {"float4_e2m1,channel,scale=float8_e4m3", ScalePlace::operands}}) {
      for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
        const auto splits = schedule.reduction == Reduction::none ? 1 : 2;
        schedule.scale_place = place;
        cases.push_back(
            {linear_of(ttype(type), 128, schedule.cta_columns() * splits, activation, 8),
             schedule});
      }
    }
  }
  expect_exact(cases, device("h200"));
}

// One product takes the factor of the fields and seven bits of a scale's code, two more the rest.
TEST(Emulated, every_scale_that_is_a_power_of_two_is_exact) {
  const DecodeSchedule decode{.tokens = 8,
                              .warps_n = 2,
                              .warps_k = 1,
                              .blocks_per_warp = 1,
                              .weights = weights::DoubleBuffered{.k_tiles = 2},
                              .scale_place = ScalePlace::rounded};
  std::vector<Case> cases;
  for (const char* type : {"mxfp4", "float4_e3m0,group=64,scale=e8m0"}) {
    cases.push_back({linear_of(ttype(type), 256, 128, Scalar::bf16, 8), decode});
    for (const auto& [problem, schedule] :
         testing::tile_case(testing::kRoundedShapes[0], ttype(type), Scalar::bf16, Reduction::none,
                            Route::multiply_add, false, 3, true, {}, ScalePlace::rounded)) {
      cases.push_back({problem, schedule});
    }
  }
  ASSERT_GE(cases.size(), 4U);
  const Device& on = device("h200");
  for (const Case& c : cases) {
    const Program program = lower(decide(c.problem, on), c.schedule);
    const auto kernel = emulate::load({{cuda::emit(program), program.name}},
                                      emulate::Language::cuda, on.capability)[0];
    auto data = LinearCase::integers(c.problem, 1);
    std::fill(data.data.x.begin(), data.data.x.end(), 0);
    data.data.x[c.problem.k - 5] = data.bits(1);
    constexpr std::uint32_t kHeld = 251;  // up to 2^123, of which bf16 holds 16 times as much
    for (std::uint32_t first = 0; first < kHeld; first += c.problem.n) {
      for (std::size_t i = 0; i < data.data.scales.size(); ++i) {
        const auto row = static_cast<std::uint32_t>(i) / c.problem.groups();
        data.data.scales[i] = (first + row) % kHeld;
      }
      EXPECT_EQ(objection_to(c, on, program, kernel, data, 1), "")
          << to_string(c.problem) << "; " << to_string(c.schedule) << "; from " << first;
    }
  }
}

/// A statement without which another thread, copy or kernel may come too early.
struct Act {
  std::string name;
  std::size_t at, length;
};

/// Those of the kernel's body, in order.
std::vector<Act> acts_of(const std::string& text) {
  static const std::regex act(
      "\\b(barrier|copy_wait|mma_(begin|commit|wait)|matrix_fence|cluster_(barrier|meet)|"
      "dependent_wait|signal_(init|await|expect|arrive\\w*))\\b[^;]*;");
  const auto body = text.find("extern \"C\"");
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(body);
  std::vector<Act> out;
  for (std::sregex_iterator found(begin, text.end(), act), end; found != end; ++found) {
    out.push_back({found->str(1), body + static_cast<std::size_t>(found->position()),
                   static_cast<std::size_t>(found->length())});
  }
  return out;
}

/// Of one product: a barrier, say, has the same neighbours however many products come between.
bool is_of_product(const Act& act) { return act.name == "mma_begin" || act.name == "mma_commit"; }

/// A wait for products at which no more have begun than it leaves: those of a k-tile end in it.
bool waits_for_none(const std::string& text, const std::vector<Act>& acts, std::size_t i) {
  const auto pending = [&](const Act& act) {
    return std::stoi(text.substr(text.rfind('<', act.at + act.length) + 1));
  };
  if (acts[i].name != "mma_wait") return false;
  int begun = 0;
  for (std::size_t before = i; before-- > 0 && begun <= pending(acts[i]);) {
    if (acts[before].name == "mma_wait" && pending(acts[before]) == 0) break;
    begun += acts[before].name == "mma_commit";
  }
  return begun <= pending(acts[i]);
}

/// The act before the `i`th, or behind it, or "".
std::string neighbour(const std::vector<Act>& acts, std::size_t i, int step) {
  auto at = i + static_cast<std::size_t>(step);  // behind the end where it is none
  while (at < acts.size() && is_of_product(acts[at]) && !is_of_product(acts[i])) {
    at += static_cast<std::size_t>(step);
  }
  return at < acts.size() ? acts[at].name : "";
}

/// Whether the order of execution alone shows all of them: not among lanes of one warp, which keep
/// step, nor where signals of other rounds say the same, but for stores that would be seen late.
bool shows_order(const Case& c, const Program& program) {
  const auto* decode = std::get_if<DecodeSchedule>(&c.schedule);
  const auto* signalled = decode == nullptr ? nullptr : decode->signalled();
  const bool twice =
      signalled != nullptr && (signalled->consumer_lag > 1 || c.problem.weight.element != nullptr);
  return program.threads > 32 && !twice;
}

/// The warps of one warpgroup meet at each product, which orders as a barrier does, here.
bool meets_at_products(const Case& c, const Program& program) {
  const auto* tile = std::get_if<TileSchedule>(&c.schedule);
  return tile != nullptr && tile->warpgroups && program.threads == 128;
}

// Without one barrier, wait, fence, commit, signal, await, arrival or expectation of bytes, some
// order shows it: of all kernels, each act once between each two neighbours.
TEST(Emulated, kernels_that_lack_one_act_of_order_are_wrong) {
  const Device& h200 = device("h200");
  std::vector<Case> cases;
  std::vector<Program> programs;
  std::vector<emulate::Source> sources;
  std::vector<std::string> lines;
  std::set<std::string> seen;
  std::vector<Case> all;
  for (const auto& [problem, schedule] : testing::lowered_cases())
    all.push_back({problem, schedule});
  for (const auto& [problem, schedule] : testing::tile_cases(6)) all.push_back({problem, schedule});
  for (const auto& [problem, schedule] : testing::tail_cases()) all.push_back({problem, schedule});
  for (const auto& [problem, schedule] : all) {
    const Program program = lower(decide(problem, h200), schedule);
    if (!shows_order({problem, schedule}, program)) continue;
    const std::string text = cuda::emit(program);
    const auto acts = acts_of(text);
    for (std::size_t i = 0; i < acts.size(); ++i) {
      const std::string &name = acts[i].name, before = neighbour(acts, i, -1),
                        behind = neighbour(acts, i, 1);
      // Without it a product joins the next one's group, for which the same waits wait.
      if (name == "mma_commit" && behind == "mma_begin") continue;
      if (waits_for_none(text, acts, i)) continue;
      if (name == "barrier" && meets_at_products({problem, schedule}, program)) continue;
      // Threads run until they wait: what they do behind an arrival is done with it, here.
      if (name == "barrier" && before == "signal_arrive" && program.roles) continue;
      if (!seen.insert(before + " " + name + " " + behind).second) continue;
      auto mutant = text;
      lines.push_back(before + " | " + text.substr(acts[i].at, acts[i].length) + " | " + behind);
      mutant.replace(acts[i].at, acts[i].length, ";");
      cases.push_back({problem, schedule});
      programs.push_back(program);
      sources.push_back({mutant, program.name});
    }
  }
  ASSERT_GT(cases.size(), 50U);
  const auto kernels = emulate::load(sources);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    std::string why;
    for (unsigned seed = 1; seed <= 16 && why.empty(); ++seed) {
      const auto data = LinearCase::integers(c.problem, c.problem.m, seed);
      why = objection_to(c, h200, programs[i], kernels[i], data, seed);
    }
    EXPECT_NE(why, "") << lines[i] << "; " << to_string(c.schedule);
  }
}

class RandomKernels : public ::testing::TestWithParam<std::tuple<const char*, unsigned>> {};

// A device of so few multiprocessors that blocks of small layers have several tiles of rows.
TEST_P(RandomKernels, are_exact) {
  Device small = device(std::get<0>(GetParam()));
  small.multiprocessors = 4;
  std::mt19937 random(std::get<1>(GetParam()));
  const auto among = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  std::vector<Case> cases;
  while (cases.size() < 24) {
    try {
      const char* type = testing::kKindsOfTypes[random() % std::size(testing::kKindsOfTypes)];
      Problem problem =
          linear_of(ttype(type), among(64, 200, 512, 1000), among(256, 328, 1024, 2048),
                    among(Scalar::f16, Scalar::bf16), among(1, 8, 16, 32, 48, 100));
      problem.set_bias(random() % 2 == 0), problem.permuted_columns = random() % 4 == 0;
      auto all = candidates(decide(problem, small), random() % 2 == 0);
      std::erase_if(all, [](const Candidate& candidate) {
        return !candidate.dropped.empty() || is_dense(candidate.schedule);
      });
      if (!all.empty()) cases.push_back({problem, all[random() % all.size()].schedule});
    } catch (const Unsupported&) {
      // wider than float16, or bfloat16 on Turing
    }
  }
  expect_exact(cases, small);
}

INSTANTIATE_TEST_SUITE_P(OfTuring, RandomKernels,
                         ::testing::Combine(::testing::Values("t4"), ::testing::Values(4u)));
INSTANTIATE_TEST_SUITE_P(OfVolta, RandomKernels,
                         ::testing::Combine(::testing::Values("v100"), ::testing::Values(5u)));
INSTANTIATE_TEST_SUITE_P(Seeds, RandomKernels,
                         ::testing::Combine(::testing::Values("h200"), ::testing::Range(1u, 4u)));
INSTANTIATE_TEST_SUITE_P(OfWaves, RandomKernels,
                         ::testing::Combine(::testing::Values("mi210", "mi300x"),
                                            ::testing::Values(2u)));

// Minutes, and GB: by --gtest_also_run_disabled_tests, where there is no device to run them on.
TEST(Emulated, DISABLED_first_choices_of_a_large_layer_are_exact) {
  const Device& h200 = device("h200");
  for (const char* type :
       {"uint4,group=128,scale=float16,zero=midpoint", "mxfp4", "nvfp4", "nf4",
        "uint2,group=128,scale=float16,zero=midpoint", "float6_e3m2,group=128"}) {
    std::vector<Case> cases;
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (std::int64_t m : {1, 8, 16, 32}) {
        const Problem problem = linear_of(ttype(type), 4096, 4096, activation, m);
        const auto all = candidates(decide(problem, h200));
        for (std::size_t i = 0; i < 2 && all[i].dropped.empty(); ++i) {
          cases.push_back({problem, all[i].schedule});
        }
      }
    }
    expect_exact(cases, h200, 1);
  }
}

}  // namespace
}  // namespace ladder
