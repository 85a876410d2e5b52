// SPDX-License-Identifier: Apache-2.0
//
// Compilers of HIP, as codegen/toolchain.h describes toolchains: hiprtc, else the first clang that
// knows the architecture.
//
// Flags begin with the kind of compiler that they are for, then the options in one line:
//
//     hiprtc --offload-arch=gfx942:sramecc+:xnack- -O3 -std=c++17 -ffp-contract=on
//
// A product and a sum of one expression take one rounding, those of two expressions two. clang
// makes code objects of version 5, which every driver of ROCm 6 and 7 loads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/toolchain.h"

namespace ladder::hip {

/// Of the compiler that takes `flags`; of the first that there is for none.
std::string compiler_version(std::string_view flags);
/// "gfx942".
std::vector<std::string> architectures();
std::string compiler_objection(std::string_view architecture);
std::string flags_for(std::string_view architecture);
/// Of clang, which this machine may not have.
std::string clang_flags(std::string_view architecture);
/// Registers are vector registers. rejection() of the result names, besides spills of those, spills
/// of scalar registers, other scratch memory, and fewer waves than the source asks for.
MachineCode compile(std::string_view source, std::string_view flags);

}  // namespace ladder::hip
