// SPDX-License-Identifier: Apache-2.0
// The clang of this machine for AMD's GPUs, of tests that compile; make sets LADDER_NEEDS_CLANG.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/hip/compilers.h"
#include "codegen/hip/toolchain.h"

namespace ladder::hip {

/// The one that the toolchain takes for `architecture`.
inline std::optional<Clang> found_clang(std::string_view architecture) {
  for (const Clang& clang : clangs()) {
    if (clang.knows(architecture)) return clang;
  }
  return std::nullopt;
}

#define LADDER_SKIP_WITHOUT_CLANG(architecture) \
  if (!ladder::hip::found_clang(architecture))  \
  GTEST_SKIP() << "no clang of this machine compiles for " << (architecture)

/// LLVM's assembly of `source`, compiled with the toolchain's flags.
inline std::string assembly_of(const Clang& clang, const std::string& source,
                               std::string_view architecture) {
  std::istringstream flags(clang_flags(architecture));
  std::string word;
  flags >> word;  // "clang"
  std::vector<std::string> options;
  while (flags >> word) options.push_back(word);
  options.emplace_back("-S");
  return compile_by_clang(clang, source, options).bytes;
}

/// The code object of `assembly`, before it is linked.
inline std::string assembled(const Clang& clang, const std::string& assembly,
                             std::string_view architecture) {
  return compile_by_clang(clang, assembly,
                          {"--target=amdgcn-amd-amdhsa", "-mcpu=" + std::string(architecture), "-x",
                           "assembler"})
      .bytes;
}

}  // namespace ladder::hip
