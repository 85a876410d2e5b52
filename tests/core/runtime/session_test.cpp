// SPDX-License-Identifier: Apache-2.0
// What a session decides before it needs a device.
#include "runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/cuda/image_kernels.h"
#include "codegen/cuda/toolchain.h"
#include "device/device.h"

namespace ladder {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Session, names_what_it_cannot_ask_for) {
  const auto refused = [](const char* type, const char* why) {
    EXPECT_THAT(objection(ttype(type), 128, 256, device("h200")), HasSubstr(why)) << type;
  };
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  refused("nf4,group=64,scale=float16", "nf4");
  refused("uint4,group=64,scale=float16,zero=integer", "zero points");
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
