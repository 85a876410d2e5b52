// SPDX-License-Identifier: Apache-2.0
//
// What ladder.Linear runs by default, through the interpreter: the scheduler's first choice for
// types of every kind, where neither N nor K is whole blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "expr/constructors.h"
#include "pipelines/schedule.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using testing::LinearCase;

class FirstChoice : public ::testing::TestWithParam<const char*> {};

TEST_P(FirstChoice, is_within_the_bound) {
  const Device& h200 = device("h200");
  unsigned seed = 0;
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{100, 328}, {130, 1024}}) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (std::int64_t m : {1, 8, 16, 32, 100}) {
        Problem problem = linear_of(ttype(GetParam()), n, k, activation, m);
        ++seed;
        problem.set_bias(seed % 2 == 0), problem.permuted_columns = seed % 3 == 0;
        const auto schedule = best_schedule(decide(problem, h200));
        ASSERT_FALSE(is_dense(schedule)) << to_string(problem);
        const auto tokens = m == 1 ? 1 : m - seed % 4;
        const auto data = LinearCase::reals(problem, tokens, seed);
        const auto y = data.run(lower(decide(problem, h200), schedule), schedule);
        const auto reference = evaluate(problem, data.data);
        const auto* tile = std::get_if<TileSchedule>(&schedule);
        const auto error = decoding_error(problem, tile ? tile->scale_place : ScalePlace::usual);
        for (std::size_t i = 0; i < y.size(); ++i) {
          if (std::fabs(reference.y[i]) > data.largest()) continue;  // float8_e5m2
          ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i, error))
              << to_string(problem) << "; " << to_string(schedule) << "; y[" << i << "]";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FirstChoice, ::testing::ValuesIn(testing::kKindsOfTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
