// SPDX-License-Identifier: Apache-2.0
//
// NVRTC and the CUDA driver, found with dlopen when first asked for. Nothing else in ladder names
// either. Compiling needs no device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ladder::cuda {

/// Directories to search for libnvrtc before the loader's own; a pip package's, say.
void add_nvrtc_directory(std::string directory);
/// Those that were added, in order.
std::vector<std::string> nvrtc_directories();

/// "nvrtc 13.0", or nothing when there is none on this machine.
std::string compiler_version();

/// Machine code.
struct Binary {
  std::string cubin;
  int registers;    ///< per thread
  int stack_bytes;  ///< per thread, of which spills are a part
  int spill_bytes;  ///< stores and loads
  std::string log;
  /// The first line by which the assembler says that it gave up what the source asks for: C7508,
  /// registers that do not change hands; C7510 and the like, matrix instructions that wait for each
  /// other. Empty: none.
  std::string warning = {};
};

/// Why `binary` is not to be run, though it would be right: it spills, or has a warning. Empty: it
/// is.
std::string objection(const Binary& binary);

/// Compiles `source` for `architecture`, "sm_90a". Throws ToolchainError with the compiler's log;
/// Unsupported when there is no NVRTC.
Binary compile(std::string_view source, std::string_view architecture);

}  // namespace ladder::cuda
