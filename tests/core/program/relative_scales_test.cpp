// SPDX-License-Identifier: Apache-2.0
//
// Operands of e4m3 that have their scales, by how far these are below the largest of 128 columns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "pipelines/linear/objection.h"
#include "pipelines/schedule.h"
#include "program/linear_case.h"
#include "program/slips.h"
#include "program/tile_cases.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

constexpr const char* kTypes[] = {"mxfp4", "float4_e2m1,group=64,scale=e8m0",
                                  "float4_e3m0,group=32,scale=e8m0",
                                  "float4_e1m2,group=64,scale=e8m0,scale2=float32"};

void for_each_case(const char* type,
                   const std::function<void(const Problem&, const TileSchedule&)>& use) {
  testing::for_each_tile_of_bytes(ttype(type), Scalar::e4m3, ScalePlace::relative, use);
}

Program lowered(const Problem& problem, const TileSchedule& schedule) {
  return lower(decide(problem, device("h200")), schedule);
}

/// The largest difference of scales by which every value is still an e4m3.
int exact_difference(const Element& element) {
  const auto exact = [&](int entry) {
    const auto operands = relative_operands(element);
    for (int code = 0; code < 1 << (element.bits - 1); ++code) {
      const auto byte = operands.words[entry * 2 + code / 4] >> (code % 4 * 8) & 0xff;
      const double value = std::ldexp(decode(element, code), operands.exponent - entry);
      if (decode(element_of(Scalar::e4m3), byte) != value) return false;
    }
    return true;
  };
  int last = 0;
  while (exact(last + 1)) ++last;
  return last;
}

class RelativeScales : public ::testing::TestWithParam<const char*> {};

TEST_P(RelativeScales, near_the_largest_are_exact) {
  unsigned kept[2] = {}, produced = 0;
  for_each_case(GetParam(), [&](const Problem& problem, const TileSchedule& schedule) {
    const Program program = lowered(problem, schedule);
    ASSERT_NO_THROW(verify(program, device("h200").shared_per_block_bytes)) << to_string(schedule);
    EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
    const auto c = LinearCase::integers(problem, problem.m, ++kept[schedule.warpgroups]);
    produced += schedule.producers ? 1 : 0;
    ASSERT_EQ(c.run(program, schedule), c.exact()) << to_string(problem) << to_string(schedule);
  });
  EXPECT_GE(kept[false], 2U);
  EXPECT_GE(kept[true], 4U);
  EXPECT_GE(produced, 2U);
}

// Of each 128 columns and row, the largest scale.
double largest_beside(const LinearCase& c, std::int64_t n, std::int64_t k) {
  const auto groups = c.problem.groups(), group = c.problem.group_size();
  const auto first = k / kRelativeColumns * kRelativeColumns / group;
  double largest = 0;
  for (auto g = first; g < std::min(first + kRelativeColumns / group, groups); ++g) {
    largest = std::max(largest, to_number(Scalar::e8m0, c.data.scales[n * groups + g]));
  }
  return largest;
}

/// Scales of up to 2^-`span` of 2^-2, and what is added to the bound of y[m, n] if each weight is
/// off by `error` of the largest scale beside it.
void expect_bound(const char* type, int span, double error) {
  unsigned kept = 0;
  for_each_case(type, [&](const Problem& problem, const TileSchedule& schedule) {
    if (++kept > 4) return;
    auto c = LinearCase::reals(problem, std::min<std::int64_t>(problem.m, 9), kept);
    std::mt19937 random(kept);
    for (auto& scale : c.data.scales) {
      scale = to_bits(Scalar::e8m0, std::ldexp(0.25, -static_cast<int>(random() % (span + 1))));
    }
    const auto y = c.run(lowered(problem, schedule), schedule);
    const Reference reference = evaluate(problem, c.data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto m = static_cast<std::int64_t>(i) / problem.n,
                 n = static_cast<std::int64_t>(i) % problem.n;
      double off = 0;
      for (std::int64_t k = 0; k < problem.k && error > 0; ++k) {
        off += std::fabs(to_number(problem.formats.x, c.data.x[m * problem.k + k])) * error *
               largest_beside(c, n, k);
      }
      off *= c.data.x_scales[m] * (problem.has_scale2() ? c.data.scale2 : 1);
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), c.bound(reference, i, 0) + off)
          << to_string(problem) << "; " << to_string(schedule) << "; y[" << i << "]";
    }
  });
  EXPECT_GE(kept, 2U);
}

TEST_P(RelativeScales, up_to_the_exact_difference_round_no_weight) {
  expect_bound(GetParam(), exact_difference(*ttype(GetParam()).element), 0);
}

TEST_P(RelativeScales, beyond_it_round_weights_as_documented) {
  const auto exponent = relative_operands(*ttype(GetParam()).element).exponent;
  expect_bound(GetParam(), 60, std::ldexp(1.0, -10 - exponent));
}

INSTANTIATE_TEST_SUITE_P(Types, RelativeScales, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(RelativeOperands, are_the_values_times_their_power_of_two) {
  const Element& e = *ttype("mxfp4").element;
  const auto operands = relative_operands(e);
  EXPECT_EQ(operands.exponent, 6);  // 6 * 2^6 is the last below 448
  ASSERT_EQ(operands.words.size(), 2U * kRelativeEntries);
  EXPECT_EQ(exact_difference(e), 14);
  double most = 0;
  for (int entry = 0; entry < kRelativeEntries; ++entry) {
    for (int code = 0; code < 8; ++code) {
      const auto byte = operands.words[entry * 2 + code / 4] >> (code % 4 * 8) & 0xff;
      const double value = std::ldexp(decode(e, code), 6 - entry);
      const double off = std::fabs(to_number(Scalar::e4m3, byte) - value);
      if (entry <= 14) {
        EXPECT_EQ(off, 0) << entry << ", " << code;
      }
      most = std::max(most, off);
    }
  }
  EXPECT_LE(most, 0x1p-10);
  EXPECT_GT(most, 0);
}

TEST(RelativeScales, show_every_slip) {
  const auto cases =
      testing::tile_case(testing::kByteShapes[2], ttype("mxfp4"), Scalar::f16, Reduction::none,
                         Route::bytes, false, 3, true, Scalar::e4m3, ScalePlace::relative);
  const auto& [problem, schedule] = cases.at(0);
  const auto after = [&](const auto& slip) {
    Program program = lowered(problem, schedule);
    slip(program.body);
    return testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m));
  };
  const auto looked_up = [&](const std::function<void(LookupRelative&)>& slip) {
    return after([&](auto& body) { testing::for_each_op<LookupRelative>(body, slip); });
  };
  const auto largest = [&](const std::function<void(LargestScale&)>& slip) {
    return after([&](auto& body) { testing::for_each_op<LargestScale>(body, slip); });
  };
  EXPECT_EQ(looked_up([](LookupRelative&) {}), "");
  EXPECT_EQ(looked_up([](LookupRelative& i) { i.group = 0; }), "wrong numbers");
  EXPECT_EQ(looked_up([](LookupRelative& i) { i.step = 0; }), "wrong numbers");
  EXPECT_EQ(looked_up([](LookupRelative& i) { i.largest = i.scales; }), "wrong numbers");
  EXPECT_THAT(looked_up([](LookupRelative& i) { i.group = 99; }), HasSubstr("group 99 of"));
  EXPECT_EQ(largest([](LargestScale& i) { i.first = 0; }), "wrong numbers");
  EXPECT_THAT(largest([](LargestScale& i) { i.count = 0; }), HasSubstr("the largest of 0 scales"));
  EXPECT_THAT(largest([](LargestScale& i) { i.count = 99; }), HasSubstr("group 102 of 8"));
  EXPECT_EQ(after([](auto& body) {
              testing::for_each_op<FillWords>(body, [](FillWords& i) { i.values[2] += 1 << 8; });
            }),
            "wrong numbers");
  EXPECT_THAT(after([](auto& body) {
                testing::for_each_op<FillWords>(body, [](FillWords& i) { i.values.pop_back(); });
              }),
              HasSubstr("63 words of 32 entries"));
  EXPECT_EQ(after([](auto& body) {
              testing::for_each_op<Scale>(body, [](Scale& i) { i.exponent[0] += 1; });
            }),
            "wrong numbers");
  EXPECT_NE(after([](auto& body) {
              std::erase_if(
                  body, [](const Statement& s) { return std::holds_alternative<FillWords>(s.op); });
            }),
            "");
}

TEST(RelativeScales, are_refused_with_the_reason) {
  const auto why = [](const char* type) {
    Problem problem = linear_of(ttype(type), 128, 512, Scalar::f16, 32);
    problem.round_x(Scalar::e4m3);
    return code_objection(Route::bytes, ScalePlace::relative, decide(problem, device("h200")));
  };
  EXPECT_EQ(why("mxfp4"), "");
  EXPECT_EQ(no_relative_scales(linear_of(ttype("mxfp4"), 128, 512, Scalar::bf16, 32)),
            "relative scales are for x of e4m3");
  EXPECT_EQ(why("mxfp6_e3m2"), "relative scales are for floats of 4 bits");
  EXPECT_EQ(why("float4_e2m1,group=32,scale=float16"), "relative scales are powers of two");
  EXPECT_EQ(why("float4_e2m1,group=128,scale=e8m0"), "groups of 128 columns are no parts of 128");
}

// Other sums would be scaled four times as often; but layers of 128 columns have no two k-tiles of
// so many, which on GPUs without warpgroups have 64.
TEST(RelativeScales, are_all_that_is_proposed_where_layers_are_wide_enough) {
  const auto places = [](const char* name, std::int64_t k) {
    Problem problem = linear_of(ttype("mxfp4"), 4096, k, Scalar::bf16, 256);
    problem.round_x(Scalar::e4m3);
    std::set<ScalePlace> out;
    for (const Candidate& c : candidates(decide(problem, device(name)))) {
      if (c.dropped.empty()) out.insert(std::get<TileSchedule>(c.schedule).scale_place);
    }
    return out;
  };
  for (const char* name : {"h200", "l40s"}) {
    EXPECT_EQ(places(name, 4096), std::set{ScalePlace::relative}) << name;
  }
  EXPECT_EQ(places("l40s", 128), std::set{ScalePlace::usual});
}

}  // namespace
}  // namespace ladder
