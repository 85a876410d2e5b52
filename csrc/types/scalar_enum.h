// SPDX-License-Identifier: Apache-2.0
// Nothing but names: files for one instruction set include no functions that others share.
#pragma once

namespace ladder {

/// The number formats in which machines compute (scalar.h).
enum class Scalar {
  u32,   ///< raw bits: packed codes
  f16,   ///< IEEE 754 binary16
  bf16,  ///< the upper half of binary32
  f32,   ///< IEEE 754 binary32
  u8,    ///< stored integer zero points; codes as operands
  s8,    ///< digits of activations (layout/digits.h)
  s32,   ///< sums of products of the last two
  e8m0,  ///< scales: a power of two
  e4m3,  ///< scales; activations of 8 bits
  /// Operands of CDNA 3, whose instructions read no e4m3: half of its numbers (layout/digits.h).
  e4m3fnuz,
};

}  // namespace ladder
