// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "device/device.h"
#include "expr/problem.h"
#include "pipelines/schedule.h"
#include "program/program.h"
#include "schedule/decisions.h"

namespace ladder {

/// Everything between an expression and a kernel, each stage printable.
struct Compiled {
  Schedule schedule;
  Program program;
  std::string source;
};

/// The whole compiler. Needs no device: the row says what there is to know of it.
/// Throws InvalidArgument for an expression without meaning, Unsupported for one that the device
/// cannot serve, that a library multiplies (DenseSchedule), or that no target writes for.
Compiled compile(const Problem& problem, const Device& device, bool dependent_launch = false);

/// The same with the schedule chosen.
Compiled compile(const Decisions& decisions, const Schedule& schedule);

/// compile() without verify(), which is for the caller, and takes as long as the rest: once for
/// each text.
Compiled unverified(const Decisions& decisions, const Schedule& schedule);

}  // namespace ladder
