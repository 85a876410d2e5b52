// SPDX-License-Identifier: Apache-2.0
//
// The kernels that give the values of an image, and that move its columns, compile without spills
// for every type. Needs libnvrtc, no GPU. A run compiles a part (turns.h).

#include <gtest/gtest.h>

#include "codegen/cuda/toolchain.h"
#include "codegen/target.h"
#include "device/device.h"
#include "runtime/session.h"
#include "turns.h"

namespace ladder {
namespace {

void expect_no_spills(const std::string& source, const std::string& what) {
  for (const char* name : {"h200", "t4"}) {
    const auto binary = cuda::compile(source, device(name).architecture);
    EXPECT_EQ(binary.spill_bytes, 0) << what << binary.log;
    EXPECT_EQ(binary.stack_bytes, 0) << what << binary.log;
  }
}

std::vector<std::string> spellings() {
  std::vector<std::string> out{"uint4", "uint4,group=12,scale=bfloat16,zero=integer",
                               "uint3,group=32,scale=float16,zero=quantized",
                               "uint4,group=32,scale=bfloat16,zero=original",
                               "uint4,group=32,scale=float32,zero=rescale"};
  for (const Element* e : elements()) {
    if (e->bits <= 8 && e->encoding != Encoding::exponent) {
      out.push_back(std::string(e->name) + ",group=32,scale=float16");
    }
  }
  for (const NamedTType& named : named_ttypes()) out.emplace_back(named.name);
  return out;
}

void expect_types_without_spills(testing::Turns turns) {
  const Scalar outs[] = {Scalar::f16, Scalar::bf16, Scalar::f32};
  std::size_t turn = 0;  // every type in one dtype: the ends of the kernel do not depend on it
  for (const auto& type : spellings()) {
    const Scalar out = outs[turn++ % 3];
    if (!turns.next()) continue;
    const Problem problem = expression(ttype(type), 128, 256, false, Scalar::f16, 1);
    expect_no_spills(image_kernels(target_called("CUDA")).dequantize(problem.weight, out), type);
  }
}

TEST(Dequantize, compiles_without_spills_for_every_type) {
  expect_types_without_spills(testing::Turns(5));
}

TEST(DISABLED_WholeDequantize, compiles_without_spills_for_every_type) {
  expect_types_without_spills(testing::Turns(1));
}

TEST(Dequantize, looks_up_what_arithmetic_does_not_give) {
  const auto has_table = [](const char* type) {
    const Problem problem = expression(ttype(type), 128, 256, false, Scalar::f16, 1);
    return image_kernels(target_called("CUDA"))
               .dequantize(problem.weight, Scalar::f16)
               .find("return values[code]") != std::string::npos;
  };
  EXPECT_TRUE(has_table("nf4,group=32,scale=float16"));
  // Integers but for code 3, which stands for code 1.
  EXPECT_TRUE(has_table("ternary,group=32,scale=float16"));
  EXPECT_FALSE(has_table("int1,group=32,scale=float16"));
  EXPECT_FALSE(has_table("uint4,group=32,scale=float16"));
}

TEST(Permute, compiles_without_spills_for_every_width) {
  for (int bits = 1; bits <= 8; ++bits)
    expect_no_spills(image_kernels(target_called("CUDA")).permute(bits), "permute");
}

}  // namespace
}  // namespace ladder
