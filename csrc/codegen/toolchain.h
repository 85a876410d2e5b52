// SPDX-License-Identifier: Apache-2.0
//
// The compiler of a target, as a table of functions. Compilers are found at run time; compiling
// needs no device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ladder {

/// What a compiler made of a source.
struct MachineCode {
  std::string bytes;  ///< for the driver: machine code, or an assembly that it compiles
  int registers;      ///< per thread; this and the next are 0 where the driver compiles
  int stack_bytes;    ///< per thread, of which spills are a part
  int spill_bytes;    ///< stores and loads
  std::string log;
  /// What the compiler gave up of what the source asks for, in a line. Empty: nothing.
  std::string warning = {};
};

/// Why `binary` is not to be run, though it would be right: it spills, or has a warning. Empty: it
/// is.
std::string rejection(const MachineCode& binary);

struct Toolchain {
  /// Directories to search for the compiler before the system's own; a pip package's, say.
  void (*add_directory)(std::string directory);
  /// Where another process is to search, to find the same compiler: those that were added, in
  /// order.
  std::vector<std::string> (*directories)();
  /// The compiler that takes `flags`, or the first that there is where they are empty: "nvrtc
  /// 13.0"; nothing when there is none on this machine. Part of the key of a kernel.
  std::string (*version)(std::string_view flags);
  /// What this machine's compiler compiles for: "sm_90"; empty where it does not say.
  std::vector<std::string> (*architectures)();
  /// Why nothing can be compiled for `architecture` on this machine; empty: it can.
  std::string (*objection)(std::string_view architecture);
  /// What `compile` needs beside the source for a device of `architecture`, all of it that decides
  /// the machine code: part of the key of a kernel. Throws Unsupported with objection().
  std::string (*flags)(std::string_view architecture);
  /// Throws ToolchainError with the compiler's log; Unsupported when there is no compiler.
  MachineCode (*compile)(std::string_view source, std::string_view flags);
};

}  // namespace ladder
