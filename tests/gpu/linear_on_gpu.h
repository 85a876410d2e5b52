// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the linear layer on the GPU of this machine. Internal to the tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cuda/driver.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/toolchain.h"
#include "gpu.h"
#include "pipelines/schedule.h"
#include "program/linear_case.h"

namespace ladder::testing {

struct Loaded {
  Program program;
  std::unique_ptr<const Kernel> kernel;
};

/// As `device` has it, compiled for `target`; `holds` is in the machine code.
template <class S>
Loaded load(const std::pair<Problem, S>& each, const Device& device, const std::string& target,
            const std::string& holds = {}) {
  Program program = lower(decide(each.first, device), each.second);
  const MachineCode code = cuda::compile(cuda::emit(program), target);
  EXPECT_NE(code.bytes.find(holds), std::string::npos);
  auto kernel =
      cuda::load(code.bytes, program.name, 0, static_cast<unsigned>(program.shared_bytes()));
  return {std::move(program), std::move(kernel)};
}

/// Why y of one launch, or of a second one, is not what it should be, or "".
inline std::string objection_to(const Loaded& loaded, const Schedule& schedule,
                                const LinearCase& data) {
  const Program& program = loaded.program;
  std::vector<GpuMemory> memory;
  std::size_t y = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.level != Level::global) continue;
    if (buffer.name == "y") y = memory.size();
    memory.emplace_back(data.argument(buffer.name, schedule).bytes);
  }
  auto tokens = static_cast<unsigned>(data.m);
  std::vector<void*> addresses;
  for (const GpuMemory& each_of : memory) addresses.push_back(each_of.address());
  std::vector<void*> arguments;
  for (void*& address : addresses) arguments.push_back(&address);
  arguments.push_back(&tokens);
  const auto [splits, tiles] = program.grid();
  const Launch launch{{static_cast<unsigned>(splits), static_cast<unsigned>(tiles), 1},
                      static_cast<unsigned>(program.block_threads()),
                      static_cast<unsigned>(program.shared_bytes()),
                      false};
  std::vector<std::uint8_t> first;
  for (int turn = 0; turn < 2; ++turn) {  // twice: counters must be left at zero
    memory[y].set(std::vector<std::uint8_t>(memory[y].get().size(), 0xff));
    if (!loaded.kernel->launch(launch, nullptr, arguments.data())) return "is not launched";
    if (turn == 0) first = memory[y].get();
    if (memory[y].get() != first) return "gives something else the second time";
    for (const GpuMemory& each_of : memory) {
      if (each_of.is_written_beside()) return "writes beside a buffer";
    }
  }
  return data.objection_to(first);
}

/// Each of them exact, with all tokens and with fewer.
template <class S>
void expect_exact(const std::vector<std::pair<Problem, S>>& cases, const Device& device,
                  const std::string& target, const std::string& holds = {}) {
  unsigned seed = 0;
  for (const auto& each : cases) {
    const auto what = to_string(each.first) + "; " + to_string(each.second);
    const Loaded loaded = load(each, device, target, holds);
    for (const std::int64_t m : {each.first.m, 1 + ++seed * 5 % each.first.m}) {
      const auto data = LinearCase::integers(each.first, m, seed);
      ASSERT_EQ(objection_to(loaded, each.second, data), "") << what << "; " << m << " tokens";
    }
  }
  ::testing::Test::RecordProperty("kernels", static_cast<int>(cases.size()));
}

}  // namespace ladder::testing
