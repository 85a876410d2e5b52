// SPDX-License-Identifier: Apache-2.0
//
// The text of the kernels that quantise, run on this processor: to the bit what cpu/quantize.h
// gives.
#include "codegen/cuda/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "quantize_device.h"
#include "types/quantizable.h"
#include "types/scale_search.h"

namespace ladder {
namespace {

using emulate::of_processor, emulate::QuantizeDevice, emulate::weight_of;

TEST(EmulatedQuantize, gives_what_the_processor_gives_for_every_type) {
  const auto types = testing::quantizable(",group=40");
  const QuantizeDevice device(types);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const TType& type = ttype(types[i]);
    // The last group is shorter, rows end within words, and blocks of rows beyond the matrix.
    const std::int64_t n = 2, k = 97;
    const auto weight = weight_of(n, k, static_cast<unsigned>(i));
    for (const bool search : {false, true})
      EXPECT_EQ(device.quantized(i, weight, n, k, type, search),
                of_processor(weight, n, k, type, search))
          << types[i] << (search ? " search" : " nearest");
  }
}

TEST(EmulatedQuantize, adds_segments_of_a_long_block_as_the_processor_does) {
  const std::vector<std::string> types{"int4,channel,scale=float32",
                                       "uint4,block=2x2125,scale=float32,zero=integer"};
  const QuantizeDevice device(types);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::int64_t n = 2, k = 2 * kSegmentWeights + 77;
    const auto weight = weight_of(n, k, static_cast<unsigned>(i));
    EXPECT_EQ(device.quantized(i, weight, n, k, ttype(types[i]), true),
              of_processor(weight, n, k, ttype(types[i]), true))
        << types[i];
  }
}

TEST(EmulatedQuantize, chooses_zero_points_of_types_without_scales) {
  const std::vector<std::string> types{"uint4,group=40,zero=integer", "uint5,zero=quantized",
                                       "uint8,block=2x1100,zero=integer"};
  const QuantizeDevice device(types);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::int64_t n = 2, k = 1100;
    auto weight = weight_of(n, k, static_cast<unsigned>(i));
    for (float& each : weight) each *= 60;
    weight[3] = weight[n * k - 1] = -10.5f;  // in the middle between two zero points
    EXPECT_EQ(device.quantized(i, weight, n, k, ttype(types[i]), false),
              of_processor(weight, n, k, ttype(types[i]), false))
        << types[i];
  }
}

TEST(EmulatedQuantize, finds_the_greatest_magnitude_and_what_is_not_finite) {
  const QuantizeDevice device({});
  std::vector<float> weight(3 * 700, 0.5f);
  weight[1040] = -2.0f;
  EXPECT_EQ(device.measured(weight, 3, 700), 0x40000000u);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    weight[2099] = bad;
    EXPECT_GE(device.measured(weight, 3, 700), 0x7f800000u);
  }
}

}  // namespace
}  // namespace ladder
