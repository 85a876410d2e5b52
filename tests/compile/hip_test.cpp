// SPDX-License-Identifier: Apache-2.0
//
// Kernels for AMD's devices, by clang to assembly: no spills and no scratch, registers within what
// was asked for, matrix instructions as many as the program has, no access whose memory the
// compiler did not find out, arguments as the host passes them. Needs clang++-19, or 18 and newer
// by LADDER_HIP_CLANG; skipped by name without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/hip/emit.h"
#include "compile.h"
#include "expr/of_ttype.h"
#include "pipelines/diversified.h"
#include "pipelines/lower.h"
#include "program/kinds_of_types.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

std::string clang() {
  const char* named = std::getenv("LADDER_HIP_CLANG");
  const std::string found = named != nullptr ? named : "clang++-19";
  return std::system((found + " --version > /dev/null 2>&1").c_str()) == 0 ? found : "";
}

/// As codegen/hip passes them.
constexpr const char* kFlags =
    " -x hip --cuda-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -O3 -std=c++17"
    " -ffp-contract=on -S";

/// What clang makes of a text, or what it says against it.
std::string assembly_of(const std::string& text, std::string_view architecture) {
  auto pattern = (fs::temp_directory_path() / "ladder-hip-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return "no folder";
  const fs::path folder = pattern;
  std::ofstream(folder / "kernel.hip") << text;
  const auto command = joined(clang(), kFlags, " --offload-arch=", architecture, " ",
                              (folder / "kernel.hip").string(), " -o ",
                              (folder / "kernel.s").string(), " 2> ", (folder / "said").string());
  const bool right = std::system(command.c_str()) == 0;
  std::ifstream file(folder / (right ? "kernel.s" : "said"));
  const std::string out{std::istreambuf_iterator<char>(file), {}};
  fs::remove_all(folder);
  return right ? out : "error: " + out;
}

std::int64_t count_of(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), expression),
                       std::sregex_iterator());
}

/// A number of the metadata: ".vgpr_count".
std::int64_t metadata(const std::string& assembly, const std::string& name) {
  std::smatch found;
  const std::regex expression("\\n\\s+-?\\s*\\." + name + ":\\s+(\\d+)");
  return std::regex_search(assembly, found, expression) ? std::stoll(found[1]) : -1;
}

struct Cell {
  const Device* device;
  Linear expr;
};

/// Types, activations, shapes and numbers of tokens in turn; of each run those that the seed
/// chooses.
std::vector<Cell> cells() {
  constexpr std::int64_t kShapes[][2] = {{4096, 4096}, {28672, 8192}, {1000, 1032}};
  constexpr std::int64_t kTokens[] = {1, 16, 32, 64, 128, 256};
  constexpr std::size_t kStride = 7;
  const char* seed = std::getenv("LADDER_COMPILE_SEED");
  const auto chosen = (seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0) % kStride;
  std::vector<Cell> out;
  std::size_t turn = 0;
  for (const char* name : {"mi210", "mi300x"}) {
    for (const char* type : testing::kKindsOfTypes) {
      for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
        for (const auto m : kTokens) {
          const auto& [n, k] = kShapes[turn % std::size(kShapes)];
          if (turn++ % kStride != chosen) continue;
          try {
            Linear expr = linear_of(ttype(type), n, k, activation, m);
            decoding_of(expr);
            expr.bias = turn % 4 == 1, expr.gather = turn % 13 == 2;
            out.push_back({&device(name), expr});
          } catch (const Unsupported&) {
            continue;  // wider than float16
          }
        }
      }
    }
  }
  return out;
}

void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.device->name << ": " << to_string(cell.expr);
}

class HipKernels : public ::testing::TestWithParam<Cell> {};

// The first choice, and where that spills, as whoever compiles finds out, the next ones.
TEST_P(HipKernels, of_the_first_choices_one_compiles_without_spills) {
  if (clang().empty()) GTEST_SKIP() << "no clang++-19 on this machine";
  constexpr std::size_t kTries = 8;
  const auto& [device, expr] = GetParam();
  const auto decisions = decide(expr, *device);
  auto all = candidates(decisions);
  std::erase_if(all, [](const Candidate& candidate) { return is_dense(candidate.schedule); });
  all = diversified(std::move(all), kTries);
  ASSERT_TRUE(all.front().dropped.empty() || device->architecture == "gfx90a")
      << all.front().dropped;
  std::string spilled;
  for (std::size_t i = 0; i < std::min(kTries, all.size()) && all[i].dropped.empty(); ++i) {
    SCOPED_TRACE(to_string(all[i].schedule));
    const auto& schedule = std::get<WaveSchedule>(all[i].schedule);
    const Program program = lower(decisions, schedule);
    const auto text = hip::emit(program);
    const auto assembly = assembly_of(text, device->architecture);
    ASSERT_NE(assembly.substr(0, 6), "error:") << assembly.substr(0, 4000);
    if (metadata(assembly, "vgpr_spill_count") + metadata(assembly, "sgpr_spill_count") +
            metadata(assembly, "private_segment_fixed_size") !=
        0) {
      spilled +=
          joined("\n  ", metadata(assembly, "vgpr_spill_count"), ", ",
                 metadata(assembly, "sgpr_spill_count"), ", ",
                 metadata(assembly, "private_segment_fixed_size"), ": ", to_string(schedule));
      continue;
    }
    const auto waves = std::max<std::int64_t>(schedule.waves() * schedule.groups_per_cu / 4, 1);
    EXPECT_LE(metadata(assembly, "vgpr_count"), 512 / waves);
    EXPECT_EQ(count_of(assembly, "\\tflat_"), 0);
    EXPECT_EQ(count_of(assembly, "\\tscratch_"), 0);
    EXPECT_EQ(metadata(assembly, "group_segment_fixed_size"),
              schedule.reduction == Reduction::ordered ? kSharedAlignment : 0);
    std::int64_t parameters = 0;
    for (const Buffer& buffer : program.buffers) parameters += buffer.level == Level::global;
    EXPECT_EQ(metadata(assembly, "kernarg_segment_size"), 8 * parameters + 4);
    const auto body = text.find("KERNEL(", text.find("#define KERNEL") + 20);
    const auto written = count_of(text.substr(body), "\\bmma_\\w+\\(");
    const auto found = count_of(assembly, "\\tv_mfma_");
    EXPECT_EQ(found, written);
    if (schedule.reduction == Reduction::ordered && device->architecture == "gfx942") {
      EXPECT_GE(count_of(assembly, "buffer_wbl2 sc1"), 1);
      EXPECT_GE(count_of(assembly, "buffer_inv sc1"), 1);
    }
    return;
  }
  EXPECT_TRUE(all.front().dropped.empty() ? spilled.empty() : true) << "all spill:" << spilled;
}

INSTANTIATE_TEST_SUITE_P(Sample, HipKernels, ::testing::ValuesIn(cells()),
                         [](const auto& info) { return "cell_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
