// SPDX-License-Identifier: Apache-2.0
//
// The kernels that quantise compile without spills for every type, on the oldest and on the newest
// architecture that ladder writes for. Needs libnvrtc, no GPU. A run compiles a part (turns.h).
#include "codegen/cuda/quantize.h"

#include <gtest/gtest.h>

#include "../core/types/quantizable.h"
#include "codegen/cuda/quantize_tensor.h"
#include "codegen/cuda/toolchain.h"
#include "turns.h"

namespace ladder {
namespace {

constexpr const char* kArchitectures[] = {"sm_75", "sm_80", "sm_90a"};

void expect_no_spills(const std::string& source, const std::string& what,
                      const std::string& architecture) {
  const auto binary = cuda::compile(source, architecture);
  EXPECT_EQ(binary.spill_bytes, 0) << what << " " << architecture << binary.log;
  EXPECT_EQ(binary.stack_bytes, 0) << what << " " << architecture << binary.log;
}

void expect_type_without_spills(const std::string& text, const std::string& architecture) {
  const TType& type = ttype(text);
  if (!cuda::is_of_tensor(type)) {
    expect_no_spills(cuda::quantize_source(type), text, architecture);
    return;
  }
  expect_no_spills(cuda::tensor_errors_source(type), "errors of " + text, architecture);
  expect_no_spills(cuda::tensor_choose_source(type), "choose of " + text, architecture);
  expect_no_spills(cuda::tensor_codes_source(type), "codes of " + text, architecture);
}

/// Architectures take turns, so a multiple of three would choose types of one architecture only.
void expect_types_without_spills(testing::Turns turns) {
  for (const char* group : {",group=128", ",channel", ",tensor"})
    for (const std::string& type : testing::quantizable(group))
      for (const char* architecture : kArchitectures)
        if (turns.next()) expect_type_without_spills(type, architecture);
}

TEST(QuantizeKernel, compiles_without_spills_for_every_type) {
  expect_types_without_spills(testing::Turns(19));
}

TEST(DISABLED_WholeQuantizeKernel, compiles_without_spills_for_every_type) {
  expect_types_without_spills(testing::Turns(1));
}

TEST(QuantizeKernel, has_helpers_that_compile_without_spills) {
  for (const char* architecture : kArchitectures) {
    expect_no_spills(cuda::measure_source(), "measure", architecture);
    expect_no_spills(cuda::measure_rows_source(), "measure_rows", architecture);
    expect_no_spills(cuda::tensor_extent_source(), "extent", architecture);
    for (int bits = 1; bits <= 8; ++bits)
      expect_no_spills(cuda::pack_rows_source(bits), "pack_rows", architecture);
  }
}

}  // namespace
}  // namespace ladder
