// SPDX-License-Identifier: Apache-2.0
//
// What an instruction set provides for products with x of 8 bits. The driver (int8/linear.cpp)
// splits the work and widens scales and zeros; these functions hold all vector code. How a token
// or a tile lies in memory is known to its kernels alone.
//
// The value of a weight is (u - zero) * step * scale, of u = Codes::u[code], a whole number of 0 to
// 255. x is q * scale_x, q of -127 to 127, one scale for every `block` columns. Products are summed
// as integers over `unit` columns, which share one scale of x and one of the weight:
//   sum over a unit of q * (u - zero) = sum q * u - zero * sum q, no rounding, below 2^23
//
// Plain data only, as in cpu/kernels.h: this header is compiled for machines that may not be there.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"

namespace ladder::cpu::int8 {

/// The codes of a format of at most 8 bits as whole numbers; entry c is that of c modulo 2^bits.
struct alignas(64) Codes {
  /// How u comes from a code.
  enum class Kind {
    identity,  ///< u = code
    flip,      ///< u = code ^ 2^(bits - 1)
    table,
  };
  std::uint8_t u[256];
  Kind kind;
  int zero;    ///< value = (u - zero) * step
  int most;    ///< the largest u
  float step;  ///< a power of two when `exact`
  bool exact;  ///< no value is rounded
};

/// Columns of x that the vector kernels take at once; rows of x are padded to a multiple with
/// zeros.
inline constexpr std::int64_t kBlock = 128;

/// Kernels::together is this at most.
inline constexpr int kTogether = 16;

/// What the kernels know about a weight matrix and x.
struct alignas(64) Job {
  /// Of the lanes of tokens.h: the group that the first and the second half of each are in.
  std::int32_t first_group[16], second_group[16];
  int bits;
  const Codes* codes;
  std::int64_t k;          ///< columns
  std::int64_t padded_k;   ///< a multiple of kBlock
  std::int64_t row_bytes;  ///< of codes, a multiple of 4
  /// Columns that share a weight's scale: 8, 16, 32, 64 or a multiple of 128; padded_k for one.
  std::int64_t group;
  std::int64_t block;  ///< columns that share a scale of x: 32 or 128
  std::int64_t unit;   ///< the smaller of both
  /// What products subtract from u where zeros are constant; what they add to RowScales::zero where
  /// those are integers. `Kernels::less` is subtracted already.
  int zero;
  bool integer_zeros;  ///< RowScales::zero are integers, one per group
  bool float_zeros;    ///< RowScales::zero or offset are any numbers
};

/// A row of the weight. One scale, zero and offset per group, in units of Codes::step, with 16
/// readable finite entries past the last.
struct Row {
  const std::uint8_t* codes;
  RowScales scales;
};

struct Kernels {
  int tile_rows;  ///< rows of a tile; 64 at most
  int few;        ///< `dot` takes up to this many tokens at once, 16 at most
  /// Most tokens for which `dot`, over and over, is quicker than `decode` and `multiply`.
  std::int64_t (*most_dots)(const Job& job);
  /// What the kernels subtract from u by themselves, because their products want it so.
  int (*less)(const Job& job);

  int together;  ///< tokens that `arrange` takes at once, at most kTogether
  /// Bytes of one arranged token, for `dot` or for `multiply`; `together` times that is a multiple
  /// of 64.
  std::int64_t (*token_bytes)(const Job& job, bool tiles);
  /// Quantises rows of x, `x` [count][padded_k] with any numbers from column k on, and puts them
  /// into the order of `dot` or of `multiply`; `count` up to `together`, of which out has the
  /// bytes.
  void (*arrange)(const Job& job, bool tiles, const float* x, int count, void* out);
  /// out[t] = sum over the row of x[t] * value(row) / step; t below `tokens`.
  void (*dot)(const Job& job, const Row& row, const void* x, int tokens, float* out);
  /// Bytes of a tile, a multiple of 64.
  std::int64_t (*tile_bytes)(const Job& job);
  /// `rows` [tile_rows] to `tile`; of fewer rows the last is repeated.
  void (*decode)(const Job& job, const Row* rows, void* tile);
  /// y[t * y_stride + r] = sum over row r of the tile of x[t] * value / step. y has room for
  /// `tokens` rounded up to kTogether, and `tile` may change.
  void (*multiply)(const Job& job, void* tile, const void* x, std::int64_t tokens, float* y,
                   std::int64_t y_stride);

  /// Faster kernels, of the same `less`, for what `fits` accepts; or null.
  const Kernels* wider;
  bool (*fits)(const Job& job, std::int64_t tokens);
};

const Kernels& generic_kernels();
#if defined(LADDER_X86)
const Kernels& avx2_kernels();
const Kernels& avx_vnni_kernels();
const Kernels& avx512_vnni_kernels();
const Kernels& amx_kernels();
#elif defined(LADDER_AARCH64)
const Kernels& neon_kernels();
const Kernels& neon_dotprod_kernels();
const Kernels& neon_i8mm_kernels();
#endif

}  // namespace ladder::cpu::int8
