// SPDX-License-Identifier: Apache-2.0
//
// What tuning measures: schedules whose kernels do not spill, in the order of the guesses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "expr/constructors.h"
#include "pipelines/diversified.h"
#include "pipelines/pruned.h"
#include "pipelines/schedule.h"
#include "runtime/kernels.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

constexpr std::size_t kCount = 8;

/// One of each way to decode, at shapes and numbers of tokens that choose differently.
struct Case {
  const char* name;
  const char* type;
  Scalar activation;
  std::int64_t m, n, k;
  const char* device = "h200";
  bool first_ones_spill = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.type << " on " << c.device; }

class MeasuredSchedules : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("ladder-measured-schedules-") + GetParam().name);
    std::filesystem::remove_all(folder_);
    use_store(folder_.string(), true);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

 private:
  std::filesystem::path folder_;
};

TEST_P(MeasuredSchedules, are_the_next_guesses_where_the_first_spill) {
  const Case& c = GetParam();
  const Device& target = device(c.device);
  const auto problem = linear_of(ttype(c.type), c.n, c.k, c.activation, c.m);
  const auto all = candidates(decide(problem, target));

  std::vector<std::string> clean;
  std::size_t looked_at = 0, most = kCount;
  int again = 0;
  const auto guesses =
      diversified(pruned(all, decide(problem, target), all.front().cost.seconds), kCount);
  for (const Candidate& candidate : guesses) {
    if (looked_at == most && again++ < 2) most += 2 * (kCount - clean.size());
    if (clean.size() == kCount || looked_at == most) break;
    ASSERT_TRUE(candidate.dropped.empty()) << candidate.dropped;
    const auto source = compile(decide(problem, target), candidate.schedule).source;
    const auto rejection = ladder::rejection(binary_of(source, target));
    if (rejection.empty()) clean.push_back(to_string(candidate.schedule));
    ++looked_at;
  }
  EXPECT_EQ(clean.size(), kCount);
  if (c.first_ones_spill) {
    ASSERT_GT(looked_at, kCount) << "no longer a type whose first choices spill: take another one";
  }

  std::vector<std::string> measured;
  for (const Schedule& schedule : schedules_to_measure(decide(problem, target), false, kCount)) {
    measured.push_back(to_string(schedule));
  }
  EXPECT_EQ(measured, clean);
}

TEST_P(MeasuredSchedules, of_one_are_what_a_session_takes) {
  const Case& c = GetParam();
  const Device& target = device(c.device);
  const auto decisions = decide(linear_of(ttype(c.type), c.n, c.k, c.activation, c.m), target);
  const auto one = schedules_to_measure(decisions, false, 1);
  const auto tries = schedules_to_try(decisions, false);
  const auto first = std::ranges::find_if(tries, [&](const Schedule& schedule) {
    return rejection(binary_of(compile(decisions, schedule).source, target)).empty();
  });
  ASSERT_NE(first, tries.end());
  ASSERT_FALSE(one.empty());
  EXPECT_EQ(to_string(one.front()), to_string(*first));
}

INSTANTIATE_TEST_SUITE_P(
    Types, MeasuredSchedules,
    ::testing::Values(Case{"fields", "float3_e2m0,group=128,scale=float16", Scalar::bf16, 16, 28672,
                           8192, "h200", true},
                      Case{"integers", "uint4,group=128,scale=float16", Scalar::f16, 16, 4096,
                           4096},
                      Case{"integers_of_odd_width", "uint5,group=128,scale=bfloat16", Scalar::bf16,
                           8, 8192, 8192, "a100"},
                      Case{"digits", "uint1,group=128,scale=float16", Scalar::f16, 1, 28672, 8192},
                      Case{"table", "nf4,group=64,scale=float16", Scalar::f16, 1, 8192, 28672},
                      Case{"stored_zeros", "uint4,group=128,scale=float16,zero=integer",
                           Scalar::f16, 8, 8192, 8192},
                      Case{"scaled_operands", "nvfp4", Scalar::bf16, 16, 4096, 4096, "b200"},
                      Case{"whole_rows", "float8_e4m3,channel,scale=float16", Scalar::f16, 8, 1000,
                           1032, "l40s"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ladder
