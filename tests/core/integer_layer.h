// SPDX-License-Identifier: Apache-2.0
//
// Layers by what kernels read of their weight, for tests that go through widths and zero points: of
// which tType a weight would have to be, nobody asks there. Internal to the tests.
#pragma once

#include <cmath>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/joined.h"
#include "expr/constructors.h"

namespace ladder::testing {

/// Codes of `bits` bits that stand for (code * 2^shift - zero) * 2^exponent: of unsigned integers,
/// or of a table in even steps.
inline const Element& element_of_integers(int bits, int zero, int shift = 0, int exponent = 0,
                                          bool three = false) {
  static std::mutex mutex;
  static std::deque<std::pair<std::vector<double>, Element>> made;  // elements are handles
  if (zero == 0 && shift == 0 && exponent == 0 && !three) return element(joined("uint", bits));
  std::vector<double> values;
  for (int code = 0; code < 1 << bits; ++code) {
    const int counted = three && code == 3 ? 1 : code;
    values.push_back(std::ldexp((counted << shift) - zero, exponent));
  }
  const std::lock_guard lock(mutex);
  for (const auto& each : made) {
    if (each.first == values) return each.second;
  }
  auto& [kept, row] = made.emplace_back(std::move(values), Element{});
  row = {.name = "integers", .encoding = Encoding::table, .bits = bits, .values = kept};
  return row;
}

/// The same codes with another constant zero point; stored ones are gone.
inline void set_integers(Problem& problem, int bits, int zero, int shift = 0, int exponent = 0,
                         bool three = false) {
  TType type = problem.weight.type;
  const bool midpoint = zero == 1 << (bits - 1) && shift == 0 && exponent == 0 && !three;
  type.element = &element_of_integers(bits, midpoint ? 0 : zero, shift, exponent, three);
  type.zero = midpoint ? Zero::midpoint : Zero::none;
  problem.weight = Weight(type);
}
/// Unsigned codes with stored zero points.
inline void set_stored_zero(Problem& problem, Zero zero) {
  TType type = problem.weight.type;
  type.element = &element(joined("uint", problem.weight.bits));
  type.zero = zero;
  problem.weight = Weight(type);
}
inline void set_element(Problem& problem, const Element& element) {
  TType type = problem.weight.type;
  type.element = &element;
  type.zero = Zero::none;
  problem.weight = Weight(type);
}
inline void set_group(Problem& problem, std::int64_t group) {
  TType type = problem.weight.type;
  type.block.columns = group;
  problem.weight = Weight(type);
}
inline void set_scale(Problem& problem, std::optional<Scalar> scale) {
  TType type = problem.weight.type;
  type.scale = scale ? &element_of(*scale) : nullptr;
  problem.weight = Weight(type);
}
inline void set_scale2(Problem& problem) {
  TType type = problem.weight.type;
  type.scale2 = &element("float32");
  problem.weight = Weight(type);
  problem.epilogue.insert(problem.epilogue.begin(), SecondScale{});
}

inline Problem integer_layer(int bits, int zero, std::int64_t group, Scalar activation,
                             std::int64_t m, std::int64_t n, std::int64_t k,
                             std::optional<Scalar> scale = Scalar::f16) {
  const TType type{&element("uint4"), {1, group}, scale ? &element_of(*scale) : nullptr};
  Problem out = linear_of(type, n, k, activation, m);
  set_integers(out, bits, zero);
  return out;
}

}  // namespace ladder::testing
