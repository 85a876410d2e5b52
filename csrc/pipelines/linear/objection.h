// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "expr/decoding.h"
#include "schedule/decisions.h"
#include "schedule/route.h"

namespace ladder {

/// Why codes do not become operands by `route`, with scales at `place`; empty when they do. What
/// digits ask of a schedule is for its pipeline.
std::string code_objection(Route route, ScalePlace place, const Decisions& decisions);

}  // namespace ladder
