// SPDX-License-Identifier: Apache-2.0
//
// Source text to a kernel on a device: through the stores, the compiler and the driver.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/toolchain.h"
#include "device/device.h"
#include "runtime/compile_ahead.h"
#include "runtime/kernel_store.h"
#include "runtime/modules.h"

namespace ladder {

/// Looks for kernels and plans in `folder` before the user's cache, and keeps new ones there if it
/// is this user's alone to write. `trust_kernels`: load binaries from it whoever wrote them.
void use_store(const std::string& folder, bool trust_kernels);

/// KernelStore::clean of the user's cache, to its limit at least.
KernelStore::Cleaned clean_cache(const KernelStore::Cleaning& what);

/// Machine code for `source` on `device`, compiled only if no store has it: then `verified` is
/// called before.
MachineCode binary_of(const std::string& source, const Device& device,
                      const std::function<void()>& verified = {});

/// Has the stores compile what they lack of `sources`, several at a time, as compile_ahead does.
void compile_missing(const std::vector<std::string>& sources, const Device& device,
                     Deadline deadline = never());

/// Whether a store has the kernel of `source` and it is not to be run: rejection().
bool known_to_be_rejected(const std::string& source, const Device& device);

/// The same as binary_of, loaded: once, whoever asks. Throws Unsupported where rejection() has
/// a reason, and where a thread begins with fewer than `least_registers`: those that roles take
/// over (Roles), for which they would wait forever.
SharedKernel load_kernel(const std::string& source, const std::string& name, int ordinal,
                         unsigned shared_bytes, int least_registers = 0,
                         const std::function<void()>& verified = {});

/// The plan that the first store that has one holds for a problem, or nothing; and keeping one.
std::optional<StoredPlan> stored_plan(const std::string& problem);
void keep_plan(const std::string& problem, const StoredPlan& plan);

}  // namespace ladder
