// SPDX-License-Identifier: Apache-2.0
//
// encode() and Encoder against the nearest of all codes, for every format of at most 8 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "types/encoder.h"
#include "types/oracle.h"

namespace ladder {
namespace {

using ::ladder::testing::kInfinity;
using ::ladder::testing::kNan;
using ::ladder::testing::narrow_elements;
using ::ladder::testing::Oracle;
using ::testing::ThrowsMessage;

TEST(Encode, gives_the_nearest_code_ties_to_even_in_both_overflow_modes) {
  for (const Element* e : narrow_elements()) {
    const Oracle oracle(*e);
    for (const double probe : oracle.probes(500))
      for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
        const std::uint32_t got = encode(*e, probe, overflow);
        const std::uint32_t wanted = oracle.encode(probe, overflow);
        const bool both_nan = std::isnan(decode(*e, got)) && std::isnan(decode(*e, wanted));
        ASSERT_TRUE(got == wanted || both_nan)
            << e->name << ": " << probe << " became code " << got << " (" << decode(*e, got)
            << "), not " << wanted << " (" << decode(*e, wanted) << "), overflow "
            << static_cast<int>(overflow);
      }
  }
}

TEST(Encode, gives_every_code_back_from_its_value) {
  for (const Element* e : elements()) {
    if (e->bits > 16) continue;
    std::vector<double> seen;
    for (std::uint32_t code = 0; code < static_cast<std::uint32_t>(e->code_count()); ++code) {
      const double value = decode(*e, code);
      if (!std::isfinite(value)) continue;
      // A second code of the same value has none of its own: code 3 of ternary, -0 of a table.
      const bool repeated =
          e->encoding == Encoding::table && std::ranges::find(seen, value) != seen.end();
      seen.push_back(value);
      if (repeated) continue;
      ASSERT_EQ(encode(*e, value), code) << e->name << " " << value;
    }
  }
}

TEST(Encode, keeps_infinities_and_nan_where_the_format_has_them) {
  for (const Element* e : elements()) {
    if (e->bits > 16) continue;
    bool has_nan = false;
    for (std::uint32_t code = 0; code < static_cast<std::uint32_t>(e->code_count()); ++code) {
      const double value = decode(*e, code);
      if (std::isinf(value)) {
        EXPECT_EQ(encode(*e, value, Overflow::special), code) << e->name;
      }
      has_nan = has_nan || std::isnan(value);
    }
    if (has_nan) {
      EXPECT_TRUE(std::isnan(decode(*e, encode(*e, kNan)))) << e->name;
    } else {
      EXPECT_THAT(
          [&] { encode(*e, kNan); },
          ThrowsMessage<InvalidArgument>("value nan has no code in " + std::string(e->name)));
    }
  }
}

TEST(Encode, saturates_to_the_largest_finite_value_unless_asked_for_specials) {
  const auto coded = [](std::string_view name, double value, Overflow overflow) {
    return decode(element(name), encode(element(name), value, overflow));
  };
  EXPECT_EQ(coded("float8_e4m3", 1e9, Overflow::saturate), 448);
  EXPECT_EQ(coded("float8_e4m3", 464, Overflow::special), 448);  // a tie, and 448 is even
  EXPECT_TRUE(std::isnan(coded("float8_e4m3", 464.01, Overflow::special)));
  EXPECT_EQ(coded("float8_e5m2", -1e9, Overflow::saturate), -57344);
  EXPECT_EQ(coded("float8_e5m2", 61439.9, Overflow::special), 57344);
  EXPECT_EQ(coded("float8_e5m2", 61440, Overflow::special), kInfinity);
  EXPECT_EQ(coded("float4_e2m1", kInfinity, Overflow::special), 6);
  EXPECT_EQ(coded("uint4", -kInfinity, Overflow::special), 0);
  EXPECT_EQ(coded("int4", 8, Overflow::saturate), 7);
  EXPECT_EQ(coded("float16", 65520, Overflow::special), kInfinity);
  EXPECT_EQ(coded("float16", 65519.99, Overflow::special), 65504);
}

TEST(Encode, keeps_the_sign_of_zero_except_where_its_code_is_nan) {
  EXPECT_EQ(encode(element("float8_e4m3"), -0.0), 0x80u);
  EXPECT_EQ(encode(element("float8_e4m3"), -1e-12), 0x80u);
  EXPECT_EQ(encode(element("float8_e4m3fnuz"), -0.0), 0u);
  EXPECT_EQ(encode(element("float8_e4m3fnuz"), -1e-12), 0u);
  EXPECT_EQ(encode(element("fp4"), -0.0), 0u);
}

/// Both ways to a code mean the same number: +0 and -0 are two codes.
void expect_same(const Element& e, const Encoder& encoder, float value) {
  const std::uint32_t fast = encoder(value), slow = encode(e, value);
  ASSERT_TRUE(fast == slow || decode(e, fast) == decode(e, slow))
      << e.name << ": " << value << " became code " << fast << ", not " << slow;
}

TEST(Encoder, zeros_become_the_first_code_of_zero_whatever_their_sign) {
  for (const Element* e : narrow_elements()) {
    std::uint32_t first = 0;
    while (first < static_cast<std::uint32_t>(e->code_count()) && decode(*e, first) != 0) ++first;
    if (first == static_cast<std::uint32_t>(e->code_count())) continue;
    const Encoder encoder(*e);
    EXPECT_EQ(encoder(0.0f), first) << e->name;
    EXPECT_EQ(encoder(-0.0f), first) << e->name;
  }
}

TEST(Encoder, equals_encode_for_every_format_at_every_place_where_rounding_turns) {
  for (const Element* e : narrow_elements()) {
    const Encoder encoder(*e);
    for (const double probe : Oracle(*e).probes(0)) {
      const auto value = static_cast<float>(probe);
      for (const float near :
           {value, std::nextafter(value, INFINITY), std::nextafter(value, -INFINITY)})
        expect_same(*e, encoder, near);
    }
  }
}

TEST(Encoder, equals_encode_for_float32_numbers_of_every_exponent) {
  std::mt19937 random(3);
  for (const Element* e : narrow_elements()) {
    const Encoder encoder(*e);
    for (int i = 0; i < 10000; ++i) {
      const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (!std::isnan(value)) expect_same(*e, encoder, value);
    }
  }
}

TEST(Encoder, sends_nan_to_nan_or_to_the_lowest_value) {
  for (const Element* e : narrow_elements()) {
    const double back = decode(*e, Encoder(*e)(NAN));
    bool has_nan = false;
    for (std::uint32_t code = 0; code < static_cast<std::uint32_t>(e->code_count()); ++code)
      has_nan = has_nan || std::isnan(decode(*e, code));
    EXPECT_TRUE(has_nan ? std::isnan(back) : back == min_value(*e)) << e->name << " " << back;
  }
}

TEST(Encoder, refuses_a_format_of_more_than_8_bits) {
  EXPECT_THAT([] { Encoder encoder(element("float16")); },
              ThrowsMessage<InvalidArgument>(
                  "type float16 has 16 bits; weights are quantised to at most 8"));
}

}  // namespace
}  // namespace ladder
