// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the T4 on whatever GPU this machine has: they are compiled to PTX of
// compute_75, which the driver compiles for its own architecture. So the instructions are Turing's,
// the text and its schedule as a T4 has them, and the silicon does what PTX says of them. What only
// a T4 can show remains: its own assembler's code, its 64 KiB of shared memory, and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codegen/cuda/driver.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/toolchain.h"
#include "gpu.h"
#include "program/turing_cases.h"

namespace ladder {
namespace {

using testing::GpuMemory;
using testing::LinearCase;
using testing::Scheduled;

constexpr const char* kPtx = "compute_75";

struct Loaded {
  Program program;
  std::unique_ptr<const Kernel> kernel;
};

Loaded load(const Scheduled& each) {
  Program program = lower(decide(each.first, device("t4")), each.second);
  const MachineCode ptx = cuda::compile(cuda::emit(program), kPtx);
  EXPECT_THAT(ptx.bytes, ::testing::HasSubstr(".target sm_75"));
  auto kernel =
      cuda::load(ptx.bytes, program.name, 0, static_cast<unsigned>(program.shared_bytes()));
  return {std::move(program), std::move(kernel)};
}

/// Why y of one launch, or of a second one, is not what it should be, or "".
std::string objection_to(const Loaded& loaded, const Scheduled& each, const LinearCase& data) {
  const Program& program = loaded.program;
  std::vector<GpuMemory> memory;
  std::size_t y = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.level != Level::global) continue;
    if (buffer.name == "y") y = memory.size();
    memory.emplace_back(data.argument(buffer.name, each.second).bytes);
  }
  auto tokens = static_cast<unsigned>(data.m);
  std::vector<void*> addresses;
  for (const GpuMemory& each_of : memory) addresses.push_back(each_of.address());
  std::vector<void*> arguments;
  for (void*& address : addresses) arguments.push_back(&address);
  arguments.push_back(&tokens);
  const auto extent = [&](VariableId id) {
    return static_cast<unsigned>(program.variables[id].extent);
  };
  const Launch launch{{extent(kSplit), extent(kTile), 1},
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
void expect_exact(const std::vector<Scheduled>& cases) {
  unsigned seed = 0;
  for (const Scheduled& each : cases) {
    const auto what = to_string(each.first) + "; " + to_string(each.second);
    const Loaded loaded = load(each);
    for (const std::int64_t m : {each.first.max_m, 1 + ++seed * 5 % each.first.max_m}) {
      const auto data = LinearCase::integers(each.first, m, seed);
      ASSERT_EQ(objection_to(loaded, each, data), "") << what << "; " << m << " tokens";
    }
  }
  ::testing::Test::RecordProperty("kernels", static_cast<int>(cases.size()));
}

class TuringOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_gpu()) GTEST_SKIP() << "no CUDA GPU on this machine";
    if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  }
};

TEST_F(TuringOnGpu, kernels_of_every_shape_are_exact) { expect_exact(testing::turing_shapes()); }

TEST_F(TuringOnGpu, kernels_of_bytes_are_exact) { expect_exact(testing::turing_bytes()); }

TEST_F(TuringOnGpu, first_choices_for_every_kind_of_type_are_right) {
  expect_exact(testing::turing_choices());
}

// As models have them: several CTAs of a multiprocessor, many of the grid.
TEST_F(TuringOnGpu, first_choices_for_large_layers_are_exact) {
  std::vector<Scheduled> cases;
  for (const char* type : {"uint4,group=128,scale=float16,zero=midpoint", "mxfp4",
                           "uint2,group=64,scale=float16", "uint3,group=128,scale=float16"}) {
    for (const std::int64_t m : {1, 16, 64, 200}) {
      const Linear expr =
          linear_of(ttype(type), m > 16 ? 1000 : 4096, m > 16 ? 2048 : 4096, Scalar::f16, m);
      const auto all = candidates(decide(expr, device("t4")));
      for (std::size_t i = 0; i < 2 && all[i].dropped.empty(); ++i) {
        if (!is_dense(all[i].schedule)) cases.push_back({expr, all[i].schedule});
      }
    }
  }
  expect_exact(cases);
}

}  // namespace
}  // namespace ladder
