// SPDX-License-Identifier: Apache-2.0
//
// Mutations: each is one slip in what a type adds to a program, and each is caught.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expr/constructors.h"
#include "integer_layer.h"
#include "program/slips.h"

namespace ladder {
namespace {

using testing::for_each_op;
using testing::LinearCase;

const Device& h200() { return device("h200"); }

constexpr DecodeSchedule kOnce{.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1};

/// What the verifier, the interpreter or the numbers say to a good program after `mutate`.
template <class Mutate>
std::string caught(const Problem& problem, const DecodeSchedule& schedule, const Mutate& mutate) {
  auto program = lower(decide(problem, h200()), schedule);
  mutate(program);
  const auto data = LinearCase::integers(problem, 3);
  try {
    verify(program, h200().shared_per_block_bytes);
    const auto y = data.run(program, schedule);
    const auto reference = evaluate(problem, data.data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (!(std::fabs(y[i] - reference.y[i]) <= data.bound(reference, i))) return "wrong numbers";
    }
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

template <class Op, class Change>
auto changing(const Change& change) {
  return [change](Program& program) { for_each_op<Op>(program.body, change); };
}

Problem typed(const char* type) { return linear_of(ttype(type), 64, 128, Scalar::f16, 8); }

TEST(TypeMutation, none_is_not_reported) {
  for (const char* type : {"nf4,scale=float16", "float8_e4m3,scale=float16",
                           "uint4,group=32,scale=float16,zero=integer",
                           "uint4,group=32,scale=float16,zero=original"}) {
    EXPECT_EQ(caught(typed(type), kOnce, [](Program&) {}), "") << type;
  }
}

TEST(TypeMutation, a_table_that_is_wrong_or_read_too_early_or_too_short_is_caught) {
  const Problem problem = typed("nf4,scale=float16");
  EXPECT_EQ(caught(problem, kOnce,
                   changing<FillTable>([](FillTable& i) { std::swap(i.values[3], i.values[12]); })),
            "wrong numbers");
  EXPECT_THAT(
      caught(problem, kOnce, changing<FillTable>([](FillTable& i) { i.values.pop_back(); })),
      ::testing::HasSubstr("15 values of 4 bits"));
  EXPECT_THAT(caught(problem, kOnce,
                     [](Program& p) {
                       std::erase_if(p.body, [](const Statement& s) {
                         return std::holds_alternative<Barrier>(s.op);
                       });
                     }),
              ::testing::HasSubstr("without a barrier"));
  EXPECT_THAT(caught(problem, kOnce,
                     [](Program& p) {
                       std::erase_if(p.body, [](const Statement& s) {
                         return std::holds_alternative<FillTable>(s.op);
                       });
                     }),
              ::testing::HasSubstr("reads what nobody wrote"));
  EXPECT_THAT(caught(problem, kOnce,
                     [](Program& p) {
                       for_each_op<Lookup>(p.body,
                                           [&](Lookup& i) { p.views[i.table].strides[0]++; });
                     }),
              ::testing::HasSubstr("code_table is not a table of 4 bits"));
}

TEST(TypeMutation, a_field_in_the_wrong_place_is_caught) {
  const Problem problem = typed("float8_e4m3,scale=float16");
  const auto wrong = [&](const auto& change) {
    const auto by_fields = [&](UnpackFloat& i) {
      i.fields.converted = false;  // of which the verifier would say it (converted_test.cpp)
      change(i);
    };
    EXPECT_EQ(caught(problem, kOnce, changing<UnpackFloat>(by_fields)), "wrong numbers");
  };
  wrong([](UnpackFloat& i) { ++i.fields.place; });
  wrong([](UnpackFloat& i) { i.fields.factor = 2; });
  wrong([](UnpackFloat& i) { i.fields.special <<= 2; });
  const Problem whole = typed("float6_e5m0,scale=float16");
  EXPECT_EQ(
      caught(whole, kOnce, changing<UnpackFloat>([](UnpackFloat& i) { i.fields.halved = false; })),
      "wrong numbers");
}

TEST(TypeMutation, a_fourth_value_of_a_ternary_type_is_caught) {
  EXPECT_EQ(caught(typed("ternary,scale=float16"), kOnce,
                   changing<Unpack>([](Unpack& i) { i.three = false; })),
            "wrong numbers");
}

TEST(TypeMutation, a_zero_point_of_another_group_or_size_is_caught) {
  const Problem integer = typed("uint4,group=32,scale=float16,zero=integer");
  EXPECT_EQ(caught(integer, kOnce, changing<ZeroOperand>([](ZeroOperand& i) { i.group = 0; })),
            "wrong numbers");
  EXPECT_EQ(caught(integer, kOnce, changing<ZeroOperand>([](ZeroOperand& i) { ++i.exponent; })),
            "wrong numbers");
  EXPECT_THAT(caught(integer, kOnce, changing<ZeroOperand>([](ZeroOperand& i) { i.group = 2; })),
              ::testing::HasSubstr("group 2 of 2 with zero points"));
  EXPECT_EQ(caught(integer, kOnce, changing<Unpack>([](Unpack& i) { i.zeros = -1; })),
            "wrong numbers");
  for (const char* type : {"uint4,group=32,scale=float16,zero=original",
                           "uint4,group=32,scale=float16,zero=rescale"}) {
    EXPECT_EQ(caught(typed(type), kOnce, changing<Offset>([](Offset& i) { i.group = 0; })),
              "wrong numbers");
    EXPECT_EQ(caught(typed(type), kOnce, changing<Offset>([](Offset& i) { ++i.exponent[1]; })),
              "wrong numbers");
  }
}

TEST(TypeMutation, a_bias_of_other_rows_and_columns_that_are_not_permuted_are_caught) {
  Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, 128);
  problem.permuted_columns = true, problem.set_bias(true);
  EXPECT_EQ(caught(problem, kOnce,
                   [](Program& p) {
                     for_each_op<Load>(p.body, [&](Load& i) {
                       if (p.buffers[p.views[i.from].buffer].name == "bias") i.at[1] = 0;
                     });
                   }),
            "wrong numbers");
  EXPECT_EQ(caught(problem, kOnce, changing<CopyElements>([](CopyElements& i) { i.columns = -1; })),
            "wrong numbers");
  problem.permuted_columns = false;
  testing::set_scale2(problem);
  EXPECT_EQ(caught(problem, kOnce,
                   [](Program& p) {
                     for_each_op<Within>(p.body, [](Within& i) {
                       std::erase_if(i.body, [](const Statement& s) {
                         return std::holds_alternative<Multiply>(s.op);
                       });
                     });
                   }),
            "wrong numbers");
}

}  // namespace
}  // namespace ladder
