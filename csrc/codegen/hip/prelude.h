// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace ladder::hip {

/// The functions of codegen/cuda/prelude.h for AMD's devices, by builtins of clang and attributes
/// only: no header, and nothing that hiprtc defines itself. Matrix instructions are never inline
/// assembly, before which the compiler would insert no waits.
std::string_view prelude();
std::string_view scale_prelude();
std::string_view tile_prelude();
/// For programs whose halves alternate.
std::string_view phase_prelude();
/// For programs that multiply integers.
std::string_view byte_prelude();
/// For programs that multiply e4m3 or e4m3fnuz, and for those whose operands are integers less zero
/// points in these.
std::string_view float_byte_prelude();
std::string_view whole_byte_prelude();
/// The first of them, and CUDA's words as macros, for the kernels of codegen/weights.
std::string_view words_prelude();
/// For programs that end in codes of 8 bits, which are OCP's whatever the instructions read.
std::string_view code_prelude();
/// Functions of gates, for programs that have such.
std::string_view gate_prelude();
/// The words, and what the kernels of codegen/activations need besides.
std::string_view activation_prelude();

}  // namespace ladder::hip
