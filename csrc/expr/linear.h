// SPDX-License-Identifier: Apache-2.0
//
// The expression that the compiler serves first:
//
//     y[m, n] = sum_k  x[m, k] * scale[n, k / group] * (decode(code[n, k]) - zero)
//
// x and y in `activation`, sums in f32, m at most `max_m`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/scalar.h"

namespace ladder {

/// A linear layer with integer codes of `bits` bits and one zero point for the whole weight.
struct Linear {
  int bits;            ///< 1 to 8, unsigned codes
  int zero;            ///< subtracted from every code; 2^(bits - 1) for symmetric types
  std::int64_t group;  ///< columns that share a scale; 0: a whole row
  Scalar activation;   ///< f16 or bf16; the scales have it too
  std::int64_t max_m;  ///< tokens, at least 1
  std::int64_t n, k;   ///< out_features, in_features

  bool operator==(const Linear&) const = default;
  std::int64_t group_size() const { return group == 0 ? k : group; }
  std::int64_t groups() const { return (k + group_size() - 1) / group_size(); }
};

/// Throws InvalidArgument that names the field at fault.
void check(const Linear& expr);

/// "y[m<=8, n=4096] f16 = sum k=4096: x[m, k] f16 * s[n, k/128] f16 * (u4[n, k] - 8)".
std::string to_string(const Linear& expr);

/// Bytes that any kernel must move: codes, scales, activations and outputs of `m` tokens, once
/// each.
double least_bytes(const Linear& expr, std::int64_t m);

/// The expression in double, and sum |x| |w|, which scales its error bound.
struct Reference {
  std::vector<double> y, magnitude;  ///< [m, n]
};
/// `x` [m, k] and `scales` [n, groups] as bits of expr.activation, `codes` [n, k] one per byte.
Reference evaluate(const Linear& expr, const std::vector<std::uint16_t>& x,
                   const std::vector<std::uint8_t>& codes,
                   const std::vector<std::uint16_t>& scales);

}  // namespace ladder
