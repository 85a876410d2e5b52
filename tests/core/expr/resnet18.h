// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "expr/tensor_expr.h"

namespace ladder {

/// A convolution of ResNet-18, and the matmul that it is at batch 128.
struct ConvolutionLayer {
  std::int64_t kernel, stride, in, out, size;  ///< size: of the input
  std::int64_t i, j, k;
};
constexpr ConvolutionLayer kResNet18[] = {
    {7, 2, 3, 64, 224, 1605632, 64, 147},    {3, 1, 64, 64, 56, 401408, 64, 576},
    {3, 2, 64, 128, 56, 100352, 128, 576},   {1, 2, 64, 128, 56, 100352, 128, 64},
    {3, 1, 128, 128, 28, 100352, 128, 1152}, {3, 2, 128, 256, 28, 25088, 256, 1152},
    {1, 2, 128, 256, 28, 25088, 256, 128},   {3, 1, 256, 256, 14, 25088, 256, 2304},
    {3, 2, 256, 512, 14, 6272, 512, 2304},   {1, 2, 256, 512, 14, 6272, 512, 256},
    {3, 1, 512, 512, 7, 6272, 512, 4608},
};

inline Convolution convolution(const ConvolutionLayer& layer, std::int64_t batch) {
  return {.batch = batch,
          .in_channels = layer.in,
          .out_channels = layer.out,
          .height = layer.size,
          .width = layer.size,
          .kernel = layer.kernel,
          .stride = layer.stride,
          .padding = layer.kernel / 2};
}

}  // namespace ladder
