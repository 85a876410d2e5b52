// SPDX-License-Identifier: Apache-2.0
#include "expr/decoding.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "expr/decoding_parts.h"

namespace ladder {

std::optional<Decoding> fields_of(const Element& e, Scalar operand) {
  if (e.encoding != Encoding::floating || e.specials == Specials::fnuz) return std::nullopt;
  if (e.mantissa_bits > mantissa_bits(operand)) return std::nullopt;
  const int spare = exponent_bits(operand) - e.exponent_bits;
  const bool fills = spare == 0 && e.specials != Specials::ieee;
  const bool halved = fills && e.specials == Specials::none && operand == Scalar::f16;
  if (spare < 0 || (fills && !halved)) return std::nullopt;
  Decoding out{Decoding::Kind::fields, 0, {}, {}};
  FloatFields& fields = out.fields;
  fields = {e.bits, mantissa_bits(operand) - e.mantissa_bits, 0, 1, halved};
  if (e.specials == Specials::nan_only) fields.special = 1u << fields.place;
  if (e.specials == Specials::ieee && spare > 0) fields.special = 1u << mantissa_bits(operand);
  out.exponent = e.bias - ((1 << (exponent_bits(operand) - 1)) - 1) - (halved ? 1 : 0);
  if (operand == Scalar::bf16) {
    // Left where they are, products with them would be too small for f32.
    const int up = std::min(-out.exponent, 127);
    fields.factor = std::ldexp(1.0, up);
    out.exponent += up;
  }
  return out;
}

Scales scales_of(Scalar format) {
  const Element& e = element_of(format);
  if (e.encoding == Encoding::unsigned_integer) return {e.bits, 0, std::ilogb(max_value(e))};
  const int least = e.encoding == Encoding::exponent ? -e.bias : linear_exponent(format);
  return {e.mantissa_bits + 1, least, std::ilogb(max_value(e))};
}

Decoding with_scales(Decoding d, Scalar format, Scalar operand) {
  const int largest_exponent = (1 << (exponent_bits(operand) - 1)) - 1;
  const int factor = std::ilogb(d.fields.factor);
  const int kept = std::min(factor, largest_exponent - scales_of(format).largest);
  d.fields.factor = std::ldexp(1.0, kept);
  d.exponent += kept - factor;
  d.scaled = true;
  return d;
}

namespace {

/// The exponent of the unit of a table's operands, which leaves room for the largest.
int table_exponent(const Element& e, Scalar operand) {
  double largest = 0;
  for (int code = 0; code < e.code_count(); ++code) {
    const double value = std::fabs(decode(e, code));
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  const int top = operand == Scalar::f16 ? 14 : 0;
  return largest == 0 ? 0 : top - std::ilogb(largest);
}

Decoding table_of(const Element& e, Scalar operand, int exponent) {
  Decoding out{Decoding::Kind::table, exponent, {}, {}};
  for (int code = 0; code < e.code_count(); ++code) {
    const double value = std::ldexp(decode(e, code), out.exponent);
    const auto bits = to_bits(operand, value);
    if (e.encoding == Encoding::floating && !std::isnan(value) &&
        to_number(operand, bits) != value) {
      fail<Unsupported>("the values of ", e.name, " do not fit ", name_of(operand), " times 2^",
                        exponent, ": code ", code, ", ", decode(e, code), ", is lost");
    }
    out.table.push_back(static_cast<std::uint16_t>(bits));
  }
  return out;
}

/// Values as they are, in the operand's format, which are then multiplied. Integers are made so by
/// the way that they are unpacked.
Decoding rounded_decoding(const Problem& problem) {
  Decoding out{Decoding::Kind::integers, 0, {}, {}};
  if (problem.weight.element != nullptr) {
    if (auto fields = fields_of(*problem.weight.element, problem.activation())) {
      out = *fields;
      out.fields.factor = std::ldexp(out.fields.factor, -out.exponent);
      out.exponent = 0;
    } else {
      out = table_of(*problem.weight.element, problem.activation(), 0);
    }
  }
  out.scaled = out.rounded = true;
  return out;
}

}  // namespace

Decoding::Kind decoding_kind(const Problem& problem) {
  if (problem.weight.element == nullptr) return Decoding::Kind::integers;
  return fields_of(*problem.weight.element, problem.activation()) ? Decoding::Kind::fields
                                                                  : Decoding::Kind::table;
}

RelativeOperands relative_operands(const Element& element) {
  const Element& bytes = element_of(Scalar::e4m3);
  const int magnitudes = 1 << (element.bits - 1);
  RelativeOperands out{std::ilogb(max_value(bytes) / max_value(element)), {}};
  for (int entry = 0; entry < kRelativeEntries; ++entry) {
    for (int first = 0; first < magnitudes; first += 4) {
      std::uint32_t word = 0;
      for (int b = 0; b < 4; ++b) {
        const double value = std::ldexp(decode(element, first + b), out.exponent - entry);
        word |= encode(bytes, value) << (8 * b);
      }
      out.words.push_back(word);
    }
  }
  return out;
}

Decoding decoding_of(const Problem& problem, ScalePlace place) {
  if (place == ScalePlace::usual) place = usual_scale_place(problem);
  if (place == ScalePlace::operands) {
    if (const auto why = no_scaled_operands(problem); !why.empty()) fail<Unsupported>(why);
    if (problem.has_bytes_of_x()) {
      Decoding out{Decoding::Kind::integers, 0, {}, {}};
      out.scaled = true;
      return out;
    }
    return with_scales(*fields_of(*problem.weight.element, problem.activation()),
                       *problem.weight.scale, problem.activation());
  }
  if (place == ScalePlace::rounded) {
    if (const auto why = no_rounded_operands(problem); !why.empty()) fail<Unsupported>(why);
    return rounded_decoding(problem);
  }
  if (problem.weight.element == nullptr) return {Decoding::Kind::integers, 0, {}, {}};
  if (auto fields = fields_of(*problem.weight.element, problem.activation())) return *fields;
  return table_of(*problem.weight.element, problem.activation(),
                  table_exponent(*problem.weight.element, problem.activation()));
}

Decoding converted(Decoding d, const Problem& problem) {
  const bool scaled = d.scaled && !d.rounded;  // by a product that takes the factor, too
  if (problem.weight.element != &element_of(Scalar::e4m3) || scaled) return d;
  if (d.kind != Decoding::Kind::fields) return d;
  d.fields.factor = std::ldexp(d.fields.factor, -d.exponent);
  d.exponent = 0;
  d.fields.converted = true;
  return d;
}

Decoding without_subnormals(Decoding d, const Problem& problem) {
  if (d.kind == Decoding::Kind::integers) return d;  // multiplied up by the way they are made
  const Scalar operand = problem.activation();
  const int least = 1 - ((1 << (exponent_bits(operand) - 1)) - 1);
  const auto lost = [&](double value) {
    fail<Unsupported>("the values of ", problem.weight.element->name,
                      " span more than the normal numbers of ", name_of(operand), ": ", value,
                      " would be a subnormal operand");
  };
  if (d.kind == Decoding::Kind::table) {
    for (const std::uint16_t bits : d.table) {
      const double value = to_number(operand, bits);
      if (value != 0 && std::fabs(value) < std::ldexp(1.0, least)) {
        lost(std::ldexp(value, -d.exponent));
      }
    }
    return d;
  }
  const Element& e = *problem.weight.element;
  const int top = std::ilogb(max_value(e));
  const int up = std::min(-least - top - d.exponent, -least);  // the factor is an operand, too
  if (up > 0 && d.fields.factor == 1) {
    d.fields.factor = std::ldexp(1.0, up);
    d.exponent += up;
  }
  const int smallest =
      1 - e.bias - e.mantissa_bits + (d.scaled ? scales_of(*problem.weight.scale).least : 0);
  if (smallest + d.exponent < least) lost(std::ldexp(1.0, smallest));
  return d;
}

double decoding_error(const Problem& problem, ScalePlace place) {
  const bool table =
      problem.weight.element != nullptr && problem.weight.element->encoding == Encoding::table;
  const double step = std::ldexp(1.0, -mantissa_bits(problem.activation()) - 1);
  const bool rounded = place == ScalePlace::rounded && !rounds_no_product(problem);
  return (table ? step : 0) + (rounded ? step : 0);
}

}  // namespace ladder
