// SPDX-License-Identifier: Apache-2.0
//
// Element formats: how `bits` stored bits mean a number. A format is one row of data; decoding,
// encoding, packing and every kernel are derived from the row.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

enum class Encoding {
  unsigned_integer,  ///< code
  signed_integer,    ///< two's complement
  floating,          ///< sign, exponent, mantissa
  exponent,          ///< an unsigned power of two, 2^(code - bias)
  table,             ///< values[code]
};

/// Which codes of a floating or exponent format are not finite numbers.
enum class Specials {
  none,      ///< every code is a number (OCP FP6, FP4)
  ieee,      ///< the top exponent holds infinities and NaNs
  nan_only,  ///< all ones below the sign is NaN, no infinities (OCP E4M3, E8M0)
  fnuz,      ///< the code of -0 is the only NaN, no infinities
};

/// One element format. Rows live for the life of the process, so pointers to them are handles.
struct Element {
  std::string_view name;
  Encoding encoding;
  int bits;                             ///< 1 to 32
  int exponent_bits = 0;                ///< floating, exponent
  int mantissa_bits = 0;                ///< floating
  int bias = 0;                         ///< floating, exponent
  Specials specials = Specials::none;   ///< floating, exponent
  std::span<const double> values = {};  ///< table: 2^bits values, by code
  std::string_view source;              ///< where the meaning of the codes is written down

  int code_count() const { return bits > 16 ? 0 : 1 << bits; }
};

/// All formats, built in and registered by the user, ordered by name.
std::vector<const Element*> elements();

/// The format called `name`, or one of its aliases ("fp8", "E4M3"), in letters of any case but for
/// a user's formats. Throws InvalidArgument naming the nearest known names.
const Element& element(std::string_view name);

/// Same, but nullptr when there is none.
const Element* find_element(std::string_view name) noexcept;

/// Registers a format whose code c means values[c]. Returns the existing row when the same name
/// already has the same meaning. Throws InvalidArgument when `name` is taken by another meaning or
/// is not an identifier, when values.size() != 2^bits, when a value is not finite in float32, or
/// when two codes share a value.
const Element& register_table(std::string_view name, int bits, std::span<const double> values);

/// Registers a floating format of 1 + exponent_bits + mantissa_bits bits, 3 to 8 in all. `bias` is
/// IEEE's, 2^(exponent_bits - 1) - 1, when not given. Errors as register_table.
const Element& register_float(std::string_view name, int exponent_bits, int mantissa_bits,
                              Specials specials);
const Element& register_float(std::string_view name, int exponent_bits, int mantissa_bits,
                              Specials specials, int bias);

/// Value of `code` read as `element`, exact. Infinities and NaN as the format says.
/// Throws InvalidArgument if `code` has a bit set at or above element.bits.
double decode(const Element& element, std::uint32_t code);

/// Code of the value nearest to `value`, ties to the even code, as IEEE 754 roundTiesToEven;
/// a table takes the lower code on a tie.
/// Values beyond the largest finite one: with Overflow::saturate the largest finite code of that
/// sign; with Overflow::special infinity, else NaN, else saturation, as the format has them. NaN
/// becomes the NaN code; a format without NaN throws InvalidArgument.
enum class Overflow { saturate, special };
std::uint32_t encode(const Element& element, double value, Overflow overflow = Overflow::saturate);

/// Largest and smallest finite value.
double max_value(const Element& element);
double min_value(const Element& element);

/// decode(code) as float32 for every code; exact for formats of at most 16 bits.
std::vector<float> decode_table(const Element& element);

/// True when every value of `from` (finite or not) is a value of `to`: the lossless conversions
/// that LADDER writes as c_tTypes. Derived from the values, never listed.
bool converts_exactly(const Element& from, const Element& to);

/// The built-in formats to which `from` converts exactly, narrowest first.
std::vector<const Element*> exact_targets(const Element& from);

}  // namespace ladder
