// SPDX-License-Identifier: Apache-2.0
//
// Programs for the row of the T4 through the interpreter. Its model is that of all devices: a copy
// that ends at once, as Turing's do, is one of those that it allows.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "program/turing_cases.h"

namespace ladder {
namespace {

using testing::LinearCase;
using testing::Scheduled;

void expect_right(const Scheduled& each, unsigned seed) {
  const auto& [problem, schedule] = each;
  const Device& t4 = device("t4");
  const Program program = lower(decide(problem, t4), schedule);
  const auto what = to_string(problem) + "; " + to_string(schedule);
  ASSERT_NO_THROW(verify(program, t4.shared_per_block_bytes)) << what;
  EXPECT_EQ(program.cluster, 1) << what;
  EXPECT_TRUE(program.signals.empty()) << what;
  const auto data = LinearCase::integers(problem, 1 + seed * 5 % problem.m, seed);
  ASSERT_EQ(data.objection_to(program, schedule), "") << what;
}

TEST(Turing, takes_schedules_of_decode_and_of_tiles_and_they_are_exact) {
  const auto cases = testing::turing_shapes();
  std::set<std::size_t> pipelines;
  unsigned seed = 0;
  for (const Scheduled& each : cases) {
    pipelines.insert(each.second.index());
    expect_right(each, ++seed);
  }
  EXPECT_EQ(pipelines.size(), 2U);
  EXPECT_GE(cases.size(), 30U);
}

TEST(Turing, multiplies_bytes_exactly) {
  const auto cases = testing::turing_bytes();
  std::set<Route> routes;
  unsigned seed = 0;
  for (const Scheduled& each : cases) {
    routes.insert(route_of(each.second));
    expect_right(each, ++seed);
  }
  EXPECT_EQ(routes, (std::set{Route::digits, Route::bytes}));
  EXPECT_GE(cases.size(), 8U);
}

TEST(Turing, has_a_kernel_for_every_kind_of_type_and_the_first_choice_is_right) {
  const auto cases = testing::turing_choices();
  EXPECT_EQ(cases.size(), 3 * std::size(testing::kKindsOfTypes));
  unsigned seed = 0;
  for (const Scheduled& each : cases) expect_right(each, ++seed);
}

/// The ordering statements of `body`, each left out once.
template <class Visit>
void without_each(Program& program, std::vector<Statement>& body, const Visit& visit) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    const Statement now = body[i];
    if (std::holds_alternative<Barrier>(now.op) || std::holds_alternative<Wait>(now.op)) {
      body.erase(body.begin() + static_cast<std::ptrdiff_t>(i));
      visit(program, now);
      body.insert(body.begin() + static_cast<std::ptrdiff_t>(i), now);
    }
    std::visit(
        [&](auto& op) {
          if constexpr (requires { op.body; }) without_each(program, op.body, visit);
        },
        body[i].op);
  }
}

TEST(Turing, needs_every_wait_and_barrier_of_its_programs) {
  int dropped = 0;
  for (const auto& [problem, schedule] : testing::turing_shapes()) {
    const auto data = LinearCase::integers(problem, problem.m);
    Program program = lower(decide(problem, device("t4")), schedule);
    const auto right = data.run(program, schedule);
    without_each(program, program.body, [&](const Program& mutant, const Statement& statement) {
      ++dropped;
      std::string why;
      try {
        why = data.run(mutant, schedule) == right ? "" : "wrong numbers";
      } catch (const InternalError& error) {
        why = error.what();
      }
      EXPECT_NE(why, "") << "without " << to_string(mutant, statement) << "; "
                         << to_string(schedule);
    });
  }
  EXPECT_GT(dropped, 100);
}

TEST(Turing, has_tiles_of_two_stages_and_no_clusters_engines_or_rings) {
  for (const std::int64_t m : {8, 64}) {
    const Problem problem =
        linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, m);
    std::size_t kept = 0;
    for (const Candidate& each : candidates(decide(problem, device("t4")))) {
      if (!each.dropped.empty() || is_dense(each.schedule)) continue;
      ++kept;
      if (const auto* tiles = std::get_if<TileSchedule>(&each.schedule)) {
        EXPECT_EQ(tiles->stages, 2);
        EXPECT_NE(tiles->reduction, Reduction::cluster);
        EXPECT_FALSE(tiles->warpgroups);
      } else {
        const auto& decode = std::get<DecodeSchedule>(each.schedule);
        EXPECT_EQ(decode.ring(), nullptr);
        EXPECT_EQ(decode.bulk_copy(), nullptr);
        EXPECT_EQ(decode.signalled(), nullptr);
        EXPECT_NE(decode.reduction, Reduction::cluster);
      }
    }
    EXPECT_GT(kept, 20U) << m;
  }
}

}  // namespace
}  // namespace ladder
