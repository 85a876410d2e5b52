// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder {

/// What a schedule is expected to take, and why. Constants that no data sheet states
/// (device/costs.h) were fitted to one H200, and schedule/fitted.h says how others have them; they
/// rank candidates and promise nothing.
struct Cost {
  double memory_seconds;  ///< what must be moved, at the read rate, and part of what comes again
  double issue_seconds;   ///< masks, shifts, multiply-adds and matrix instructions
  double shared_seconds;  ///< wavefronts of shared memory, bank conflicts among them, one a clock
  double fixed_seconds;   ///< launch, first bytes and reduction, per wave of blocks
  double seconds;  ///< memory and the larger of the next two, overlapped in part, plus the last
};

}  // namespace ladder
