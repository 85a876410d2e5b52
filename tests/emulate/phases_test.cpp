// SPDX-License-Identifier: Apache-2.0
//
// What the machine says of waves that alternate (phases.cpp).
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "machine.h"

namespace ladder::emulate {
namespace {

/// Eight waves of 64.
std::string said(const std::function<void(unsigned wave)>& kernel) {
  Launch launch{{1, 1}, {1, 1}, 512, 1024, 1};
  launch.lanes = 64;
  return run(launch, [&] { kernel(thread_index() / 64); });
}

void meet() {
  fence(true, false);
  fenced_barrier();
  fence(false, false);
}

void multiply() {
  set_priority(true);
  set_priority(false);
}

TEST(Machine, counts_barriers_whichever_statement_a_wave_meets_them_in) {
  EXPECT_EQ(said([](unsigned wave) {
              if (wave >= 4) meet();
              for (int i = 0; i < 3; ++i) {
                meet();
                multiply();
                meet();
              }
              if (wave < 4) meet();
            }),
            "");
  EXPECT_EQ(said([](unsigned wave) {
              meet();
              if (wave >= 4) meet();
            }),
            "threads end after different numbers of barriers");
}

TEST(Machine, has_one_wave_of_a_simd_with_priority_between_two_barriers) {
  EXPECT_EQ(said([](unsigned wave) {
              if (wave < 4) multiply();
              meet();
              if (wave >= 4) multiply();
            }),
            "");
  EXPECT_EQ(said([](unsigned wave) {
              if (wave % 2 == 0) multiply();
            }),
            "two waves of a SIMD have priority between the same barriers");
  EXPECT_EQ(said([](unsigned wave) {
              if (wave == 3) set_priority(true);
            }),
            "a thread ends with priority");
}

}  // namespace
}  // namespace ladder::emulate
