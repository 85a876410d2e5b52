// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by AMX: tdpbsud multiplies 16 tokens by 16 rows, 64 columns at once. Tokens
// and tiles are those of AVX-512 VNNI, whose order of four columns of every row is what the
// instruction wants. Only sums of a unit leave the tiles: they are scaled and added as there.
#include "cpu/amx/tiles.h"
#include "cpu/int8/x86_tiles.h"

namespace ladder::cpu::int8 {
namespace {

using amx::kSide;

/// The tile of avx512_vnni.
struct Lanes {
  static constexpr int kLanes = 16, kVectors = 2;
};
using Rows32 = Tile<Lanes>;
constexpr int kRows = Rows32::kRows;
constexpr int kParts = 2;     ///< tiles of avx512_vnni, one after the other
constexpr int kTokens = 32;   ///< of a block
/// Columns of all rows that stay in the first-level cache while blocks of tokens pass.
constexpr std::int64_t kPiece = 256;
/// Narrower units leave tiles mostly empty.
constexpr std::int64_t kLeastUnit = 32;

enum class Zeros { none, constant, integers, floats };

Zeros zeros_of(const Job& job) {
  return job.integer_zeros ? Zeros::integers
         : job.float_zeros ? Zeros::floats
         : job.zero != 0   ? Zeros::constant
                           : Zeros::none;
}

/// Sums of one unit.
struct alignas(64) Sums {
  std::int32_t of[kTokens][kRows];
};

/// Units [begin, end) of a block of tokens by a tile's rows.
struct Block {
  const Job& job;
  const Rows32& at;
  const Tokens& token;
  const std::uint8_t* tile;
  const std::uint8_t* x;
  int tokens;
  std::int64_t begin, end;
  float* y;
  std::int64_t y_stride;
};

/// The sums of one unit into the tiles and to `out`.
template <int kHalves>
inline void products(const Block& b, std::int64_t unit, Sums& out) {
  const std::int64_t first = unit * b.job.unit, last = first + b.job.unit;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kHalves == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t column = first; column < last; column += 64) {
    const std::uint8_t* w = b.tile + column * kRows;
    const std::uint8_t* x = b.x + column;
    _tile_loadd(6, w, 4 * kRows);
    _tile_loadd(4, x, b.token.bytes);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, w + 4 * kSide, 4 * kRows);
    _tile_dpbsud(1, 4, 7);
    if constexpr (kHalves == 2) {
      _tile_loadd(5, x + kSide * b.token.bytes, b.token.bytes);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, out.of[0], 4 * kRows);
  _tile_stored(1, out.of[0] + kSide, 4 * kRows);
  if constexpr (kHalves == 2) {
    _tile_stored(2, out.of[kSide], 4 * kRows);
    _tile_stored(3, out.of[kSide] + kSide, 4 * kRows);
  }
}

/// y += the scaled sums of a unit.
template <Zeros kZeros>
inline void add(const Block& b, std::int64_t unit, const Sums& sums) {
  const std::int64_t group = unit * b.job.unit / b.job.group;
  const std::int64_t x_block = unit * b.job.unit / b.job.block;
  const auto* scales = reinterpret_cast<const float*>(b.tile + b.at.scales) + group * kRows;
  const std::uint8_t* zeros = b.tile + b.at.zeros + group * kRows * 4;
  const __m512 scale[2] = {_mm512_load_ps(scales), _mm512_load_ps(scales + kSide)};
  __m512i zero[2];
  if constexpr (kZeros == Zeros::integers)
    for (int v = 0; v < 2; ++v)
      zero[v] = _mm512_and_si512(_mm512_load_si512(zeros + 64 * v), _mm512_set1_epi32(0xffff));
  if constexpr (kZeros == Zeros::floats)
    for (int v = 0; v < 2; ++v) zero[v] = _mm512_load_si512(zeros + 64 * v);
  const std::uint8_t* x = b.x;
  float* y = b.y;
  for (int t = 0; t < b.tokens; ++t, x += b.token.bytes, y += b.y_stride) {
    const __m512 x_scale = _mm512_set1_ps(reinterpret_cast<const float*>(x + b.token.scales)[x_block]);
    const std::int32_t x_sum = reinterpret_cast<const std::int32_t*>(x + b.token.sums)[unit];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      __m512i sum = _mm512_load_si512(sums.of[t] + v * kSide);
      if constexpr (kZeros == Zeros::constant) sum = _mm512_add_epi32(sum, _mm512_set1_epi32(x_sum));
      // Of numbers of 16 bits: sums of 128 bytes of x are below 2^14, zeros below 2^10.
      if constexpr (kZeros == Zeros::integers)
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_set1_epi32(x_sum), zero[v]));
      __m512 total = unit == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(y + v * kSide);
      total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale[v], x_scale), total);
      if constexpr (kZeros == Zeros::floats) {
        const float x_zero = reinterpret_cast<const float*>(x + b.token.float_sums)[unit];
        total = _mm512_fmadd_ps(_mm512_castsi512_ps(zero[v]), _mm512_set1_ps(x_zero), total);
      }
      _mm512_storeu_ps(y + v * kSide, total);
    }
  }
}

/// Products of a unit run while the sums of the unit before are added.
template <Zeros kZeros, int kHalves>
void multiply_block(const Block& b) {
  Sums sums[2];
  products<kHalves>(b, b.begin, sums[0]);
  int now = 0;
  for (std::int64_t unit = b.begin + 1; unit < b.end; ++unit, now = 1 - now) {
    products<kHalves>(b, unit, sums[1 - now]);
    add<kZeros>(b, unit - 1, sums[now]);
  }
  add<kZeros>(b, b.end - 1, sums[now]);
}

using Multiply = void (*)(const Block&);
template <Zeros kZeros>
inline constexpr Multiply kMultiply[] = {multiply_block<kZeros, 1>, multiply_block<kZeros, 2>};

Multiply multiply_of(Zeros zeros, int halves) {
  switch (zeros) {
    case Zeros::none: return kMultiply<Zeros::none>[halves - 1];
    case Zeros::constant: return kMultiply<Zeros::constant>[halves - 1];
    case Zeros::integers: return kMultiply<Zeros::integers>[halves - 1];
    case Zeros::floats: break;
  }
  return kMultiply<Zeros::floats>[halves - 1];
}

void multiply(const Job& job, const void* tile, const void* x, std::int64_t tokens, float* y,
              std::int64_t y_stride) {
  const Rows32 at(job);
  const auto* w = static_cast<const std::uint8_t*>(tile);
  const auto* arranged = static_cast<const std::uint8_t*>(x);
  if (job.unit < kLeastUnit) {
    for (int part = 0; part < kParts; ++part)
      avx512_vnni_kernels().multiply(job, w + part * at.bytes, x, tokens, y + part * kRows, y_stride);
    return;
  }
  const Tokens token = tokens_of(job);
  const Zeros zeros = zeros_of(job);
  const std::int64_t units = job.padded_k / job.unit, piece = kPiece / job.unit;
  const std::int64_t whole = tokens / kTokens * kTokens;
  // All pieces of whole blocks, then those of the rest, whose tiles are lower.
  for (std::int64_t from = 0; from < tokens; from += whole > from ? whole : tokens) {
    const std::int64_t to = whole > from ? whole : tokens;
    const int some = to - from < kTokens ? static_cast<int>(to - from) : kTokens;
    const int first = some < kSide ? some : kSide, halves = some > kSide ? 2 : 1;
    const amx::Tiles tiles(first, some - first, job.unit < 64 ? 32 : 64);
    const Multiply block = multiply_of(zeros, halves);
    for (std::int64_t begin = 0; begin < units; begin += piece)
      for (std::int64_t t = from; t < to; t += some)
        for (int part = 0; part < kParts; ++part)
          block({.job = job,
                 .at = at,
                 .token = token,
                 .tile = w + part * at.bytes,
                 .x = arranged + t * token.bytes,
                 .tokens = some,
                 .begin = begin,
                 .end = begin + piece < units ? begin + piece : units,
                 .y = y + t * y_stride + part * kRows,
                 .y_stride = y_stride});
  }
}

}  // namespace

const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_vnni_kernels();
    k.tile_rows = kParts * kRows;
    k.most_dots = [](const Job&) -> std::int64_t { return 6; };
    k.tile_bytes = [](const Job& job) { return kParts * Rows32(job).bytes; };
    k.decode = [](const Job& job, const Row* rows, void* tile) {
      for (int part = 0; part < kParts; ++part)
        avx512_vnni_kernels().decode(job, rows + part * kRows,
                                     static_cast<std::uint8_t*>(tile) + part * Rows32(job).bytes);
    };
    k.multiply = multiply;
    return k;
  }();
  return kernels;
}

}  // namespace ladder::cpu::int8
