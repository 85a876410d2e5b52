// SPDX-License-Identifier: Apache-2.0
// A driver of ROCm 5: said by name, and not used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "runtime/gpus.h"

namespace ladder {
namespace {

TEST(OldDriver, is_refused_by_the_function_that_it_has_not) {
  EXPECT_FALSE(gpus().driver.present());
  EXPECT_THAT([] { gpus().driver.properties(0); },
              testing::ThrowsMessage<Unsupported>(testing::AllOf(
                  testing::HasSubstr("libamdhip64.so.6 has no hipGetDevicePropertiesR0600"),
                  testing::HasSubstr("ROCm 6 or later"))));
}

}  // namespace
}  // namespace ladder
