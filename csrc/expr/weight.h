// SPDX-License-Identifier: Apache-2.0
//
// A weight as kernels multiply it: its tType, which it keeps, and what follows from that, derived
// here and nowhere else. What loading a weight must do for kernels to find it so:
//   - codes are XORed with flip_of(element);
//   - scales and floating zero points become [n, groups] in the scalars named here, which hold
//     every value of the stored ones: rows of a block repeat its scale;
//   - integer and quantised zero points become bytes;
//   - of superblocks integers become bytes, and second scales [n, superblocks] in their scalar,
//     those of zero points behind all those of scales. `scale` and `zero` are the products.
//
//     weight[n, k] = scale[n, g] * value(code[n, k])                   g = k / group
//                  = scale[n, g] * (value(code[n, k]) - zero[n, g])    stored zeros integer,
//                  original = scale[n, g] * value(code[n, k]) - zero[n, g]      rescale
#pragma once

#include <cstdint>
#include <optional>

#include "types/scalar.h"
#include "types/ttype.h"

namespace ladder {

struct Weight {
  /// Of any tType; which of them kernels multiply, refusal() of a problem says.
  explicit Weight(const TType& type);

  TType type;
  int bits;  ///< of a code
  /// A floating or table format. Null: integers, or a table in even steps, which is as good as
  /// these: value = (code * 2^shift - zero) * 2^exponent.
  const Element* element = nullptr;
  int zero = 0;  ///< the constant zero point; 2^(bits - 1) for symmetric types
  int shift = 0, exponent = 0;
  bool three = false;  ///< of 2 bits: code 3 stands for code 1, which ternary types need
  std::int64_t group;  ///< columns that share a scale and a zero point; 0: a whole row
  /// f16, bf16, f32, e8m0, e4m3, u8 of integers; nothing: no scales.
  std::optional<Scalar> scale;
  Zero stored_zero = Zero::none;  ///< none; integer; original or rescale
  /// Scales, f32, and zero points of rescale are integers times a second scale of so many columns.
  struct Superblocks {
    std::int64_t columns;
    Scalar integers, seconds;  ///< u8 or s8; f16, bf16 or f32
    bool operator==(const Superblocks&) const = default;
  };
  std::optional<Superblocks> superblocks;

  bool operator==(const Weight&) const = default;
  /// Scalar of the stored zero points: u8 of integer ones, else that of the scales.
  Scalar zero_scalar() const { return stored_zero == Zero::integer ? Scalar::u8 : *scale; }
  /// What memory has of them.
  Scalar scale_in_memory() const { return superblocks ? superblocks->integers : *scale; }
  Scalar zero_in_memory() const {
    return superblocks && stored_zero == Zero::rescale ? superblocks->integers : zero_scalar();
  }
  /// Second scales of a superblock.
  int seconds() const { return !superblocks ? 0 : stored_zero == Zero::rescale ? 2 : 1; }
};

/// XORed to the codes of `element` on their way to the device: two's complement becomes an unsigned
/// integer with a constant zero point.
std::uint32_t flip_of(const Element& element);

/// What a code of the image stands for before scale and stored zero point; exact.
double value_of(const Weight& weight, std::uint32_t code);

}  // namespace ladder
