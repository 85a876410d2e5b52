// SPDX-License-Identifier: Apache-2.0
//
// Which target has the GPUs that this process numbers 0, 1, ... A torch is built for one.
#pragma once

#include "codegen/target.h"

namespace ladder {

/// From now on, ordinals are those of `target`. To be said before anything is asked of a device:
/// what was asked before stays.
void use_gpus_of(const Target& target);

/// The target that was said, else the first whose driver this machine has, else the first.
const Target& gpus();

}  // namespace ladder
