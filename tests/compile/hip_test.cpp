// SPDX-License-Identifier: Apache-2.0
//
// Kernels for AMD's devices, by clang to assembly: no spills and no scratch, registers within what
// was asked for, no fewer matrix instructions than the program has, no access whose memory the
// compiler did not find out, arguments as the host passes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "codegen/hip/code_object.h"
#include "codegen/hip/emit.h"
#include "codegen/hip_clang.h"
#include "compile.h"
#include "expr/constructors.h"
#include "layout/image_parts.h"
#include "layout/weight_image.h"
#include "pipelines/diversified.h"
#include "pipelines/lower.h"
#include "program/kinds_of_types.h"

namespace ladder {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

std::int64_t count_of(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), expression),
                       std::sregex_iterator());
}

struct Cell {
  const Device* device;
  Problem problem;
};

constexpr const char* kDevices[] = {"mi210", "mi300x", "mi355x", "rx7900xtx", "rx9070xt"};
constexpr std::size_t kStride = 7;

/// Of as many turns, the one whose cells this run has.
std::size_t chosen_turn() {
  const char* seed = std::getenv("LADDER_COMPILE_SEED");
  return (seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0) % kStride;
}

/// Products of experts, of few rows and of many, of x as it comes and of 8 bits.
std::vector<Cell> expert_cells() {
  constexpr std::pair<const char*, std::optional<Scalar>> kOfExperts[] = {
      {"uint4,group=128,scale=float16", {}},
      {"mxfp4", {}},
      {"nf4,group=64", {}},
      {"int8,channel", {}},
      {"uint3,group=64,scale=float16,zero=integer", {}},
      {"uint4,group=128,scale=float16", Scalar::s8},
      {"int8,channel", Scalar::s8},
      {"mxfp4", Scalar::e4m3},
      {"float8_e4m3,channel", Scalar::e4m3}};
  std::vector<Cell> out;
  std::size_t turn = 0;
  for (const char* name : kDevices) {
    for (const auto& [type, x] : kOfExperts) {
      if (x && tile_instruction(*x, device(name)) == nullptr) continue;
      for (const std::int64_t rows : {16, 64}) {
        if (turn++ % kStride != chosen_turn()) continue;
        Problem problem = linear_of(ttype(type), 2880, 2880,
                                    turn / 3 % 2 == 0 ? Scalar::f16 : Scalar::bf16, rows);
        problem.round_x(x);
        problem.set_bias(turn % 4 == 0);
        problem.rows = RoutedRows{32, 4, round_up(4 * image_parts(problem).words, kPartBytes)};
        out.push_back({&device(name), problem});
      }
    }
  }
  return out;
}

/// Of `types`, activations, shapes and numbers of tokens in turn, those that the seed chooses.
/// `x`: what activations are rounded to.
std::vector<Cell> cells_of(std::span<const char* const> types, std::optional<Scalar> x) {
  const std::int64_t shapes[][2] = {{4096, 4096}, {28672, 8192}, {1000, x ? 1024 : 1032}};
  constexpr std::int64_t kTokens[] = {1, 16, 32, 64, 128, 256, 512, 2048, 8192};
  constexpr std::int64_t kOfBytes[] = {32, 128, 256, 1024, 8192};
  const auto tokens = x ? std::span<const std::int64_t>(kOfBytes) : kTokens;
  std::vector<Cell> out;
  std::size_t turn = 0;
  for (const char* name : kDevices) {
    if (x && tile_instruction(*x, device(name)) == nullptr) continue;
    for (const char* type : types) {
      for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
        for (const auto m : tokens) {
          const auto& [n, k] = shapes[turn % std::size(shapes)];
          if (turn++ % kStride != chosen_turn()) continue;
          try {
            Problem problem = linear_of(ttype(type), n, k, activation, m);
            decoding_of(problem);
            problem.round_x(x);
            problem.set_bias(turn % 4 == 1), problem.permuted_columns = !x && turn % 13 == 2;
            problem.set_residual(turn % 5 == 3);
            if (turn % 5 == 1) problem.quantise_y(turn % 2 == 0 ? Scalar::s8 : Scalar::e4m3);
            out.push_back({&device(name), problem});
          } catch (const Unsupported&) {
            continue;  // wider than float16
          }
        }
      }
    }
  }
  return out;
}

std::vector<Cell> cells() {
  auto all = cells_of(testing::kKindsOfTypes, {});
  const auto bytes = cells_of(testing::kIntegersOfBytes, Scalar::s8);
  all.insert(all.end(), bytes.begin(), bytes.end());
  for (const std::span<const char* const> types :
       {std::span<const char* const>(testing::kFloatsOfBytes),
        std::span<const char* const>(testing::kWholesOfBytes)}) {
    const auto floats = cells_of(types, Scalar::e4m3);
    all.insert(all.end(), floats.begin(), floats.end());
  }
  const auto experts = expert_cells();
  all.insert(all.end(), experts.begin(), experts.end());
  return all;
}

void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.device->name << ": " << to_string(cell.problem);
}

class HipKernels : public ::testing::TestWithParam<Cell> {};

/// What holds for every kernel that is run.
void expect_as_asked(const hip::KernelResources& kernel, const std::string& assembly,
                     const std::string& text, const Program& program, const WaveSchedule& schedule,
                     const Device& device, const hip::Clang& clang) {
  const auto simds = device.schedulers;
  const auto waves =
      std::max<std::int64_t>(schedule.threads() / device.warp * schedule.groups_per_cu / simds, 1);
  EXPECT_LE(kernel.vgprs, device.registers / (simds * device.warp) / waves);
  EXPECT_EQ(count_of(assembly, "\\tflat_"), 0);
  EXPECT_EQ(count_of(assembly, "\\tscratch_"), 0);
  const bool ordered = schedule.reduction == Reduction::ordered;
  EXPECT_EQ(kernel.lds_bytes, ordered ? kSharedAlignment : 0);
  const auto parameters = std::ranges::count(program.buffers, Level::global, &Buffer::level);
  EXPECT_EQ(kernel.argument_bytes, 8 * parameters + 4);
  const auto body = text.find("KERNEL(", text.find("#define KERNEL") + 20);
  const auto kernel_text = text.substr(body);
  const auto issued = count_of(assembly, "\\tv_(mfma|wmma|dot2c?_f32)_"),
             asked = count_of(kernel_text, "\\bw?mma_\\w+\\(") +
                     2 * count_of(kernel_text, "\\bdot_b?f16\\(");
  // clang moves products of experts between the branches of stores, and may copy what follows, as
  // clang-22 does for waves of 32 lanes.
  const bool newer = clang.version.find("version 19.") == std::string::npos;
  const bool copies = device.family == Family::rdna && newer;
  if (program.items || copies) {
    EXPECT_GE(issued, asked);
  } else {
    EXPECT_EQ(issued, asked);
  }
  if (ordered && device.architecture == "gfx942") {
    EXPECT_GE(count_of(assembly, "buffer_wbl2 sc1"), 1);
    EXPECT_GE(count_of(assembly, "buffer_inv sc1"), 1);
  }
}

// The first choice, and where that spills, as whoever compiles finds out, the next ones. Refused
// are formats whose values would be subnormal operands on CDNA 2 alone.
TEST_P(HipKernels, of_the_first_choices_one_compiles_without_spills) {
  const auto& [device, problem] = GetParam();
  const auto architecture = device->architecture;
  LADDER_SKIP_WITHOUT_CLANG(architecture);
  const hip::Clang clang = *hip::found_clang(architecture);
  constexpr std::size_t kTries = 8;
  const auto decisions = decide(problem, *device);
  auto all = candidates(decisions);
  std::erase_if(all, [](const Candidate& candidate) { return is_dense(candidate.schedule); });
  all = diversified(std::move(all), kTries);
  if (!all.front().dropped.empty()) {
    // Of narrow groups RDNA refuses some types by name, or would spill.
    if (device->family == Family::rdna) {
      EXPECT_LT(problem.group_size(), kBlock);
      EXPECT_THAT(all, Contains(Field(&Candidate::dropped, HasSubstr("lanes: clang spills"))));
      return;
    }
    EXPECT_EQ(architecture, "gfx90a");
    EXPECT_THAT(all, Each(Field(&Candidate::dropped, HasSubstr("would be a subnormal operand"))));
    return;
  }
  std::string spilled;
  for (std::size_t i = 0; i < std::min(kTries, all.size()) && all[i].dropped.empty(); ++i) {
    SCOPED_TRACE(to_string(all[i].schedule));
    const auto& schedule = std::get<WaveSchedule>(all[i].schedule);
    const Program program = lower(decisions, schedule);
    const auto text = hip::emit(program);
    const auto assembly = hip::assembly_of(clang, text, architecture);
    const auto kernels = hip::kernels_of(hip::assembled(clang, assembly, architecture));
    ASSERT_EQ(kernels.size(), 1);
    const hip::KernelResources& kernel = kernels.front();
    if (kernel.vgpr_spills == 0 && kernel.sgpr_spills == 0 && kernel.scratch_bytes == 0) {
      return expect_as_asked(kernel, assembly, text, program, schedule, *device, clang);
    }
    spilled += joined("\n  ", kernel.vgpr_spills, ", ", kernel.sgpr_spills, ", ",
                      kernel.scratch_bytes, ": ", to_string(schedule));
  }
  FAIL() << "registers, scalar registers, bytes of scratch:" << spilled;
}

INSTANTIATE_TEST_SUITE_P(Sample, HipKernels, ::testing::ValuesIn(cells()),
                         [](const auto& info) { return "cell_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
