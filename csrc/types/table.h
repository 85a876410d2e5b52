// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "types/element.h"

namespace ladder {

/// The formats that ladder knows from the start, in order of name.
std::span<const Element> builtin_elements();

struct Alias {
  std::string_view name, element;
};
/// Other spellings of the built-in formats, in order of name.
std::span<const Alias> aliases();

struct NamedTType;
/// The named block type called `name`, in letters of any case, or by an alias ("MXFP4", "mxfp8");
/// nullptr when there is none.
const NamedTType* find_named_ttype(std::string_view name) noexcept;

/// IEEE's exponent bias, 2^(exponent_bits - 1) - 1.
constexpr int ieee_bias(int exponent_bits) { return (1 << (exponent_bits - 1)) - 1; }

}  // namespace ladder
