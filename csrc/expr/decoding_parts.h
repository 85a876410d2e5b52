// SPDX-License-Identifier: Apache-2.0
//
// What decodings are made of, for them and for what says where scales multiply.
#pragma once

#include <optional>

#include "expr/decoding.h"

namespace ladder {

/// Formats whose exponents are all exponents of finite numbers of the operand, or whose top one
/// means the same in both.
std::optional<Decoding> fields_of(const Element& e, Scalar operand);

/// Significant bits of a format of scales, and the exponents of its smallest and largest powers of
/// two; none of its numbers is twice the latter.
struct Scales {
  int significant_bits, least, largest;
};
Scales scales_of(Scalar format);

/// `d`, fields, with scales of `format`: one product takes both these and its factor, which are one
/// operand, too, so that the largest scale leaves room for so much of a factor only.
Decoding with_scales(Decoding d, Scalar format, Scalar operand);

}  // namespace ladder
