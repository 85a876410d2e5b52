// SPDX-License-Identifier: Apache-2.0
#include "expr/weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/joined.h"
#include "expr/constructors.h"
#include "expr/decoding.h"
#include "types/element.h"

namespace ladder {
namespace {

Weight of(const char* type) { return Weight(ttype(type)); }

TEST(Weight, asks_of_kernels_what_the_type_means) {
  const Weight u4 = of("uint4,group=64,scale=float16,zero=midpoint");
  EXPECT_EQ(u4.bits, 4);
  EXPECT_EQ(u4.zero, 8);
  EXPECT_EQ(u4.group, 64);
  EXPECT_EQ(of("uint4,channel,scale=bfloat16").zero, 0);
  // Two's complement with its sign bit flipped is unsigned with a zero point in the middle.
  EXPECT_EQ(of("int3,group=64,scale=float16").zero, 4);
  EXPECT_EQ(of("int3,tensor,scale=float16").group, 0);
  EXPECT_EQ(of("uint4,group=64").group, 0);
  EXPECT_EQ(of("uint4,group=64,scale=bfloat16").scale, Scalar::bf16);
  EXPECT_EQ(of("uint4,group=64,scale=float8_e5m2").scale, Scalar::f32);
  EXPECT_EQ(of("uint4,group=64,scale=float16,zero=quantized").stored_zero, Zero::integer);
  EXPECT_EQ(of("int4,group=64,scale=float32,zero=rescale").zero_scalar(), Scalar::f32);
  EXPECT_EQ(of("nvfp4").scale, Scalar::e4m3);
  EXPECT_EQ(of("mxfp4").scale, Scalar::e8m0);
}

TEST(Weight, has_integer_scales_as_bytes_whose_largest_kernels_are_told) {
  const char* of_rows = "uint4,group=64,scale=uint4,zero=midpoint,scale2=float32:channel";
  EXPECT_EQ(of(of_rows).scale, Scalar::u8);
  const auto text = [](const char* type) {
    return to_string(linear_of(ttype(type), 128, 256, Scalar::f16, 8));
  };
  EXPECT_EQ(
      text(of_rows),
      "y[m<=8, n=128] f16 = s2[n] f32 * sum k=256: x[m, k] f16 * s[n, k/64] u8<=15 * (u4[n, k] "
      "- 8)");
  EXPECT_NE(text(of_rows), text("uint4,group=64,scale=uint5,zero=midpoint,scale2=float32:channel"));
  EXPECT_NE(text(of_rows), text("uint4,group=64,scale=uint4,zero=midpoint,scale2=float32"));
}

// Two types that kernels cannot tell apart are still two.
TEST(Weight, keeps_its_type) {
  const Weight whole = of("int4,group=64,scale=float16");
  const Weight middle = of("uint4,group=64,scale=float16,zero=midpoint");
  EXPECT_EQ(whole.type, ttype("int4,group=64,scale=float16"));
  EXPECT_NE(whole, middle);
  EXPECT_EQ(to_string(linear_of(whole.type, 128, 256, Scalar::f16, 8)),
            to_string(linear_of(middle.type, 128, 256, Scalar::f16, 8)));
}

TEST(Weight, gives_every_code_of_every_format_its_value) {
  for (const Element* element : elements()) {
    if (element->bits > 8 || element->encoding == Encoding::exponent) continue;
    const Weight weight(TType{element});
    for (std::uint32_t code = 0; code < 1u << element->bits; ++code) {
      const double value = decode(*element, code),
                   found = value_of(weight, code ^ flip_of(*element));
      EXPECT_TRUE(found == value || (std::isnan(found) && std::isnan(value)))
          << element->name << ", code " << code << ": " << found << " for " << value;
    }
  }
}

TEST(Weight, of_a_table_in_even_steps_is_of_the_integers_that_it_is) {
  EXPECT_EQ(of("int1").element, nullptr);
  EXPECT_EQ(of("int1").shift, 1);
  EXPECT_EQ(of("mxint8").element, nullptr);
  EXPECT_EQ(of("mxint8").exponent, -6);
  EXPECT_EQ(flip_of(element("fixed8_6")), 128u);
  EXPECT_EQ(of("nf4").element, &element("nf4"));
  EXPECT_TRUE(of("ternary").three);
  EXPECT_EQ(of("ternary").element, nullptr);
}

/// What the shifts, masks and sums that a kernel executes make of a floating code.
std::uint32_t moved(const FloatFields& f, std::uint32_t code) {
  const std::uint32_t magnitude = (code & ((1u << (f.bits - 1)) - 1)) << f.place;
  const int carry = f.place + f.bits - 1;
  std::uint32_t bits = (f.halved ? halved_f16(magnitude) : magnitude) | (code >> (f.bits - 1))
                                                                            << 15;
  if (f.special != 0 && ((magnitude + f.special) >> carry & 1) != 0) {
    for (int i = carry; i < 15; ++i) bits |= 1u << i;
  }
  return bits;
}

TEST(Decoding, fields_and_tables_hold_the_value_of_every_code) {
  for (const Element* element : elements()) {
    if (element->bits > 8 || element->encoding != Encoding::floating) continue;
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      Decoding decoding;
      try {
        decoding = decoding_of(linear_of(TType{element}, 64, 64, activation, 1));
      } catch (const Unsupported&) {
        // Six exponent bits span more than float16 does.
        EXPECT_EQ(activation, Scalar::f16);
        EXPECT_GE(element->exponent_bits, 6) << element->name;
        continue;
      }
      for (std::uint32_t code = 0; code < 1u << element->bits; ++code) {
        const bool fields = decoding.kind == Decoding::Kind::fields;
        const auto bits = fields ? moved(decoding.fields, code) : decoding.table[code];
        const double factor = fields ? decoding.fields.factor : 1;
        const double found = std::ldexp(to_number(activation, bits) * factor, -decoding.exponent);
        const double value = decode(*element, code);
        EXPECT_TRUE(found == value || (std::isnan(found) && std::isnan(value)))
            << element->name << ' ' << name_of(activation) << ", code " << code << ": " << found
            << " for " << value;
      }
    }
  }
}

// Factor, scale and their product with every code, as the one multiplication of a kernel has them.
TEST(Decoding, operands_that_have_their_scales_hold_every_product) {
  int scaled = 0;
  for (const Element* element : elements()) {
    if (element->bits > 8 || element->encoding != Encoding::floating) continue;
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      const auto decoding = [&]() -> std::optional<Decoding> {
        try {
          const auto type = joined(element->name, ",group=16,scale=float8_e4m3");
          return decoding_of(linear_of(ttype(type), 64, 64, activation, 1));
        } catch (const Unsupported&) {  // six exponent bits, as above
          return std::nullopt;
        }
      }();
      if (!decoding || !decoding->scaled) continue;
      ++scaled;
      for (std::uint32_t code = 0; code < 1u << element->bits; ++code) {
        const double field = to_number(activation, moved(decoding->fields, code));
        for (std::uint32_t of_scale = 0; of_scale < 256; ++of_scale) {
          const double scale = to_number(Scalar::e4m3, of_scale) * decoding->fields.factor;
          if (std::isnan(scale)) continue;
          EXPECT_EQ(to_number(activation, to_bits(activation, scale)), scale) << of_scale;
          const double product = std::ldexp(
              decode(*element, code) * to_number(Scalar::e4m3, of_scale), decoding->exponent);
          EXPECT_EQ(field * scale, product) << element->name << ' ' << code << ' ' << of_scale;
          const double operand = to_number(activation, to_bits(activation, product));
          EXPECT_EQ(operand, product) << element->name << ' ' << code << ' ' << of_scale;
          EXPECT_EQ(std::signbit(operand), std::signbit(product));
        }
      }
    }
  }
  EXPECT_GE(scaled, 8);
}

TEST(Decoding, a_table_is_rounded_by_no_more_than_it_says) {
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    const Problem problem = linear_of(ttype("nf4"), 64, 64, activation, 1);
    const auto decoding = decoding_of(problem);
    for (std::uint32_t code = 0; code < 16; ++code) {
      const double value = decode(*problem.weight.element, code);
      const double found =
          std::ldexp(to_number(activation, decoding.table[code]), -decoding.exponent);
      EXPECT_LE(std::fabs(found - value), decoding_error(problem) * std::fabs(value)) << code;
    }
  }
}

}  // namespace
}  // namespace ladder
