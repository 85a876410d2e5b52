// SPDX-License-Identifier: Apache-2.0
//
// Kernels of batches and of convolutions, whose items no table says, as text on this processor.
#include <gtest/gtest.h>

#include "codegen/cuda/emit.h"
#include "codegen/hip/emit.h"
#include "guarded.h"
#include "linear_emulated.h"
#include "machine.h"
#include "program/batch_case.h"
#include "translate.h"

namespace ladder {
namespace {

using testing::BatchCase;

struct Case {
  BatchCase data;
  Schedule schedule;
  Program program;
};

std::string objection_to(const Case& c, const Device& device, const emulate::Kernel& kernel,
                         unsigned seed) {
  const Program& program = c.program;
  std::vector<emulate::Guarded> memory;
  std::vector<void*> parameters;
  std::size_t y = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.level != Level::global) continue;
    if (buffer.name == "y") y = memory.size();
    memory.emplace_back(c.data.argument(buffer.name, program, c.schedule).bytes);
    parameters.push_back(memory.back().data());
  }
  auto tokens = static_cast<unsigned>(c.data.m);
  parameters.push_back(&tokens);
  emulate::Launch launch = testing::launch_of(program, device, seed);
  launch.items =
      static_cast<unsigned>(count_of(*program.items, c.data.m) / program.items->together);
  if (auto why = emulate::run(launch, [&] { kernel(parameters.data()); }); !why.empty()) return why;
  const auto bytes = c.data.problem.batch * c.data.m * c.data.problem.n * 2;
  const auto* first = static_cast<const std::uint8_t*>(memory[y].data());
  return c.data.objection_to({first, first + bytes});
}

void expect_exact(const std::vector<Case>& cases, const Device& on) {
  const emulate::Language language = testing::language_of(on);
  const bool hip = language == emulate::Language::hip;
  std::vector<emulate::Source> sources;
  for (const Case& c : cases) {
    sources.push_back({hip ? hip::emit(c.program) : cuda::emit(c.program), c.program.name});
  }
  const auto kernels = emulate::load(sources, language, on.capability);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(objection_to(cases[i], on, kernels[i], static_cast<unsigned>(i)), "")
        << to_string(cases[i].data.problem) << " on " << on.name << "; "
        << to_string(cases[i].schedule);
  }
}

TEST(Emulated, kernels_of_batches_are_exact) {
  for (const char* name : {"h200", "mi210", "t4", "v100"}) {
    const Device& on = device(name);
    unsigned seed = 0;
    std::vector<Case> cases;
    for (const std::int64_t rows : {8, 32, 64}) {  // those of 64 go together
      if (rows == 64 && on.max_cluster == 1) continue;
      for (const Problem& type : testing::expert_types(rows, 72, 256)) {
        if (tile_instruction(type.activation(), on) == nullptr) continue;
        Problem problem = type;
        const std::int64_t m = ++seed % 2 == 0 ? 3 : 2 * rows + 5;
        problem.batch = 3, problem.passes = ceil_div(m, rows);
        const auto data = BatchCase::integers(problem, m, seed);
        std::size_t at = 0;
        for (const Schedule& schedule : testing::expert_schedules(problem, on, seed % 2 == 0)) {
          if ((at++ + seed) % (on.max_cluster > 1 ? 8 : 3) != 0) continue;
          cases.push_back({data, schedule, lower(decide(problem, on), schedule)});
        }
      }
    }
    ASSERT_GE(cases.size(), 6U) << name;
    expect_exact(cases, on);
  }
}

TEST(Emulated, kernels_of_convolutions_are_exact) {
  for (const char* name : {"h200", "t4"}) {
    const Device& on = device(name);
    unsigned seed = 0;
    std::vector<Case> cases;
    for (const std::int64_t channels : {13, 24, 64}) {
      for (const Windows& of : testing::kinds_of_windows(channels)) {
        if (of.columns() <= 64) continue;  // one k-tile, which no tile kernel has
        const std::int64_t rows = ++seed % 3 == 0 ? 64 : 32, m = 2 * of.positions() + 1;
        Problem problem = windows_of(of, ttype("uint4"), 72, Scalar::f16, rows);
        problem.passes = ceil_div(m, rows);
        problem.set_bias(true);
        problem.permuted_columns = seed % 4 == 0;
        const auto data = BatchCase::integers(problem, m, seed);
        std::size_t at = 0;
        for (const Schedule& schedule : testing::expert_schedules(problem, on, seed % 2 == 0)) {
          if ((at++ + seed) % (on.max_cluster > 1 ? 3 : 1) != 0) continue;
          cases.push_back({data, schedule, lower(decide(problem, on), schedule)});
        }
      }
    }
    ASSERT_GE(cases.size(), 8U) << name;
    expect_exact(cases, on);
  }
}

}  // namespace
}  // namespace ladder
