// SPDX-License-Identifier: Apache-2.0
//
// The page: read it first. Each arrow is a plain value with a printer.
#include "compile.h"

#include "base/error.h"
#include "codegen/target.h"
#include "pipelines/lower.h"

namespace ladder {

Compiled compile(const Problem& problem, const Device& device, bool dependent_launch) {
  target_of(device);                                    // whoever writes for it, or says why nobody
  const Decisions decisions = decide(problem, device);  // Algorithm 1, once: core, hint, conversion
  return compile(decisions, best_schedule(decisions, dependent_launch));  // least time that fits
}

Compiled compile(const Decisions& decisions, const Schedule& schedule) {
  Compiled out = unverified(decisions, schedule);
  // Throws InternalError naming every fault.
  verify(out.program, decisions.device->shared_per_block_bytes);
  return out;
}

Compiled unverified(const Decisions& decisions, const Schedule& schedule) {
  const Target& target = target_of(*decisions.device);
  const auto why_not = objection(schedule, decisions);
  if (!why_not.empty()) fail<Unsupported>(to_string(schedule), ": ", why_not);
  Program program = lower(decisions, schedule);  // program/: tiles, loops, instructions
  std::string source = target.emit(program);     // codegen/: text for the device's compiler
  return {schedule, std::move(program), std::move(source)};
}

}  // namespace ladder
