// SPDX-License-Identifier: Apache-2.0
//
// The expression that the compiler serves: a linear layer whose weight is stored in few bits.
//
//     y[m, n] = scale2 * sum_k  x[m, gather[k]] * weight[n, k]  +  bias[n]
//
//     weight[n, k] = scale[n, g] * value(code[n, k])                   g = k / group
//                  = scale[n, g] * (value(code[n, k]) - zero[n, g])    stored zeros integer,
//                  original = scale[n, g] * value(code[n, k]) - zero[n, g]      rescale
//
// Of experts there is one such layer for each item of a table, with rows of x and y and a weight of
// its own (Linear::experts).
//
// x, y and bias in `activation`, sums in f32; with rounded_x each x[m, k] is a number of 8 bits
// times a scale of its token, and y and bias may be f32. Parts that an expression has not drop out.
// Two dimensional blocks, quantised zero points and other formats of scales are brought into this
// form when a weight is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/integers.h"
#include "expr/scalar.h"
#include "types/ttype.h"

namespace ladder {

/// Columns that digit_place() keeps together.
constexpr std::int64_t kColumnsOfBytes = 16;

/// Of the memory system: parts of an image begin at multiples of it.
constexpr std::int64_t kPartBytes = 128;

struct Linear {
  int bits;            ///< 1 to 8
  int zero;            ///< integers: the constant zero point; 2^(bits - 1) for symmetric types
  std::int64_t group;  ///< columns that share a scale and a zero point; 0: a whole row
  Scalar activation;   ///< f16 or bf16
  std::int64_t max_m;  ///< tokens, at least 1
  std::int64_t n, k;   ///< out_features, in_features
  std::optional<Scalar> scale = Scalar::f16;  ///< f16, bf16, f32, e8m0, e4m3; nothing: no scales
  /// A floating or table format; null: integers, value = (code * 2^shift - zero) * 2^exponent.
  const Element* element = nullptr;
  int shift = 0, exponent = 0;
  bool three = false;  ///< integers of 2 bits: code 3 stands for code 1, which ternary types need
  /// Stored zero points: none; integer, in u8; original or rescale, in the scalar of the scales.
  Zero stored_zero = Zero::none;
  bool scale2 = false, bias = false, gather = false;
  /// x comes rounded to this format of 8 bits, s8 or e4m3, its columns in the order of digit_place
  /// (layout/digits.h), with an f32 scale for each token. With s8 the codes are integers, and
  /// products are exact in s32 within a group; with e4m3 the codes, less their zero point, are
  /// numbers that e4m3 holds.
  std::optional<Scalar> rounded_x = std::nullopt;
  /// y and bias are f32: sums as they are. Of rounded_x alone, which is no `activation` either.
  bool wide_y = false;

  /// Of a layer of experts: how their weights lie, and how many products a launch has.
  struct Experts {
    /// Products that a launch is expected to have, each of up to max_m rows by one expert, and how
    /// far it may be from that: a standard deviation. Only schedules depend on them: a launch may
    /// have any number.
    std::int64_t items, deviation;
    /// From the weight of one expert to that of the next, and so for its scales, zeros, scale2 and
    /// gather. Whole lines of memory.
    std::int64_t bytes;

    bool operator==(const Experts&) const = default;
  };
  std::optional<Experts> experts = std::nullopt;

  bool operator==(const Linear&) const = default;
  bool has_bytes_of_x() const { return rounded_x.has_value(); }
  Scalar x_scalar() const { return rounded_x.value_or(activation); }
  /// Of y and of the bias.
  Scalar y_scalar() const { return wide_y ? Scalar::f32 : activation; }
  /// Of a launch.
  std::int64_t products() const { return experts ? experts->items : 1; }
  std::int64_t group_size() const { return group == 0 ? k : group; }
  std::int64_t groups() const { return ceil_div(k, group_size()); }
  /// Scalar of the stored zero points.
  Scalar zero_scalar() const { return stored_zero == Zero::integer ? Scalar::u8 : *scale; }
};

/// Throws InvalidArgument that names the field at fault.
void check(const Linear& expr);

/// "y[m<=8, n=4096] f16 = sum k=4096: x[m, k] f16 * s[n, k/128] f16 * (u4[n, k] - 8)".
std::string to_string(const Linear& expr);

/// What `code` stands for before scale and stored zero point; exact.
double value_of(const Linear& expr, std::uint32_t code);

/// Bytes that any kernel must move: codes, scales, zero points, activations and outputs of `m`
/// tokens, once each; of experts, of each product.
double least_bytes(const Linear& expr, std::int64_t m);

/// The operands of an expression as bits of their scalars, row-major; empty where it has none.
struct LinearData {
  std::vector<std::uint32_t> x;              ///< [m, k], columns in their order
  std::vector<float> x_scales;               ///< [m], of bytes
  std::vector<std::uint8_t> codes;           ///< [n, k]
  std::vector<std::uint32_t> scales, zeros;  ///< [n, groups]
  float scale2 = 1;
  std::vector<std::uint32_t> bias;   ///< [n]
  std::vector<std::int32_t> gather;  ///< [k], a permutation
};

/// The expression in double, and the sum of the magnitudes of everything added up, which scales its
/// error bound.
struct Reference {
  std::vector<double> y, magnitude;  ///< [m, n]
};
Reference evaluate(const Linear& expr, const LinearData& data);

}  // namespace ladder
