// SPDX-License-Identifier: Apache-2.0
#include "expr/scale_place.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/joined.h"
#include "expr/decoding_parts.h"

namespace ladder {
namespace {

/// Columns of a step of the matrix instruction.
constexpr int kStep = 16;

/// Of the values of the codes, before scale and stored zero point.
int significant_bits(const Problem& problem) {
  int most = 0;
  for (std::uint32_t code = 0; code < 1u << problem.weight.bits; ++code) {
    const double value = value_of(problem.weight, code);
    if (value == 0 || !std::isfinite(value)) continue;
    int exponent, bits = 0;
    for (double rest = std::frexp(std::fabs(value), &exponent); rest != 0; ++bits) {
      rest = 2 * rest - std::floor(2 * rest);
    }
    most = std::max(most, bits);
  }
  return most;
}

/// Of the values of the codes, whatever integer zero point is stored.
double largest_value(const Problem& problem) {
  if (problem.weight.stored_zero == Zero::integer) return std::ldexp(1, problem.weight.bits);
  double most = 0;
  for (std::uint32_t code = 0; code < 1u << problem.weight.bits; ++code) {
    const double value = std::fabs(value_of(problem.weight, code));
    if (std::isfinite(value)) most = std::max(most, value);
  }
  return most;
}

/// Of x of s8: whole numbers times whole scales, which are bytes, and sums of all K of them.
std::string no_scaled_bytes(const Problem& problem) {
  const Weight& weight = problem.weight;
  if (!weight.type.has_integer_scales()) return "scales that are no integers beside x of s8";
  if (weight.element != nullptr || weight.shift != 0) return "codes that are no whole numbers";
  if (weight.stored_zero != Zero::none) return "stored zero points beside integer scales";
  if (weight.bits > kMostScaledBits) {
    return joined("integer scales for codes of ", weight.bits, " bits, of at most ",
                  kMostScaledBits);
  }
  const auto scale = static_cast<int>(max_value(*weight.type.scale));
  const int high = scale * ((weight.three ? 2 : (1 << weight.bits) - 1) - weight.zero);
  const int low = -scale * weight.zero;
  if (high > kLargestByte || low < -kLargestByte - 1) {
    return joined("products from ", low, " to ", high, " are no bytes");
  }
  constexpr std::int64_t kLargestProduct = 128 * 128;
  if (problem.k > std::numeric_limits<std::int32_t>::max() / kLargestProduct) {
    return joined("sums of ", problem.k, " products of bytes");
  }
  return {};
}

}  // namespace

bool scales_operands(const Problem& problem, ScalePlace place) {
  if (place == ScalePlace::usual) place = usual_scale_place(problem);
  return place == ScalePlace::operands || place == ScalePlace::rounded;
}

bool scales_bytes(const Problem& problem, ScalePlace place) {
  return problem.rounded_x() == Scalar::s8 && place != ScalePlace::rounded &&
         scales_operands(problem, place);
}

std::string no_scaled_operands(const Problem& problem) {
  const Scalar operand = problem.activation();
  if (problem.rounded_x() == Scalar::s8) return no_scaled_bytes(problem);
  if (problem.has_bytes_of_x()) return "scales do not multiply operands of e4m3";
  if (!problem.weight.scale) return "no scales for operands";
  if (problem.weight.type.has_integer_scales()) return "integer scales multiply sums of halves";
  if (problem.weight.stored_zero != Zero::none) {
    return "sums, not operands, meet a stored zero point";
  }
  const auto [bits, least, largest] = scales_of(*problem.weight.scale);
  // A power of two leaves the other factor's bits.
  const int value_bits = significant_bits(problem), held = mantissa_bits(operand) + 1;
  const int both = bits == 1 || value_bits <= 1 ? std::max(bits, value_bits) : bits + value_bits;
  if (both > held) {
    return joined("products of ", value_bits, " and ", bits, " significant bits do not fit ",
                  name_of(operand), "'s ", held);
  }
  const auto fields =
      problem.weight.element ? fields_of(*problem.weight.element, operand) : std::nullopt;
  if (!fields) {
    return "scales join fields of floats as they become operands, not integers or tables";
  }
  const Element& e = *problem.weight.element;
  if (fields->fields.special != 0) {
    return joined("scales join no codes of ", e.name, " that stand for no finite number");
  }
  // Of what the operands are, in their unit.
  const int unit = with_scales(*fields, *problem.weight.scale, operand).exponent;
  const int smallest = 1 - e.bias - e.mantissa_bits + least;
  const int end = std::ilogb(max_value(e)) + largest + 2;
  const int first = linear_exponent(operand), past = 1 << (exponent_bits(operand) - 1);
  if (smallest + unit < first || end + unit > past) {
    return joined("products from 2^", smallest, " to 2^", end, ", times 2^", unit, ", leave ",
                  name_of(operand), "'s 2^", first, " to 2^", past);
  }
  return {};
}

std::string no_rounded_operands(const Problem& problem) {
  const Scalar operand = problem.activation();
  if (problem.has_bytes_of_x()) return "scales do not multiply operands of 8 bits";
  if (!problem.weight.scale) return "no scales for operands";
  if (problem.weight.stored_zero == Zero::original || problem.weight.stored_zero == Zero::rescale) {
    return "sums, not operands, meet a stored zero point that is no integer";
  }
  const bool of_range = *problem.weight.scale == Scalar::e8m0 && operand == Scalar::bf16;
  const bool whole = problem.weight.type.has_integer_scales();
  if (!whole && *problem.weight.scale != operand && *problem.weight.scale != Scalar::e4m3 &&
      !of_range) {
    return joined("scales of ", name_of(*problem.weight.scale), " are no ", name_of(operand));
  }
  if (operand == Scalar::f16) {
    if (problem.has_scale2() && *problem.weight.scale == operand) {
      return "a second scale would meet products that f16 may not hold";
    }
    const double scales = whole ? max_value(*problem.weight.type.scale)
                                : std::ldexp(2, scales_of(*problem.weight.scale).largest);
    const double most = largest_value(problem) * scales;
    const double held = whole ? max_value(element_of(operand)) : std::ldexp(1, 16);
    if ((whole || *problem.weight.scale == Scalar::e4m3) && most > held) {
      return joined("products ", whole ? "up to " : "below ", most, " are more than f16 holds");
    }
  }
  if (problem.weight.element == nullptr) {
    return problem.weight.shift == 0 ? "" : "a zero point between two codes";
  }
  const int largest = (1 << (exponent_bits(operand) - 1)) - 1;
  if (const double most = max_value(*problem.weight.element); std::ilogb(most) > largest) {
    return joined(most, " of ", problem.weight.element->name, " is no ", name_of(operand));
  }
  if (const auto fields = fields_of(*problem.weight.element, operand)) {
    const int up = std::ilogb(fields->fields.factor) - fields->exponent;
    return up <= largest ? ""
                         : joined("values of ", problem.weight.element->name, " times 2^-", up,
                                  " take a factor that is no ", name_of(operand));
  }
  for (int code = 0; code < problem.weight.element->code_count(); ++code) {
    const double value = std::fabs(decode(*problem.weight.element, code));
    if (!std::isfinite(value) || value == 0) continue;
    if (std::ilogb(value) < 1 - largest || std::ilogb(value) >= largest) {
      return joined(value, " of ", problem.weight.element->name, " is no normal ",
                    name_of(operand));
    }
  }
  return {};
}

std::string no_relative_scales(const Problem& problem) {
  const Element* e = problem.weight.element;
  if (problem.rounded_x() != Scalar::e4m3) return "relative scales are for x of e4m3";
  if (e == nullptr || e->encoding != Encoding::floating || e->bits != kRelativeBits ||
      e->specials != Specials::none) {
    return joined("relative scales are for floats of ", kRelativeBits, " bits");
  }
  if (problem.weight.scale != Scalar::e8m0) return "relative scales are powers of two";
  const auto group = problem.group_size();
  if (problem.groups() == 1 || group >= kRelativeColumns || kRelativeColumns % group != 0) {
    return joined("groups of ", group, " columns are no parts of ", kRelativeColumns);
  }
  return {};
}

bool rounds_no_product(const Problem& problem) {
  const Weight& weight = problem.weight;
  if (weight.type.has_integer_scales()) {
    if (weight.element != nullptr || weight.exponent != 0 || weight.shift != 0) return false;
    const double most = largest_value(problem) * max_value(*weight.type.scale);
    return most <= std::ldexp(1, mantissa_bits(problem.activation()) + 1);
  }
  if (weight.scale != Scalar::e8m0 || problem.activation() != Scalar::bf16 ||
      weight.stored_zero != Zero::none || decoding_kind(problem) == Decoding::Kind::table) {
    return false;
  }
  const Element* e = weight.element;
  const int smallest = e == nullptr ? weight.exponent : 1 - e->bias - e->mantissa_bits;
  return smallest + scales_of(Scalar::e8m0).least >= linear_exponent(Scalar::bf16);
}

bool joins_powers(const Problem& problem) {
  // First choices for floats of 6 bits spilled so, by up to 80 bytes of a thread.
  constexpr int kWidest = 4;
  return rounds_no_product(problem) && decoding_kind(problem) == Decoding::Kind::fields &&
         problem.weight.bits <= kWidest;
}

ScalePlace usual_scale_place(const Problem& problem) {
  if (problem.has_bytes_of_x()) {
    return no_scaled_operands(problem).empty() ? ScalePlace::operands : ScalePlace::sums;
  }
  const bool one_step = problem.weight.scale && problem.group_size() == kStep;
  const bool may = one_step && decoding_kind(problem) == Decoding::Kind::fields;
  return may && no_scaled_operands(problem).empty() ? ScalePlace::operands : ScalePlace::sums;
}

}  // namespace ladder
