// SPDX-License-Identifier: Apache-2.0
//
// Kernels of batches and of convolutions, from the question to what the driver loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

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

TEST_F(ItemKernels, that_add_a_residual_are_others_and_take_the_plan_of_those_without) {
  const auto number = weight(168, 576);
  ExpertProducts& products = expert_products(number);
  for (ExpertProducts::Question question : {batch(6, 392), windows(64, 392)}) {
    question.of_item = 64;
    const auto schedules = products.schedules(question, 2);
    ASSERT_EQ(schedules.size(), 2U);
    products.use(question, schedules.back(), 2);
    const LinearKernel* const plain = products.kernel(question, stream_);
    question.residual = true;
    const LinearKernel* const plus = products.kernel(question, stream_);
    ASSERT_NE(plus, nullptr);
    EXPECT_NE(plus, plain);
    EXPECT_EQ(plus->schedule, schedules.back());
    EXPECT_EQ(std::ranges::count(plus->operands, Operand::residual), 1);
    EXPECT_EQ(std::ranges::count(plain->operands, Operand::residual), 0);
  }
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

/// What the fake compiler writes down, a line for each compilation of whatever process.
std::ptrdiff_t compilations(const std::filesystem::path& log) {
  std::ifstream file(log);
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

TEST_F(ItemKernels, that_spill_are_followed_by_others_ahead_of_the_call) {
  const auto number = weight(160, 576);
  ExpertProducts& products = expert_products(number);
  ExpertProducts::Question q = batch(6, 40);
  q.of_item = rows_of_items(products, products, q).front();
  const std::string first = products.first_source(q);
  const auto at = first.find("__launch_bounds__(");
  ASSERT_NE(at, std::string::npos);
  const std::string bounds = first.substr(at + 18, first.find(')', at) - at - 18);
  const auto log = store_ / "compiled";
  setenv("LADDER_FAKE_SPILLS", ("__launch_bounds__\\(" + bounds + "\\)").c_str(), 1);
  setenv("LADDER_FAKE_COMPILED", log.c_str(), 1);
  const std::int64_t rows[] = {q.rows};
  compile_ahead(products, products, q, rows);
  const auto ahead = compilations(log);
  const LinearKernel* const kernel = products.kernel(q, stream_);
  unsetenv("LADDER_FAKE_SPILLS");
  unsetenv("LADDER_FAKE_COMPILED");
  EXPECT_GE(ahead, 2);
  EXPECT_EQ(compilations(log), ahead);
  ASSERT_NE(kernel, nullptr);
  EXPECT_NE(products.first_source(q), first);
}

}  // namespace
}  // namespace ladder
