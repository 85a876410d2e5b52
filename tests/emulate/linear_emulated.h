// SPDX-License-Identifier: Apache-2.0
//
// The text of a kernel of the linear layer, run on this processor (machine.h), and what is right.
// Internal to the tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cuda/emit.h"
#include "codegen/hip/emit.h"
#include "guarded.h"
#include "machine.h"
#include "pipelines/schedule.h"
#include "program/linear_case.h"
#include "translate.h"

namespace ladder::testing {

struct Case {
  Problem problem;
  Schedule schedule;
};

/// Its instructions of e4m3, if it has such, read e4m3fnuz.
inline bool reads_fnuz(const Device& device) {
  const auto* const row = tile_instruction(Scalar::e4m3, device);
  return row != nullptr && operand_scalar(*row) == Scalar::e4m3fnuz;
}

inline emulate::Launch launch_of(const Program& program, const Device& device, unsigned seed) {
  const auto [splits, tiles] = program.grid();
  const auto cluster = static_cast<unsigned>(program.cluster);
  return {{static_cast<unsigned>(splits), static_cast<unsigned>(tiles)},
          {program.tiles_in_cluster ? 1 : cluster, program.tiles_in_cluster ? cluster : 1},
          static_cast<unsigned>(program.block_threads()),
          program.shared_bytes(),
          seed,
          nullptr,
          static_cast<unsigned>(device.warp),
          tile_instruction(Scalar::f16, device)->subnormals,
          1,
          reads_fnuz(device)};
}

using Bytes = std::vector<std::uint8_t>;

/// What a dependent launch may neither read nor write before the preceding kernel has ended: NaN
/// until then, and then `bytes`.
struct Late {
  std::string name;
  void* at;
  Bytes bytes;
};

inline std::string end_of_preceding(const std::vector<Late>& late) {
  for (const auto& [name, at, bytes] : late) {
    const auto* first = static_cast<const std::uint8_t*>(at);
    if (std::any_of(first, first + bytes.size(), [](auto byte) { return byte != 0xff; })) {
      return name + " is written before the preceding kernel has ended";
    }
    std::ranges::copy(bytes, static_cast<std::uint8_t*>(at));
  }
  return "";
}

/// Why y is not what it should be, or "".
inline std::string objection_to(const Case& c, const Device& device, const Program& program,
                                const emulate::Kernel& kernel, const LinearCase& data,
                                unsigned seed) {
  std::vector<emulate::Guarded> memory;
  std::vector<void*> parameters;
  std::vector<Late> late;
  std::size_t y = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.level != Level::global) continue;
    if (buffer.name == "y") y = memory.size();
    auto bytes = as_read(data.argument(buffer.name, c.schedule), buffer.scalar).bytes;
    const bool constant = !program.dependent_launch || buffer.constant;
    memory.emplace_back(constant ? bytes : Bytes(bytes.size(), 0xff));
    parameters.push_back(memory.back().data());
    if (!constant) late.push_back({buffer.name, parameters.back(), std::move(bytes)});
  }
  unsigned tokens = static_cast<unsigned>(data.m);
  parameters.push_back(&tokens);
  auto launch = launch_of(program, device, seed);
  if (program.dependent_launch) launch.preceding = [&] { return end_of_preceding(late); };
  const auto why = emulate::run(launch, [&] { kernel(parameters.data()); });
  if (!why.empty()) return why;
  const auto* found = static_cast<const std::uint8_t*>(memory[y].data());
  return data.objection_to({found, found + data.m * c.problem.columns_of_y() * data.y_bytes()});
}

inline emulate::Language language_of(const Device& device) {
  return is_amd(device.family) ? emulate::Language::hip : emulate::Language::cuda;
}

/// Each of them exact, with all tokens and with fewer, in so many orders.
inline void expect_exact(const std::vector<Case>& cases, const Device& device,
                         unsigned orders = 3) {
  std::vector<Program> programs;
  std::vector<emulate::Source> sources;
  for (const Case& c : cases) {
    programs.push_back(lower(decide(c.problem, device), c.schedule));
    const Program& program = programs.back();
    const bool hip = language_of(device) == emulate::Language::hip;
    sources.push_back({hip ? hip::emit(program) : cuda::emit(program), program.name});
  }
  const auto kernels = emulate::load(sources, language_of(device), device.capability);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    for (unsigned seed = 1; seed <= orders; ++seed) {
      const auto m = seed == 1 ? c.problem.m : 1 + seed * 5 % c.problem.m;
      const auto data = LinearCase::integers(c.problem, m, seed);
      EXPECT_EQ(objection_to(c, device, programs[i], kernels[i], data, seed), "")
          << to_string(c.problem) << "; " << m << " tokens; " << to_string(c.schedule);
    }
  }
}

}  // namespace ladder::testing
