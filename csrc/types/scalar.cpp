// SPDX-License-Identifier: Apache-2.0
#include "types/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace ladder {
namespace {

static_assert([] {
  for (std::size_t i = 0; i < kScalars.size(); ++i) {
    if (kScalars[i].scalar != static_cast<Scalar>(i)) return false;
  }
  return true;
}());

/// Found once: interpreters ask for each number.
const Element* stored(Scalar scalar) {
  static const auto all = [] {
    std::array<const Element*, kScalars.size()> out{};
    for (const ScalarRow& row : kScalars) {
      if (!row.element.empty()) out[static_cast<std::size_t>(row.scalar)] = &element(row.element);
    }
    return out;
  }();
  return all[static_cast<std::size_t>(scalar)];
}

const Element& floating(Scalar scalar) {
  const Element* row = stored(scalar);
  LADDER_CHECK(row != nullptr && row->encoding == Encoding::floating, name_of(scalar),
               " is no floating format");
  return *row;
}

}  // namespace

const Element& element_of(Scalar scalar) {
  LADDER_CHECK(stored(scalar) != nullptr, name_of(scalar), " is no storage format");
  return *stored(scalar);
}

std::optional<Scalar> scalar_of(std::string_view element) {
  const auto row = std::ranges::find(kScalars, element, &ScalarRow::element);
  return row == kScalars.end() || element.empty() ? std::nullopt : std::optional(row->scalar);
}

std::optional<Scalar> scalar_called(std::string_view name) {
  const auto row = std::ranges::find(kScalars, name, &ScalarRow::name);
  return row == kScalars.end() ? std::nullopt : std::optional(row->scalar);
}

int linear_window(Scalar scalar) { return mantissa_bits(scalar) + 1; }

int linear_exponent(Scalar scalar) {
  return 1 - floating(scalar).bias - floating(scalar).mantissa_bits;
}

int exponent_bits(Scalar scalar) { return floating(scalar).exponent_bits; }
int mantissa_bits(Scalar scalar) { return floating(scalar).mantissa_bits; }

double to_number(Scalar scalar, std::uint32_t bits) {
  switch (scalar) {
    case Scalar::u32:
    case Scalar::u8: return bits;
    case Scalar::s8: return static_cast<std::int8_t>(bits);
    case Scalar::s32: return static_cast<std::int32_t>(bits);
    case Scalar::f32: return std::bit_cast<float>(bits);
    case Scalar::f16:
    case Scalar::bf16:
    case Scalar::e8m0:
    case Scalar::e4m3:
    case Scalar::e4m3fnuz: break;
  }
  return decode(*stored(scalar), bits & ((1u << bits_of(scalar)) - 1));
}

std::uint32_t to_bits(Scalar scalar, double number) {
  switch (scalar) {
    case Scalar::u32:
    case Scalar::u8: return static_cast<std::uint32_t>(number);
    case Scalar::s8: return static_cast<std::uint8_t>(static_cast<std::int8_t>(number));
    case Scalar::s32: return static_cast<std::uint32_t>(static_cast<std::int32_t>(number));
    case Scalar::f32: return std::bit_cast<std::uint32_t>(static_cast<float>(number));
    case Scalar::f16:
    case Scalar::bf16:
    case Scalar::e8m0:
    case Scalar::e4m3:
    case Scalar::e4m3fnuz: break;
  }
  return encode(*stored(scalar), number, Overflow::special);
}

std::uint32_t nearest_code(Scalar scalar, float number) {
  LADDER_CHECK(scalar == Scalar::s8 || scalar == Scalar::e4m3, "codes of ", name_of(scalar));
  if (scalar == Scalar::s8 && std::isnan(number)) return 0;
  return encode(*stored(scalar), number, Overflow::saturate);
}

}  // namespace ladder
