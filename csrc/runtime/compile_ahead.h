// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "device/device.h"
#include "runtime/kernel_store.h"

namespace ladder {

using Deadline = std::chrono::steady_clock::time_point;
/// Not the largest time: clocks are added to it.
inline Deadline never() { return std::chrono::steady_clock::now() + std::chrono::hours(24); }

/// Compiles `sources` into `store`, each in a process of its own (compilers that are libraries take
/// one kernel at a time), all threads of this process together no more at a time than the machine
/// has processors. Returns when all have ended; a source that another thread is compiling is waited
/// for. What fails is left to whoever asks for the kernel; so is what would begin after `deadline`,
/// and everything where there is no helper program beside this library.
void compile_ahead(const std::vector<std::string>& sources, const Device& device,
                   const KernelStore& store, Deadline deadline = never());

/// From now on compile_ahead starts nothing and returns when what it started has ended: the process
/// is about to exit.
void stop_compiling_ahead();

/// What the helper program does: compiles its standard input, in the language of `target`, with
/// `flags` into the store at `folder`, whose entries have the key of `key_folder`. Returns its exit
/// status.
int compile_from_input(const std::string& folder, const std::string& key_folder,
                       const std::string& target, const std::string& flags,
                       const std::vector<std::string>& directories);

}  // namespace ladder
