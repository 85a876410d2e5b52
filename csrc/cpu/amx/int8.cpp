// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by AMX: 16 rows by 16 tokens by 64 columns in 16 cycles. A piece of a
// tile of 64 rows is decoded and multiplied by all tokens, then the next piece. Sums of a unit
// leave the tile registers as integers; they are scaled and added while the products of the next
// unit run.
#include "cpu/amx/int8_pieces.h"
#include "cpu/amx/int8_tokens.h"
#include "cpu/amx/sums.h"

namespace ladder::cpu::int8 {
namespace {

/// What all products of a call have in common.
struct Call {
  const Job& job;
  const TokenTile& token_tile;
  std::int64_t panel_bytes;  ///< of decoded weights
  std::int64_t begin, end;   ///< units
};

/// Four products at once, of kBlockPanels panels of rows by 4 / kBlockPanels tiles of tokens:
/// product i is of panel i % kBlockPanels and tile i / kBlockPanels of tokens.
struct Block {
  const std::uint8_t* weights;  ///< decoded, of the first panel, from unit Call::begin on
  const std::uint8_t* x;        ///< the first tile of tokens
  const float* scales;          ///< of the first row in the first group
  const std::int32_t* zeros;
  float* y;  ///< [tile of tokens][panel][16 rows][16 tokens], added to
};

/// Sums of one unit, as tiles hold them.
struct alignas(64) Sums {
  std::int32_t of[4][kSide][kSide];
};

/// 64 columns of the four products, or 32. Products of one sum wait for each other, so sums take
/// turns. kSigned: the bytes of weights have a sign.
template <bool kSigned, int kBlockPanels>
inline void products(const Call& c, const std::uint8_t* w, const std::uint8_t* x,
                     std::int64_t width) {
  using namespace amx;
  load_tile<4>(w, width);
  load_tile<6>(x, kRowBytes);
  multiply_bytes<0, 4, 6, kSigned>();
  load_tile<5>(w + c.panel_bytes, width);
  multiply_bytes<1, 5, 6, kSigned>();
  if constexpr (kBlockPanels == 2) {
    load_tile<7>(x + c.token_tile.bytes, kRowBytes);
    multiply_bytes<2, 4, 7, kSigned>();
    multiply_bytes<3, 5, 7, kSigned>();
  } else {
    load_tile<4>(w + 2 * c.panel_bytes, width);
    multiply_bytes<2, 4, 6, kSigned>();
    load_tile<5>(w + 3 * c.panel_bytes, width);
    multiply_bytes<3, 5, 6, kSigned>();
  }
}

/// The scaled sums of a unit are added to y.
template <Zeros kZeros, int kBlockPanels>
inline void add(const Call& c, const Block& b, std::int64_t unit, const Sums& sums,
                const float* scales, const std::int32_t* zeros) {
  const std::int64_t x_block = unit * c.job.unit / c.job.block;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int panel = i % kBlockPanels, m_tile = i / kBlockPanels;
    const std::uint8_t* const x = b.x + m_tile * c.token_tile.bytes;
    const __m512 x_scale = _mm512_load_ps(x + c.token_tile.scales + x_block * kRowBytes);
    const __m512i x_sum = _mm512_load_si512(x + c.token_tile.sums + unit * kRowBytes);
    __m512 x_zero;
    if constexpr (kZeros == Zeros::floats)
      x_zero = _mm512_load_ps(x + c.token_tile.float_sums + unit * kRowBytes);
    const float* const scale = scales + panel * kSide;
    const std::int32_t* const zero = zeros + panel * kSide;
    float* const y = b.y + (m_tile * kPanels + panel) * kSide * kSide;
#pragma GCC unroll 16
    for (int r = 0; r < kSide; ++r) {
      __m512i sum = _mm512_load_si512(sums.of[i][r]);
      if constexpr (kZeros == Zeros::constant) sum = _mm512_add_epi32(sum, x_sum);
      // Of numbers of 16 bits: sums of 128 bytes of x are below 2^14, zeros below 2^10.
      if constexpr (kZeros == Zeros::integers)
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x_sum, _mm512_set1_epi32(zero[r])));
      const __m512 scaled = _mm512_mul_ps(x_scale, _mm512_set1_ps(scale[r]));
      __m512 total = _mm512_load_ps(y + r * kSide);
      total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scaled, total);
      if constexpr (kZeros == Zeros::floats)
        total = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(zero[r])), x_zero, total);
      _mm512_store_ps(y + r * kSide, total);
    }
  }
}

/// The sums of a unit are added after the products of the next have begun, and stored after that:
/// instructions that wait for products would keep others from beginning.
template <Zeros kZeros, int kBlockPanels>
void multiply_block(const Call& c, const Block& b) {
  constexpr bool kSigned = kZeros == Zeros::in_codes;
  const std::int64_t width = c.job.unit < 64 ? 32 : 64, group_units = c.job.group / c.job.unit;
  const std::uint8_t* w = b.weights;
  const std::uint8_t* x = b.x + c.begin * c.job.unit * kSide;
  const float* scales = b.scales;
  const std::int32_t* zeros = b.zeros;
  Sums sums[2];
  for (std::int64_t unit = c.begin;; ++unit) {
    if (unit < c.end) {
      amx::zero_tile<0>();
      amx::zero_tile<1>();
      amx::zero_tile<2>();
      amx::zero_tile<3>();
      for (std::int64_t column = 0; column < c.job.unit; column += width) {
        products<kSigned, kBlockPanels>(c, w, x, width);
        w += width * kSide;
        x += width * kSide;
      }
    }
    if (unit > c.begin) {
      add<kZeros, kBlockPanels>(c, b, unit - 1, sums[(unit - 1) % 2], scales, zeros);
      if (unit % group_units == 0) scales += kRows, zeros += kRows;
    }
    if (unit == c.end) return;
    Sums& to = sums[unit % 2];
    amx::store_tile<0>(to.of[0], kRowBytes);
    amx::store_tile<1>(to.of[1], kRowBytes);
    amx::store_tile<2>(to.of[2], kRowBytes);
    amx::store_tile<3>(to.of[3], kRowBytes);
  }
}

using MultiplyBlock = void (*)(const Call&, const Block&);

template <int kBlockPanels>
MultiplyBlock multiply_of(Zeros zeros) {
  switch (zeros) {
    case Zeros::in_codes: return multiply_block<Zeros::in_codes, kBlockPanels>;
    case Zeros::constant: return multiply_block<Zeros::constant, kBlockPanels>;
    case Zeros::integers: return multiply_block<Zeros::integers, kBlockPanels>;
    case Zeros::floats: break;
  }
  return multiply_block<Zeros::floats, kBlockPanels>;
}

/// y is [tokens][kRows] without gaps.
void multiply(const Job& job, void* tile, const void* arranged, std::int64_t tokens, float* y,
              std::int64_t) {
  const Tile64 at(job);
  const TokenTile token_tile(job);
  const DecodePiece decode_some = decode_piece_of(job);
  auto* bytes = static_cast<std::uint8_t*>(tile);
  const auto* x = static_cast<const std::uint8_t*>(arranged);
  const std::int64_t count = (tokens + kSide - 1) / kSide;
  const int width = job.unit < 64 ? 32 : 64;
  const MultiplyBlock pair = multiply_of<2>(zeros_of(job)), single = multiply_of<4>(zeros_of(job));
  __builtin_memset(y, 0, static_cast<std::size_t>(count * kSide * kRows) * sizeof *y);
  const amx::Tiles tiles(width);
  for (std::int64_t begin = 0; begin < job.padded_k; begin += kPiece) {
    const std::int64_t end = begin + kPiece < job.padded_k ? begin + kPiece : job.padded_k;
    const std::int64_t panel_bytes = (end - begin) * kSide;
    for (int panel = 0; panel < kPanels; ++panel)
      decode_some(job, bytes + panel * kSide * 64, begin, end, width,
                  bytes + at.piece + panel * panel_bytes);
    const Call call{job, token_tile, panel_bytes, begin / job.unit, end / job.unit};
    for (std::int64_t m_tile = 0; m_tile < count; m_tile += 2) {
      prefetch_next_tile(job, bytes, m_tile * kRows / count,
                         (m_tile + 2 < count ? m_tile + 2 : count) * kRows / count, begin, end);
      for (int panel = 0; panel < kPanels; panel += 2) {
        const std::int64_t first = begin / job.group * kRows + panel * kSide;
        const bool two = m_tile + 1 < count;
        (two ? pair : single)(
            call, {.weights = bytes + at.piece + panel * panel_bytes,
                   .x = x + m_tile * token_tile.bytes,
                   .scales = reinterpret_cast<const float*>(bytes + at.scales) + first,
                   .zeros = reinterpret_cast<const std::int32_t*>(bytes + at.zeros) + first,
                   .y = y + (m_tile * kPanels + panel) * kSide * kSide});
        if (!two) break;
      }
    }
  }
  for (std::int64_t m_tile = 0; m_tile < count; ++m_tile)
    amx::transpose_sums(y + m_tile * kSide * kRows);
}

/// Units narrower than a product's 32 columns leave most of it empty: those are for AVX-512.
constexpr std::int64_t kLeastUnit = 32, kLeastTokens = 7;

constexpr Kernels kTiles{
    .tile_rows = kRows,
    .few = 0,
    .most_dots = [](const Job&) -> std::int64_t { return 0; },
    .less = [](const Job&) { return 0; },
    .together = kSide,
    .token_bytes = [](const Job& job, bool) { return TokenTile(job).bytes / kSide; },
    .arrange = [](const Job& job, bool, const float* x, int count,
                  void* out) { arrange_tokens(job, x, count, out); },
    .dot = nullptr,
    .tile_bytes = [](const Job& job) { return Tile64(job).bytes; },
    .decode = decode,
    .multiply = multiply,
    .wider = nullptr,
    .fits = nullptr};
static_assert(kSide <= kTogether);

}  // namespace

const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_vnni_kernels();
    k.wider = &kTiles;
    k.fits = [](const Job& job, std::int64_t tokens) {
      return tokens >= kLeastTokens && job.unit >= kLeastUnit;
    };
    return k;
  }();
  return kernels;
}

}  // namespace ladder::cpu::int8
