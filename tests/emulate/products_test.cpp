// SPDX-License-Identifier: Apache-2.0
//
// Products of warpgroups by the PTX ISA: what they compute, and what they wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "instructions.h"
#include "machine.h"

namespace ladder::emulate {
namespace {

constexpr unsigned kSeeds = 24;  // products that end early, late and between
constexpr int kTokens = 8;

/// One product of 64 x 16 by 16 x 8: A has row + 1 in all of a row, B token + k, the sums begin
/// at 1000. Which of its acts there are.
struct Acts {
  bool shown = true, fence = true, commit = true, wait = true;
};

std::uint32_t halves(int low, int high) {
  return to_f16(static_cast<float>(low)) | to_f16(static_cast<float>(high)) << 16;
}

/// Why it is wrong, or "".
std::string product(const Acts& acts, unsigned seed) {
  const Launch launch{{1, 1}, {1, 1}, 128, 1024, seed};
  bool right = true;
  const auto why = run(launch, [&] {
    const int thread = static_cast<int>(thread_index());
    const auto begin = address_of(shared_memory());
    for (int k = 0; thread < kTokens && k < 16; k += 2) {
      const auto byte = static_cast<std::uint32_t>(thread * 128 + k * 2);
      store_shared(begin + (byte ^ (byte >> 3 & 0x70)), halves(thread + k, thread + k + 1));
    }
    if (acts.shown) matrix_fence();
    block_barrier();
    const int row = thread / 32 * 16 + thread % 32 / 4;
    std::uint32_t a[4];
    for (int i = 0; i < 4; ++i) a[i] = halves(row + i % 2 * 8 + 1, row + i % 2 * 8 + 1);
    float d[] = {1000, 1000, 1000, 1000};
    const auto matrices = std::uint64_t{begin >> 4 & 0x3fff} | std::uint64_t{1024 / 16} << 32 |
                          std::uint64_t{1} << 62;
    if (acts.fence) products_fence();
    product_begins(d, a, matrices, kTokens, Operands::f16);
    if (acts.commit) products_commit();
    if (acts.wait) products_wait(0);
    for (int i = 0; i < 4; ++i) {
      const int token = thread % 4 * 2 + i % 2;
      const int sum = (row + i / 2 * 8 + 1) * (16 * token + 120);
      right = right && d[i] == static_cast<float>(1000 + sum);
    }
    block_barrier();
    products_commit();  // nothing of this thread's registers is used any more
    products_wait(0);
  });
  return !why.empty() ? why : right ? "" : "wrong sums";
}

TEST(Products, of_a_warpgroup_are_those_of_its_rows_by_all_tokens) {
  for (unsigned seed = 1; seed <= kSeeds; ++seed) EXPECT_EQ(product({}, seed), "");
}

TEST(Products, want_registers_and_shared_memory_that_a_fence_shows) {
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_EQ(product({.fence = false}, seed), "a product without a fence of its registers");
    EXPECT_EQ(product({.shown = false}, seed), "a product reads what no fence shows");
  }
}

TEST(Products, may_end_as_late_as_the_wait_for_their_group) {
  for (const Acts& acts : {Acts{.commit = false}, Acts{.wait = false}}) {
    unsigned late = 0;
    for (unsigned seed = 1; seed <= kSeeds; ++seed) late += product(acts, seed) == "wrong sums";
    EXPECT_GT(late, 0U);
    EXPECT_LT(late, kSeeds);
  }
}

TEST(Products, need_a_fence_for_each_group) {
  for (const bool again : {false, true}) {
    const auto why = run({{1, 1}, {1, 1}, 128, 1024, 1}, [&] {
      const auto begin = address_of(shared_memory());
      const auto matrices = std::uint64_t{begin >> 4 & 0x3fff} | std::uint64_t{1024 / 16} << 32 |
                            std::uint64_t{1} << 62;
      const std::uint32_t a[4] = {};
      float d[4] = {};
      for (int group = 0; group < 2; ++group) {
        if (group == 0 || again) products_fence();
        for (int i = 0; i < 2; ++i) product_begins(d, a, matrices, kTokens, Operands::f16);
        products_commit();
      }
      products_wait(0);
    });
    EXPECT_EQ(why, again ? "" : "a product without a fence of its registers");
  }
}

}  // namespace
}  // namespace ladder::emulate
