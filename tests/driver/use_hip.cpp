// SPDX-License-Identifier: Apache-2.0
// The GPUs of this process are AMD's, also on a machine that has others.
#include <gtest/gtest.h>

#include "runtime/gpus.h"

namespace ladder {
namespace {

struct UseHip : ::testing::Environment {
  void SetUp() override { use_gpus_of(target_called("HIP")); }
};

[[maybe_unused]] const auto* const registered = ::testing::AddGlobalTestEnvironment(new UseHip);

}  // namespace
}  // namespace ladder
