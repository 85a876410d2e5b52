// SPDX-License-Identifier: Apache-2.0
// What a session decides before it needs a device.
#include "runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "codegen/cuda/toolchain.h"
#include "codegen/target.h"
#include "device/device.h"
#include "layout/weight_image.h"
#include "runtime/plan.h"
#include "types/ttype.h"

namespace ladder {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Session, names_what_it_cannot_ask_for) {
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  EXPECT_THAT(no_kernels(ttype("bfloat16"), 128, 256, false, device("h200")),
              HasSubstr("bfloat16 has more than 8 bits"));
  const auto& type = ttype("uint4,group=64,scale=float16");
  EXPECT_EQ(no_kernels(type, 65535 * 64, 64, false, device("h200")), "");
  EXPECT_EQ(no_kernels(type, 65535 * 64 + 1, 64, false, device("h200")),
            "4194241 rows, of at most 4194240");
}

TEST(Session, asks_for_a_bias_and_for_columns_in_the_order_of_the_image) {
  const auto& type = ttype("uint4,group=64,scale=float16");
  for (const bool gather : {false, true}) {
    const Problem problem = expression(type, 128, 256, gather, Scalar::bf16, 9);
    EXPECT_TRUE(problem.has_bias());
    EXPECT_EQ(problem.permuted_columns, gather);
    EXPECT_EQ(problem.m, 16);
    EXPECT_EQ(problem.weight.scale, Scalar::f16);
  }
  EXPECT_THAT([&] { expression(type, 128, 256, false, Scalar::f16, 8193); },
              ThrowsMessage<InvalidArgument>(HasSubstr("8193 tokens")));
}

TEST(Session, has_one_number_for_a_weight_and_keeps_others_apart) {
  const auto& type = ttype("uint4,group=64,scale=float16,zero=midpoint");
  const auto number = open_session(type, 128, 256);
  EXPECT_EQ(open_session(type, 128, 256), number);
  EXPECT_NE(open_session(type, 256, 128), number);
  EXPECT_NE(open_session(ttype("uint4,group=64,scale=float16"), 128, 256), number);
  EXPECT_NE(open_session(type, 128, 256, true), number);
  EXPECT_NE(open_session(type, 128, 256, false, true), number);
  EXPECT_NE(open_session(type, 128, 256, false, true), open_session(type, 128, 256, true, true));
  const auto then = [&](std::optional<Gated> function) {
    return open_session(type, 128, 256, false, false, std::nullopt, false, std::nullopt, function);
  };
  EXPECT_EQ(then(std::nullopt), number);
  EXPECT_NE(then(Gated::relu), number);
  EXPECT_NE(then(Gated::relu), then(Gated::silu));
  EXPECT_EQ(session(then(Gated::silu)).function(), Gated::silu);
  Session& plus = session(then(Gated::silu)).with_residual();
  EXPECT_NE(&plus, &session(then(Gated::silu)));
  EXPECT_EQ(&plus, &session(then(Gated::silu)).with_residual());
  EXPECT_EQ(&plus, &plus.with_residual());
  EXPECT_TRUE(plus.has_residual() && plus.function() == Gated::silu);
  EXPECT_THAT(
      [&] {
        session(open_session(type, 128, 256, false, false, std::nullopt, false, Gating{}))
            .with_residual();
      },
      ThrowsMessage<Unsupported>("kernels add no residual to a product of gate and up"));
  EXPECT_FALSE(session(number).dependent_launch());
  EXPECT_TRUE(session(open_session(type, 128, 256, false, true)).dependent_launch());
  EXPECT_EQ(session(number).k(), 256);
  EXPECT_THAT([] { session(7); }, ThrowsMessage<InvalidArgument>(HasSubstr("ladder.warmup")));
}

// One image serves layers with and without dependent launch.
TEST(Session, has_one_image_however_kernels_are_launched) {
  const auto& type = ttype("uint4,group=64,scale=float16,zero=integer");
  for (const bool gather : {false, true}) {
    const ImageParts& parts = session(open_session(type, 128, 256, gather)).parts();
    const ImageParts& of_chain = session(open_session(type, 128, 256, gather, true)).parts();
    EXPECT_EQ(parts.words, of_chain.words);
    EXPECT_EQ(parts.scales->offset_bytes, of_chain.scales->offset_bytes);
    EXPECT_EQ(parts.gather.has_value(), of_chain.gather.has_value());
  }
}

TEST(Session, of_rounded_activations_has_a_number_and_intervals_of_its_own_and_the_same_image) {
  const auto& type = ttype("uint4,group=64,scale=float16,zero=integer");
  const auto plain = open_session(type, 128, 256);
  const auto number = open_session(type, 128, 256, false, false, Scalar::s8);
  EXPECT_NE(number, plain);
  EXPECT_NE(number, open_session(type, 128, 256, false, true, Scalar::s8));
  EXPECT_EQ(session(number).rounded(), Scalar::s8);
  EXPECT_EQ(session(plain).rounded(), std::nullopt);
  EXPECT_EQ(session(number).parts().words, session(plain).parts().words);
  EXPECT_EQ(session(number).parts().zeros->offset_bytes,
            session(plain).parts().zeros->offset_bytes);
  const Problem problem = expression(type, 128, 256, false, Scalar::bf16, 1000, Scalar::s8);
  EXPECT_EQ(problem.m, 1024);
  EXPECT_EQ(problem.formats.x, Scalar::s8);
  EXPECT_NE(to_string(problem), to_string(expression(type, 128, 256, false, Scalar::bf16, 100)));
}

TEST(Session, of_codes_of_y_is_another_one_for_each_kind_of_code_and_bias) {
  const auto& type = ttype("uint4,group=64,scale=float16");
  Session& rounded = session(open_session(type, 128, 256, false, false, Scalar::s8));
  std::set<const Session*> all{&rounded, &rounded.wide()};
  for (Session* each : {&rounded, &rounded.wide()}) {
    for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
      Session& coded = each->quantised(to);
      EXPECT_EQ(&coded, &each->quantised(to));
      EXPECT_EQ(coded.quantised(), to);
      EXPECT_EQ(coded.parts().words, rounded.parts().words);
      all.insert(&coded);
    }
  }
  EXPECT_EQ(all.size(), 6U);
  EXPECT_EQ(&rounded.quantised(Scalar::s8).wide(), &rounded.wide().quantised(Scalar::s8));
  const auto formats = [&](Scalar activation, bool wide) {
    return expression(type, 128, 256, false, activation, 100, Scalar::s8, wide, std::nullopt,
                      std::nullopt, false, Scalar::e4m3)
        .formats;
  };
  EXPECT_EQ(formats(Scalar::bf16, false), (Formats{Scalar::s8, Scalar::e4m3, Scalar::bf16}));
  EXPECT_EQ(formats(Scalar::f16, true), (Formats{Scalar::s8, Scalar::e4m3, Scalar::f32}));
}

TEST(Session, of_fast_sums_is_another_one) {
  const auto& type = ttype("float8_e4m3,channel,scale=float16");
  const auto promoted = open_session(type, 128, 256, false, false, Scalar::e4m3);
  const auto fast = open_session(type, 128, 256, false, false, RoundedX(Scalar::e4m3, true));
  EXPECT_NE(fast, promoted);
  EXPECT_EQ(session(fast).parts().words, session(promoted).parts().words);
  EXPECT_TRUE(session(fast).wide().rounded()->fast_accum);
  EXPECT_TRUE(expression(type, 128, 256, false, Scalar::bf16, 100, session(fast).rounded())
                  .formats.fast_accum);
}

TEST(Session, of_rounded_activations_leaves_few_tokens_to_that_of_activations_as_they_come) {
  const auto& type = ttype("uint4,group=64,scale=float16");
  Session& plain = session(open_session(type, 128, 256));
  Session& rounded = session(open_session(type, 128, 256, false, false, Scalar::s8));
  EXPECT_EQ(&rounded.serving(48), &plain);
  EXPECT_EQ(&rounded.serving(49), &rounded);
  EXPECT_EQ(&plain.serving(48), &plain);
  EXPECT_EQ(&plain.serving(49), &plain);
}

TEST(Intervals, have_passes_of_the_largest_behind_them) {
  EXPECT_EQ(tokens_of_kernel(9, Scalar::s8), 16);
  EXPECT_EQ(tokens_of_kernel(65, Scalar::s8), 96);
  EXPECT_EQ(tokens_of_kernel(257, Scalar::s8), 384);
  EXPECT_EQ(tokens_of_kernel(8192, Scalar::e4m3), 8192);
  EXPECT_EQ(tokens_of_kernel(100000, Scalar::e4m3), 8192);
  EXPECT_EQ(tokens_of_kernel(256, std::nullopt), 256);
  EXPECT_EQ(tokens_of_kernel(257, std::nullopt), 320);
  EXPECT_EQ(tokens_of_kernel(1537, std::nullopt), 2048);
  EXPECT_EQ(tokens_of_kernel(100000, std::nullopt), 8192);
}

TEST(Session, of_rounded_activations_is_refused_where_no_expression_is) {
  const auto rounded = [](const char* type, std::int64_t k, bool gather, Scalar to) {
    return [=] { open_session(ttype(type), 128, k, gather, false, to); };
  };
  EXPECT_NO_THROW(rounded("uint4", 256, false, Scalar::e4m3)());
  EXPECT_THAT(rounded("mxfp4", 256, false, Scalar::s8),
              ThrowsMessage<InvalidArgument>(HasSubstr("float4_e2m1")));
  EXPECT_THAT(rounded("uint4", 256, true, Scalar::s8),
              ThrowsMessage<InvalidArgument>(HasSubstr("columns in their order")));
  EXPECT_THAT(rounded("uint4", 264, false, Scalar::s8),
              ThrowsMessage<InvalidArgument>(HasSubstr("264 columns, no multiple of 16")));
  EXPECT_EQ(rounded_called("float8_e4m3"), Scalar::e4m3);
  EXPECT_EQ(rounded_called("float8_e4m3,fast_accum"), RoundedX(Scalar::e4m3, true));
  for (const char* name : {"", "int8", "float8_e4m3", "float8_e4m3,fast_accum"})
    EXPECT_EQ(activation_type_of(rounded_called(name)), name);
  EXPECT_THAT([] { rounded_called("int4"); },
              ThrowsMessage<InvalidArgument>(
                  "activation_type is \"int4\", not int8, float8_e4m3 or float8_e4m3,fast_accum"));
}

TEST(NoDeviceRounds, says_in_one_line_what_is_missing) {
  const auto why = [](const char* type, Scalar to) {
    return no_device_rounds(ttype(type), 128, 512, to);
  };
  EXPECT_EQ(why("mxfp4", Scalar::e4m3), "");
  EXPECT_EQ(why("uint4", Scalar::s8), "");
  EXPECT_EQ(why("uint4,group=64,scale=float16,zero=original", Scalar::s8),
            "zero points that are no whole numbers");
  EXPECT_EQ(why("uint3,group=64,scale=float16,zero=original", Scalar::s8),
            "zero points that are no whole numbers");
  EXPECT_EQ(why("nvfp4", Scalar::e4m3), "groups of 16 columns are no whole k-steps of 32");
  EXPECT_EQ(why("float8_e5m2", Scalar::e4m3),
            "float8_e5m2 has 5 and 2 bits of exponent and mantissa, e4m3 4 and 3");
  EXPECT_EQ(why("uint4", Scalar::e4m3), "");
  EXPECT_EQ(why("int4,group=32,scale=bfloat16", Scalar::e4m3), "");
  EXPECT_EQ(why("int4,group=16,scale=float16", Scalar::e4m3),
            "groups of 16 columns are no whole k-steps of 32");
  EXPECT_EQ(why("int8", Scalar::e4m3),
            "codes of 8 bits are up to 128 from their zero point, and e4m3 has whole numbers up to "
            "16");
}

TEST(Plan, of_a_dependent_launch_stands_apart_where_the_device_has_it) {
  const Problem problem =
      expression(ttype("uint4,group=64,scale=float16"), 128, 256, false, Scalar::f16, 1);
  const Device &h200 = device("h200"), &a100 = device("a100");
  EXPECT_EQ(plan_key(problem, h200, false),
            to_string(problem) + " on h200, scheduler 12");  // stored plans are found by this
  EXPECT_EQ(plan_key(problem, h200, true), plan_key(problem, h200, false) + ", dependent launch");
  EXPECT_EQ(plan_key(problem, a100, true), plan_key(problem, a100, false));
}

TEST(Plan, is_a_schedule_of_its_own_kind_of_launch_only) {
  const Problem problem =
      expression(ttype("uint4,group=64,scale=float16"), 128, 256, false, Scalar::f16, 1);
  const Device &h200 = device("h200"), &a100 = device("a100");
  const Decisions decisions = decide(problem, h200), of_older = decide(problem, a100);
  const auto alone = best_schedule(decisions), in_chain = best_schedule(decisions, true);
  EXPECT_EQ(schedule_called(to_string(in_chain), decisions, true), in_chain);
  EXPECT_EQ(schedule_called(to_string(in_chain), decisions, false), std::nullopt);
  EXPECT_EQ(schedule_called(to_string(alone), decisions, true), std::nullopt);
  const auto older = best_schedule(of_older);
  EXPECT_EQ(schedule_called(to_string(older), of_older, true), older);
  // Right by itself, and none of the scheduler's.
  auto other = std::get<DecodeSchedule>(alone);
  other.tokens *= 2;
  ASSERT_EQ(objection(other, decisions), "");
  EXPECT_EQ(schedule_called(to_string(other), decisions, false), std::nullopt);
}

TEST(Session, leaves_many_tokens_and_float32_to_dense_products) {
  Session& s = session(open_session(ttype("uint4,group=64,scale=float16"), 128, 256));
  EXPECT_EQ(s.linear(0, Scalar::f16, kTokenIntervals.back() + 1, nullptr), nullptr);
  EXPECT_EQ(s.linear(0, Scalar::f32, 1, nullptr), nullptr);
}

// Session loads them by their text, so weights of one width share them and those of two must not.
TEST(ImageKernels, have_a_text_of_their_own_for_each_width) {
  const auto& kernels = image_kernels(target_called("CUDA"));
  for (const auto source : {kernels.pack, kernels.unpack, kernels.permute}) {
    std::set<std::string> texts;
    for (int bits = 1; bits <= 8; ++bits) {
      texts.insert(source(bits));
      const auto width = "kBits = " + std::to_string(bits);
      EXPECT_NE(source(bits).find(width), std::string::npos) << bits;
    }
    EXPECT_EQ(texts.size(), 8);
  }
}

/// Parts in the order of the image, as (first byte, bytes).
std::vector<std::pair<std::int64_t, std::int64_t>> places(const ImageParts& parts) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out{{0, 4 * parts.code_words}};
  for (const auto* part : {&parts.scales, &parts.zeros, &parts.scale2, &parts.gather}) {
    if (*part) {
      out.emplace_back((*part)->offset_bytes, (*part)->elements * bytes_of((*part)->scalar));
    }
  }
  return out;
}

TEST(ImageParts, lie_one_behind_the_other_at_lines_of_memory) {
  for (const char* type : {"uint4", "uint3,group=32,scale=float32,zero=integer", "nvfp4",
                           "uint4,group=8,scale=bfloat16,zero=rescale", "mxfp6_e3m2"}) {
    for (const bool gather : {false, true}) {
      const auto parts = image_parts(expression(ttype(type), 65, 200, gather, Scalar::f16, 1));
      std::int64_t end = 0;
      for (const auto& [first, bytes] : places(parts)) {
        EXPECT_GE(first, end) << type;
        EXPECT_LT(first - end, 128) << type;
        EXPECT_EQ(first % 128, 0) << type;
        end = first + bytes;
      }
      EXPECT_EQ(4 * parts.words, round_up(end, 128)) << type;
      EXPECT_EQ(parts.gather.has_value(), gather);
    }
  }
}

TEST(ImageParts, have_the_metadata_that_the_type_asks_for) {
  const auto of = [](const char* type) {
    return image_parts(expression(ttype(type), 65, 200, false, Scalar::f16, 1));
  };
  EXPECT_FALSE(of("uint4").scales || of("uint4").zeros || of("uint4").scale2);
  const auto gptq = of("uint3,group=32,scale=float32,zero=quantized");
  EXPECT_EQ(gptq.scales->elements, 7 * 128);
  EXPECT_EQ(gptq.scales->scalar, Scalar::f32);
  EXPECT_EQ(gptq.zeros->scalar, Scalar::u8);
  EXPECT_EQ(of("uint4,channel,scale=bfloat16,zero=original").zeros->scalar, Scalar::bf16);
  EXPECT_EQ(of("mxfp4").scales->scalar, Scalar::e8m0);
  EXPECT_EQ(of("nvfp4").scales->scalar, Scalar::e4m3);
  EXPECT_EQ(of("nvfp4").scale2->elements, 1);
  const auto of_rows = of("uint4,group=64,scale=uint4,zero=midpoint,scale2=float32:channel");
  EXPECT_EQ(of_rows.scale2->elements, 65);
  EXPECT_EQ(of_rows.scales->scalar, Scalar::u8);
  EXPECT_EQ(of_rows.scales->elements, 4 * 128);
}

}  // namespace
}  // namespace ladder
