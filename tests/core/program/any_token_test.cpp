// SPDX-License-Identifier: Apache-2.0
//
// Loads of tokens of which those that the call has not may be anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "codegen/hip/emit.h"
#include "program/program_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace ladder::testing;  // NOLINT: the helpers of these tests

constexpr std::int64_t kRows = 16, kColumns = 16, kThere = 8;

/// y = x [tokens, columns], of which `there` are there, for 16 tokens and columns.
Program copied(bool any_token, std::int64_t there) {
  Builder p("copied", {.x = 1, .y = 1, .threads = 64});
  const auto x = p.input("x", Scalar::f32, {kTokens, there});
  const auto y = p.output("y", Scalar::f32, {kRows, kColumns});
  p.store(p.load(x, {0, 0}, spatial({16, 4}) * local({1, 4})), y, {0, 0});
  Program program = p.finish();
  std::get<Load>(program.body.front().op).any_token = any_token;
  return program;
}

// No use of it stays unseen: it is no number.
TEST(AnyToken, is_no_number_beyond_the_tokens_and_zero_beyond_the_columns) {
  for (const bool any : {false, true}) {
    std::vector<Argument> memory{given(counting(5 * kThere, 0)), Argument::output(4 * 256)};
    ASSERT_EQ(objection_to(copied(any, kThere), memory, 5), "");
    const auto y = values_of<float>(memory[1]);
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      const bool is_there = i / kColumns < 5;
      EXPECT_EQ(std::isnan(y[i]), any && !is_there) << i;
      EXPECT_EQ(y[i] == 0, is_there || !any) << i;
    }
  }
}

TEST(AnyToken, is_of_global_memory_that_has_tokens) {
  auto program = copied(true, kThere);
  program.views[std::get<Load>(program.body.front().op).from].extents[0] = kRows;
  std::vector<Argument> memory{given(counting(256)), Argument::output(4 * 256)};
  EXPECT_THAT(objection_to(program, memory),
              HasSubstr("no tokens, of which some may be anything, in: "));
  EXPECT_THAT(to_string(copied(true, kThere)), HasSubstr("= load x[0, 0] of any tokens"));
}

// Where a column is missing, too, the zeros of that take the branch.
TEST(AnyToken, is_read_without_a_branch) {
  const auto text = [](bool any, std::int64_t there) {
    const auto all = hip::emit(copied(any, there));
    return all.substr(all.rfind("KERNEL("));
  };
  EXPECT_THAT(text(false, kColumns), HasSubstr("< tokens) {"));
  EXPECT_THAT(text(true, kColumns), HasSubstr("< tokens ? (const Words4*)(from + 0) : (const"));
  EXPECT_THAT(text(true, kColumns), Not(HasSubstr("if (thread")));
  EXPECT_THAT(text(true, kThere), HasSubstr("if (thread"));
}

}  // namespace
}  // namespace ladder
