// SPDX-License-Identifier: Apache-2.0
//
// The kernels that quantise a matrix with one scale, run on this processor: to the bit what
// cpu/quantize.h gives, the sums of errors too.
#include "codegen/cuda/quantize_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu/quantize_kernels.h"
#include "cpu/values.h"
#include "quantize_device.h"

namespace ladder {
namespace {

using emulate::of_processor, emulate::QuantizeDevice, emulate::weight_of;

/// Every kind of zero point, formats of scales of all widths, with the smallest scale and without,
/// a second scale, elements that are searched in a table, and types without scales.
std::vector<std::string> types_of_tensors() {
  return {"int4,tensor,scale=float16",
          "uint3,tensor,scale=float32,zero=midpoint",
          "uint4,tensor,scale=float32,zero=integer",
          "uint4,tensor,scale=bfloat16,zero=quantized",
          "int4,tensor,scale=float16,zero=original",
          "uint2,tensor,scale=bfloat16,zero=rescale",
          "float8_e4m3,tensor,scale=float16",
          "float6_e3m2,tensor,scale=e8m0",
          "float4_e2m1,tensor,scale=float8_e4m3,scale2=float32",
          "uint4,tensor,scale=float8_e4m3,zero=integer,scale2=float32",
          "nf4,tensor,scale=float32",
          "int8,tensor",
          "uint4,tensor,zero=midpoint"};
}

TEST(EmulatedTensorQuantize, gives_what_the_processor_gives_where_a_matrix_has_one_scale) {
  const auto types = types_of_tensors();
  const QuantizeDevice device(types);
  // A weight; rows that end within words, and one thread block of segments; several blocks.
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 1}, {5, 1237}, {130, 384}};
  for (std::size_t i = 0; i < types.size(); ++i) {
    const TType& type = ttype(types[i]);
    for (const auto& [n, k] : shapes) {
      const auto weight = weight_of(n, k, static_cast<unsigned>(i));
      for (const bool search : {false, true})
        EXPECT_EQ(device.quantized(i, weight, n, k, type, search),
                  of_processor(weight, n, k, type, search))
            << types[i] << " [" << n << ", " << k << "]" << (search ? " search" : " nearest");
    }
  }
}

/// Codes and scales hardly depend on the last bit of an error, which the order of sums decides.
TEST(EmulatedTensorQuantize, adds_errors_of_a_matrix_in_the_order_of_the_processor) {
  const auto types = types_of_tensors();
  const QuantizeDevice device(types);
  // Last bits that the order within a lane, of lanes and of segments decides.
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 96}, {3, 333}, {130, 384}};
  for (std::size_t i = 0; i < types.size(); ++i) {
    const TType& type = ttype(types[i]);
    if (type.scale == nullptr) continue;  // nothing is tried
    for (const auto& [n, k] : shapes) {
      const auto weight = weight_of(n, k, static_cast<unsigned>(i));
      TensorState state;
      const auto parts = device.quantized(i, weight, n, k, type, true, &state);
      const float unit = type.scale2 != nullptr ? parts.scale2.front() : 1.0f;
      const double error = cpu::generic_quantize_kernels().error(
          cpu::values_of(*type.element), weight.data(), n * k,
          {.divisor = state.scale * unit, .zero = state.zero, .scale = state.scale, .unit = unit},
          INFINITY);
      EXPECT_EQ(state.least_error, error) << types[i] << " [" << n << ", " << k << "]";
    }
  }
}

TEST(EmulatedTensorQuantize, takes_matrices_of_zeros_and_of_one_sign) {
  const std::vector<std::string> types{"int4,tensor,scale=float16",
                                       "uint4,tensor,scale=float16,zero=integer",
                                       "float4_e2m1,tensor,scale=float8_e4m3,scale2=float32"};
  const QuantizeDevice device(types);
  const std::int64_t n = 3, k = 400;
  for (const float sign : {0.0f, -1.0f, 1.0f}) {
    auto weight = weight_of(n, k, 7);
    for (float& w : weight) w = sign * (std::fabs(w) + 0.01f);
    for (std::size_t i = 0; i < types.size(); ++i)
      EXPECT_EQ(device.quantized(i, weight, n, k, ttype(types[i]), true),
                of_processor(weight, n, k, ttype(types[i]), true))
          << types[i] << " " << sign;
  }
}

TEST(TensorLaunch, refuses_matrices_beyond_31_bits) {
  const TType& type = ttype("int4,tensor,scale=float16");
  EXPECT_EQ(cuda::tensor_launch(type, 32767, 65536, true).segments, 32767u * 64);
  EXPECT_THROW(cuda::tensor_launch(type, 32768, 65536, true), Unsupported);
}

}  // namespace
}  // namespace ladder
