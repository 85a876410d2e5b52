// SPDX-License-Identifier: Apache-2.0
//
// Files of calibrations: read back, refused, and never in the way of the row.
#include "runtime/calibration_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "expr/constructors.h"
#include "runtime/device_row.h"
#include "runtime/notices.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Properties h200() {
  return {.name = "NVIDIA H200",
          .architecture = "sm_90a",
          .capability = 90,
          .multiprocessors = 132,
          .clock = 1.98e9,
          .memory_bytes = 150e9,
          .l2_bytes = 60 << 20,
          .bytes_per_second = 4.9e12,
          .shared_bytes = 228 << 10,
          .shared_per_block_bytes = 227 << 10,
          .registers = 65536,
          .threads = 2048,
          .max_cluster = 8,
          .driver = "13.0"};
}

class CalibrationFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ladder-calibration-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "of" / "it.json";
    unsetenv("LADDER_CALIBRATION");
    setenv("LADDER_CACHE", (folder_ / "cache").c_str(), 1);
    made_.numbers.read_bytes_per_second = 3.3333333333333333e12;
    made_.numbers.warps[2] = {1.1e15, 2500.1};
    made_.about["power.limit"] = "700 W";
    take_notices();
  }
  void TearDown() override {
    unsetenv("LADDER_CALIBRATION"), unsetenv("LADDER_CACHE");
    fs::remove_all(folder_);
  }

  std::string contents() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const std::string& text) {
    fs::create_directories(path_.parent_path());
    std::ofstream(path_, std::ios::trunc) << text;
  }
  void write() { write_calibration(path_, machine_, row_, made_); }
  /// A file whose entry has these numbers.
  std::string with(const std::string& numbers) const {
    return R"({"format": 1, "calibrations": {")" + machine_ + R"(": {"numbers": )" + numbers +
           "}}}";
  }
  std::string why_not(const std::string& text) const {
    std::string why;
    EXPECT_FALSE(calibration_in(text, machine_, row_, why).has_value()) << text;
    return why;
  }

  fs::path folder_, path_;
  const Device& row_ = device_row(h200());
  std::string machine_ = machine_of(h200(), row_);
  StoredCalibration made_;
};

TEST_F(CalibrationFile, is_read_back_to_the_bit) {
  write();
  std::string why;
  const auto read = calibration_in(contents(), machine_, row_, why);
  ASSERT_TRUE(read.has_value()) << why;
  for (const CalibrationField& field : calibration_fields()) {
    EXPECT_EQ(field.get(read->numbers), field.get(made_.numbers)) << field.name;
  }
  EXPECT_EQ(read->about, made_.about);
}

TEST_F(CalibrationFile, is_filed_under_the_machine_its_architecture_and_its_driver) {
  EXPECT_EQ(machine_,
            "NVIDIA H200: 132 multiprocessors at 1980 MHz, 141 GB at 4530 GB/s, 60 MiB of L2, "
            "sm_90a, driver 13.0");
  Properties silent = h200();
  silent.driver.clear();
  EXPECT_THAT(machine_of(silent, row_), ::testing::EndsWith("sm_90a"));
}

TEST_F(CalibrationFile, keeps_what_it_has_of_other_machines) {
  write();
  write_calibration(path_, "another", row_, made_);
  made_.numbers.read_bytes_per_second = 4e12;
  write();
  std::string why;
  EXPECT_EQ(calibration_in(contents(), machine_, row_, why)->numbers.read_bytes_per_second, 4e12);
  EXPECT_TRUE(calibration_in(contents(), "another", row_, why).has_value());
  EXPECT_FALSE(calibration_in(contents(), "a third", row_, why).has_value());
  EXPECT_EQ(why, "");
}

TEST_F(CalibrationFile, that_is_torn_anywhere_is_refused) {
  write();
  const std::string whole = contents();
  const auto end = whole.find_last_of('}');
  for (std::size_t size = 0; size <= end; ++size) {
    EXPECT_EQ(why_not(whole.substr(0, size)), "it is no file of calibrations of format 1");
  }
}

TEST_F(CalibrationFile, of_something_else_is_refused) {
  for (const char* text :
       {"", "[]", "null", R"({"format": 2, "calibrations": {}})", R"({"format": 1, "plans": {}})",
        R"({"format": 1, "calibrations": []})"}) {
    EXPECT_EQ(why_not(text), "it is no file of calibrations of format 1");
  }
  EXPECT_EQ(why_not(R"({"format": 1, "calibrations": {")" + machine_ + R"(": 3}})"),
            "its entry is no object");
}

TEST_F(CalibrationFile, with_a_number_that_no_machine_has_is_refused_whole_with_both_values) {
  EXPECT_EQ(why_not(with("3")), "it has no numbers");
  EXPECT_EQ(why_not(with("{}")), "it has no numbers");
  EXPECT_EQ(why_not(with(R"({"clock": "fast"})")), "clock is string, not a number");
  EXPECT_EQ(why_not(with(R"({"clock": true})")), "clock is boolean, not a number");
  EXPECT_EQ(why_not(with(R"({"clock": 1e12})")), "clock is 1e+12 Hz, not from 1e+08 to 1e+10");
  EXPECT_EQ(why_not(with(R"({"clock": -1e9})")), "clock is -1e+09 Hz, not from 1e+08 to 1e+10");
  EXPECT_EQ(why_not(with(R"({"clock": 0})")), "clock is 0 Hz, not from 1e+08 to 1e+10");
  EXPECT_EQ(why_not(with(R"({"clock": 1e9, "cl0ck": 1e9})")), "it has cl0ck, which is no field");
  EXPECT_EQ(why_not(with(R"({"clock": 1e9, "read_bytes_per_second": 9e12})")),
            "read_bytes_per_second is 9e+12 B/s, where the row has 4.53e+12");
  // No JSON: neither infinity nor what is no number.
  for (const char* number : {"1e999", "NaN", "Infinity"}) {
    EXPECT_EQ(why_not(with(R"({"clock": )" + std::string(number) + "}")),
              "it is no file of calibrations of format 1");
  }
}

TEST_F(CalibrationFile, of_any_bytes_throws_nothing) {
  write();
  const std::string whole = contents();
  std::mt19937 random(0);
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    for (int n = 0; n < 3; ++n) text[random() % text.size()] = static_cast<char>(random());
    std::string why;
    if (const auto read = calibration_in(text, machine_, row_, why)) {
      EXPECT_EQ(objection(read->numbers, row_), "") << text;
    }
  }
}

TEST_F(CalibrationFile, is_not_written_over_something_else_nor_with_numbers_that_are_refused) {
  put("a letter");
  EXPECT_THROW(write(), InvalidArgument);
  EXPECT_EQ(contents(), "a letter");
  fs::remove(path_);
  made_.numbers.clock = 1;
  EXPECT_THROW(write(), InvalidArgument);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(CalibrationFile, of_the_cache_is_in_use_unless_it_is_said_otherwise) {
  EXPECT_EQ(calibrated_row(h200(), row_).row, &row_);
  EXPECT_EQ(take_notices(), "");
  write_calibration(calibration_path(), machine_, row_, made_);
  const CalibratedRow found = calibrated_row(h200(), row_);
  EXPECT_EQ(found.path, calibration_path());
  EXPECT_EQ(found.row->global.bytes_per_second, made_.numbers.read_bytes_per_second);
  EXPECT_THAT(to_string(*found.row), HasSubstr("measured by ladder calibrate"));
  EXPECT_EQ(found.bare, &row_);
  setenv("LADDER_CALIBRATION", "off", 1);
  EXPECT_EQ(calibrated_row(h200(), row_).row, &row_);
  EXPECT_EQ(calibrated_row(h200(), row_).why, "LADDER_CALIBRATION is off");
  made_.numbers.read_bytes_per_second = 4e12;
  write();
  setenv("LADDER_CALIBRATION", path_.c_str(), 1);
  EXPECT_EQ(calibrated_row(h200(), row_).row->global.bytes_per_second, 4e12);
  EXPECT_EQ(take_notices(), "");
}

TEST_F(CalibrationFile, that_was_named_and_serves_not_is_a_notice_and_the_row_is_used) {
  const auto said = [&](const std::string& path) {
    setenv("LADDER_CALIBRATION", path.c_str(), 1);
    const CalibratedRow found = calibrated_row(h200(), row_);
    EXPECT_EQ(found.row, &row_);
    EXPECT_NE(found.why, "");
    return take_notices();
  };
  EXPECT_THAT(said(path_), HasSubstr(path_.string() + ": No such file"));
  put("{");
  EXPECT_THAT(said(path_), HasSubstr("it is no file of calibrations"));
  fs::remove(path_);
  write_calibration(path_, "another", row_, made_);
  EXPECT_THAT(said(path_), HasSubstr("it has nothing for " + machine_));
  EXPECT_NE(said(folder_ / "of"), "");
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_NE(said(folder_ / "pipe"), "");  // and nobody waits
}

TEST_F(CalibrationFile, that_is_spoiled_in_the_cache_is_a_notice) {
  path_ = calibration_path();
  put(with(R"({"clock": 1e12})"));
  EXPECT_EQ(calibrated_row(h200(), row_).row, &row_);
  EXPECT_THAT(take_notices(), HasSubstr("clock is 1e+12 Hz"));
}

// Stale means slow, never wrong: a plan was measured, whatever chose what to measure.
TEST_F(CalibrationFile, leaves_plans_where_they_are_filed) {
  write_calibration(calibration_path(), machine_, row_, made_);
  const Device& calibrated = *calibrated_row(h200(), row_).row;
  ASSERT_NE(calibrated.global.bytes_per_second, row_.global.bytes_per_second);
  const Problem problem =
      linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, 1);
  EXPECT_EQ(plan_key(problem, calibrated, false), plan_key(problem, row_, false));
}

}  // namespace
}  // namespace ladder
