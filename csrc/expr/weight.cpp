// SPDX-License-Identifier: Apache-2.0
#include "expr/weight.h"

#include <cmath>
#include <optional>

namespace ladder {
namespace {

/// value = ((code ^ flip) * 2^shift - zero) * 2^exponent.
struct Progression {
  std::uint32_t flip;
  int shift, zero, exponent;
  bool three;
};

/// The values as multiples of a power of two in the order of codes, or of two's complement: such a
/// table is an integer format, which needs no table to decode.
std::optional<Progression> progression_of(const Element& element) {
  const auto& values = element.values;
  // Ternary types have no fourth value: the last code repeats the middle one.
  const bool three = values.size() == 4 && values[3] == values[1];
  const auto count = static_cast<std::uint32_t>(values.size()) - (three ? 1 : 0);
  for (const std::uint32_t flip : {0u, count / 2}) {
    if (three && flip != 0) break;
    const double first = values[flip], step = values[1 ^ flip] - first;
    if (!(step > 0) || std::ldexp(1.0, std::ilogb(step)) != step) continue;
    bool even = true;
    for (std::uint32_t c = 0; c < count && even; ++c) even = values[c ^ flip] == first + c * step;
    if (!even) continue;
    for (const int shift : {0, 1}) {
      const double zero = -std::ldexp(first / step, shift);
      if (zero != std::floor(zero) || zero < 0 || zero > std::ldexp(count, shift)) continue;
      return Progression{flip, shift, static_cast<int>(zero), std::ilogb(step) - shift, three};
    }
  }
  return std::nullopt;
}

/// Itself where kernels read scales of `format`, else f32, which holds every value of it. What is
/// for operands only is no format of scales.
Scalar scale_scalar(const Element& format) {
  if (format.encoding == Encoding::unsigned_integer) return Scalar::u8;
  const auto same = scalar_of(format);
  const bool read = same && same != Scalar::e4m3fnuz && format.encoding != Encoding::signed_integer;
  return read ? *same : Scalar::f32;
}

}  // namespace

std::uint32_t flip_of(const Element& element) {
  if (element.encoding == Encoding::signed_integer) return 1u << (element.bits - 1);
  if (element.encoding != Encoding::table) return 0;
  const auto progression = progression_of(element);
  return progression ? progression->flip : 0;
}

Weight::Weight(const TType& stored)
    : type(stored), bits(stored.element->bits), group(stored.block.columns) {
  const Element& format = *type.element;
  if (type.scale != nullptr) {
    scale = scale_scalar(*type.scale);
  }
  switch (type.zero) {
    case Zero::none: break;
    case Zero::midpoint: zero = 1 << (bits - 1); break;
    case Zero::integer:
    case Zero::quantized: stored_zero = Zero::integer; break;
    case Zero::original:
    case Zero::rescale: stored_zero = type.zero; break;
  }
  if (type.superblock > 0) {
    const bool is_signed = type.scale->encoding == Encoding::signed_integer;
    superblocks = {type.superblock, is_signed ? Scalar::s8 : Scalar::u8,
                   scale_scalar(*type.scale2)};
    scale = Scalar::f32;
  }
  const auto progression =
      format.encoding == Encoding::table ? progression_of(format) : std::nullopt;
  if (format.encoding == Encoding::signed_integer) {
    zero = 1 << (bits - 1);
  } else if (progression) {
    zero = progression->zero;
    shift = progression->shift;
    exponent = progression->exponent;
    three = progression->three;
  } else if (format.encoding != Encoding::unsigned_integer) {
    element = &format;
  }
  // Nothing depends on the column: one group.
  if (!scale && stored_zero == Zero::none) group = 0;
}

double value_of(const Weight& weight, std::uint32_t code) {
  if (weight.element != nullptr) return decode(*weight.element, code);
  if (weight.three && code == 3) code = 1;
  return std::ldexp(static_cast<double>(code << weight.shift) - weight.zero, weight.exponent);
}

}  // namespace ladder
