// SPDX-License-Identifier: Apache-2.0
//
// To add a format, add its row, in order of name. Nothing else changes: packing, every kernel, the
// names and the tests over ladder.types() are derived.
#include "types/table.h"

#include <algorithm>
#include <array>

namespace ladder {
namespace {

constexpr std::string_view kOcpFp8 = "OCP 8-bit Floating Point Specification (OFP8) 1.0";
constexpr std::string_view kOcpMx = "OCP Microscaling Formats (MX) 1.0";
constexpr std::string_view kIeee = "IEEE 754-2019";
constexpr std::string_view kFnuz = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks";
constexpr std::string_view kDerived = "IEEE 754 layout and bias, every code finite";
constexpr std::string_view kInteger = "two's complement and binary";

// QLoRA (Dettmers et al. 2023), appendix E: quantiles of a normal distribution, float32.
constexpr double kNf4[] = {-1.0,
                           -0.6961928009986877,
                           -0.5250730514526367,
                           -0.39491748809814453,
                           -0.28444138169288635,
                           -0.18477343022823334,
                           -0.09105003625154495,
                           0.0,
                           0.07958029955625534,
                           0.16093020141124725,
                           0.24611230194568634,
                           0.33791524171829224,
                           0.44070982933044434,
                           0.5626170039176941,
                           0.7229568362236023,
                           1.0};

// bitsandbytes' 4-bit float: 0, 1/16, 8, 12, 4, 6, 2, 3 over 12 in float32, then negated.
constexpr double twelfth(double numerator) { return static_cast<float>(numerator / 12); }
constexpr double kBnbFp4[] = {0.0,         twelfth(0.0625),  twelfth(8),  twelfth(12),
                              twelfth(4),  twelfth(6),       twelfth(2),  twelfth(3),
                              -0.0,        twelfth(-0.0625), twelfth(-8), twelfth(-12),
                              twelfth(-4), twelfth(-6),      twelfth(-2), twelfth(-3)};

// MXINT8's element: two's complement with the point before the last six bits, -2 to 1.984375.
constexpr auto kFixed8 = [] {
  std::array<double, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = (code < 128 ? code : code - 256) / 64.0;
  return values;
}();

constexpr double kBinary[] = {-1.0, 1.0};

// Code 3 is never written; it repeats 0 so that every code is a number.
constexpr double kTernary[] = {-1.0, 0.0, 1.0, 0.0};

constexpr Element floating(std::string_view name, int exponent_bits, int mantissa_bits,
                           Specials specials = Specials::none, std::string_view source = kDerived,
                           int bias = -1) {
  return {.name = name,
          .encoding = Encoding::floating,
          .bits = 1 + exponent_bits + mantissa_bits,
          .exponent_bits = exponent_bits,
          .mantissa_bits = mantissa_bits,
          .bias = bias >= 0 ? bias : ieee_bias(exponent_bits),
          .specials = specials,
          .source = source};
}

constexpr Element integer(std::string_view name, Encoding encoding, int bits) {
  return {.name = name, .encoding = encoding, .bits = bits, .source = kInteger};
}

constexpr Element table(std::string_view name, int bits, std::span<const double> values,
                        std::string_view source) {
  return {
      .name = name, .encoding = Encoding::table, .bits = bits, .values = values, .source = source};
}

constexpr auto kSigned = Encoding::signed_integer;
constexpr auto kUnsigned = Encoding::unsigned_integer;

constexpr Element kElements[] = {
    floating("bfloat16", 8, 7, Specials::ieee, "bfloat16: the upper half of IEEE binary32"),
    {.name = "e8m0",
     .encoding = Encoding::exponent,
     .bits = 8,
     .exponent_bits = 8,
     .bias = 127,
     .specials = Specials::nan_only,
     .source = kOcpMx},
    table("fixed8_6", 8, kFixed8, kOcpMx),
    floating("float16", 5, 10, Specials::ieee, kIeee),
    floating("float32", 8, 23, Specials::ieee, kIeee),
    floating("float3_e1m1", 1, 1),
    floating("float3_e2m0", 2, 0),
    floating("float4_e1m2", 1, 2),
    floating("float4_e2m1", 2, 1, Specials::none, kOcpMx),
    floating("float4_e3m0", 3, 0),
    floating("float5_e1m3", 1, 3),
    floating("float5_e2m2", 2, 2),
    floating("float5_e3m1", 3, 1),
    floating("float5_e4m0", 4, 0),
    floating("float6_e1m4", 1, 4),
    floating("float6_e2m3", 2, 3, Specials::none, kOcpMx),
    floating("float6_e3m2", 3, 2, Specials::none, kOcpMx),
    floating("float6_e4m1", 4, 1),
    floating("float6_e5m0", 5, 0),
    floating("float7_e1m5", 1, 5),
    floating("float7_e2m4", 2, 4),
    floating("float7_e3m3", 3, 3),
    floating("float7_e4m2", 4, 2),
    floating("float7_e5m1", 5, 1),
    floating("float7_e6m0", 6, 0),
    floating("float8_e1m6", 1, 6),
    floating("float8_e2m5", 2, 5),
    floating("float8_e3m4", 3, 4),
    floating("float8_e4m3", 4, 3, Specials::nan_only, kOcpFp8),
    floating("float8_e4m3fnuz", 4, 3, Specials::fnuz, kFnuz, 8),
    floating("float8_e5m2", 5, 2, Specials::ieee, kOcpFp8),
    floating("float8_e5m2fnuz", 5, 2, Specials::fnuz, kFnuz, 16),
    floating("float8_e6m1", 6, 1),
    floating("float8_e7m0", 7, 0),
    table("fp4", 4, kBnbFp4, "bitsandbytes' FP4 code"),
    table("int1", 1, kBinary, "binary networks: -1 and +1"),
    integer("int2", kSigned, 2),
    integer("int3", kSigned, 3),
    integer("int4", kSigned, 4),
    integer("int5", kSigned, 5),
    integer("int6", kSigned, 6),
    integer("int7", kSigned, 7),
    integer("int8", kSigned, 8),
    table("nf4", 4, kNf4, "QLoRA (arXiv 2305.14314), appendix E"),
    table("ternary", 2, kTernary, "BitNet b1.58 (arXiv 2402.17764): code = weight + 1"),
    integer("uint1", kUnsigned, 1),
    integer("uint2", kUnsigned, 2),
    integer("uint3", kUnsigned, 3),
    integer("uint4", kUnsigned, 4),
    integer("uint5", kUnsigned, 5),
    integer("uint6", kUnsigned, 6),
    integer("uint7", kUnsigned, 7),
    integer("uint8", kUnsigned, 8),
};

constexpr bool well_formed(const Element& e) {
  switch (e.encoding) {
    case Encoding::floating:
      return e.bits == 1 + e.exponent_bits + e.mantissa_bits && e.exponent_bits > 0;
    case Encoding::exponent: return e.bits == e.exponent_bits;
    case Encoding::table: return e.bits <= 8 && e.values.size() == std::size_t{1} << e.bits;
    case Encoding::unsigned_integer: return e.bits >= 1 && e.bits <= 8;
    case Encoding::signed_integer: return e.bits >= 2 && e.bits <= 8;
  }
  return false;
}
static_assert(std::ranges::all_of(kElements, well_formed));
static_assert(std::ranges::is_sorted(kElements, {}, &Element::name));

// Spellings of torch, safetensors ("F8_E4M3", found in lower case), BitBLAS ("e4m3_float8") and
// papers. A width alone is the format that most hardware and libraries mean by it: fp8 is OFP8's
// E4M3, fp6 FP6-LLM's E3M2. "fp4" is bitsandbytes' table, a row above; OCP's is "e2m1".
constexpr Alias kAliases[] = {
    {"bf16", "bfloat16"},
    {"e2m1", "float4_e2m1"},
    {"e2m3", "float6_e2m3"},
    {"e3m2", "float6_e3m2"},
    {"e3m4", "float8_e3m4"},
    {"e4m3", "float8_e4m3"},
    {"e4m3_float8", "float8_e4m3"},
    {"e4m3fn", "float8_e4m3"},
    {"e4m3fnuz", "float8_e4m3fnuz"},
    {"e5m2", "float8_e5m2"},
    {"e5m2_float8", "float8_e5m2"},
    {"e5m2fnuz", "float8_e5m2fnuz"},
    {"f16", "float16"},
    {"f32", "float32"},
    {"f6_e2m3", "float6_e2m3"},
    {"f6_e3m2", "float6_e3m2"},
    {"f8_e4m3", "float8_e4m3"},
    {"f8_e4m3fnuz", "float8_e4m3fnuz"},
    {"f8_e5m2", "float8_e5m2"},
    {"f8_e5m2fnuz", "float8_e5m2fnuz"},
    {"f8_e8m0", "e8m0"},
    {"float", "float32"},
    {"float4_e2m1fn", "float4_e2m1"},
    {"float4_e2m1fn_x2", "float4_e2m1"},
    {"float6", "float6_e3m2"},
    {"float6_e2m3fn", "float6_e2m3"},
    {"float6_e3m2fn", "float6_e3m2"},
    {"float8", "float8_e4m3"},
    {"float8_e4m3fn", "float8_e4m3"},
    {"float8_e8m0", "e8m0"},
    {"float8_e8m0fnu", "e8m0"},
    {"fp16", "float16"},
    {"fp32", "float32"},
    {"fp4_bitsandbytes", "fp4"},
    {"fp4_e2m1", "float4_e2m1"},
    {"fp6", "float6_e3m2"},
    {"fp6_e2m3", "float6_e2m3"},
    {"fp6_e3m2", "float6_e3m2"},
    {"fp8", "float8_e4m3"},
    {"fp8_e4m3", "float8_e4m3"},
    {"fp8_e4m3fn", "float8_e4m3"},
    {"fp8_e5m2", "float8_e5m2"},
    {"half", "float16"},
    {"ue8m0", "e8m0"},
};
static_assert(std::ranges::is_sorted(kAliases, {}, &Alias::name));

}  // namespace

std::span<const Element> builtin_elements() { return kElements; }
std::span<const Alias> aliases() { return kAliases; }

}  // namespace ladder
