// SPDX-License-Identifier: Apache-2.0
//
// The page: read it first. Each arrow is a plain value with a printer.
#include "compile.h"

#include "base/error.h"
#include "codegen/cuda/emit.h"
#include "codegen/target.h"
#include "program/lower.h"

namespace ladder {
namespace {

void require_target(const Device& device) {
  const auto why_not = no_target(device);
  if (!why_not.empty()) fail<Unsupported>(why_not);
}

}  // namespace

Compiled compile(const Linear& expr, const Device& device, bool dependent_launch) {
  require_target(device);
  // schedule/: least time that fits
  return compile(expr, best_schedule(expr, device, dependent_launch), device);
}

Compiled compile(const Linear& expr, const Schedule& schedule, const Device& device) {
  require_target(device);
  const auto why_not = objection(schedule, expr, device);
  if (!why_not.empty()) fail<Unsupported>(to_string(schedule), ": ", why_not);
  Program program = lower(expr, schedule, device);  // program/: tiles, loops, instructions
  verify(program, device.shared_per_block_bytes);   // throws InternalError naming every fault
  std::string source = cuda::emit(program);         // codegen/: text for the device's compiler
  return {schedule, std::move(program), std::move(source)};
}

}  // namespace ladder
