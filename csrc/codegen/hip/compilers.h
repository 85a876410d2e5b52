// SPDX-License-Identifier: Apache-2.0
//
// The two kinds of compilers of HIP: hiprtc, a library, and clang, a program. Both take the options
// of clang. For the files of this folder only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ladder::hip {

/// What a compiler made of a source. Throws what Toolchain::compile throws.
struct CodeObject {
  std::string bytes, log;
};

/// libhiprtc, beside the driver that this process has loaded first: its code objects suit that.
/// "hiprtc 6.3"; empty where there is none.
std::string hiprtc_version();
/// Whether it compiles for `architecture`, without features. Of what a release does not know some
/// end the process instead of saying so.
bool hiprtc_knows(std::string_view architecture);
CodeObject compile_by_hiprtc(const std::string& source, const std::vector<std::string>& options);

/// A clang++ with AMD's GPUs.
struct Clang {
  std::string path, version;  ///< "Debian clang version 19.1.7 (3~deb12u1)"
  std::vector<std::string> architectures;
  bool knows(std::string_view architecture) const;
};
/// Those of this machine: in the directories that were added (libraries.h), ROCm's own, then
/// clang++-22 to clang++-19 of PATH.
std::vector<Clang> clangs();
CodeObject compile_by_clang(const Clang& clang, const std::string& source,
                            const std::vector<std::string>& options);

}  // namespace ladder::hip
