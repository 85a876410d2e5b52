// SPDX-License-Identifier: Apache-2.0
// From a layer to what AMD's driver is asked for: kernels of waves, their grids and their plans.
#include "runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "fakes/driver.h"
#include "runtime/device_row.h"
#include "runtime/expert_products.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"

namespace ladder {
namespace {

class WaveSessions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string folder = (std::filesystem::temp_directory_path() / "ladder-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    store_ = folder;
    setenv("LADDER_CACHE", folder.c_str(), 1);
    gpus().toolchain.add_directory(LADDER_FAKES);
    fake::Machine& m = fake::machine(kOrdinal);
    m.name = "AMD Instinct MI300X", m.architecture = "gfx942:sramecc+:xnack-";
    m.multiprocessors = 304, m.clock_khz = 2100000, m.memory_bytes = 206.1e9;
  }
  static void TearDownTestSuite() {
    unsetenv("LADDER_CACHE");
    std::filesystem::remove_all(store_);
  }
  ~WaveSessions() override { EXPECT_EQ(fake::mistakes(), ""); }

  Session& of(std::int64_t n) {
    return session(open_session(ttype("uint4,group=64,scale=float16"), n, 512));
  }

  static constexpr int kOrdinal = 6;
  inline static std::filesystem::path store_;
  void* const stream_ = fake::new_stream();
};

TEST_F(WaveSessions, start_the_grid_of_the_schedule_with_its_threads_and_memory) {
  Session& s = of(256);
  for (const std::int64_t m : {1, 16, 64, 200, 257}) {
    const LinearKernel* const kernel = s.linear(kOrdinal, Scalar::f16, m, stream_);
    ASSERT_NE(kernel, nullptr) << m;
    const auto read = schedule_of(kernel->schedule);
    ASSERT_TRUE(read && std::holds_alternative<WaveSchedule>(*read)) << kernel->schedule;
    const auto& waves = std::get<WaveSchedule>(*read);
    EXPECT_GE(waves.tokens * waves.token_tiles, m);
    const Problem problem = expression(s.type(), 256, 512, false, Scalar::f16, m);
    const CtaGrid grid = grid_of(waves, problem);
    ASSERT_TRUE(kernel->start(stream_, nullptr));
    const fake::Launched launched = fake::launches().back();
    EXPECT_EQ(launched.device, kOrdinal);
    EXPECT_THAT(launched.grid, testing::ElementsAre(grid.splits, grid.tiles * grid.token_tiles, 1));
    EXPECT_EQ(launched.threads, waves.threads());
    EXPECT_EQ(launched.shared_bytes, shared_bytes(waves, problem));
  }
}

TEST_F(WaveSessions, take_a_schedule_that_somebody_measured) {
  Session& s = of(320);
  const auto all = s.schedules(kOrdinal, Scalar::f16, 16, 4);
  ASSERT_GE(all.size(), 3U);
  s.use(kOrdinal, Scalar::f16, 16, all[2], Session::Purpose::good);
  EXPECT_EQ(s.linear(kOrdinal, Scalar::f16, 16, stream_)->schedule, all[2]);
  EXPECT_THROW(s.use(kOrdinal, Scalar::f16, 16,
                     "tokens 16, warps 1x16, m16 tiles 2, blocks 2, k-tiles 2, register stages 2, "
                     "none, multiply_add, 1 per multiprocessor",
                     Session::Purpose::good),
               Unsupported);
}

// Products of bytes serve 8192 tokens; more are passes, whose tokens are rounded before each.
TEST_F(WaveSessions, round_activations_where_they_are_asked_to) {
  Session& s = session(
      open_session(ttype("uint4,group=64,scale=float16"), 448, 512, false, false, Scalar::s8));
  const auto few = s.passes(kOrdinal, Scalar::f16, 40, stream_);
  ASSERT_NE(few.most, nullptr);
  EXPECT_EQ(few.step, 40);
  const auto schedule = schedule_of(few.most->schedule);
  ASSERT_TRUE(schedule && std::holds_alternative<WaveSchedule>(*schedule));
  EXPECT_EQ(route_of(*schedule), Route::bytes);
  EXPECT_EQ(std::ranges::count(few.most->operands, Operand::x_scales), 1);
  const auto many = s.passes(kOrdinal, Scalar::f16, 20000, stream_);
  EXPECT_EQ(many.step, 8192);
  EXPECT_EQ(many.most, s.linear(kOrdinal, Scalar::f16, 8192, stream_));
  EXPECT_EQ(many.last, s.linear(kOrdinal, Scalar::f16, 20000 % 8192, stream_));
  ASSERT_NE(many.rounding, nullptr);
  EXPECT_EQ(many.rounding->plan.threads, 256) << "four waves, a token each";
  ASSERT_TRUE(many.rounding->start(stream_, nullptr, nullptr, nullptr, 250));
  EXPECT_EQ(fake::launches().back().threads, 256);
  EXPECT_EQ(fake::launches().back().grid[0], 63);
  EXPECT_EQ(s.schedules(kOrdinal, Scalar::f16, 8192, 4).size(), 4);
  EXPECT_EQ(no_kernels(s.type(), 448, 512, false, device_row(kOrdinal), Scalar::s8), "");
  const auto why = [](const Device& on) {
    return no_kernels(ttype("float8_e4m3,channel"), 448, 512, false, on, Scalar::e4m3);
  };
  EXPECT_EQ(why(device_row(kOrdinal)), "");
  EXPECT_EQ(why(device("mi210")), "no tile program multiplies e4m3 on mi210");
}

// Tokens come to the product in the format that its instruction reads on this machine.
TEST_F(WaveSessions, round_to_the_float8_of_the_machine) {
  Session& s =
      session(open_session(ttype("float8_e4m3,channel"), 448, 512, false, false, Scalar::e4m3));
  for (const auto incoming : {Incoming::numbers, Incoming::scaled_numbers, Incoming::codes}) {
    const auto found = s.passes(kOrdinal, Scalar::f16, 40, stream_, incoming);
    ASSERT_NE(found.most, nullptr);
    ASSERT_NE(found.rounding, nullptr);
  }
  std::size_t products = 0, numbers = 0, codes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store_)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find("\nround_tokens(") != std::string::npos) {
      numbers += text.find("return unsigned_zeros(a |") != std::string::npos;
      codes += text.find("= fnuz_bytes(placed") != std::string::npos;
    }
    if (text.find("\nlinear_float8_e4m3(") == std::string::npos) continue;
    products += text.find("mma_e4m3fnuz(", text.find("\nlinear_")) != std::string::npos;
  }
  EXPECT_GE(products, 1U);
  // Two kernels for numbers; the fake keeps the text of a kernel in its binary, too.
  EXPECT_GE(codes, 1U);
  EXPECT_EQ(numbers, 2 * codes);
}

// The products of all items are one launch, and the kernels around them are loaded as they are.
TEST_F(WaveSessions, multiply_all_items_of_experts_in_one_launch) {
  constexpr std::int64_t kExperts = 8, kRows = 64;
  ExpertProducts products(of(384));
  const auto all = rows_of_items(products, products, {kOrdinal, Scalar::f16, kExperts, 0, kRows});
  ASSERT_GE(all.size(), 3);
  for (const std::int64_t of_item : all) {
    const ExpertProducts::Question question{kOrdinal, Scalar::f16, kExperts, of_item, kRows};
    const LinearKernel* const kernel = products.kernel(question, stream_);
    ASSERT_NE(kernel, nullptr) << of_item;
    EXPECT_EQ(std::ranges::count(kernel->operands, Operand::items), 1);
    EXPECT_TRUE(std::holds_alternative<WaveSchedule>(*schedule_of(kernel->schedule)));
    Launch grid = kernel->launch;
    grid.grid[2] = static_cast<unsigned>(most_items(kRows, kExperts, of_item));
    ASSERT_TRUE(kernel->kernel->launch(grid, stream_, nullptr));
    EXPECT_EQ(fake::launches().back().grid[2], grid.grid[2]);
  }
  EXPECT_FALSE(device_row(kOrdinal).dependent_launch());
  ExpertProducts rounded(session(
      open_session(ttype("uint4,group=64,scale=float16"), 384, 512, false, false, Scalar::s8)));
  for (const std::int64_t of_item : {16, 64}) {
    const auto* const kernel =
        rounded.kernel({kOrdinal, Scalar::f16, kExperts, of_item, kRows}, stream_);
    ASSERT_NE(kernel, nullptr) << of_item;
    EXPECT_EQ(std::ranges::count(kernel->operands, Operand::x_scales), 1);
  }
  const RoutingKernels& around = routing_kernels(gpus());
  for (const auto& [source, name] :
       {std::pair{around.route({true, false}), "route"},
        {around.route({true, false, true}), "route"},
        {around.gated(Scalar::f16, Gated::silu, {true, false}), "gated"},
        {around.combine(Scalar::f16, Scalar::f32, {true, false}), "combine"}}) {
    const SharedKernel kernel = load_kernel(source, name, kOrdinal, 0);
    ASSERT_TRUE(kernel->launch({{4, 3, 1}, kRoutingThreads, 0, false}, stream_, nullptr)) << name;
    EXPECT_EQ(fake::launches().back().kernel, name);
  }
}

}  // namespace
}  // namespace ladder
