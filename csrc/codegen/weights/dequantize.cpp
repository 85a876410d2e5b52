// SPDX-License-Identifier: Apache-2.0
#include "codegen/weights/dequantize.h"

#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/emit/literal.h"
#include "codegen/weights/image_tile.h"

namespace ladder::weights {
namespace {

/// Whether (code * 2^shift - zero) * 2^exponent is what every code stands for.
bool is_arithmetic(const Weight& weight) {
  if (weight.element != nullptr) return false;
  for (std::uint32_t code = 0; code < 1u << weight.bits; ++code) {
    const double value = static_cast<double>(code << weight.shift) - weight.zero;
    if (value_of(weight, code) != std::ldexp(value, weight.exponent)) return false;
  }
  return true;
}

/// `value(code)`, exact in f32: by arithmetic where that is right, else from a table in shared
/// memory.
std::string value_functions(const Weight& weight) {
  std::ostringstream out;
  if (is_arithmetic(weight)) {
    out << "DEVICE float value(u32 code, const float*) { return (float)((int)(code << "
        << weight.shift << ") - " << weight.zero << ") * "
        << literal(std::ldexp(1.0, weight.exponent))
        << "; }\nconstexpr u32 kValues = 1;\n__device__ const u32 values_of_codes[kValues] = "
           "{0};\n";
    return out.str();
  }
  out << "DEVICE float value(u32 code, const float* values) { return values[code]; }\n"
      << "constexpr u32 kValues = " << (1 << weight.bits)
      << ";\n__device__ const u32 values_of_codes[kValues] = {";
  for (std::uint32_t code = 0; code < 1u << weight.bits; ++code) {
    out << (code % 8 == 0 ? "\n  " : " ") << hex(to_bits(Scalar::f32, value_of(weight, code)))
        << ',';
  }
  out << "\n};\n";
  return out.str();
}

/// `name(stored, at)`: number `at` of an array of `scalar`.
std::string reader(const std::string& name, Scalar scalar) {
  const auto function = [&](const std::string& type, const std::string& body) {
    return "DEVICE float " + name + "(const void* stored, u32 at) { const " + type +
           " bits = ((const " + type + "*)stored)[at]; " + body + " }\n";
  };
  switch (scalar) {
    case Scalar::f16: return function("u16", "return low_f16(bits);");
    case Scalar::bf16: return function("u16", "return low_bf16(bits);");
    case Scalar::f32: return function("u32", "return as_float(bits);");
    case Scalar::u8: return function("unsigned char", "return (float)bits;");
    case Scalar::s8: return function("signed char", "return (float)bits;");
    case Scalar::e8m0:
      return function(
          "unsigned char",
          "return as_float(bits == 0 ? 0x400000u : bits == 255 ? 0x7fc00000u : (u32)bits "
          "<< 23);");
    case Scalar::e4m3:
      // The fields of a half whose exponent is 8 too low.
      return function(
          "unsigned char",
          "return (bits & 127) == 127 ? as_float(0x7fc00000u) : low_f16((bits & 128u) << "
          "8 | (bits & 127u) << 7) * 256.0f;");
    case Scalar::u32:
    case Scalar::e4m3fnuz:
    case Scalar::s32: break;
  }
  fail<InternalError>("no reader of ", name_of(scalar));
}

/// `weight(value, scale, zero)`, rounded where docs/format.md says; never contracted to one
/// rounding.
std::string weight_function(const Weight& weight) {
  std::string text = "v";
  if (weight.stored_zero == Zero::integer || weight.stored_zero == Zero::original) {
    text = "__fsub_rn(" + text + ", zero)";
  }
  if (weight.scale) text = "__fmul_rn(" + text + ", scale)";
  if (weight.stored_zero == Zero::rescale) text = "__fsub_rn(" + text + ", zero)";
  if (weight.type.has_scale_of_sums()) text = "__fmul_rn(" + text + ", scale2)";
  return "DEVICE float weight(float v, float scale, float zero, float scale2) { return " + text +
         "; }\n";
}

/// The second scales of eight columns, which are in one superblock.
std::string seconds_of_run(const Weight& weight) {
  if (!weight.superblocks) return "";
  const auto columns = std::to_string(weight.superblocks->columns) + "u";
  const auto read = [](const char* name, const char* at) {
    return joined("    const float ", name, " = second_at(scale2, ", at, ");\n");
  };
  const auto here =
      joined("    const u32 superblock = (column / ", columns,
             " * n_blocks + blockIdx.y) * 64 + row % 8 * 8 + row / 8;\n", read("d", "superblock"));
  if (weight.seconds() < 2) return here;
  const auto all = joined("superblock + (k + ", columns, " - 1) / ", columns, " * n_blocks * 64");
  return here + read("z", all.c_str());
}

std::string times_second(const std::string& number, bool is_integer, const char* second) {
  return is_integer ? joined("__fmul_rn(", number, ", ", second, ")") : number;
}

std::string store_run(Scalar out_scalar) {
  const std::string name(name_of(out_scalar));
  const bool wide = out_scalar == Scalar::f32;
  const auto one = [&](const std::string& v) {
    return wide ? v : "(u16)pack_" + name + "(" + v + ", 0.0f)";
  };
  std::ostringstream out;
  out << "    Out* const to = out + (u64)(row0 + row) * k;\n"
         "    if (columns != nullptr) {\n"
         "      for (u32 e = 0; e < 8; ++e) if (column + e < k) to[columns[column + e]] = "
      << one("v[e]") << ";\n    } else if (k % 8 == 0) {\n";
  if (wide) {
    out << "      for (u32 h = 0; h < 2; ++h) {\n        Words4 w;\n"
           "        for (u32 e = 0; e < 4; ++e) w.w[e] = as_bits(v[4 * h + e]);\n"
           "        ((Words4*)(to + column))[h] = w;\n      }\n";
  } else {
    out << "      Words4 w;\n      for (u32 e = 0; e < 4; ++e) w.w[e] = pack_" << name
        << "(v[2 * e], v[2 * e + 1]);\n      *(Words4*)(to + column) = w;\n";
  }
  out << "    } else {\n      for (u32 e = 0; e < 8; ++e) if (column + e < k) to[column + e] = "
      << one("v[e]") << ";\n    }\n";
  return out.str();
}

}  // namespace

std::string dequantize_source(const Weight& weight, Scalar out_scalar, std::string_view prelude) {
  const int bits = weight.bits;
  std::ostringstream helpers;
  helpers << value_functions(weight) << weight_function(weight)
          << reader("scale_at", weight.scale ? weight.scale_in_memory() : Scalar::u8)
          << reader("zero_at",
                    weight.stored_zero == Zero::none ? Scalar::u8 : weight.zero_in_memory())
          << (weight.superblocks ? reader("second_at", weight.superblocks->seconds) : "")
          << "typedef " << (out_scalar == Scalar::f32 ? "float" : "u16") << " Out;\n";
  auto text = tile_opening(bits, prelude, "dequantize",
                           "const u32* __restrict__ image, const void* __restrict__ scales, const "
                           "void* __restrict__ zeros, const float* __restrict__ scale2, const int* "
                           "__restrict__ columns, Out* __restrict__ out, u32 n, u32 k");
  text.insert(text.find("constexpr u32 kBits"), helpers.str());
  std::ostringstream out;
  out << text << "  __shared__ float values[kValues];\n"
      << "  for (u32 i = threadIdx.x; i < kValues; i += kThreads) {\n"
      << "    values[i] = as_float(values_of_codes[i]);\n  }\n"
      << codes_of_image(bits)
      << "  const u32 group = " << (weight.group == 0 ? "k" : std::to_string(weight.group) + "u")
      << ", n_blocks = (n + 63) / 64;\n  const bool whole = "
      << (weight.group % 8 == 0 ? "true" : "false") << ";  // no run of 8 codes crosses groups\n"
      << R"(  for (u32 i = threadIdx.x; i < 64 * 8 * kBlocks; i += kThreads) {
    const u32 row = i / (8 * kBlocks), run = i % (8 * kBlocks), column = column0 + 8 * run;
    if (row0 + row >= n || column >= k) continue;
    const u32* const four = (const u32*)(codes + row * kPitch + 8 * run);
    const auto place = [&](u32 c) {
      return (c / group * n_blocks + blockIdx.y) * 64 + row % 8 * 8 + row / 8;
    };
    const u32 here = place(column);
)" << seconds_of_run(weight)
      << R"(    const float second = )"
      << (!weight.type.has_scale_of_sums() ? "1.0f"
          : weight.type.scale2_of_rows     ? "scale2[row0 + row]"
                                           : "*scale2")
      << R"(;
    float v[8];
#pragma unroll
    for (u32 e = 0; e < 8; ++e) {
      const u32 code = four[e / 4] >> 8 * (e % 4) & 255;
      const u32 at = whole || column + e >= k ? here : place(column + e);
      v[e] = weight(value(code, values), )"
      << times_second(weight.scale ? "scale_at(scales, at)" : "1.0f", weight.seconds() > 0, "d")
      << ", "
      << times_second(weight.stored_zero != Zero::none ? "zero_at(zeros, at)" : "0.0f",
                      weight.seconds() > 1, "z")
      << R"(, second);
    }
)" << store_run(out_scalar)
      << "  }\n}\n";
  return out.str();
}

std::string permute_source(int bits, std::string_view prelude) {
  std::ostringstream out;
  out << prelude << R"(typedef unsigned int u32;
typedef unsigned long long u64;
constexpr u32 kBits = )"
      << bits << R"(;
extern "C" __global__ void __launch_bounds__(256) permute(
    const u32* __restrict__ from, u32* __restrict__ to, const int* __restrict__ columns, u32 n,
    u32 k) {
  const u32 row_words = (k * kBits + 31) / 32, word = blockIdx.x * 256 + threadIdx.x;
  if (word >= row_words) return;
  for (u32 row = blockIdx.y * 64; row < n && row < blockIdx.y * 64 + 64; ++row) {
    const u32* const codes = from + (u64)row * row_words;
    u32 w = 0;
    for (u32 j = word * 32 / kBits; j < k && j * kBits < 32 * word + 32; ++j) {
      const u32 bit = (u32)columns[j] * kBits, at = bit / 32, shift = bit % 32;
      u32 code = codes[at] >> shift;
      if (shift + kBits > 32) code |= codes[at + 1] << (32 - shift);
      code &= (1u << kBits) - 1;
      const int place = (int)(j * kBits) - (int)(32 * word);  // negative: begins a word earlier
      w |= place < 0 ? code >> -place : code << place;
    }
    to[(u64)row * row_words + word] = w;
  }
}
)";
  return out.str();
}

}  // namespace ladder::weights
