// SPDX-License-Identifier: Apache-2.0
// The row of a machine whose driver is asked, with what was measured on it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "codegen/cuda/driver.h"
#include "expr/constructors.h"
#include "fakes/driver.h"
#include "runtime/device_row.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

TEST(MachineOfADriver, takes_the_calibration_that_is_filed_under_it_and_keeps_its_plans) {
  fake::machine(7) = fake::machine(0);
  const Properties told = cuda::properties(7);
  EXPECT_EQ(told.driver, "13.2");
  const Device& bare = device_row(told);
  std::string folder = (fs::temp_directory_path() / "ladder-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/h200.json";
  StoredCalibration made;
  made.numbers.read_bytes_per_second = 4e12;
  write_calibration(path, machine_of(told, bare), bare, made);
  setenv("LADDER_CALIBRATION", path.c_str(), 1);
  const Device& row = device_row(7);
  unsetenv("LADDER_CALIBRATION");
  fs::remove_all(folder);
  EXPECT_EQ(row.global.bytes_per_second, 4e12);
  EXPECT_EQ(&device_row(7), &row);  // asked once
  EXPECT_EQ(calibrated_row(7).path, path);
  EXPECT_EQ(calibrated_row(7).bare, &bare);
  const Problem problem =
      linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, 1);
  EXPECT_EQ(plan_key(problem, row, false), plan_key(problem, device_row(0), false));
}

}  // namespace
}  // namespace ladder
