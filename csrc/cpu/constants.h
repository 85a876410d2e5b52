// SPDX-License-Identifier: Apache-2.0
//
// Registers whose numbers follow a rule: indices of permutations, amounts of shifts. Without
// external linkage, as cpu/shared_loops.h.
#pragma once

#include <cstdint>

namespace ladder::cpu {
namespace {

template <class T, int kCount>
struct Constants {
  alignas(sizeof(T) * kCount) T at[kCount];
};

/// value(i) in place i.
template <class T, int kCount, class Value>
constexpr Constants<T, kCount> constants(Value value) {
  Constants<T, kCount> result{};
  for (int i = 0; i < kCount; ++i) result.at[i] = static_cast<T>(value(i));
  return result;
}

}  // namespace
}  // namespace ladder::cpu
