// SPDX-License-Identifier: Apache-2.0
// What a session decides before it needs a device.
#include "runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/cuda/image_kernels.h"

namespace ladder {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Session, asks_the_compiler_for_what_the_type_means) {
  const auto expr = [](const char* type, Scalar activation) {
    return linear_of(ttype(type), 128, 256, activation, 8);
  };
  const Linear u4 = expr("uint4,group=64,scale=float16,zero=midpoint", Scalar::f16);
  EXPECT_EQ(u4.bits, 4);
  EXPECT_EQ(u4.zero, 8);
  EXPECT_EQ(u4.group, 64);
  EXPECT_EQ(expr("uint4,channel,scale=bfloat16", Scalar::bf16).zero, 0);
  // Two's complement with its sign bit flipped is unsigned with a zero point in the middle.
  EXPECT_EQ(expr("int3,group=64,scale=float16", Scalar::f16).zero, 4);
  EXPECT_EQ(expr("int3,tensor,scale=float16", Scalar::f16).groups(), 1);
}

TEST(Session, names_what_it_cannot_ask_for) {
  const auto refused = [](const char* type, const char* why) {
    EXPECT_THAT([&] { linear_of(ttype(type), 128, 256, Scalar::f16, 8); },
                ThrowsMessage<Unsupported>(HasSubstr(why)))
        << type;
  };
  refused("nf4,group=64,scale=float16", "nf4");
  refused("uint4,group=64,scale=float16,zero=integer", "zero points");
  refused("uint4,group=64,scale=bfloat16", "not those of the activations");
  refused("uint4", "scales");
  refused("mxfp4", "float4_e2m1");
}

TEST(Session, has_one_number_for_a_weight_and_keeps_others_apart) {
  const auto& type = ttype("uint4,group=64,scale=float16,zero=midpoint");
  const auto number = open_session(type, 128, 256);
  EXPECT_EQ(open_session(type, 128, 256), number);
  EXPECT_NE(open_session(type, 256, 128), number);
  EXPECT_NE(open_session(ttype("uint4,group=64,scale=float16"), 128, 256), number);
  EXPECT_EQ(session(number).k(), 256);
  EXPECT_THAT([] { session(7); }, ThrowsMessage<InvalidArgument>(HasSubstr("ladder.warmup")));
}

TEST(Session, leaves_many_tokens_and_float32_to_dense_products) {
  Session& s = session(open_session(ttype("uint4,group=64,scale=float16"), 128, 256));
  EXPECT_EQ(s.linear(0, Scalar::f16, kTokenIntervals.back() + 1, nullptr), nullptr);
  EXPECT_EQ(s.linear(0, Scalar::f32, 1, nullptr), nullptr);
}

TEST(ImageKernels, are_one_text_for_one_width) {
  for (int bits = 1; bits <= 8; ++bits) {
    EXPECT_EQ(cuda::pack_source(bits), cuda::pack_source(bits));
    EXPECT_THAT(cuda::unpack_source(bits), HasSubstr("kBits = " + std::to_string(bits)));
  }
}

TEST(ImageKernels, decode_what_they_can_and_name_what_they_cannot) {
  EXPECT_THAT(cuda::dequantize_source(ttype("int4,group=64,scale=float16"), Scalar::f32),
              HasSubstr("low_f16(scales[at])"));
  EXPECT_THAT([] { cuda::dequantize_source(ttype("nf4,channel,scale=float16"), Scalar::f16); },
              ThrowsMessage<Unsupported>(HasSubstr("nf4")));
}

}  // namespace
}  // namespace ladder
