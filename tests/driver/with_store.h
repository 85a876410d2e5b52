// SPDX-License-Identifier: Apache-2.0
// Tests whose kernels are in a store of their own, compiled by the fake compiler once for all of
// them. Internal to the tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "fakes/driver.h"
#include "runtime/gpus.h"

namespace ladder::testing {

class WithStore : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string folder = (std::filesystem::temp_directory_path() / "ladder-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    store_ = folder;
    setenv("LADDER_CACHE", folder.c_str(), 1);
    gpus().toolchain.add_directory(LADDER_FAKES);
  }
  static void TearDownTestSuite() {
    unsetenv("LADDER_CACHE");
    std::filesystem::remove_all(store_);
  }
  ~WithStore() override { EXPECT_EQ(fake::mistakes(), ""); }

  inline static std::filesystem::path store_;
};

}  // namespace ladder::testing
