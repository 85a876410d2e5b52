// SPDX-License-Identifier: Apache-2.0
// What a session of rounded activations starts, on a driver that is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "fakes/driver.h"
#include "fakes/fakes.h"
#include "runtime/expert_products.h"
#include "runtime/gpus.h"
#include "runtime/notices.h"
#include "runtime/rounding.h"
#include "runtime/session.h"
#include "with_store.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class RoundedSessions : public testing::WithStore {
 protected:
  Session& of(std::int64_t n, std::int64_t k = 512) {
    return session(
        open_session(ttype("uint4,group=64,scale=float16"), n, k, false, false, Scalar::s8));
  }
  Session::Passes passes(Session& s, std::int64_t m, Scalar activation = Scalar::f16) {
    return s.passes(1, activation, m, stream_);
  }

  void* const stream_ = fake::new_stream();
};

TEST_F(RoundedSessions, round_before_the_passes_of_any_number_of_tokens) {
  Session& s = of(264);
  const auto few = passes(s, 40);
  ASSERT_NE(few.most, nullptr);
  EXPECT_EQ(few.step, 40);
  EXPECT_EQ(few.most, s.linear(1, Scalar::f16, 48, stream_));
  EXPECT_EQ(std::ranges::count(few.most->operands, Operand::x_scales), 1);
  EXPECT_EQ(std::ranges::count(few.most->operands, Operand::gather), 0);
  const auto many = passes(s, 20000);
  EXPECT_EQ(many.step, 8192);
  EXPECT_EQ(many.most, s.linear(1, Scalar::f16, 8192, stream_));
  EXPECT_EQ(many.last, s.linear(1, Scalar::f16, 20000 - 2 * 8192, stream_));
  ASSERT_NE(many.rounding, nullptr);
  EXPECT_EQ(many.rounding, few.rounding);
  EXPECT_TRUE(many.rounding->start(stream_, nullptr, nullptr, nullptr, 20000));
  EXPECT_EQ(passes(s, 40, Scalar::f32).most, nullptr);
  EXPECT_NE(passes(s, 40, Scalar::bf16).rounding, few.rounding);
}

TEST_F(RoundedSessions, multiply_codes_that_come_from_one_token_on) {
  Session& s = of(268);
  for (const std::int64_t m : {1, 16, 40}) {
    const auto of_codes = s.passes(1, Scalar::f16, m, stream_, Incoming::codes);
    ASSERT_NE(of_codes.most, nullptr);
    EXPECT_EQ(of_codes.step, m);
    // The kernels of x that is rounded, behind another kernel.
    EXPECT_EQ(of_codes.most, s.linear(1, Scalar::f16, m, stream_));
    EXPECT_NE(of_codes.rounding, passes(s, m).rounding);
    EXPECT_EQ(of_codes.rounding, s.passes(1, Scalar::bf16, m, stream_, Incoming::codes).rounding);
    EXPECT_TRUE(of_codes.rounding->start(stream_, nullptr, nullptr, nullptr, m, {nullptr, true}));
  }
  const auto scaled = s.passes(1, Scalar::f16, 40, stream_, Incoming::scaled_numbers);
  EXPECT_EQ(scaled.most, passes(s, 40).most);
  EXPECT_NE(scaled.rounding, passes(s, 40).rounding);
  EXPECT_NE(scaled.rounding,
            s.passes(1, Scalar::bf16, 40, stream_, Incoming::scaled_numbers).rounding);
}

TEST_F(RoundedSessions, of_wide_y_have_kernels_and_plans_of_their_own) {
  Session& s = of(269);
  Session& wide = s.wide();
  EXPECT_NE(&wide, &s);
  EXPECT_EQ(&s.wide(), &wide);
  EXPECT_EQ(&wide.wide(), &wide);
  EXPECT_TRUE(wide.has_wide_y() && wide.rounded() == Scalar::s8 && !s.has_wide_y());
  const auto found = wide.passes(1, Scalar::f16, 40, stream_, Incoming::codes);
  ASSERT_NE(found.most, nullptr);
  EXPECT_NE(found.most, s.linear(1, Scalar::f16, 40, stream_));
  const auto schedule = wide.schedules(1, Scalar::f16, 40, 1).front();
  wide.keep(1, Scalar::f16, 40, schedule, 1);
  EXPECT_TRUE(wide.plan(1, Scalar::f16, 40));
  EXPECT_FALSE(s.plan(1, Scalar::f16, 40));
  EXPECT_EQ(&wide.transform(1, Session::Transform::pack, stream_),
            &s.transform(1, Session::Transform::pack, stream_));
}

TEST_F(RoundedSessions, of_codes_of_y_have_kernels_with_a_scale_of_their_own) {
  Session& s = of(270);
  Session& coded = s.quantised(Scalar::s8);
  EXPECT_EQ(&s.quantised(Scalar::s8), &coded);
  EXPECT_NE(&s.quantised(Scalar::e4m3), &coded);
  EXPECT_NE(&s.wide().quantised(Scalar::s8), &coded);  // whose bias is float32
  EXPECT_EQ(coded.quantised(), Scalar::s8);
  EXPECT_EQ(coded.rounded(), Scalar::s8);
  EXPECT_EQ(coded.bytes_of_y(), 1);
  EXPECT_EQ(s.bytes_of_y(), 2);
  EXPECT_EQ(s.wide().bytes_of_y(), 4);
  const auto found = coded.passes(1, Scalar::f16, 40, stream_, Incoming::codes);
  ASSERT_NE(found.most, nullptr);
  EXPECT_EQ(std::ranges::count(found.most->operands, Operand::y_scale), 1);
  const LinearKernel* const plain = s.linear(1, Scalar::f16, 40, stream_);
  EXPECT_EQ(std::ranges::count(plain->operands, Operand::y_scale), 0);
  EXPECT_EQ(&coded.transform(1, Session::Transform::pack, stream_),
            &s.transform(1, Session::Transform::pack, stream_));
}

TEST_F(RoundedSessions, of_other_numbers_of_y_take_the_plan_of_the_layer_where_they_have_none) {
  Session& s = of(271);
  const auto all = s.schedules(1, Scalar::f16, 1000, 3);
  ASSERT_GE(all.size(), 3U);
  s.keep(1, Scalar::f16, 1000, all[1], 3);
  Session &coded = s.quantised(Scalar::s8), &wide = s.wide();
  for (Session* other : {&coded, &wide, &wide.quantised(Scalar::s8)}) {
    const LinearKernel* const kernel = other->linear(1, Scalar::f16, 1000, stream_);
    ASSERT_NE(kernel, nullptr);
    EXPECT_EQ(kernel->schedule, all[1]);
  }
  // One of its own goes before.
  wide.keep(1, Scalar::f16, 300, wide.schedules(1, Scalar::f16, 300, 1).front(), 1);
  s.keep(1, Scalar::f16, 300, s.schedules(1, Scalar::f16, 300, 3).back(), 3);
  EXPECT_EQ(wide.linear(1, Scalar::f16, 300, stream_)->schedule,
            wide.schedules(1, Scalar::f16, 300, 1).front());
  void* const graph = fake::begin_capture(stream_);
  EXPECT_THAT([&] { coded.linear(1, Scalar::f16, 1, stream_); },
              ThrowsMessage<Unsupported>(HasSubstr("and codes of y is not compiled")));
  fake::end_capture(stream_);
  fake::destroy_graph(graph);
}

TEST_F(RoundedSessions, measure_no_dense_product_and_keep_plans_of_their_own) {
  Session& s = of(265);
  const auto all = s.schedules(1, Scalar::f16, 1000, 2);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_THAT(all, ::testing::Each(HasSubstr("bytes")));
  s.use(1, Scalar::f16, 1000, all.back(), Session::Purpose::good);
  s.keep(1, Scalar::f16, 1000, all.back(), 2);
  EXPECT_EQ(to_string(*s.plan(1, Scalar::f16, 1024)), all.back());
  EXPECT_EQ(s.linear(1, Scalar::f16, 1024, stream_)->schedule, all.back());
  EXPECT_THROW(s.use(1, Scalar::f16, 1000, "dense", Session::Purpose::good), Unsupported);
}

TEST_F(RoundedSessions, compile_nothing_during_a_capture) {
  Session& s = of(266, 1008);
  void* const graph = fake::begin_capture(stream_);
  EXPECT_THAT([&] { passes(s, 40); }, ThrowsMessage<Unsupported>(HasSubstr("before the capture")));
  fake::end_capture(stream_);
  fake::destroy_graph(graph);
  EXPECT_NE(passes(s, 40).most, nullptr);
}

TEST_F(RoundedSessions, share_the_kernels_of_images_with_those_of_activations_as_they_come) {
  Session& s = of(267);
  Session& plain = session(open_session(s.type(), s.n(), s.k()));
  EXPECT_EQ(&s.transform(1, Session::Transform::pack, stream_),
            &plain.transform(1, Session::Transform::pack, stream_));
}

TEST_F(RoundedSessions, do_not_ask_a_compiler_again_for_a_kernel_alone_that_it_failed_at) {
  const auto alone = [&](std::int64_t k) {
    return rounding_kernel_alone(1, Scalar::f16, Scalar::s8, TokenScales::own, k, stream_);
  };
  fake_nvrtc.result = 1;
  EXPECT_EQ(alone(1040), nullptr);
  const int asked = fake_nvrtc.compiled;
  EXPECT_THAT(take_notices(), HasSubstr("activations of 1040 columns to int8: "));
  EXPECT_EQ(alone(1040), nullptr);
  fake_nvrtc.result = 0;
  EXPECT_EQ(alone(1040), nullptr);
  EXPECT_EQ(fake_nvrtc.compiled, asked);
  const RoundingKernel* const other = alone(1056);
  ASSERT_NE(other, nullptr);
  EXPECT_GT(fake_nvrtc.compiled, asked);
  EXPECT_EQ(alone(1056), other);
  EXPECT_TRUE(other->start(stream_, nullptr, nullptr, nullptr, 20));
  void* const graph = fake::begin_capture(stream_);
  EXPECT_THAT([&] { alone(1072); }, ThrowsMessage<Unsupported>(HasSubstr("before the capture")));
  fake::end_capture(stream_);
  fake::destroy_graph(graph);
  EXPECT_EQ(alone(1072)->k, 1072);
}

// The same question of activations as they come has another kernel, of the other operands.
TEST_F(RoundedSessions, multiply_all_items_of_experts_in_one_launch) {
  constexpr std::int64_t kExperts = 8, kRows = 400;
  const auto e4m3 =
      open_session(ttype("int4,group=128,scale=bfloat16"), 268, 512, false, false, Scalar::e4m3);
  Session& s = session(e4m3);
  ExpertProducts products(s), plain(session(open_session(s.type(), s.n(), s.k())));
  const auto all = rows_of_items(products, products, {1, Scalar::bf16, kExperts, 0, kRows});
  ASSERT_GE(all.size(), 3U);
  for (const std::int64_t of_item : all) {
    const ExpertProducts::Question question{1, Scalar::bf16, kExperts, of_item, kRows};
    const LinearKernel* const kernel = products.kernel(question, stream_);
    ASSERT_NE(kernel, nullptr) << of_item;
    EXPECT_THAT(kernel->schedule, HasSubstr("bytes"));
    EXPECT_EQ(std::ranges::count(kernel->operands, Operand::items), 1);
    EXPECT_EQ(std::ranges::count(kernel->operands, Operand::x_scales), 1);
    const LinearKernel* const other = plain.kernel(question, stream_);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(std::ranges::count(other->operands, Operand::x_scales), 0);
  }
  const ExpertProducts::Question question{1, Scalar::bf16, kExperts, 64, kRows};
  const auto schedules = products.schedules(question, 2);
  ASSERT_EQ(schedules.size(), 2U);
  EXPECT_FALSE(products.has_plan(question, 1));
  products.use(question, schedules.back(), 2);
  EXPECT_TRUE(products.has_plan(question, 2));
  EXPECT_FALSE(plain.has_plan(question, 1)) << "plans stand apart";
  EXPECT_EQ(products.kernel(question, stream_)->schedule, schedules.back());
}

}  // namespace
}  // namespace ladder
