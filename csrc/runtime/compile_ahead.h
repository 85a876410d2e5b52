// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "device/device.h"
#include "runtime/kernel_store.h"

namespace ladder {

/// Compiles `sources` into `store`, each in a process of its own, as many at a time as the machine
/// has processors: NVRTC compiles one kernel at a time in a process. Returns when all have ended.
/// What fails is left to whoever asks for the kernel; so is everything where there is no helper
/// program beside this library.
void compile_ahead(const std::vector<std::string>& sources, const Device& device,
                   const KernelStore& store);

/// What the helper program does: compiles its standard input for `target` into the store at
/// `folder`, whose entries have the key of `key_folder`. Returns its exit status.
int compile_from_input(const std::string& folder, const std::string& key_folder,
                       const std::string& target,
                       const std::vector<std::string>& nvrtc_directories);

}  // namespace ladder
