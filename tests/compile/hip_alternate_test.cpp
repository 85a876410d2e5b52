// SPDX-License-Identifier: Apache-2.0
//
// Kernels whose waves alternate, by clang to assembly: no spills, as many barriers and priorities
// as the text has, and nothing of one phase in another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/hip/code_object.h"
#include "codegen/hip/emit.h"
#include "codegen/hip_clang.h"
#include "expr/constructors.h"
#include "pipelines/diversified.h"
#include "pipelines/lower.h"
#include "program/kinds_of_types.h"
#include "turns.h"

namespace ladder {
namespace {

std::int64_t count_of(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), expression),
                       std::sregex_iterator());
}

/// The instructions of the text, without operands; of s_setprio with its number.
std::vector<std::string> instructions_of(const std::string& assembly) {
  std::vector<std::string> out;
  std::istringstream lines(assembly);
  const std::regex instruction("\\t([a-z]\\w+)(?:\\s+(\\w+))?.*");
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, found, instruction)) continue;
    out.push_back(found[1] == "s_setprio" ? joined("s_setprio ", found[2].str()) : found[1].str());
  }
  return out;
}

struct Compiled {
  hip::KernelResources kernel;
  std::string assembly, text;
  bool spills() const { return kernel.vgpr_spills + kernel.sgpr_spills + kernel.scratch_bytes > 0; }
};

Compiled compiled(const Decisions& decisions, const WaveSchedule& schedule) {
  const auto architecture = decisions.device->architecture;
  const hip::Clang clang = *hip::found_clang(architecture);
  Compiled out;
  out.text = hip::emit(lower(decisions, schedule));
  out.assembly = hip::assembly_of(clang, out.text, architecture);
  out.kernel = hip::kernels_of(hip::assembled(clang, out.assembly, architecture)).front();
  return out;
}

void expect_phases(const Compiled& of) {
  const auto all = instructions_of(of.assembly);
  const auto kernel = of.text.substr(of.text.rfind("KERNEL("));
  const auto calls = [&](const char* pattern) { return count_of(kernel, pattern); };
  const auto is = [](const std::string& name, const char* prefix) {
    return name.starts_with(prefix);
  };
  std::int64_t products = 0, barriers = 0, raised = 0, of_halves = 0;
  bool priority = false;
  const std::string* before = nullptr;  // but for waits
  for (const std::string& name : all) {
    if (is(name, "s_setprio")) {
      EXPECT_NE(priority, name == "s_setprio 1");
      priority = name == "s_setprio 1";
      raised += priority ? 1 : 0;
    }
    if (is(name, "v_mfma")) {
      EXPECT_TRUE(priority);
      ++products;
    }
    if (is(name, "ds_") || is(name, "global_") || is(name, "s_barrier")) {
      EXPECT_FALSE(priority);
    }
    if (is(name, "s_barrier")) {
      ++barriers;
      // A wave of the other half branches past it: without lanes it would still meet it.
      of_halves += before != nullptr && is(*before, "s_cbranch_scc") ? 1 : 0;
    }
    if (!is(name, "s_waitcnt")) before = &name;
  }
  EXPECT_FALSE(priority);
  EXPECT_EQ(products, calls("\\bmma_\\w+\\("));
  EXPECT_EQ(barriers, calls("barrier\\(\\);") + 2 * calls("\\bticket\\("));
  EXPECT_EQ(raised, calls("priority<1>\\(\\);"));
  EXPECT_EQ(of_halves, 2);
}

// The tile that AMD's own libraries have for products of many tokens.
TEST(HipAlternating, a_tile_of_256_rows_and_tokens_has_no_spills_and_whole_phases) {
  LADDER_SKIP_WITHOUT_CLANG("gfx942");
  const Problem problem =
      linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, 2048);
  const auto decisions = decide(problem, device("mi300x"));
  const auto schedule = *wave_schedule_of(
      "waves 2x4x1, tokens 256, token tiles 8, columns 64, k-tiles 64, stages 1, alternating, "
      "none, multiply_add, rounded operands, 1 per compute unit");
  ASSERT_EQ(objection(schedule, decisions), "");
  const auto of = compiled(decisions, schedule);
  EXPECT_FALSE(of.spills());
  EXPECT_EQ(count_of(of.assembly, "\\tscratch_"), 0);
  EXPECT_LE(of.kernel.vgprs, 256);
  EXPECT_EQ(shared_bytes(schedule, problem), 36864);
  expect_phases(of);
  // Loads of tokens have no branches, so that the compiler counts what is on its way: no wait for
  // all.
  const auto loop = of.assembly.substr(of.assembly.find("\ts_setprio 1"));
  EXPECT_EQ(count_of(loop.substr(0, loop.rfind("\ts_setprio 0")), "\ts_cbranch_exec"), 0);
  // Four steps of 32 products and two phases, in the loop and behind it.
  EXPECT_EQ(count_of(of.assembly, "\\tv_mfma"), 2 * 4 * 32);
  EXPECT_EQ(count_of(of.assembly, "\\ts_setprio 1"), 2 * 4);
  EXPECT_EQ(count_of(of.assembly, "\\ts_barrier"), 2 * 4 * 2 - 1 + 3);
}

// Of the first that alternate one has no spills, of each kind of type that has such, and whole
// phases.
TEST(HipAlternating, first_candidates_of_every_type_have_whole_phases) {
  LADDER_SKIP_WITHOUT_CLANG("gfx942");
  constexpr std::size_t kStride = 12, kTries = 8;
  testing::Turns turns(kStride, "hip_alternating");
  unsigned kernels = 0;
  const auto expect_one = [&](const Decisions& decisions) {
    auto all = candidates(decisions);
    std::erase_if(all, [](const Candidate& c) {
      const auto* s = std::get_if<WaveSchedule>(&c.schedule);
      return s == nullptr || !s->alternate || !c.dropped.empty();
    });
    if (all.empty() || !turns.next()) return;
    all = diversified(std::move(all), kTries);
    SCOPED_TRACE(joined(decisions.device->name, ": ", to_string(decisions.problem)));
    std::string spilled;
    for (std::size_t i = 0; i < std::min(kTries, all.size()); ++i) {
      const auto of = compiled(decisions, std::get<WaveSchedule>(all[i].schedule));
      ++kernels;
      expect_phases(of);
      if (!of.spills()) return;
      spilled += joined("\n  ", of.kernel.vgpr_spills, ": ", to_string(all[i].schedule));
    }
    ADD_FAILURE() << "registers that are spilled:" << spilled;
  };
  for (const char* name : {"mi210", "mi300x", "mi355x"}) {
    if (!hip::found_clang(device(name).architecture)) continue;
    for (const char* type : testing::kKindsOfTypes) {
      for (const auto x : {Scalar::f16, Scalar::bf16}) {
        for (const std::int64_t m : {512, 4096}) {
          try {
            expect_one(decide(linear_of(ttype(type), 4096, 4096, x, m), device(name)));
          } catch (const Unsupported&) {
            continue;  // wider than float16
          }
        }
      }
    }
  }
  EXPECT_GE(kernels, 3U);
}

}  // namespace
}  // namespace ladder
