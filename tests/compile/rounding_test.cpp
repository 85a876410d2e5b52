// SPDX-License-Identifier: Apache-2.0
//
// The kernel that rounds tokens compiles without spills for tokens of every length. Needs
// libnvrtc, no GPU. A run compiles a part (turns.h).
#include <gtest/gtest.h>

#include <utility>

#include "base/joined.h"
#include "codegen/cuda/toolchain.h"
#include "codegen/rounding_kernels.h"
#include "codegen/target.h"
#include "turns.h"

namespace ladder {
namespace {

void expect_no_spills(Scalar to, const std::string& architecture, testing::Turns& turns) {
  const RoundingKernels& kernels = rounding_kernels(target_called("CUDA"));
  const bool dependent = architecture >= "sm_90" || architecture.starts_with("sm_1");
  // Of a warp, of a block with one, two and four pieces a thread, and read twice.
  for (const std::int64_t k : {16, 1024, 8192, 65536, 131072}) {
    for (const auto& [from, whose] :
         {std::pair{Scalar::f16, TokenScales::own}, std::pair{Scalar::bf16, TokenScales::own},
          std::pair{Scalar::f16, TokenScales::given}, std::pair{Scalar::bf16, TokenScales::given},
          std::pair{to, TokenScales::given}}) {
      if (!turns.next()) continue;
      const auto binary = cuda::compile(
          kernels.round_tokens(from, to, whose, rounding_plan(k, 32), {dependent, dependent}),
          architecture);
      const auto what = joined(name_of(from), " to ", name_of(to), ", ", k, " ", architecture);
      EXPECT_EQ(binary.spill_bytes, 0) << what << binary.log;
      EXPECT_EQ(binary.stack_bytes, 0) << what << binary.log;
    }
  }
}

/// To e4m3 where there are products of it.
void expect_no_spills(testing::Turns turns) {
  for (const char* architecture : {"sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a"}) {
    expect_no_spills(Scalar::s8, architecture, turns);
  }
  for (const char* architecture : {"sm_89", "sm_90a", "sm_100a"}) {
    expect_no_spills(Scalar::e4m3, architecture, turns);
  }
}

// Of five pairs of formats and five lengths: no multiple of five, so that all have a turn.
TEST(RoundingKernel, compiles_without_spills) { expect_no_spills(testing::Turns(7)); }

TEST(DISABLED_WholeRoundingKernel, compiles_without_spills) { expect_no_spills(testing::Turns(1)); }

}  // namespace
}  // namespace ladder
