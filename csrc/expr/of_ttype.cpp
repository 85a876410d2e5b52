// SPDX-License-Identifier: Apache-2.0
#include "expr/of_ttype.h"

#include <cmath>
#include <optional>

#include "base/error.h"

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

}  // namespace

std::uint32_t flip_of(const Element& element) {
  if (element.encoding == Encoding::signed_integer) return 1u << (element.bits - 1);
  if (element.encoding != Encoding::table) return 0;
  const auto progression = progression_of(element);
  return progression ? progression->flip : 0;
}

Scalar scale_scalar(const Element& format) {
  if (format.name == "float16") return Scalar::f16;
  if (format.name == "bfloat16") return Scalar::bf16;
  if (format.name == "e8m0") return Scalar::e8m0;
  if (format.name == "float8_e4m3") return Scalar::e4m3;
  if (format.bits > 32) fail<Unsupported>("scales of ", format.name, " do not fit f32");
  return Scalar::f32;
}

Linear linear_of(const TType& type, std::int64_t n, std::int64_t k, Scalar activation,
                 std::int64_t max_m) {
  const Element& element = *type.element;
  if (element.bits > 8) fail<Unsupported>(element.name, " has more than 8 bits");
  Linear out{.bits = element.bits,
             .zero = 0,
             .group = type.block.columns,
             .activation = activation,
             .max_m = max_m,
             .n = n,
             .k = k,
             .scale = std::nullopt};
  if (type.scale != nullptr) out.scale = scale_scalar(*type.scale);
  out.scale2 = type.scale2 != nullptr;
  switch (type.zero) {
    case Zero::none: break;
    case Zero::midpoint: out.zero = 1 << (element.bits - 1); break;
    case Zero::integer:
    case Zero::quantized: out.stored_zero = Zero::integer; break;
    case Zero::original:
    case Zero::rescale: out.stored_zero = type.zero; break;
  }
  if (element.encoding == Encoding::signed_integer) {
    out.zero = 1 << (element.bits - 1);
  } else if (element.encoding == Encoding::table) {
    if (const auto progression = progression_of(element)) {
      out.zero = progression->zero;
      out.shift = progression->shift;
      out.exponent = progression->exponent;
      out.three = progression->three;
    } else {
      out.element = &element;
    }
  } else if (element.encoding != Encoding::unsigned_integer) {
    out.element = &element;
  }
  // Nothing depends on the column: one group.
  if (!out.scale && out.stored_zero == Zero::none) out.group = 0;
  return out;
}

}  // namespace ladder
