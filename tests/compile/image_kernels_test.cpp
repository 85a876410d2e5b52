// SPDX-License-Identifier: Apache-2.0
//
// The kernels between canonical rows and image compile without spills for every width. Needs
// libnvrtc, no GPU.

#include <gtest/gtest.h>

#include "codegen/cuda/toolchain.h"
#include "codegen/target.h"
#include "device/device.h"

namespace ladder {
namespace {

class ImageKernels : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Bits, ImageKernels, ::testing::Range(1, 9));

TEST_P(ImageKernels, compile_without_spills) {
  const auto& kernels = image_kernels(target_called("CUDA"));
  for (const auto& source : {kernels.pack(GetParam()), kernels.unpack(GetParam())}) {
    for (const char* name : {"h200", "t4"}) {
      const auto binary = cuda::compile(source, device(name).architecture);
      EXPECT_EQ(binary.spill_bytes, 0) << binary.log;
      EXPECT_EQ(binary.stack_bytes, 0) << binary.log;
    }
  }
}

}  // namespace
}  // namespace ladder
