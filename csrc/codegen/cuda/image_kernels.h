// SPDX-License-Identifier: Apache-2.0
//
// ImageKernels (codegen/weight_kernels.h) in CUDA, written from the same bit plan as the host
// functions pack_image and unpack_image.
#pragma once

#include <string>

#include "codegen/weight_kernels.h"

namespace ladder::cuda {

ImageTile pack_tile(int bits);
ImageTile dequantize_tile(int bits);
std::string pack_source(int bits);
std::string unpack_source(int bits);

}  // namespace ladder::cuda
