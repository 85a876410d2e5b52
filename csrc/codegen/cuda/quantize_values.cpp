// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/quantize_values.h"

#include <bit>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "codegen/emit/literal.h"

namespace ladder::cuda {
namespace {

constexpr std::size_t kFew = 16;  // values whose borders are all compared with

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// prefix_value(magnitude) and prefix_code(of a value): as FloatRounding says.
std::string float_functions(const std::string& prefix, const FloatRounding& to) {
  const std::string largest = literal(to.largest), subnormal = literal(to.subnormal);
  const std::string smallest = literal(to.smallest_normal);
  std::ostringstream out;
  out << "DEVICE float " << prefix << "_value(float magnitude) {\n  const float m = magnitude < "
      << largest << " ? magnitude : " << largest << ";\n  const u32 b = as_bits(m);\n"
      << "  return m < " << smallest << " ? __fsub_rn(__fadd_rn(m, " << subnormal << "), "
      << subnormal << ") : as_float((b + " << hex(to.half) << " + ((b >> " << to.shift << " ^ "
      << to.flip << "u) & 1u)) & " << hex(~to.mask) << ");\n}\n"
      << "DEVICE u32 " << prefix << "_code(float m) {\n  return m < " << smallest
      << " ? as_bits(__fadd_rn(m, " << subnormal << ")) - " << hex(bits_of(to.subnormal))
      << " : (as_bits(m) >> " << to.shift << ") - " << hex(to.rebias) << ";\n}\n";
  return out.str();
}

/// Functions that need no table.
std::string without_table(const std::string& functions) {
  return functions +
         "constexpr u32 kTables = 1;\n__device__ const u32 table_entries[kTables] = {0};\n";
}

std::string integer_functions(const Element& element, const Encoder& encoder) {
  const std::string low = literal(encoder.value(encoder.codes().front()));
  const std::string high = literal(encoder.value(encoder.codes().back()));
  std::ostringstream out;
  // 1.5 * 2^23 leaves the nearest integer, ties to even.
  out << "DEVICE float nearest(float v, const float*) {\n  const float above = v > " << low
      << " ? v : " << low << ", c = above < " << high << " ? above : " << high
      << ";\n  return __fsub_rn(__fadd_rn(c, 12582912.0f), 12582912.0f);\n}\n"
      << "DEVICE u32 code_of(float v, const float* tables) { return (u32)(int)nearest(v, tables) & "
      << ((1u << element.bits) - 1) << "u; }\n";
  return without_table(out.str());
}

std::string floating_functions(const Element& element, const FloatRounding& rounding,
                               std::uint32_t zero_code) {
  std::ostringstream out;
  out << float_functions("element", rounding) << R"(DEVICE float nearest(float v, const float*) {
  const u32 sign = as_bits(v) & 0x80000000u;
  return as_float(as_bits(element_value(as_float(as_bits(v) & 0x7fffffffu))) | sign);
}
DEVICE u32 code_of(float v, const float*) {
  const float m = element_value(as_float(as_bits(v) & 0x7fffffffu));
  return as_bits(m) == 0 ? )"
      << zero_code << "u : element_code(m) | as_bits(v) >> 31 << " << element.bits - 1 << ";\n}\n";
  return without_table(out.str());
}

std::string table_text(const std::vector<std::uint32_t>& entries) {
  std::ostringstream out;
  out << "constexpr u32 kTables = " << entries.size()
      << ";\n__device__ const u32 table_entries[kTables] = {";
  for (std::size_t i = 0; i < entries.size(); ++i)
    out << (i % 8 == 0 ? "\n  " : " ") << hex(entries[i]) << ',';
  out << "\n};\n";
  return out.str();
}

/// Of `size` borders, a power of two with infinity behind the last; then the values by rank; then
/// the codes.
std::string table_functions(const Encoder& encoder) {
  const auto codes = encoder.codes();
  const auto below = encoder.below();
  const std::size_t size = std::bit_ceil(codes.size());
  std::vector<std::uint32_t> entries(size, bits_of(std::numeric_limits<float>::infinity()));
  for (std::size_t i = 0; i < below.size(); ++i) entries[i] = bits_of(below[i]);
  for (const std::uint8_t code : codes) entries.push_back(bits_of(encoder.value(code)));
  entries.resize(2 * size, 0);
  for (const std::uint8_t code : codes) entries.push_back(code);
  std::ostringstream out;
  if (codes.size() <= kFew) {
    // The bits of values are added up step by step, so that no step rounds.
    out << "DEVICE float nearest(float v, const float*) {\n  u32 bits = "
        << hex(bits_of(encoder.value(codes[0]))) << ";\n";
    for (std::size_t i = 0; i < below.size(); ++i)
      out << "  bits += v > as_float(" << hex(bits_of(below[i])) << ") ? "
          << hex(bits_of(encoder.value(codes[i + 1])) - bits_of(encoder.value(codes[i])))
          << " : 0u;\n";
    out << "  return as_float(bits);\n}\n";
  }
  out << "DEVICE u32 rank_of(float v, const float* tables) {\n  u32 rank = 0;\n#pragma unroll\n"
      << "  for (u32 half = " << size / 2 << "; half > 0; half /= 2)\n"
      << "    rank += tables[rank + half - 1] < v ? half : 0u;\n  return rank;\n}\n";
  if (codes.size() > kFew) {
    out << "DEVICE float nearest(float v, const float* tables) { return tables[" << size
        << " + rank_of(v, tables)]; }\n";
  }
  out << "DEVICE u32 code_of(float v, const float* tables) { return as_bits(tables[" << 2 * size
      << " + rank_of(v, tables)]); }\n"
      << table_text(entries);
  return out.str();
}

}  // namespace

std::string value_functions(const Element& element) {
  const Encoder encoder(element);
  if (element.encoding == Encoding::unsigned_integer ||
      element.encoding == Encoding::signed_integer) {
    return integer_functions(element, encoder);
  }
  if (const auto rounding = float_rounding(element)) {
    return floating_functions(element, *rounding, encoder(0.0f));
  }
  return table_functions(encoder);
}

std::string scale_functions(const Element* format) {
  const ScaleRounding scales(format);
  const std::string magnitude = "as_float(as_bits(scale) & 0x7fffffffu)";
  switch (scales.kind) {
    case ScaleRounding::Kind::none: return "DEVICE float stored(float) { return 1.0f; }\n";
    case ScaleRounding::Kind::exact:
      return "DEVICE float stored(float scale) { return scale; }\n"
             "DEVICE u32 scale_code(float stored) { return as_bits(stored); }\n";
    case ScaleRounding::Kind::exponent:
      return "DEVICE float stored(float scale) {\n"
             "  if (!(scale > 0x1p-127f)) return 0x1p-127f;\n"
             "  if (scale >= 0x1p127f) return 0x1p127f;\n"
             "  return as_float((as_bits(scale) + 0x7fffffu) & 0xff800000u);\n}\n"
             "DEVICE u32 scale_code(float stored) { return as_bits(stored) >> 23; }\n";
    case ScaleRounding::Kind::floating:
      return float_functions("magnitude", scales.floating) +
             "DEVICE float stored(float scale) {\n  return as_float(as_bits(magnitude_value(" +
             magnitude +
             ")) | (as_bits(scale) & 0x80000000u));\n}\n"
             "DEVICE u32 scale_code(float scale) {\n  return magnitude_code(" +
             magnitude + ") | as_bits(scale) >> 31 << " + std::to_string(format->bits - 1) +
             ";\n}\n";
    case ScaleRounding::Kind::whole:
      return "DEVICE float stored(float scale) {\n  return fminf(fmaxf(rintf(scale), 1.0f), " +
             literal(max_value(*format)) +
             ");\n}\nDEVICE u32 scale_code(float stored) { return (u32)stored; }\n";
    case ScaleRounding::Kind::any: break;
  }
  fail<Unsupported>("scales of ", format->name, " reach beyond the normal numbers of float32");
}

}  // namespace ladder::cuda
