// SPDX-License-Identifier: Apache-2.0
//
// What an instruction set provides. The driver (linear.cpp) splits the work, widens scales and
// zeros to float32 and hands small pieces to these functions; they hold all vector code.
//
// Files below avx2/ and avx512/ are compiled with flags that the machine may not understand, so
// this header has plain data only: an inline function called there could be the copy that the
// linker keeps for everybody.
#pragma once

#include <cstdint>

#include "types/scalar_enum.h"

namespace ladder::cpu {

/// How the stored bits of one weight become a float32.
enum class Storage {
  codes,  ///< 1 to 8 bits, through Tables
  float16,
  bfloat16,
  float32,
};

/// How the columns of one row share scales.
enum class Grouping {
  blocks,   ///< a group is a whole number of the kernel's blocks, or the whole row
  lanes,    ///< a block holds a whole number of groups, each a whole number of 8 columns
  columns,  ///< anything else; scales are spread to one per column, in the kernel's order
};

/// The values of a format of at most 8 bits, in the shapes that table look-ups want. Entry c is
/// the value of code c modulo 2^bits, so that bits above a code need no masking.
struct alignas(64) Tables {
  float values[256];
  std::uint16_t high[256];      ///< upper half of the float32: the bfloat16 where that is exact
  std::uint16_t low[256];       ///< lower half
  std::uint8_t planes[4][256];  ///< bytes of the float32, least significant first
  bool bfloat16_exact;          ///< low is all zeros
  int significant;              ///< bits that a value has, at most
  /// The upper 128 values are the lower with their sign bit set.
  bool mirrored;
  /// Values are integers in order: value(c) = (c ^ flip) + first. flip is the sign bit or 0.
  bool linear;
  std::int32_t flip;
  float first;
  /// Values are in order at equal distances: value(c) = (c ^ flip) * step + first, step a power of
  /// two. 1 for linear ones; 0 where values are otherwise.
  float step;
  /// Codes with the format's upper bit set have the values of those without, with the other sign.
  bool mirrored_by_sign;
  /// Of 6 to 8 bits, with the above: the upper two bytes of the value of code 16 h + l, l below 16,
  /// are sums of one that h chooses and one that l chooses, for every h but 0; and the lower of the
  /// two does not depend on h.
  bool split;
  /// Sign, this many exponent bits, mantissa: the code's bits put at those of a float16 give
  /// value / half_factor, a power of two. 0 where they do not.
  int half_exponent;
  float half_factor;
  /// The three above hold but for the codes c with (c & nan_mask) == nan_code, which are NaN.
  /// Formats of 8 bits only; nan_mask is 0 where there are none.
  std::uint8_t nan_mask, nan_code;
};

/// What the kernels know about a weight matrix.
struct Job {
  Storage storage;
  Grouping grouping;
  int bits;
  const Tables* tables;        ///< Storage::codes
  std::int64_t k;              ///< columns
  std::int64_t padded_k;       ///< a multiple of Kernels::block
  std::int64_t stride;         ///< columns from one arranged row of x, or decoded row, to the next
  std::int64_t row_bytes;      ///< of codes, a multiple of 4
  std::int64_t group_columns;  ///< columns per group; padded_k for one group. Not for `columns`.
  bool integer_zeros;          ///< RowScales::zero is not all zeros, but integers
  bool float_zeros;            ///< RowScales::zero or offset are any numbers
  bool offsets;                ///< RowScales::offset is not all zeros
  int value_bits;              ///< significant bits of a value in float32, at most
};

/// Scales of one row. The value of a weight is (decode(code) - zero) * scale - offset.
/// One entry per group, with 16 readable entries past the last; Grouping::columns: one entry per
/// column in the kernel's order.
struct RowScales {
  const float* scale;
  const float* zero;
  const float* offset;
};

/// Rows that `dot` takes at once.
inline constexpr int kRows = 4;

/// A piece of the weight: kRows rows; when fewer are left the last one is repeated.
struct Rows {
  const std::uint8_t* codes[kRows];
  RowScales scales[kRows];
};

/// Columns [begin, end) of rows, whole blocks; decoded rows are `stride` numbers apart.
struct Piece {
  std::int64_t begin, end, stride;
};

/// A product of many tokens, which lie across the lanes. x is in panels of some vectors of tokens;
/// decoded rows are as Kernels::decode leaves them, float32.
struct Panels {
  /// Whether it is quicker than Kernels::multiply.
  bool (*quicker)(std::int64_t tokens);
  std::int64_t lanes;     ///< tokens of a vector, the last one filled with zeros
  std::int64_t together;  ///< tokens of a panel, but for the last ones: a multiple of lanes
  std::int64_t rows;      ///< of a tile, a multiple of 16
  /// `rows` [lanes][stride], arranged: tokens [token, token + lanes) of `tokens`, to their place in
  /// `panels` [tokens rounded up to lanes][padded_k].
  void (*pack)(const Job& job, const float* rows, std::int64_t token, std::int64_t tokens,
               float* panels);
  /// As Kernels::multiply; padded_k is not 0.
  void (*multiply)(const Job& job, int count, const float* tiles, const float* panels,
                   std::int64_t tokens, float* y, std::int64_t y_stride);
};

struct Kernels {
  std::int64_t block;         ///< columns are padded to a multiple of this with zeros in x
  std::int64_t column_size;   ///< bytes per column of arranged x
  std::int64_t decoded_size;  ///< bytes per column of decoded rows
  int few;                    ///< `dot` takes up to this many tokens at once, 16 at most
  /// Most tokens for which `dot`, over and over, is quicker than `decode` and `multiply`.
  std::int64_t (*most_dots)(const Job& job);
  /// From so many tokens on a library's product of rows decoded to memory is quicker than
  /// `multiply`.
  std::int64_t many;

  /// Position in a padded row, in the kernel's own order, of column `column`.
  std::int64_t (*position)(const Job& job, std::int64_t column);
  /// One row of x, [k] in `dtype`, to `out` [padded_k] in the kernel's order, zeros after.
  void (*arrange)(const Job& job, const void* x, Scalar dtype, void* out);
  /// out[t * kRows + r] = sum over the padded row of x[t] * value(row r); t below `tokens`.
  void (*dot)(const Job& job, const Rows& rows, const void* x, int tokens, float* out);
  /// kRows rows in the kernel's order, `out` [kRows][stride], finite in the padding: where
  /// column_size is 4 the float32 values.
  void (*decode)(const Job& job, const Rows& rows, void* out);
  /// y[t * y_stride + r] = sum_k x[t, k] * value(row r) from `tiles`, what `decode` made of
  /// `quads` [count]; r below count * kRows. x and y have room for `tokens` rounded up to 16.
  void (*multiply)(const Job& job, const Rows* quads, int count, const void* tiles, const void* x,
                   std::int64_t tokens, float* y, std::int64_t y_stride);
  /// Float to float32 and back, round to nearest even.
  void (*widen)(const void* from, Scalar dtype, std::int64_t count, float* to);
  void (*narrow)(const float* from, std::int64_t count, Scalar dtype, void* to);
  /// to[i] = tables.values[from[i]]: scales of 8 bits and integer zeros.
  void (*look_up)(const Tables& tables, const std::uint8_t* from, std::int64_t count, float* to);
  /// to[i] = values[index[i]], of `size` values.
  void (*gather)(const float* values, std::int64_t size, const std::int32_t* index,
                 std::int64_t count, float* to);

  /// Faster kernels for bfloat16 x, or null where these are the fastest. Null: there are none.
  const Kernels* (*for_bfloat16)(const Job& job, std::int64_t tokens);
  /// Weights are decoded to sums: their products with an infinity would be NaN, so x is finite.
  /// `multiply` does not read the scales of `quads`.
  bool split = false;
  /// Where x is for tile registers, else null: up to 16 rows of bfloat16 x, `x_stride` numbers
  /// apart, to `out` [padded_k][16], zeros for other tokens. Decoded tiles have 64 rows then, and
  /// `decode` writes rows as 64 bytes of each of 16 rows, then the next 64 of each.
  void (*arrange_tile)(const Job& job, const void* x, std::int64_t x_stride, int rows,
                       void* out) = nullptr;
  const Panels* panels = nullptr;  ///< or null; column_size is 4 where there are some
};

const Kernels& generic_kernels();
#if defined(LADDER_X86)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
const Kernels& amx_kernels();
#elif defined(LADDER_AARCH64)
const Kernels& neon_kernels();
#endif

}  // namespace ladder::cpu
