// SPDX-License-Identifier: Apache-2.0
//
// NVRTC and the CUDA driver, found with dlopen when first asked for. Nothing else in ladder names
// either. Compiling needs no device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/toolchain.h"

namespace ladder::cuda {

/// Directories to search for libnvrtc before the loader's own; a pip package's, say.
void add_nvrtc_directory(std::string directory);
/// Those that were added, in order.
std::vector<std::string> nvrtc_directories();

/// "nvrtc 13.0", or nothing when there is none on this machine.
std::string compiler_version();

/// Architectures that this machine's NVRTC compiles for, 90 for sm_90; empty where it does not say.
std::vector<int> supported_architectures();
/// The same as "sm_90".
std::vector<std::string> architectures();

/// What to compile for when a device of `architecture`, "sm_90a", is to run it and the compiler
/// knows `supported`: the same, else an older one of the same major number ("sm_86" for sm_89),
/// whose machine code the device runs, else PTX of the newest older one ("compute_90"), which the
/// driver compiles. Empty where there is none.
std::string target_for(std::string_view architecture, const std::vector<int>& supported);
/// The same for this machine's compiler. Throws Unsupported with compiler_objection.
std::string target_for(std::string_view architecture);
/// Why nothing can be compiled for `architecture` on this machine; empty: it can.
std::string compiler_objection(std::string_view architecture);

/// Compiles `source` for `target`: "sm_90a", or "compute_90" for PTX, of which MachineCode has no
/// registers: its assembler is the driver. MachineCode::warning is the first line by which the
/// assembler says that it gave up what the source asks for: C7508, registers that do not change
/// hands; C7510 and the like, matrix instructions that wait for each other. Throws ToolchainError
/// with the compiler's log; Unsupported when there is no NVRTC.
MachineCode compile(std::string_view source, std::string_view target);

}  // namespace ladder::cuda
