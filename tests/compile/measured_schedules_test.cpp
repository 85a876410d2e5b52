// SPDX-License-Identifier: Apache-2.0
//
// What tuning measures: schedules whose kernels do not spill, in the order of the guesses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "expr/of_ttype.h"
#include "runtime/kernels.h"
#include "runtime/plan.h"
#include "schedule/schedule.h"

namespace ladder {
namespace {

constexpr std::size_t kCount = 8;

TEST(MeasuredSchedules, are_the_next_guesses_where_the_first_spill) {
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  const auto folder = std::filesystem::path(testing::TempDir()) / "ladder-measured-schedules";
  std::filesystem::remove_all(folder);
  use_store(folder.string(), true);
  const Device& h200 = device("h200");
  const auto expr =
      linear_of(ttype("float3_e2m0,group=128,scale=float16"), 28672, 8192, Scalar::bf16, 16);

  std::vector<std::string> clean;
  std::size_t looked_at = 0, most = kCount;
  for (const Candidate& candidate : candidates(expr, h200)) {
    if (looked_at == kCount) most += 2 * (kCount - clean.size());
    if (clean.size() == kCount || looked_at == most) break;
    ASSERT_TRUE(candidate.dropped.empty()) << candidate.dropped;
    const auto source = compile(expr, candidate.schedule, h200).source;
    if (binary_of(source, h200).spill_bytes == 0) clean.push_back(to_string(candidate.schedule));
    ++looked_at;
  }
  ASSERT_GT(looked_at, kCount) << "no longer a type whose first choices spill: take another one";

  std::vector<std::string> measured;
  for (const Schedule& schedule : schedules_to_measure(expr, h200, false, kCount)) {
    measured.push_back(to_string(schedule));
  }
  EXPECT_EQ(measured, clean);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ladder
