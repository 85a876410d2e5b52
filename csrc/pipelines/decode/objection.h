// SPDX-License-Identifier: Apache-2.0
//
// What objection() of a decode schedule asks one after the other; each is empty where nothing is
// wrong. Internal to this folder.
#pragma once

#include <string>

#include "pipelines/decode/schedule.h"

namespace ladder {

/// Numbers of a way that are no counts: before anything divides by them.
std::string way_count_objection(const DecodeSchedule& schedule);
/// To the way in which activations reach shared memory, beside that of the weights.
std::string activation_objection(const DecodeSchedule& schedule, const Decisions& decisions);
/// To the way in which weights reach the registers.
std::string weight_objection(const DecodeSchedule& schedule, const Decisions& decisions);
/// To tiles that are not whole tiles of what was decided: those of a warp whole instructions,
/// activations that are staged together whole tiles of the hint, words of a lane whole granules.
std::string alignment_objection(const DecodeSchedule& schedule, const Decisions& decisions);

}  // namespace ladder
