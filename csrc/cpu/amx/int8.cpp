// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by AMX: 16 rows by 16 tokens by 64 columns in 16 cycles. Of a tile of 64
// rows so many columns are decoded as the first-level cache holds, to bytes in the order of rows, and
// multiplied by all tokens. Sums of a unit leave the tiles as integers; they are scaled and added
// while the products of the next unit run.
#include "cpu/amx/int8_tokens.h"
#include "cpu/amx/tiles.h"

namespace ladder::cpu::int8 {
namespace {

using amx::kRowBytes;
using amx::kSide;
using amx::kTileBytes;

constexpr int kPanels = 4;                 ///< of kSide rows
constexpr int kRows = kPanels * kSide;
/// Columns that are decoded at once: 16 KiB beside what is read of x and y.
#ifndef PIECE
#define PIECE 256
#endif
constexpr std::int64_t kPiece = PIECE;
/// Codes are asked for so many bytes before they are decoded.
constexpr std::int64_t kAheadBytes = 256;

/// What happens to the zeros of a weight.
enum class Zeros {
  in_codes,  ///< decoded bytes are u less the zero, with a sign
  constant,  ///< Tokens::sums are multiplied by it
  integers,
  floats,
};

Zeros zeros_of(const Job& job) {
  if (job.integer_zeros) return Zeros::integers;
  if (job.float_zeros) return Zeros::floats;
  return job.zero <= 128 && job.codes->most - job.zero <= 127 ? Zeros::in_codes : Zeros::constant;
}

/// A tile: rows that wait to be decoded, their scales and zeros by group, and a piece of bytes.
struct Tile64 {
  std::int64_t groups, scales, zeros, piece, bytes;
  explicit Tile64(const Job& job) {
    groups = (job.padded_k + job.group - 1) / job.group;
    const std::int64_t room = (groups + kSide - 1) / kSide * kSide * kRows * 4;
    scales = kRows * 64;
    zeros = scales + room;
    piece = zeros + room;
    bytes = piece + kRows * kPiece;
  }
};
static_assert(sizeof(Row) <= 64);

/// Scales and zeros of kSide rows, [group][kRows] each.
void decode_scales(const Job& job, const Row* rows, std::uint8_t* tile, int panel) {
  const Tile64 at(job);
  const auto each = [&](std::int64_t offset, auto of) {
    for (std::int64_t group = 0; group < at.groups; group += kSide) {
      __m512i v[kSide];
      for (int r = 0; r < kSide; ++r) v[r] = of(rows[r].scales, group);
      V::transpose(v);
      for (int g = 0; g < kSide; ++g)
        _mm512_store_si512(tile + offset + ((group + g) * kRows + panel * kSide) * 4, v[g]);
    }
  };
  each(at.scales, [](const RowScales& s, std::int64_t g) { return V::as_int(V::loadu(s.scale + g)); });
  // For vpmaddwd: the upper halves are zeros.
  if (job.integer_zeros)
    each(at.zeros, [&](const RowScales& s, std::int64_t g) {
      const __m512i z = V::add(V::to_int(V::loadu(s.zero + g)), V::broadcast(job.zero));
      return _mm512_and_si512(z, _mm512_set1_epi32(0xffff));
    });
  if (job.float_zeros)
    each(at.zeros, [&](const RowScales& s, std::int64_t g) {
      const __m512 z = V::add(V::loadu(s.zero + g), V::broadcast(static_cast<float>(job.zero)));
      return V::as_int(V::multiply_add(z, V::loadu(s.scale + g), V::loadu(s.offset + g)));
    });
}

void decode(const Job& job, const Row* rows, void* tile) {
  auto* bytes = static_cast<std::uint8_t*>(tile);
  for (int r = 0; r < kRows; ++r) __builtin_memcpy(bytes + 64 * r, rows + r, sizeof(Row));
  for (int panel = 0; panel < kPanels; ++panel)
    decode_scales(job, rows + panel * kSide, bytes, panel);
}

/// Columns [begin, end) of kSide rows to bytes: tiles of `width` columns, 32 or 64.
template <class Decoder>
void decode_piece(const Job& job, const std::uint8_t* rows, std::int64_t begin, std::int64_t end,
                  int width, std::uint8_t* out) {
  const auto table = Decoder::table(*job.codes);
  const __m512i zero = _mm512_set1_epi8(
      static_cast<char>(zeros_of(job) == Zeros::in_codes ? job.zero : 0));
  const __m512i firsts = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i seconds = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const std::int64_t bytes = kBlock / 8 * job.bits;
  for (std::int64_t column = begin; column < end; column += kBlock, out += kBlock * kSide) {
#pragma GCC unroll 2
    for (int r = 0; r < kSide; ++r) {
      const std::uint8_t* codes;
      __builtin_memcpy(&codes, rows + 64 * r, sizeof codes);
      const std::uint8_t* const stop = codes + job.row_bytes;
      const std::uint8_t* const p = codes + column / 8 * job.bits;
      for (std::int64_t line = 0; line < bytes; line += 64) V::prefetch(p + kAheadBytes + line);
      __m512i first, second;
      Decoder::halves(p, stop - p >= bytes + 16 ? nullptr : stop, table, first, second);
      const __m512i low = _mm512_sub_epi8(_mm512_permutex2var_epi64(first, firsts, second), zero);
      const __m512i high = _mm512_sub_epi8(_mm512_permutex2var_epi64(first, seconds, second), zero);
      if (width == 64) {
        _mm512_store_si512(out + r * 64, low);
        _mm512_store_si512(out + kTileBytes + r * 64, high);
      } else {
        const auto store = [&](int tile, __m256i v) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(out + tile * kTileBytes / 2 + r * 32), v);
        };
        store(0, _mm512_castsi512_si256(low));
        store(1, _mm512_extracti64x4_epi64(low, 1));
        store(2, _mm512_castsi512_si256(high));
        store(3, _mm512_extracti64x4_epi64(high, 1));
      }
    }
  }
}

using DecodePiece = void (*)(const Job&, const std::uint8_t*, std::int64_t, std::int64_t, int,
                             std::uint8_t*);
template <int kBits>
DecodePiece decode_piece_of_bits(Codes::Kind kind) {
  switch (kind) {
    case Codes::Kind::identity: return decode_piece<D<kBits, Codes::Kind::identity>>;
    case Codes::Kind::flip: return decode_piece<D<kBits, Codes::Kind::flip>>;
    case Codes::Kind::table: break;
  }
  return decode_piece<D<kBits, Codes::Kind::table>>;
}

DecodePiece decode_piece_of(const Job& job) {
  using Of = DecodePiece (*)(Codes::Kind);
  static constexpr Of kOf[] = {decode_piece_of_bits<1>, decode_piece_of_bits<2>,
                               decode_piece_of_bits<3>, decode_piece_of_bits<4>,
                               decode_piece_of_bits<5>, decode_piece_of_bits<6>,
                               decode_piece_of_bits<7>, decode_piece_of_bits<8>};
  return kOf[job.bits - 1](job.codes->kind);
}

/// Sums of one unit, as the tiles hold them.
struct alignas(64) Sums {
  std::int32_t of[4][kSide][kSide];
};

/// One unit of two panels by one or two lots of tokens, and where its sums go.
struct Unit {
  const std::uint8_t* weights;  ///< of the first panel
  const std::uint8_t* x;        ///< the first lot
  std::int64_t unit;
  const float* scales;  ///< of the first row
  const std::int32_t* zeros;
  float* y;  ///< [16 rows][16 tokens] for each panel and lot, where y has [16 tokens][16 rows]
};

/// What all units of a call have in common.
struct Call {
  const Job& job;
  const Lots& lots;
  std::int64_t panel_bytes;  ///< of decoded weights
  std::int64_t y_stride;
};

/// Sums of a unit into the tiles and to `out`. kSigned: the bytes of weights have a sign.
template <bool kSigned, int kLots>
inline void products(const Call& c, const Unit& u, Sums& out) {
  const int width = c.job.unit < 64 ? 32 : 64;
  const std::int64_t tile = width * kSide;
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kLots == 2) {
    _tile_zero(1);
    _tile_zero(3);
  }
  const std::uint8_t* w = u.weights;
  const std::uint8_t* x = u.x + u.unit * c.job.unit * kSide;
  for (std::int64_t column = 0; column < c.job.unit; column += width, w += tile, x += tile) {
    _tile_loadd(4, w, width);
    _tile_loadd(6, x, kRowBytes);
    _tile_loadd(5, w + c.panel_bytes, width);
    if constexpr (kLots == 2) _tile_loadd(7, x + c.lots.bytes, kRowBytes);
    if constexpr (kSigned) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(2, 5, 6);
      if constexpr (kLots == 2) {
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(3, 5, 7);
      }
    } else {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(2, 5, 6);
      if constexpr (kLots == 2) {
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(3, 5, 7);
      }
    }
  }
  _tile_stored(0, out.of[0], kRowBytes);
  _tile_stored(2, out.of[2], kRowBytes);
  if constexpr (kLots == 2) {
    _tile_stored(1, out.of[1], kRowBytes);
    _tile_stored(3, out.of[3], kRowBytes);
  }
}

/// y += the scaled sums of a unit.
template <Zeros kZeros, int kLots>
inline void add(const Call& c, const Unit& u, const Sums& sums) {
  const std::int64_t x_block = u.unit * c.job.unit / c.job.block;
#pragma GCC unroll 2
  for (int lot = 0; lot < kLots; ++lot) {
    const std::uint8_t* const x = u.x + lot * c.lots.bytes;
    const __m512 x_scale = _mm512_load_ps(x + c.lots.scales + x_block * kRowBytes);
    const __m512i x_sum = _mm512_load_si512(x + c.lots.sums + u.unit * kRowBytes);
    __m512 x_zero;
    if constexpr (kZeros == Zeros::floats)
      x_zero = _mm512_load_ps(x + c.lots.float_sums + u.unit * kRowBytes);
    for (int panel = 0; panel < 2; ++panel) {
      const auto& from = sums.of[2 * panel + lot];
      const float* const scales = u.scales + panel * kSide;
      const std::int32_t* const zeros = u.zeros + panel * kSide;
      float* const y = u.y + lot * kSide * c.y_stride + panel * kSide;
#pragma GCC unroll 16
      for (int r = 0; r < kSide; ++r) {
        __m512i sum = _mm512_load_si512(from[r]);
        if constexpr (kZeros == Zeros::constant) sum = _mm512_add_epi32(sum, x_sum);
        // Of numbers of 16 bits: sums of 128 bytes of x are below 2^14, zeros below 2^10.
        if constexpr (kZeros == Zeros::integers)
          sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x_sum, _mm512_set1_epi32(zeros[r])));
        const __m512 scale = _mm512_mul_ps(x_scale, _mm512_set1_ps(scales[r]));
        __m512 total = _mm512_load_ps(y + r * c.y_stride);
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, total);
        if constexpr (kZeros == Zeros::floats)
          total = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(zeros[r])), x_zero, total);
        _mm512_store_ps(y + r * c.y_stride, total);
      }
    }
  }
}

/// Units [begin, end) of one block: two panels by kLots lots.
template <Zeros kZeros, int kLots>
void multiply_block(const Call& c, Unit u, std::int64_t end) {
  const std::int64_t unit_bytes = c.job.unit * kSide, group_units = c.job.group / c.job.unit;
  constexpr bool kSigned = kZeros == Zeros::in_codes;
  Sums sums[2];
  products<kSigned, kLots>(c, u, sums[0]);
  for (int now = 0;; now = 1 - now) {
    Unit next = u;
    ++next.unit;
    if (next.unit == end) return add<kZeros, kLots>(c, u, sums[now]);
    next.weights += unit_bytes;
    if (next.unit % group_units == 0) next.scales += kRows, next.zeros += kRows;
    products<kSigned, kLots>(c, next, sums[1 - now]);
    add<kZeros, kLots>(c, u, sums[now]);
    u = next;
  }
}

using Block = void (*)(const Call&, Unit, std::int64_t);

template <int kLots>
Block block_of(Zeros zeros) {
  switch (zeros) {
    case Zeros::in_codes: return multiply_block<Zeros::in_codes, kLots>;
    case Zeros::constant: return multiply_block<Zeros::constant, kLots>;
    case Zeros::integers: return multiply_block<Zeros::integers, kLots>;
    case Zeros::floats: break;
  }
  return multiply_block<Zeros::floats, kLots>;
}

void multiply(const Job& job, void* tile, const void* arranged, std::int64_t tokens, float* y,
              std::int64_t y_stride) {
  const Tile64 at(job);
  const Lots lots(job);
  const DecodePiece decode_some = decode_piece_of(job);
  auto* bytes = static_cast<std::uint8_t*>(tile);
  const auto* x = static_cast<const std::uint8_t*>(arranged);
  const std::int64_t count = (tokens + kSide - 1) / kSide;
  const Zeros zeros = zeros_of(job);
  const Block one = block_of<1>(zeros), two = block_of<2>(zeros);
  const int width = job.unit < 64 ? 32 : 64;
  for (std::int64_t t = 0; t < count * kSide; ++t)
    for (int r = 0; r < kRows; r += kSide) _mm512_store_ps(y + t * y_stride + r, _mm512_setzero_ps());
  const amx::Tiles tiles(width);
  for (std::int64_t begin = 0; begin < job.padded_k; begin += kPiece) {
    const std::int64_t end = begin + kPiece < job.padded_k ? begin + kPiece : job.padded_k;
    const Call call{job, lots, (end - begin) * kSide, y_stride};
    for (int panel = 0; panel < kPanels; ++panel)
      decode_some(job, bytes + panel * kSide * 64, begin, end, width,
                  bytes + at.piece + panel * call.panel_bytes);
    for (std::int64_t lot = 0; lot < count; lot += 2)
      for (int panel = 0; panel < kPanels; panel += 2) {
        const std::int64_t first = begin / job.group * kRows + panel * kSide;
        (lot + 1 < count ? two : one)(
            call,
            {.weights = bytes + at.piece + panel * call.panel_bytes,
             .x = x + lot * lots.bytes,
             .unit = begin / job.unit,
             .scales = reinterpret_cast<const float*>(bytes + at.scales) + first,
             .zeros = reinterpret_cast<const std::int32_t*>(bytes + at.zeros) + first,
             .y = y + lot * kSide * y_stride + panel * kSide},
            end / job.unit);
      }
  }
  for (std::int64_t lot = 0; lot < count; ++lot)
    for (int panel = 0; panel < kPanels; ++panel) {
      float* const block = y + lot * kSide * y_stride + panel * kSide;
      __m512i v[kSide];
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) v[i] = _mm512_load_si512(block + i * y_stride);
      V::transpose(v);
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) _mm512_store_si512(block + i * y_stride, v[i]);
    }
}

/// Units narrower than a product's 32 columns leave most of it empty: those are for AVX-512.
constexpr std::int64_t kLeastUnit = 32, kLeastTokens = 7;

constexpr Kernels kTiles{.tile_rows = kRows,
                         .few = 0,
                         .most_dots = [](const Job&) -> std::int64_t { return 0; },
                         .less = [](const Job&) { return 0; },
                         .together = kSide,
                         .token_bytes = [](const Job& job, bool) { return Lots(job).bytes / kSide; },
                         .arrange = [](const Job& job, bool, const float* x, int count,
                                       void* out) { arrange_lot(job, x, count, out); },
                         .dot = nullptr,
                         .tile_bytes = [](const Job& job) { return Tile64(job).bytes; },
                         .decode = decode,
                         .multiply = multiply,
                         .pass_bytes = 1024 * 1024,
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
