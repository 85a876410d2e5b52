// SPDX-License-Identifier: Apache-2.0
//
// Tile programs by the matrix instructions of waves of 64 lanes, which read the weight image that
// was made for 32: only the row of the instruction is another one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "device/instructions.h"
#include "expr/of_ttype.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using testing::LinearCase;

const MatrixInstruction& row(std::string_view name) {
  return *std::ranges::find(matrix_instructions(), name, &MatrixInstruction::name);
}

/// As decided for an H200, but that waves multiply.
Decisions by_waves(const Linear& expr) {
  Decisions out = decide(expr, device("h200"));
  out.whole.core.instruction = &row(expr.activation == Scalar::f16 ? "v_mfma_f32_16x16x16_f16"
                                                                   : "v_mfma_f32_16x16x16_bf16_1k");
  return out;
}

TileSchedule tile(int rows, int tokens, int token_tiles, int warps_m, Reduction reduction) {
  return {.rows = rows,
          .tokens = tokens,
          .columns = 64,
          .warps_n = rows / 128,
          .warps_m = warps_m,
          .k_tiles = 4,
          .stages = 3,
          .reduction = reduction,
          .route = Route::multiply_add,
          .dependent_launch = false,
          .ctas_per_sm = 1,
          .token_tiles = token_tiles};
}

class Waves : public ::testing::TestWithParam<const char*> {};

TEST_P(Waves, multiply_every_type_exactly) {
  unsigned seed = 0, exact = 0;
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    for (const TileSchedule& schedule :
         {tile(128, 16, 1, 1, Reduction::none), tile(256, 64, 1, 2, Reduction::ordered),
          tile(128, 32, 2, 1, Reduction::cluster)}) {
      const auto splits = schedule.reduction == Reduction::none ? 1 : 2;
      Linear expr = linear_of(ttype(GetParam()), schedule.rows + 72, 256 * splits - 32, activation,
                              schedule.tokens * schedule.token_tiles - 3);
      expr.bias = ++seed % 2 == 0, expr.gather = seed % 3 == 0;
      try {
        decoding_of(expr);
      } catch (const Unsupported&) {
        continue;  // wider than float16
      }
      const Program program = lower(by_waves(expr), schedule);
      EXPECT_EQ(program.threads, 64 * schedule.warps_n * schedule.warps_m);
      ASSERT_NO_THROW(verify(program, device("h200").shared_per_block_bytes)) << to_string(expr);
      const auto data = LinearCase::integers(expr, expr.max_m, seed);
      const auto y = data.run(program, schedule);
      const auto wanted = data.exact();
      const auto reference = evaluate(expr, data.data);
      const bool rounded =
          decoding_error(expr) > 0 || (expr.element != nullptr && expr.element->exponent_bits > 4);
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (!rounded) {
          ASSERT_EQ(y[i], wanted[i]) << to_string(expr) << "; " << to_string(schedule) << "; " << i;
        } else if (std::fabs(reference.y[i]) <= data.largest()) {
          ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i)) << to_string(expr);
        }
      }
      ++exact;
    }
  }
  EXPECT_GE(exact, 3U);
}

INSTANTIATE_TEST_SUITE_P(Types, Waves, ::testing::ValuesIn(testing::kKindsOfTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

// The order of columns is free, and has to be the same for both operands.
TEST(Waves, are_refused_where_operands_disagree_about_columns) {
  const Linear expr = linear_of(ttype("uint4,group=64,scale=float16"), 128, 256, Scalar::f16, 16);
  Program program = lower(by_waves(expr), tile(128, 16, 1, 1, Reduction::none));
  const auto b = std::ranges::find(program.registers, "b", &Register::name);
  ASSERT_NE(b, program.registers.end());
  b->layout = lifted(row("v_mfma_f32_16x16x16_f16").b());  // columns as they follow each other
  EXPECT_THAT([&] { verify(program, device("h200").shared_per_block_bytes); },
              ::testing::ThrowsMessage<InternalError>(
                  ::testing::HasSubstr("not laid out as the A operand")));
}

}  // namespace
}  // namespace ladder
