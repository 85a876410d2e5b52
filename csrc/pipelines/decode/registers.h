// SPDX-License-Identifier: Apache-2.0
//
// Registers of a thread of a decode kernel, counted so that objections leave room for them: the
// compiler has the last word.
#pragma once

#include "pipelines/decode/schedule.h"

namespace ladder {

/// Words in flight, sums, sixteen for operands and addresses, and what activations, decoding,
/// signals and k-tiles keep.
int registers_of_thread(const DecodeSchedule& schedule, const Problem& problem);

}  // namespace ladder
