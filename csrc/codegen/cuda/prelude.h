// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "device/instructions.h"

namespace ladder::cuda {

/// Device functions that emitted kernels call, one per instruction of the hardware. Needs no header
/// of the toolkit, so that NVRTC has nothing to search for or parse; unused ones emit nothing.
std::string_view prelude();
/// Of these, what sm_80 has one instruction for, and sm_75 several.
std::string_view since_ampere();

/// More of them, for programs with scales of 8 bits and for weights that are converted.
std::string_view scale_prelude();

/// For programs whose operands are digits of activations (layout/digits.h).
std::string_view digit_prelude();

/// For programs that end in codes of 8 bits.
std::string_view code_prelude();

/// And for programs with element-wise arithmetic or bulk copies.
std::string_view tile_prelude();

/// For programs that multiply by quad pairs. Of sm_70.
std::string_view quad_pair_prelude();

/// For programs that multiply e4m3 by single warps. From sm_89 on.
std::string_view float_byte_prelude();
/// For programs whose operands of e4m3 are integers less zero points.
std::string_view whole_byte_prelude();
/// For programs whose operands of e4m3 have their scales, by how far these are below the largest.
std::string_view relative_prelude();
/// For programs with producers. From sm_90a on.
std::string_view role_prelude();
/// For programs with tensor memory. From sm_100a on.
std::string_view tensor_prelude();
/// For programs with products whose B is in shared memory, and the function of one such product.
/// From sm_90a on.
std::string_view product_prelude();
std::string shared_product(const MatrixInstruction& row, Scalar a, std::int64_t tokens,
                           bool replaces);

}  // namespace ladder::cuda
