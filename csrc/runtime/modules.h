// SPDX-License-Identifier: Apache-2.0
//
// Kernels that are loaded: one module each, for as long as anybody has the kernel.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "codegen/driver.h"

namespace ladder {

using SharedKernel = std::shared_ptr<const Kernel>;

/// The kernel whose source has this digest on device `ordinal`: the one that somebody has, else
/// what `load` makes. Threads that ask at once wait for the one that loads.
SharedKernel loaded_once(const std::string& digest, int ordinal,
                         const std::function<SharedKernel()>& load);

/// Whether somebody has it; waits for a thread that loads it.
bool is_loaded(const std::string& digest, int ordinal);

/// Loaded for the life of the process from now on: whoever launches it keeps no account of that.
void keep_loaded(const SharedKernel& kernel);

}  // namespace ladder
