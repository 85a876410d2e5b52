// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the items of a table, as text on this processor.
#include <gtest/gtest.h>

#include "codegen/cuda/emit.h"
#include "codegen/hip/emit.h"
#include "guarded.h"
#include "linear_emulated.h"
#include "machine.h"
#include "program/expert_case.h"
#include "translate.h"

namespace ladder {
namespace {

using testing::ExpertCase;

struct Case {
  ExpertCase data;
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
    const auto argument = c.data.argument(buffer.name, c.schedule);
    memory.emplace_back(testing::as_read(argument, buffer.scalar).bytes);
    parameters.push_back(memory.back().data());
  }
  unsigned tokens = 0;
  parameters.push_back(&tokens);
  emulate::Launch launch = testing::launch_of(program, device, seed);
  launch.items = static_cast<unsigned>(c.data.slots() / program.items->together);
  if (auto why = emulate::run(launch, [&] { kernel(parameters.data()); }); !why.empty()) return why;
  const auto bytes = static_cast<std::size_t>(c.data.rows() * c.data.problem.n * 2);
  return c.data.objection_to(Argument::input(memory[y].data(), bytes));
}

TEST(Emulated, kernels_of_experts_are_exact) {
  for (const char* name : {"h200", "mi210", "mi300x", "rx7900xtx", "rx9070xt", "t4", "v100"}) {
    const Device& on = device(name);
    const bool hip = is_amd(on.family);
    unsigned seed = 0;
    std::int64_t together = 1;
    std::vector<Case> cases;
    std::vector<emulate::Source> sources;
    for (const std::int64_t rows : {8, 16, 64}) {  // those of 64 go together
      if (rows == 64 && on.max_cluster == 1) continue;
      auto types = testing::expert_types(rows, 72, 256);
      const auto of_bytes = testing::expert_types_of_bytes(rows, 72, 256, on);
      types.insert(types.end(), of_bytes.begin(), of_bytes.end());
      for (const Problem& type : types) {
        if (tile_instruction(type.activation(), on) == nullptr) continue;
        const auto data = ExpertCase::integers(type, ++seed);
        std::size_t at = 0;
        for (const Schedule& schedule :
             testing::expert_schedules(data.problem, on, seed % 2 == 0)) {
          // Over all types, all ways come by.
          if ((at++ + seed) % (hip ? 3 : on.max_cluster > 1 ? 8 : 2) != 0) continue;
          const Program program = lower(decide(data.problem, on), schedule);
          together = std::max(together, program.items->together);
          cases.push_back({data, schedule, program});
          sources.push_back({hip ? hip::emit(program) : cuda::emit(program), program.name});
        }
      }
    }
    ASSERT_GE(cases.size(), 8U) << name;
    EXPECT_EQ(together, on.max_cluster > 1 ? 8 : 1) << name;
    const auto kernels = emulate::load(
        sources, hip ? emulate::Language::hip : emulate::Language::cuda, on.capability);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(objection_to(cases[i], on, kernels[i], static_cast<unsigned>(i)), "")
          << to_string(cases[i].data.problem) << " on " << name << "; "
          << to_string(cases[i].schedule);
    }
  }
}

}  // namespace
}  // namespace ladder
