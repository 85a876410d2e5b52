// SPDX-License-Identifier: Apache-2.0
//
// ImageKernels (codegen/weight_kernels.h) in the words of CUDA, which the prelude of another target
// has as macros; written from the same bit plan as the host functions pack_image and unpack_image.
#pragma once

#include <string>
#include <string_view>

#include "codegen/weight_kernels.h"

namespace ladder::weights {

ImageTile pack_tile(int bits);
ImageTile dequantize_tile(int bits);
std::string pack_source(int bits, std::string_view prelude);
std::string unpack_source(int bits, std::string_view prelude);

}  // namespace ladder::weights
