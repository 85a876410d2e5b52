// SPDX-License-Identifier: Apache-2.0
//
// What is lost where x is large and its weight is zero: ladder.image_linear documents it.
#include <gtest/gtest.h>

#include <cmath>

#include "integer_layer.h"
#include "layout/in_place.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using testing::LinearCase;

/// As against a normal distribution.
double large(Scalar scalar) { return std::ldexp(1.0, scalar == Scalar::f16 ? 15 : 40); }

LinearCase with_a_zero_weight(const Problem& problem) {
  auto out = LinearCase::reals(problem, 1);
  out.data.x[5] = out.bits(large(problem.activation()));
  for (std::int64_t n = 0; n < problem.n; ++n) {
    out.data.codes[n * problem.k + 5] = static_cast<std::uint8_t>(problem.weight.zero);
  }
  return out;
}

/// Errors in units of the bound, the largest; with codes, zero points and ones each counted.
double worst(const LinearCase& layer, Route route, bool counted) {
  const Problem& problem = layer.problem;
  const DecodeSchedule schedule{.tokens = 8,
                                .warps_n = 1,
                                .warps_k = 2,
                                .blocks_per_warp = 1,
                                .weights = weights::DoubleBuffered{.k_tiles = 2},
                                .route = route};
  EXPECT_EQ(objection(schedule, decide(problem, device("h200"))), "") << to_string(problem);
  const auto y = layer.run(lower(decide(problem, device("h200")), schedule), schedule);
  auto reference = evaluate(problem, layer.data);
  const double ones = problem.activation() == Scalar::bf16 ? 16 : 0;
  double most = 0;
  for (std::int64_t n = 0; n < problem.n; ++n) {
    double sum = 0;
    for (std::int64_t k = 0; k < problem.k; ++k) {
      sum += std::fabs(to_number(problem.activation(), layer.data.x[k])) *
             to_number(*problem.weight.scale, layer.data.scales[n]) *
             (layer.data.codes[n * problem.k + k] + problem.weight.zero + ones);
    }
    if (counted) reference.magnitude[n] = sum;
    most = std::max(most, std::fabs(y[n] - reference.y[n]) / layer.bound(reference, n));
  }
  return most;
}

class ZeroWeights : public ::testing::TestWithParam<Scalar> {};

TEST_P(ZeroWeights, take_no_part_in_the_bound_where_zero_points_are_subtracted_first) {
  const Problem problem = testing::integer_layer(4, 8, 0, GetParam(), 1, 64, 256, Scalar::f32);
  EXPECT_LE(worst(with_a_zero_weight(problem), Route::multiply_add, false), 1);
}

TEST_P(ZeroWeights, count_by_code_and_zero_point_in_place) {
  for (int bits = 1; bits <= 8; ++bits) {
    if (!fits_in_place(bits, GetParam())) continue;
    const Problem problem =
        testing::integer_layer(bits, 1 << (bits - 1), 0, GetParam(), 1, 64, 256, Scalar::f32);
    EXPECT_LE(worst(with_a_zero_weight(problem), Route::in_place, true), 1) << bits;
  }
  const Problem problem = testing::integer_layer(4, 8, 0, GetParam(), 1, 64, 256, Scalar::f32);
  EXPECT_GT(worst(with_a_zero_weight(problem), Route::in_place, false), 1)
      << "no need to count them";
}

INSTANTIATE_TEST_SUITE_P(Activations, ZeroWeights, ::testing::Values(Scalar::f16, Scalar::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace ladder
