// SPDX-License-Identifier: Apache-2.0
//
// A tType says how a weight matrix [N, K] is stored: the element format, which block of elements
// shares a scale, the formats of scale and second scale, and what a zero point means.
//
//   value[n, k] = scale2 * scale[n / rows, k / columns] * (decode(code[n, k]) - zero[same])
//
// except zero "rescale": value = scale2 * (scale * decode(code) - zero). The second scale is one
// number, or one for each row. Or it has one for each superblock, so many columns of a row: then it
// multiplies what is stored of a scale, and another one beside it what is stored of a zero
// "rescale", before either meets a code.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "types/element.h"

namespace ladder {

enum class Zero {
  none,       ///< no zero point
  midpoint,   ///< the constant 2^(bits - 1); nothing is stored (symmetric unsigned integers)
  integer,    ///< uint8 per block, so that 2^bits itself fits (GPTQ v1)
  quantized,  ///< an integer of the element's own bits per block, packed along the groups
  original,   ///< a float in the scale's format per block: (w - z) * s
  rescale,    ///< a float in the scale's format per block: w * s - z
};

/// Elements that share one scale: `rows` along N by `columns` along K. 0 means the whole dimension.
struct Block {
  std::int64_t rows = 1;
  std::int64_t columns = 0;
  bool operator==(const Block&) const = default;
};

struct TType {
  const Element* element;
  Block block = {};
  const Element* scale = nullptr;  ///< nullptr: no scales
  Zero zero = Zero::none;
  const Element* scale2 = nullptr;  ///< one more scale for the whole tensor, or nullptr
  bool scale2_of_rows = false;      ///< one for each row instead
  std::int64_t superblock = 0;      ///< one for so many columns of a row instead; 0: no such

  bool operator==(const TType&) const = default;
  /// Blocks along K of a matrix with `k` columns; a shorter last one counts.
  std::int64_t groups(std::int64_t k) const;
  /// Blocks along N of a matrix with `n` rows.
  std::int64_t block_rows(std::int64_t n) const;
  /// Scales are unsigned integers, one to a byte, and no superblocks multiply them.
  bool has_integer_scales() const {
    return scale != nullptr && scale->encoding == Encoding::unsigned_integer && superblock == 0;
  }
  /// A second scale multiplies sums: that of the tensor or of a row.
  bool has_scale_of_sums() const { return scale2 != nullptr && superblock == 0; }
  /// Superblocks along K of a matrix with `k` columns; a shorter last one counts.
  std::int64_t superblocks(std::int64_t k) const;
  /// Second scales of a superblock: of scales, and of stored zeros where they have such.
  std::int64_t scales_of_superblock() const {
    return superblock == 0 ? 0 : zero == Zero::rescale ? 2 : 1;
  }
  /// Second scales of a row; 0 where rows share one.
  std::int64_t second_scales_of_row(std::int64_t k) const {
    return scale2_of_rows ? 1 : scales_of_superblock() * superblocks(k);
  }
  /// Stored bits per weight of an [n, k] matrix, scales and zeros included, padding excluded.
  double bits_per_weight(std::int64_t n, std::int64_t k) const;
};

/// Reads "uint4,group=128,scale=float16,zero=midpoint", a named block type ("mxfp4", "nvfp4"), or
/// an element name alone. Fields after the element:
///   group=G | channel | tensor | block=RxC  which elements share a scale (default channel)
///   scale=NAME                              format of the scales (default none)
///   zero=KIND                               none, midpoint, integer, quantized, original, rescale
///   scale2=NAME[:tensor | :channel | :K]    one more scale, of the tensor (default), of a row, or
///                                           of K columns of a row
/// Throws InvalidArgument that names the field at fault.
TType parse_ttype(std::string_view text);

/// Same, parsed once per distinct text and kept for the life of the process: the hot path.
const TType& ttype(std::string_view text);

/// The one spelling of `type` that parse_ttype reads back; named block types come out by name.
std::string to_string(const TType& type);

/// Throws InvalidArgument unless the fields fit together (zero kinds want integers, original and
/// rescale want a scale, groups are at least 8 wide, ...).
void check(const TType& type);

struct NamedTType {
  std::string_view name;
  std::string_view spelling;
  std::string_view source;
};
/// mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e4m3, mxfp8_e5m2, mxint8, nvfp4, q2_k to q6_k.
std::span<const NamedTType> named_ttypes();

}  // namespace ladder
