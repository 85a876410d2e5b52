// SPDX-License-Identifier: Apache-2.0
//
// Kernels of batches and of convolutions, from the question to what the driver loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/expert_products.h"
#include "runtime/session.h"
#include "with_store.h"

namespace ladder {
namespace {

constexpr int kDevice = 1;

class ItemKernels : public testing::WithStore {
 protected:
  std::int64_t weight(std::int64_t n, std::int64_t k) {
    return open_session(ttype("uint4,group=64,scale=float16"), n, k);
  }
  static ExpertProducts::Question batch(std::int64_t count, std::int64_t rows) {
    return {kDevice, Scalar::f16, count, 0, rows, ItemsOf::batch};
  }
  static ExpertProducts::Question windows(std::int64_t channels, std::int64_t rows) {
    ExpertProducts::Question out{kDevice, Scalar::f16, 1, 0, rows, ItemsOf::windows};
    const WindowAxis axis{.size = 14, .taps = 3, .padding = 1};
    out.windows = Windows{axis, axis, channels};
    return out;
  }
  const LinearKernel* kernel_of(std::int64_t weight, ExpertProducts::Question q) {
    q.of_item = rows_of_items(weight, q, stream_);
    return q.of_item == 0 ? nullptr : expert_products(weight).kernel(q, stream_);
  }

  void* const stream_ = fake::new_stream();
};

TEST_F(ItemKernels, of_a_batch_and_of_windows_have_no_table) {
  for (const std::int64_t rows : {1, 40}) {
    const LinearKernel* const kernel = kernel_of(weight(136, 576), batch(6, rows));
    ASSERT_NE(kernel, nullptr) << rows;
    EXPECT_EQ(std::ranges::count(kernel->operands, Operand::items), 0);
    EXPECT_EQ(std::ranges::count(kernel->operands, Operand::bias), 1);
  }
  const LinearKernel* const kernel = kernel_of(weight(136, 576), windows(64, 392));
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(std::ranges::count(kernel->operands, Operand::items), 0);
}

TEST_F(ItemKernels, of_one_weight_are_apart_by_what_they_are_of) {
  const auto number = weight(144, 576);
  const auto* const of_batch = kernel_of(number, batch(6, 392));
  const auto* const of_windows = kernel_of(number, windows(64, 392));
  EXPECT_NE(of_batch, of_windows);
  // As many windows up to a power of two, and the same again.
  EXPECT_EQ(kernel_of(number, windows(64, 500)), of_windows);
  ExpertProducts::Question larger = windows(64, 392);
  larger.windows->y.size = 28;
  EXPECT_NE(kernel_of(number, larger), of_windows);
}

TEST_F(ItemKernels, of_windows_that_no_kernel_has_are_none) {
  EXPECT_EQ(rows_of_items(weight(136, 27), windows(3, 392), stream_), 0);  // one k-tile
  EXPECT_THROW(rows_of_items(weight(136, 512), windows(64, 392), stream_), InvalidArgument);
}

TEST_F(ItemKernels, keep_plans_apart) {
  const auto number = weight(152, 576);
  ExpertProducts& products = expert_products(number);
  ExpertProducts::Question of_batch = batch(6, 392), of_windows = windows(64, 392);
  of_batch.of_item = of_windows.of_item = 64;
  const auto schedules = products.schedules(of_windows, 2);
  ASSERT_EQ(schedules.size(), 2U);
  products.use(of_windows, schedules.back(), 2);
  EXPECT_TRUE(products.has_plan(of_windows, 2));
  EXPECT_FALSE(products.has_plan(of_batch, 1));
  EXPECT_EQ(products.kernel(of_windows, stream_)->schedule, schedules.back());
}

}  // namespace
}  // namespace ladder
