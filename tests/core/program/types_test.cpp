// SPDX-License-Identifier: Apache-2.0
//
// Every type that has a kernel, through the interpreter, against the expression in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expr/constructors.h"
#include "integer_layer.h"
#include "pipelines/decode/shared_memory.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using testing::LinearCase;

const Device& h200() { return device("h200"); }

constexpr DecodeSchedule kOnce{.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1};
constexpr DecodeSchedule kRing{.tokens = 8,
                               .warps_n = 2,
                               .warps_k = 1,
                               .blocks_per_warp = 1,
                               .weights = weights::Ring{.k_tiles = 2, .stages = 2},
                               .dependent_launch = true};

DecodeSchedule in_place(DecodeSchedule schedule) {
  schedule.route = Route::in_place;
  return schedule;
}

Program checked(const Problem& problem, const DecodeSchedule& schedule) {
  EXPECT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  return program;
}

void expect_exact(const Problem& problem, const DecodeSchedule& schedule, std::int64_t m) {
  const auto data = LinearCase::integers(problem, m);
  EXPECT_EQ(data.run(checked(problem, schedule), schedule), data.exact())
      << to_string(problem) << "; " << to_string(schedule) << "; m " << m;
}

void expect_within_bound(const LinearCase& data, const DecodeSchedule& schedule) {
  const auto y = data.run(checked(data.problem, schedule), schedule);
  const auto reference = evaluate(data.problem, data.data);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double bound = data.bound(reference, i), largest = data.largest();
    if (std::isinf(y[i]) && std::fabs(reference.y[i]) + bound > largest) continue;
    ASSERT_LE(std::fabs(y[i] - reference.y[i]), bound)
        << to_string(data.problem) << "; " << to_string(schedule) << "; y[" << i << "] is " << y[i]
        << ", not " << reference.y[i];
  }
}

/// The elements that a device multiplies by `activation`, built in and a user's.
std::vector<const Element*> multiplied(Scalar activation) {
  const double steps[] = {-3.0, 0.25, 7.0, 1e-3};
  register_table("test_table2", 2, steps);
  std::vector<double> wide;
  for (int i = 0; i < 64; ++i) wide.push_back(i * i * 0.37 - 100);
  register_table("test_table6", 6, wide);
  register_float("test_e3m3_ieee", 3, 3, Specials::ieee, 5);
  std::vector<const Element*> out;
  for (const Element* element : elements()) {
    if (element->bits > 8 || element->encoding == Encoding::exponent) continue;
    try {
      decoding_of(linear_of(TType{element}, 64, 64, activation, 1));
      out.push_back(element);
    } catch (const Unsupported&) {
      EXPECT_GE(element->exponent_bits, 6) << element->name;
      EXPECT_EQ(activation, Scalar::f16) << element->name;
    }
  }
  return out;
}

class Types : public ::testing::TestWithParam<Scalar> {};

// Integers are exact; other values have more digits than a sum of them keeps.
TEST_P(Types, every_element_is_multiplied_to_its_bound_whatever_the_borders) {
  for (const Element* element : multiplied(GetParam())) {
    TType type{element, {1, 32}, &ladder::element("float16")};
    const Problem small = linear_of(type, 63, 120, GetParam(), 8);
    expect_within_bound(LinearCase::integers(small, 3), kOnce);
    expect_within_bound(LinearCase::reals(linear_of(type, 65, 128, GetParam(), 8), 1), kRing);
    if (small.weight.element == nullptr) expect_exact(small, kOnce, 3);
  }
}

TEST_P(Types, every_named_block_type_is_multiplied_to_its_bound) {
  for (const NamedTType& named : named_ttypes()) {
    const Problem problem = linear_of(ttype(named.name), 70, 160, GetParam(), 8);
    for (const DecodeSchedule& schedule :
         {DecodeSchedule{.tokens = 8, .warps_n = 1, .warps_k = 3, .blocks_per_warp = 1}, kRing}) {
      if (!objection(schedule, decide(problem, h200())).empty()) continue;
      expect_within_bound(LinearCase::integers(problem, 2), schedule);
    }
  }
}

TEST_P(Types, scales_have_a_format_of_their_own) {
  for (Scalar scale : {Scalar::f16, Scalar::bf16, Scalar::f32, Scalar::e8m0, Scalar::e4m3}) {
    for (std::int64_t group : {0, 16, 64}) {
      const Problem problem = testing::integer_layer(4, 8, group, GetParam(), 8, 65, 128, scale);
      expect_exact(problem, kOnce, 3);
      expect_exact(problem, kRing, 3);
      expect_exact(problem, in_place(kRing), 3);
    }
  }
}

// Integers in place of every width that fits, over one tile of rows and over several, whose
// products with the zero point are shared.
TEST_P(Types, codes_in_place_are_exact) {
  DecodeSchedule persistent{
      .tokens = 8,
      .warps_n = 1,
      .warps_k = 2,
      .blocks_per_warp = 1,
      .weights = weights::RegisterStages{.k_tiles = 2, .stages = 2, .tiles_per_cta = 2},
      .reduction = Reduction::cluster,
      .route = Route::in_place};
  int served = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    for (int zero : {0, 1, 1 << (bits - 1)}) {
      for (const DecodeSchedule& schedule : {in_place(kRing), persistent}) {
        const std::int64_t k = schedule.tiles_per_cta() > 1 ? 512 : 128;
        const Problem problem =
            testing::integer_layer(bits, zero, k / 4, GetParam(), 8, 256, k, GetParam());
        if (!objection(schedule, decide(problem, h200())).empty()) continue;
        ++served;
        expect_exact(problem, schedule, 3);
        expect_within_bound(LinearCase::reals(problem, 2), schedule);
      }
    }
  }
  EXPECT_EQ(served, GetParam() == Scalar::f16 ? 48 : 24);
}

TEST_P(Types, a_weight_without_scales_is_the_sum_of_its_codes) {
  const Problem problem = testing::integer_layer(3, 4, 0, GetParam(), 8, 65, 128, std::nullopt);
  expect_exact(problem, kOnce, 3);
  expect_exact(problem, kRing, 3);
}

// Groups: a row, one warp's columns, a k-step. Every zero point from 0 to 2^bits.
TEST_P(Types, stored_integer_zero_points_are_exact) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (std::int64_t group : {0, 64, 16}) {
      Problem problem = testing::integer_layer(bits, 0, group, GetParam(), 8, 65, 120, GetParam());
      testing::set_stored_zero(problem, Zero::integer);
      expect_exact(problem, kOnce, 2);
      expect_exact(problem, kRing, 2);
      const auto route = in_place(kRing);
      if (objection(route, decide(problem, h200())).empty()) expect_exact(problem, route, 2);
      testing::set_scale(problem, std::nullopt);
      expect_exact(problem, kOnce, 2);
    }
  }
}

TEST_P(Types, floating_zero_points_are_exact_on_integers_and_within_the_bound_on_reals) {
  for (Zero zero : {Zero::original, Zero::rescale}) {
    for (Scalar scale : {Scalar::f16, Scalar::bf16, Scalar::f32}) {
      for (int constant : {0, 8}) {
        Problem problem = testing::integer_layer(4, constant, 32, GetParam(), 8, 65, 128, scale);
        testing::set_stored_zero(problem, zero);
        for (const DecodeSchedule& schedule : {kOnce, kRing, in_place(kRing)}) {
          if (!objection(schedule, decide(problem, h200())).empty()) continue;
          expect_exact(problem, schedule, 2);
          expect_within_bound(LinearCase::reals(problem, 2), schedule);
        }
      }
    }
  }
}

TEST_P(Types, a_second_scale_a_bias_and_a_permutation_are_applied_in_every_reduction) {
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    Problem problem = testing::integer_layer(4, 8, 64, GetParam(), 8, 63,
                                             reduction == Reduction::none ? 120 : 240);
    testing::set_scale2(problem), problem.set_bias(true);
    problem.permuted_columns = true;
    DecodeSchedule schedule = kOnce;
    schedule.reduction = reduction;
    schedule.dependent_launch = true;
    expect_exact(problem, schedule, 3);
    expect_within_bound(LinearCase::reals(problem, 3), schedule);
  }
}

TEST_P(Types, no_bias_is_a_bias_of_zero) {
  Problem problem = testing::integer_layer(4, 8, 64, GetParam(), 8, 64, 128);
  problem.set_bias(true);
  auto without = LinearCase::integers(problem, 2);
  without.data.bias.clear();
  auto zero = without;
  zero.data.bias.assign(problem.n, 0);
  EXPECT_EQ(without.run(checked(problem, kOnce), kOnce), zero.exact());
}

// Rows of activations that end inside 16 bytes, and inside a word.
TEST_P(Types, k_need_be_no_multiple_of_anything) {
  for (std::int64_t k : {1, 7, 121, 124}) {
    for (bool gather : {false, true}) {
      Problem problem = testing::integer_layer(4, 8, 0, GetParam(), 8, 64, k);
      problem.permuted_columns = gather;
      expect_exact(problem, kOnce, 3);
    }
  }
}

// One code a row, infinities and NaN among them, times one.
TEST_P(Types, every_code_of_a_floating_format_is_its_value) {
  for (const Element* element : multiplied(GetParam())) {
    if (element->encoding != Encoding::floating) continue;
    const std::int64_t n = element->code_count();
    Problem problem = linear_of(TType{element}, n, 64, GetParam(), 8);
    LinearCase data{problem, 1, {}};
    data.data.codes.assign(n * 64, 0);
    data.data.x.assign(64, 0);
    data.data.x[0] = data.bits(1);
    for (std::int64_t row = 0; row < n; ++row) {
      data.data.codes[row * 64] = static_cast<std::uint8_t>(row);
    }
    constexpr DecodeSchedule kOne{.tokens = 8, .warps_n = 1, .warps_k = 1, .blocks_per_warp = 1};
    const auto y = data.run(checked(problem, kOne), kOne);
    for (std::int64_t row = 0; row < n; ++row) {
      const double value = decode(*element, static_cast<std::uint32_t>(row));
      const double expected = to_number(GetParam(), data.bits(value));
      EXPECT_TRUE(y[row] == expected || (std::isnan(y[row]) && std::isnan(expected)))
          << element->name << ' ' << name_of(GetParam()) << ", code " << row << ": " << y[row]
          << " for " << expected;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, Types, ::testing::Values(Scalar::f16, Scalar::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(SharedBytes, are_those_of_the_program_for_every_candidate) {
  Problem zeros = testing::integer_layer(4, 0, 32, Scalar::bf16, 8, 512, 1024, Scalar::f32);
  testing::set_stored_zero(zeros, Zero::original);
  const std::vector<Problem> problems = {
      testing::integer_layer(4, 8, 128, Scalar::f16, 16, 8192, 8192),
      testing::integer_layer(3, 4, 0, Scalar::f16, 16, 1000, 1032, std::nullopt),
      zeros,
      linear_of(ttype("nf4,group=64,scale=float16"), 4096, 4096, Scalar::f16, 8),
      linear_of(ttype("nvfp4"), 4096, 4096, Scalar::bf16, 8),
  };
  for (const Problem& problem : problems) {
    int kept = 0;
    for (const Candidate& candidate : candidates(decide(problem, h200()))) {
      if (!candidate.dropped.empty()) continue;
      ++kept;
      const auto program = lower(decide(problem, h200()), candidate.schedule);
      EXPECT_EQ(program.shared_bytes(),
                shared_bytes(std::get<DecodeSchedule>(candidate.schedule), problem))
          << to_string(candidate.schedule);
      EXPECT_NO_THROW(verify(program, h200().shared_per_block_bytes));
    }
    EXPECT_GE(kept, 1) << to_string(problem);
  }
}

}  // namespace
}  // namespace ladder
