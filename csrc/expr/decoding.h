// SPDX-License-Identifier: Apache-2.0
//
// How the codes of an expression become operands of the matrix instruction, which are f16 or bf16.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/problem.h"
#include "expr/scale_place.h"

namespace ladder {

/// A floating code moved into place: the magnitude to bit `place` of a half, the sign to bit 15.
/// That is a number of the operand's format whose exponent is off by the difference of the biases;
/// subnormals come out right, since the operand's lowest exponent means the same as theirs.
struct FloatFields {
  int bits;   ///< of a code
  int place;  ///< bit of a half at which the lowest bit of the magnitude lands
  /// Added to the magnitude, it carries into bit carry() exactly for codes that are no finite
  /// numbers; all bits from there to 14 are then set, which makes them infinities and NaN. 0: there
  /// are none, or they come out right by themselves.
  std::uint32_t special;
  double factor;  ///< a power of two that multiplies afterwards; 1: no multiplication
  /// The exponent fills the operand's, f16, whose top one means no number there: the magnitude is
  /// halved, as `halved_f16` does.
  bool halved = false;
  bool converted = false;  ///< by the device's instruction from e4m3, which makes the same numbers

  int carry() const { return place + bits - 1; }
  /// More bits than one are set for codes that are no finite numbers, so that a comparison of
  /// magnitudes finds these.
  bool sets_several() const { return special != 0 && carry() < 14; }
  bool operator==(const FloatFields&) const = default;
};

/// Half of a magnitude of an f16 whose top exponent is one of numbers, too; its lowest bit is 0. An
/// exponent less, or, of subnormals and the binade above them, the bits one to the right: the
/// larger of the two as integers.
constexpr std::uint32_t halved_f16(std::uint32_t magnitude) {
  const std::uint32_t right = magnitude >> 1, binade = 1u << 10;
  return magnitude < binade + right ? right : magnitude - binade;
}

struct Decoding {
  enum class Kind {
    integers,  ///< as Schedule::route says; exact
    fields,    ///< floating formats whose fields fit those of the operand; exact
    table,     ///< looked up by code
  };
  Kind kind;
  int exponent;        ///< fields, table: an operand is value * 2^exponent
  FloatFields fields;  ///< fields
  /// table: operands by code. Those of floating formats are exact, those of table formats rounded
  /// to nearest, the largest scaled into the top binade but one (f16) or to 1 (bf16): an operand is
  /// within 2^-11 (f16) or 2^-8 (bf16) of its value, and of values under 2^-28 of the largest
  /// within 2^-39 of that (f16).
  std::vector<std::uint16_t> table;
  bool scaled = false;   ///< an operand is that times the scale of its group; exact unless rounded
  bool rounded = false;  ///< scaled by a product of its own, rounded; `exponent` is 0
};

/// Entries of a table in shared memory: of pairs of codes, above kLargestPairTable of single ones.
constexpr int kLargestPairTable = 4;  ///< bits of a code
constexpr std::int64_t table_entries(int bits) {
  return std::int64_t{1} << (bits <= kLargestPairTable ? 2 * bits : bits);
}

/// decoding_of(problem).kind, without making a table.
Decoding::Kind decoding_kind(const Problem& problem);

/// Entries of the table of relative operands: powers of two that a scale is below the largest one.
constexpr int kRelativeEntries = 32;
/// Operands of floats of 4 bits by the difference of scales, e8m0: entry e has the e4m3 codes of
/// the eight magnitudes times 2^(exponent - e), in two words, lowest first, rounded to nearest even
/// where those are no e4m3.
struct RelativeOperands {
  int exponent;
  std::vector<std::uint32_t> words;
};
RelativeOperands relative_operands(const Element& element);
/// Throws Unsupported when the values of a floating format span more than the operand's format
/// holds, and when `place` is operands that do not hold the scales.
Decoding decoding_of(const Problem& problem, ScalePlace place = ScalePlace::usual);
/// `decoding` whose operands are no subnormals, for instructions that read these as zero. Throws
/// Unsupported where the values span more than the normal numbers of the operand's format.
Decoding without_subnormals(Decoding decoding, const Problem& problem);

/// `decoding` where an instruction makes f16 of codes of e4m3: these are then their values, of
/// which bf16 is made. The same of other types.
Decoding converted(Decoding decoding, const Problem& problem);

/// The largest relative error of an operand: 0 unless the values of a table, or their products with
/// scales, were rounded.
double decoding_error(const Problem& problem, ScalePlace place = ScalePlace::usual);

}  // namespace ladder
