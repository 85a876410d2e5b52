// SPDX-License-Identifier: Apache-2.0
//
// What is computed, said once for kernels, bounds and `explain`: a product of matrices of which the
// second is a weight that is stored in few bits, and what becomes of its sums.
//
//     y[b, m, n] = epilogue( sum_k  a[b, m, k] * weight[b, n, k] )
//
// with the weight as weight.h says, and `a` read out of x as `rows` and `permuted_columns` say. A
// linear layer, a batched product, a convolution and a layer of experts are its constructors
// (constructors.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/integers.h"
#include "expr/gating.h"
#include "expr/iterators.h"
#include "expr/weight.h"
#include "expr/windows.h"

namespace ladder {

/// Columns that digit_place() keeps together.
constexpr std::int64_t kColumnsOfBytes = 16;

/// Of the memory system: parts of an image begin at multiples of it.
constexpr std::int64_t kPartBytes = 128;

/// a[b, m, k] is x[b, m, k], row-major.
struct Dense {
  bool operator==(const Dense&) const = default;
};
/// Of experts: a launch has any number of products, each of up to `m` rows of x by one expert's
/// weight. A table in memory says which rows and whose weight; y has the same rows as x.
struct RoutedRows {
  /// Products that a launch is expected to have, and how far it may be from that: a standard
  /// deviation. Only schedules depend on them.
  std::int64_t items, deviation;
  /// From the weight of one expert to that of the next, and so for its scales, zeros, scale2 and
  /// order of columns. Whole lines of memory.
  std::int64_t bytes;
  bool operator==(const RoutedRows&) const = default;
};
/// a[b, m, k] is where place_in_a() of `form` says, 0 outside the tensor: the windows of a
/// convolution, or a tensor with its dimensions in another order. `form` also says where the
/// operator has weight[b, n, k] and y[b, m, n].
struct ImageToColumn {
  MatmulForm form;
  bool operator==(const ImageToColumn&) const = default;
};
/// What kernels read of those: Windows, place() of m and k in x [images, y, x, channels],
/// row-major. y is [images, y, x, n].
using Rows = std::variant<Dense, RoutedRows, ImageToColumn, Windows>;

/// What x is rounded to, and how its products are added up.
struct RoundedX {
  Scalar scalar;    ///< s8 or e4m3
  bool fast_accum;  ///< of e4m3: Formats::fast_accum
  constexpr RoundedX(Scalar to, bool fast = false) : scalar(to), fast_accum(fast) {}
  bool operator==(const RoundedX&) const = default;
};

struct Formats {
  Scalar x;     ///< f16 or bf16; of 8 bits s8 or e4m3, which tokens were rounded to
  Scalar y;     ///< f16 or bf16; f32 beside x of 8 bits: sums as they are; s8 or e4m3: Quantise
  Scalar bias;  ///< y's; where that has 8 bits f16 or bf16, beside x of 8 bits also f32
  Scalar sum = Scalar::f32;
  /// Sums of x of e4m3 are those of the matrix unit, which keeps fewer bits than f32 has
  /// (MatrixInstruction::accumulator_bits); else they are added up in f32 every 128 columns.
  bool fast_accum = false;
  bool operator==(const Formats&) const = default;
};

/// Steps from sums to y. All are in f32, and y is rounded at the end, once.
struct SecondScale {  ///< times one f32 of the whole weight, or of the row
  bool operator==(const SecondScale&) const = default;
};
struct ScaleOfToken {  ///< times an f32 of each token: of x of 8 bits
  bool operator==(const ScaleOfToken&) const = default;
};
struct Bias {  ///< plus bias[n]
  bool operator==(const Bias&) const = default;
};
/// y has half as many columns as the weight rows, which alternate (kGateRows): y[b, m, j] is
/// `gating` of the sums of gate and up.
struct GateProduct {
  Gating gating;
  bool operator==(const GateProduct&) const = default;
};
/// y is `what` of the sums, which is none that takes more than the gate (takes_gate_alone).
struct ActivationFunction {
  Gated what;
  bool operator==(const ActivationFunction&) const = default;
};
/// Plus residual[b, m, n], which has the shape and the format of y and other memory.
struct Residual {
  bool operator==(const Residual&) const = default;
};
/// y is the nearest code (nearest_code) of the result times an f32: 1 / scale, rounded to f32, of
/// one static scale that the call gives.
struct Quantise {
  bool operator==(const Quantise&) const = default;
};
/// In the order in which kernels take them: y = codes(function(sums + bias) + residual).
using EpilogueStep = std::variant<SecondScale, ScaleOfToken, Bias, GateProduct, ActivationFunction,
                                  Residual, Quantise>;

struct Problem {
  Weight weight;
  std::int64_t m;     ///< rows of a, tokens: at most so many
  std::int64_t n, k;  ///< of the weight: out_features, in_features
  Formats formats;
  std::vector<EpilogueStep> epilogue = {};
  std::int64_t batch = 1;  ///< products side by side, each of a weight of its own
  /// Items of up to `m` rows that a launch has of each product of the batch. Only schedules depend
  /// on it.
  std::int64_t passes = 1;
  Rows rows = Dense{};            ///< of a, and where they come from
  bool permuted_columns = false;  ///< a[b, m, order[k]] in place of a[b, m, k], for every row

  bool operator==(const Problem&) const = default;

  // Parts by name. Kernels of x of 8 bits have its columns in the order of digit_place
  // (layout/digits.h). With s8 codes are integers, and products are exact in s32 within a group;
  // with e4m3 codes, less their zero point, are numbers that e4m3 holds.
  bool has_bytes_of_x() const { return bits_of(formats.x) == 8; }
  std::optional<Scalar> rounded_x() const {
    return has_bytes_of_x() ? std::optional(formats.x) : std::nullopt;
  }
  /// Sums of a few columns are added up in f32.
  bool promotes_sums() const { return formats.x == Scalar::e4m3 && !formats.fast_accum; }
  bool wide_y() const { return formats.y == Scalar::f32; }
  bool has_bytes_of_y() const { return bits_of(formats.y) == 8; }
  /// Of activations before any are rounded, f16 or bf16: x's, else y's or, where that has 8 bits,
  /// the bias's. What has none of 16 bits counts as of f16.
  Scalar activation() const {
    if (!has_bytes_of_x()) return formats.x;
    const Scalar y = has_bytes_of_y() ? formats.bias : formats.y;
    return y == Scalar::f32 ? Scalar::f16 : y;
  }
  template <class Step>
  bool has() const {
    return std::ranges::any_of(
        epilogue, [](const EpilogueStep& step) { return std::holds_alternative<Step>(step); });
  }
  bool has_scale2() const { return has<SecondScale>(); }
  bool has_bias() const { return has<Bias>(); }
  bool has_gate() const { return has<GateProduct>(); }
  bool has_residual() const { return has<Residual>(); }
  /// Null where there is none.
  const Gating* gate() const;
  std::optional<Gated> activation_function() const;
  std::int64_t columns_of_y() const { return has_gate() ? n / 2 : n; }
  /// Null where there are none.
  const RoutedRows* experts() const { return std::get_if<RoutedRows>(&rows); }
  RoutedRows* experts() { return std::get_if<RoutedRows>(&rows); }
  const Windows* windows() const { return std::get_if<Windows>(&rows); }
  /// A launch has several products of up to `m` rows, on the third dimension of its grid.
  bool has_items() const {
    return experts() != nullptr || windows() != nullptr || batch > 1 || passes > 1;
  }
  /// Of a launch.
  std::int64_t products() const { return experts() != nullptr ? experts()->items : batch * passes; }
  std::int64_t group_size() const { return weight.group == 0 ? k : weight.group; }
  std::int64_t groups() const { return ceil_div(k, group_size()); }
  std::int64_t superblocks() const {
    return weight.superblocks ? ceil_div(k, weight.superblocks->columns) : 0;
  }

  // Changes that keep formats and epilogue in agreement.
  void set_bias(bool present);
  void set_gate(const std::optional<Gating>& gating);
  void set_activation_function(std::optional<Gated> what);
  void set_residual(bool present);
  /// Of x and y, where neither is rounded nor wide, and of y alone where x is. Of y of 8 bits: of
  /// the bias.
  void set_activation(Scalar activation);
  /// x to 8 bits; nothing: as it is.
  void round_x(std::optional<RoundedX> to);
  /// y and bias to f32, or the bias of y of 8 bits; not `wide`: they stay what they are.
  void widen_y(bool wide = true);
  /// y to s8 or e4m3; nothing: as the bias.
  void quantise_y(std::optional<Scalar> to);
};

/// Throws InvalidArgument that names the field at fault, of problems without meaning.
void check(const Problem& problem);

/// Why no kernel multiplies it, whatever the device, though it has a meaning; empty where kernels
/// may.
std::string refusal(const Problem& problem);

/// "y[m<=8, n=4096] f16 = sum k=4096: x[m, k] f16 * s[n, k/128] f16 * (u4[n, k] - 8)". Types that
/// kernels cannot tell apart are printed alike.
std::string to_string(const Problem& problem);

/// Codes, scales and zero points of one product, in bytes.
double weight_bytes(const Problem& problem);
/// Bytes that any kernel must move: codes, scales, zero points, activations, a residual and outputs
/// of `m` tokens, once each; of a batch and of experts, of each product.
double least_bytes(const Problem& problem, std::int64_t m);

}  // namespace ladder
