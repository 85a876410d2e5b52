// SPDX-License-Identifier: Apache-2.0
//
// Where the scales of a weight multiply, and which places a problem may have.
#pragma once

#include <string>

#include "expr/problem.h"

namespace ladder {

/// Where scales multiply. But for `rounded`, and `relative` ones far apart, no weight is rounded.
enum class ScalePlace {
  usual,     ///< as usual_scale_place() says
  sums,      ///< the f32 sums of each group
  operands,  ///< the operands of the matrix instruction, unless no_scaled_operands() objects
  /// The operands, each product rounded to nearest even in their format: a dequantised weight.
  /// Unless no_rounded_operands() objects.
  rounded,
  /// Of x of 8 bits, the operands: each as a float of 8 bits, by how far its scale is below the
  /// largest of kRelativeColumns columns, which multiplies their sums. Unless no_relative_scales()
  /// objects.
  relative,
};

/// Scales multiply operands, not sums: as `place` says, rounded or not.
bool scales_operands(const Problem& problem, ScalePlace place);
/// Bits of codes that become bytes with their scales.
constexpr int kMostScaledBits = 5;
constexpr int kLargestByte = 127;  ///< of s8
/// `place` has codes less their zero point times integer scales as bytes beside x of s8, unless
/// no_scaled_operands() objects.
bool scales_bytes(const Problem& problem, ScalePlace place);

/// Why operands do not hold the scales of `problem`; empty where each product of a finite value and
/// any scale of the format is one exactly, whatever scales a weight has.
std::string no_scaled_operands(const Problem& problem);

/// Why the weights of `problem` are not operands with their scales as `rounded` has it; empty where
/// value and scale are numbers of the operand's format.
std::string no_rounded_operands(const Problem& problem);

/// Columns of which the largest scale multiplies sums where operands have `relative` ones: what
/// sums of e4m3 are promoted by.
constexpr int kRelativeColumns = 128;
/// Of their codes, whose magnitudes are the eight bytes of two words.
constexpr int kRelativeBits = 4;
/// Why operands of 8 bits do not have the relative scales of `problem`; empty where groups of
/// floats of 4 bits are parts of kRelativeColumns columns.
std::string no_relative_scales(const Problem& problem);

/// Whether each product of a value and a scale is a number of the operand's format, but for those
/// beyond its largest, so that `rounded` rounds none: powers of two leave the values' bits, of
/// which bf16 has more, down to its smallest number; and whole numbers times whole scales may be
/// few enough.
bool rounds_no_product(const Problem& problem);

/// Whether one product makes `rounded` operands of the fields of codes of few bits: their factor
/// and the scale are powers of two, and so is the product of both.
bool joins_powers(const Problem& problem);

/// Operands where nothing objects and groups are one step of the matrix instruction, so that sums
/// take more operations (docs/dev/notebook_gpu.md), or x is of 8 bits; else sums.
ScalePlace usual_scale_place(const Problem& problem);

}  // namespace ladder
