// SPDX-License-Identifier: Apache-2.0
#include "layout/in_place.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ladder {
namespace {

/// The lowest bit for codes beside ones, and so how many times the smallest code a one may be.
constexpr int kLowestBesideOnes = 3;

InPlace make(int bits, Scalar operand) {
  const bool ones = operand == Scalar::bf16;
  const int mantissa = mantissa_bits(operand);
  auto plan = ones ? unpack_plan(bit_plan(bits), mantissa, Align::rows, kLowestBesideOnes)
                   : unpack_plan(bit_plan(bits), linear_window(operand), Align::rows);
  const double base = ones ? 1 : 0;
  const int unit = ones ? -mantissa : linear_exponent(operand);
  std::array<int, 2> exponent;
  for (int parity = 0; parity < 2; ++parity) exponent[parity] = unit + plan.pairs[parity].offset;
  return {std::move(plan), to_bits(operand, base), base, exponent};
}

}  // namespace

bool fits_in_place(int bits, Scalar operand) {
  if (operand == Scalar::bf16) return kLowestBesideOnes + bits <= mantissa_bits(operand);
  return operand == Scalar::f16;
}

const InPlace& in_place(int bits, Scalar operand) {
  static const auto all = [] {
    std::array<std::vector<std::optional<InPlace>>, 2> made;
    for (Scalar scalar : {Scalar::f16, Scalar::bf16}) {
      for (int b = 0; b <= 8; ++b) {
        auto& to = made[scalar == Scalar::bf16].emplace_back();
        if (b > 0 && fits_in_place(b, scalar)) to = make(b, scalar);
      }
    }
    return made;
  }();
  LADDER_REQUIRE(bits >= 1 && bits <= 8 && fits_in_place(bits, operand), "codes of ", bits,
                 " bits are no ", name_of(operand), " in place");
  return *all[operand == Scalar::bf16][bits];
}

}  // namespace ladder
