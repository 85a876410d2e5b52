// SPDX-License-Identifier: Apache-2.0
#include "cpu/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "quantize_oracle.h"
#include "types/quantizable.h"
#include "types/weight.h"

namespace ladder::cpu {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A quantised weight with memory for every part that its type could have.
struct Quantized {
  Quantized(const std::vector<float>& weight, std::int64_t n, std::int64_t k, const TType& t,
            Rounding rounding = Rounding::nearest, const Parallel& parallel = serial,
            Isa isa = available_isas().back())
      : type(t), n(n), k(k) {
    const auto blocks = static_cast<std::size_t>(type.block_rows(n) * type.groups(k));
    codes.resize(static_cast<std::size_t>(n * row_words(k, type.element->bits)));
    scales.resize(blocks * 4);
    zeros.resize(blocks * 4 + 4 * static_cast<std::size_t>(type.block_rows(n)));
    seconds.resize(static_cast<std::size_t>(second_scales(type, n)));
    quantize(weight.data(), n, k, type, rounding,
             {.codes = codes.data(),
              .scales = scales.data(),
              .zeros = zeros.data(),
              .scale2 = seconds.data()},
             isa, parallel);
    if (!seconds.empty()) scale2 = seconds.front();
  }
  std::vector<float> values() const {
    const WeightView view{.type = &type,
                          .n = n,
                          .k = k,
                          .codes = codes.data(),
                          .scales = type.scale != nullptr ? scales.data() : nullptr,
                          .zeros = zeros.data(),
                          .scale2 = seconds.empty() ? nullptr : seconds.data(),
                          .g_idx = nullptr};
    std::vector<float> out(static_cast<std::size_t>(n * k));
    dequantize_rows(view, 0, n, out.data());
    return out;
  }

  TType type;
  std::int64_t n, k;
  std::vector<std::uint32_t> codes;
  std::vector<std::uint8_t> scales, zeros;
  std::vector<float> seconds;
  float scale2 = 0;  ///< the first
};

std::vector<float> normal_weight(std::int64_t count, unsigned seed, float scale = 0.05f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> weight(static_cast<std::size_t>(count));
  for (float& w : weight) w = normal(random);
  return weight;
}

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return sum;
}

/// Every type worth quantising to, in groups of 16.
std::vector<TType> quantizable() {
  std::vector<TType> types;
  for (const std::string& text : testing::quantizable(",group=16"))
    types.push_back(parse_ttype(text));
  return types;
}

TEST(Quantize, search_is_never_worse_than_nearest) {
  const std::int64_t n = 5, k = 40;
  const auto weight = normal_weight(n * k, 1);
  for (const TType& type : quantizable()) {
    const double nearest = squared_error(Quantized(weight, n, k, type).values(), weight);
    const double search =
        squared_error(Quantized(weight, n, k, type, Rounding::search).values(), weight);
    // The choice is made in float32, and a float zero is rounded after it.
    EXPECT_LE(search, nearest * (1 + 1e-5) + 1e-12) << to_string(type);
  }
}

TEST(Quantize, takes_for_every_weight_the_code_nearest_under_the_stored_scale) {
  const std::int64_t n = 3, k = 40;
  const auto weight = normal_weight(n * k, 2);
  for (const TType& type : quantizable()) {
    if (type.zero == Zero::rescale) continue;  // its stored zero is rounded after the choice
    const Quantized q(weight, n, k, type);
    const auto values = q.values();
    // All codes of one row at once: the values that each column could have had.
    for (std::uint32_t code = 0; code < 1u << type.element->bits; ++code) {
      Quantized other = q;
      const std::vector<std::uint8_t> same(static_cast<std::size_t>(k),
                                           static_cast<std::uint8_t>(code));
      for (std::int64_t row = 0; row < n; ++row)
        pack_codes(same.data(), 1, k, type.element->bits,
                   other.codes.data() + row * row_words(k, type.element->bits));
      const auto candidates = other.values();
      for (std::size_t i = 0; i < weight.size(); ++i) {
        if (!std::isfinite(candidates[i])) continue;
        const double chosen = std::abs(double{values[i]} - double{weight[i]});
        const double possible = std::abs(double{candidates[i]} - double{weight[i]});
        ASSERT_LE(chosen, possible + std::abs(weight[i]) * 1e-6)
            << to_string(type) << ", weight " << weight[i] << ", code " << code;
      }
    }
  }
}

TEST(Quantize, gives_back_weights_that_the_type_can_hold) {
  for (const char* text :
       {"int4,group=16,scale=float16", "int8,group=16,scale=float32",
        "uint4,group=16,scale=float16,zero=midpoint", "uint4,group=16,scale=float16,zero=integer",
        "mxfp4", "mxfp6_e3m2", "mxfp8_e4m3", "float4_e2m1,group=16,scale=float16",
        "nf4,group=16,scale=float32", "int1,group=16,scale=float16",
        "ternary,group=16,scale=float16", "int4,tensor,scale=float16",
        "int4,block=2x16,scale=float16"}) {
    const TType type = parse_ttype(text);
    const std::int64_t n = 4, k = 64;
    const auto once = Quantized(normal_weight(n * k, 3), n, k, type).values();
    const auto twice = Quantized(once, n, k, type).values();
    for (std::size_t i = 0; i < once.size(); ++i)
      ASSERT_NEAR(once[i], twice[i], std::abs(once[i]) * 2e-3) << text << " " << i;
  }
}

TEST(Quantize, is_exact_for_integers_whose_largest_fills_the_range) {
  const std::int64_t n = 2, k = 32;
  std::vector<float> weight;
  for (std::int64_t i = 0; i < n * k; ++i) weight.push_back(static_cast<float>(i % 16) - 8);
  for (const char* text :
       {"int4,group=16,scale=float16", "uint4,group=16,scale=float16,zero=midpoint",
        "uint4,group=16,scale=float16,zero=integer", "uint4,group=16,scale=float16,zero=quantized",
        "uint4,group=16,scale=float16,zero=original", "uint4,group=16,scale=float16,zero=rescale",
        "int4", "int8"})
    for (const Rounding rounding : {Rounding::nearest, Rounding::search})
      EXPECT_EQ(Quantized(weight, n, k, parse_ttype(text), rounding).values(), weight) << text;
}

TEST(Quantize, stores_the_zero_points_that_asymmetric_weights_ask_for) {
  const std::vector<float> weight = {-3, 0, 12, 6, 1, 2, 3, 4};  // a step of 1 and a zero of 3
  EXPECT_EQ(Quantized(weight, 1, 8, parse_ttype("uint4,scale=float32,zero=integer")).zeros[0], 3);
  const Quantized packed(weight, 1, 8, parse_ttype("uint4,scale=float32,zero=quantized"));
  EXPECT_EQ(packed.zeros[0], 3);
  float zero = 0;
  std::memcpy(
      &zero, Quantized(weight, 1, 8, parse_ttype("uint4,scale=float32,zero=original")).zeros.data(),
      4);
  EXPECT_EQ(zero, 3);
  const std::vector<float> doubled = {-6, 0, 24, 12, 2, 4, 6, 8};
  std::memcpy(
      &zero, Quantized(doubled, 1, 8, parse_ttype("uint4,scale=float32,zero=rescale")).zeros.data(),
      4);
  EXPECT_EQ(zero, 6) << "the zero times the scale";
}

TEST(Quantize, keeps_a_zero_weight_zero) {
  auto weight = normal_weight(64, 4);
  for (std::size_t i = 0; i < weight.size(); i += 3) weight[i] = 0;
  for (const TType& type : quantizable()) {
    if (type.element->name == "int1" || type.element->name == "fp4") continue;
    if (type.element->name == "uint1" && type.zero == Zero::none) continue;
    if (type.zero == Zero::rescale) continue;
    if (type.element->name.starts_with("signed_table"))
      continue;  // linear_test.cpp's, without zero
    const auto values = Quantized(weight, 1, 64, type).values();
    for (std::size_t i = 0; i < weight.size(); i += 3)
      ASSERT_EQ(values[i], 0) << to_string(type) << " " << i;
  }
}

TEST(Quantize, power_of_two_scales_cover_the_largest_weight) {
  const auto weight = normal_weight(256, 6);
  for (const char* text : {"mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "int8,group=32,scale=e8m0"}) {
    const TType type = parse_ttype(text);
    const Quantized q(weight, 4, 64, type);
    for (std::size_t block = 0; block < 8; ++block) {
      float largest = 0;
      for (std::size_t i = 0; i < 32; ++i)
        largest = std::max(largest, std::abs(weight[block * 32 + i]));
      const double scale = decode(*type.scale, q.scales[block]);
      EXPECT_GE(scale * std::max(max_value(*type.element), -min_value(*type.element)), largest)
          << text << ", block " << block;
      EXPECT_EQ(scale, std::exp2(std::round(std::log2(scale))));
    }
  }
}

TEST(Quantize, the_second_scale_brings_the_largest_block_scale_to_the_top_of_its_format) {
  const auto weight = normal_weight(256, 8, 300.0f);
  const Quantized q(weight, 4, 64, parse_ttype("nvfp4"));
  float largest = 0;
  for (const float w : weight) largest = std::max(largest, std::abs(w));
  EXPECT_FLOAT_EQ(q.scale2, largest / (6 * 448));
  EXPECT_THAT(std::vector<std::uint8_t>(q.scales.begin(), q.scales.begin() + 16),
              ::testing::Contains(0x7e));
}

// Of weights of any magnitude: it costs the rounding of scales to their format, and no clipping.
TEST(Quantize, a_second_scale_serves_every_format_of_scales) {
  const std::int64_t n = 8, k = 64;
  for (const float magnitude : {1e-12f, 1.0f, 1e12f})
    for (const std::string element :
         {"int8", "uint4", "uint4,zero=midpoint", "uint4,zero=integer", "uint8,zero=original",
          "uint8,zero=rescale", "nf4", "float4_e2m1", "float8_e5m2"}) {
      auto weight = normal_weight(n * k, 8, magnitude);
      if (element == "uint4")  // has one side
        for (float& w : weight) w = std::abs(w);
      const auto error = [&](const std::string& scales) {
        return squared_error(
            Quantized(weight, n, k, parse_ttype(element + ",group=16," + scales)).values(), weight);
      };
      const double exact = error("scale=float32");
      for (const char* scale :
           {"float16", "bfloat16", "float32", "e8m0", "float8_e4m3", "float8_e5m2"}) {
        const bool narrow = scale[0] == 'e' || scale[5] == '8';
        if (narrow && (element.ends_with("original") || element.ends_with("rescale")))
          continue;  // zeros in the format of scales have 16 bits at least
        // A scale of two or three bits may cut off more of the largest weight than int8 rounds.
        EXPECT_LE(error(std::string("scale2=float32,scale=") + scale), (narrow ? 16 : 4) * exact)
            << element << " with scales of " << scale << ", weights of " << magnitude;
      }
    }
}

TEST(Quantize, of_only_zeros_gives_zeros) {
  const std::vector<float> weight(64, 0.0f);
  for (const TType& type : quantizable())
    for (const Rounding rounding : {Rounding::nearest, Rounding::search})
      for (const float value : Quantized(weight, 2, 32, type, rounding).values())
        ASSERT_EQ(value, 0) << to_string(type);
}

TEST(Quantize, does_not_depend_on_how_rows_are_divided_over_threads) {
  const auto weight = normal_weight(7 * 40, 10);
  const Parallel one_by_one = [](std::int64_t count, std::int64_t, const RangeBody& body) {
    for (std::int64_t i = count; i-- > 0;) body(i, i + 1);
  };
  for (const TType& type : quantizable()) {
    const Quantized a(weight, 7, 40, type), b(weight, 7, 40, type, Rounding::nearest, one_by_one);
    EXPECT_EQ(a.codes, b.codes) << to_string(type);
    EXPECT_EQ(a.scales, b.scales) << to_string(type);
  }
}

TEST(Quantize, a_weight_that_is_not_finite_is_refused_with_row_and_column) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> weight(24, 1.0f);
    weight[8 + 5] = bad;
    EXPECT_THAT([&] { Quantized(weight, 3, 8, parse_ttype("uint4,scale=float16,zero=midpoint")); },
                ThrowsMessage<InvalidArgument>(HasSubstr("weight at row 1, column 5 is ")));
  }
}

TEST(Quantize, refuses_an_element_of_more_than_8_bits) {
  EXPECT_THAT([] { Quantized(std::vector<float>(8), 1, 8, parse_ttype("float16")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("float16 has 16 bits")));
}

/// Scale `at` as float32.
float stored_part(const TType& type, const std::vector<std::uint8_t>& bytes, std::int64_t at) {
  std::uint32_t code = 0;
  const std::int64_t size = std::max(type.scale->bits / 8, 1);
  std::memcpy(&code, bytes.data() + at * size, static_cast<std::size_t>(size));
  return static_cast<float>(decode(*type.scale, code));
}

/// [n, k] against the oracle, on every instruction set of this machine.
void expect_as_the_oracle(const std::vector<float>& weight, std::int64_t n, std::int64_t k,
                          const TType& type) {
  for (const Isa isa : available_isas()) {
    const Quantized q(weight, n, k, type, Rounding::search, serial, isa);
    const std::int64_t rows = type.block.rows == 0 ? n : type.block.rows;
    const std::int64_t columns = type.block.columns == 0 ? k : type.block.columns;
    const int bits = type.element->bits;
    std::vector<std::uint8_t> codes(weight.size());
    unpack_codes(q.codes.data(), n, k, bits, codes.data());
    for (std::int64_t row = 0; row < n; row += rows) {
      const float unit = q.seconds.empty()     ? 1.0f
                         : type.scale2_of_rows ? q.seconds[static_cast<std::size_t>(row)]
                                               : q.scale2;
      const testing::QuantizeOracle oracle(type, unit);
      for (std::int64_t column = 0; column < k; column += columns) {
        std::vector<float> block;
        std::vector<std::uint8_t> found;
        for (std::int64_t r = row; r < std::min(n, row + rows); ++r)
          for (std::int64_t c = column; c < std::min(k, column + columns); ++c) {
            block.push_back(weight[r * k + c]);
            found.push_back(codes[r * k + c]);
          }
        const auto choice = oracle.choose(block);
        const auto at = row / rows * type.groups(k) + column / columns;
        SCOPED_TRACE(to_string(type) + " on " + std::string(name(isa)) + ", block " +
                     std::to_string(at));
        if (type.scale != nullptr) {
          ASSERT_EQ(stored_part(type, q.scales, at), choice.scale);
        }
        for (std::size_t i = 0; i < block.size(); ++i) {
          // By value: +0 and -0 are two codes.
          const float wanted = oracle.value(oracle.code(block[i], choice), choice);
          ASSERT_EQ(oracle.value(found[i], choice), wanted) << "weight " << block[i];
        }
        // Least in a plain sum too, to what the order of additions may do.
        if (type.scale == nullptr) continue;
        for (const auto& other : oracle.candidates(block))
          ASSERT_LE(choice.error, other.error * (1 + 1e-12));
      }
    }
  }
}

TEST(Quantize, chooses_what_the_slow_way_chooses_for_every_type) {
  unsigned seed = 20;
  for (const TType& type : quantizable()) {
    expect_as_the_oracle(normal_weight(2 * 93, ++seed), 2, 93, type);  // rows of odd length
    expect_as_the_oracle(normal_weight(5, ++seed), 1, 5, type);        // less than a group
  }
}

TEST(Quantize, breaks_ties_as_the_slow_way_does) {
  std::vector<float> halves;  // every weight halfway between two integers, or on one
  for (int i = 0; i < 2 * 64; ++i) halves.push_back(static_cast<float>(i % 33 - 16) / 2);
  for (const TType& type : quantizable()) expect_as_the_oracle(halves, 2, 64, type);
}

TEST(Quantize, adds_the_errors_of_long_blocks_in_segments) {
  for (const char* type : {"int4,channel,scale=float16", "nf4,tensor,scale=float32",
                           "uint4,group=1100,scale=float16,zero=integer"})
    expect_as_the_oracle(normal_weight(2 * 2100, 40), 2, 2100, parse_ttype(type));
}

TEST(Quantize, takes_tiny_and_huge_weights) {
  for (const float scale : {1e-44f, 1e-30f, 1e30f})
    for (const char* type :
         {"int4,group=16,scale=float32", "mxfp4", "nvfp4", "mxint8",
          "float8_e4m3,group=16,scale=bfloat16", "uint4,group=16,scale=float32,zero=integer"})
      expect_as_the_oracle(normal_weight(2 * 64, 50, scale), 2, 64, parse_ttype(type));
}

TEST(Quantize, names_the_first_weight_that_is_not_finite_on_any_number_of_threads) {
  std::vector<float> weight(600 * 1000, 1.0f);
  weight[1000 + 3] = weight[500 * 1000] = NAN;
  const Parallel backwards = [](std::int64_t count, std::int64_t, const RangeBody& body) {
    for (std::int64_t i = count; i-- > 0;) body(i, i + 1);
  };
  EXPECT_THAT(
      [&] { Quantized(weight, 600, 1000, parse_ttype("mxfp4"), Rounding::nearest, backwards); },
      ThrowsMessage<InvalidArgument>(HasSubstr("weight at row 1, column 3 is ")));
}

}  // namespace
}  // namespace ladder::cpu
