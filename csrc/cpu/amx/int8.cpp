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
constexpr std::int64_t kPiece = 256;

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

/// Columns [begin, stop) of kSide rows to bytes: tiles of `width` columns, 32 or 64.
template <class Decoder>
void decode_piece(const Job& job, const std::uint8_t* rows, std::int64_t begin, std::int64_t stop,
                  int width, std::uint8_t* out) {
  const auto table = Decoder::table(*job.codes);
  const __m512i zero = _mm512_set1_epi8(
      static_cast<char>(zeros_of(job) == Zeros::in_codes ? job.zero : 0));
  const __m512i firsts = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i seconds = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const std::int64_t bytes = kBlock / 8 * job.bits;
  for (std::int64_t column = begin; column < stop; column += kBlock, out += kBlock * kSide) {
#pragma GCC unroll 2
    for (int r = 0; r < kSide; ++r) {
      const std::uint8_t* codes;
      __builtin_memcpy(&codes, rows + 64 * r, sizeof codes);
      const std::uint8_t* const row_end = codes + job.row_bytes;
      const std::uint8_t* const p = codes + column / 8 * job.bits;
      const std::uint8_t* const end = row_end - p >= bytes + 16 ? nullptr : row_end;
      __m512i low, high;
      if constexpr (Decoder::kBytes) {
        low = Decoder::u(load_bytes(p, end, 64), table);
        high = Decoder::u(load_bytes(p + 64, end, 64), table);
      } else {
        __m512i first, second;
        Decoder::halves(p, end, table, first, second);
        low = _mm512_permutex2var_epi64(first, firsts, second);
        high = _mm512_permutex2var_epi64(first, seconds, second);
      }
      low = _mm512_sub_epi8(low, zero);
      high = _mm512_sub_epi8(high, zero);
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

/// Asks for the codes of columns [begin, end) of the next tile's rows [first, last): 64 rows are more
/// streams than the hardware follows, and a piece is decoded faster than memory answers.
void ask_ahead(const Job& job, const std::uint8_t* rows, std::int64_t first, std::int64_t last,
               std::int64_t begin, std::int64_t end) {
  const std::int64_t from = kRows * job.row_bytes + begin / 8 * job.bits;
  for (std::int64_t r = first; r < last; ++r) {
    const std::uint8_t* codes;
    __builtin_memcpy(&codes, rows + 64 * r, sizeof codes);
    for (std::int64_t byte = 0; byte < (end - begin) / 8 * job.bits; byte += 64)
      _mm_prefetch(reinterpret_cast<const char*>(codes + from + byte), _MM_HINT_T1);
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

/// What all products of a call have in common.
struct Call {
  const Job& job;
  const Lots& lots;
  std::int64_t panel_bytes;  ///< of decoded weights
  std::int64_t begin, end;   ///< units
};

/// Four products at once, of kPanels panels of rows by 4 / kPanels lots of tokens: product i is of
/// panel i % kPanels and lot i / kPanels.
struct Block {
  const std::uint8_t* weights;  ///< decoded, of the first panel, from unit Call::begin on
  const std::uint8_t* x;        ///< the first lot
  const float* scales;          ///< of the first row in the first group
  const std::int32_t* zeros;
  float* y;  ///< [lot][panel of the tile][16 rows][16 tokens], added to
};

/// Sums of one unit, as tiles hold them.
struct alignas(64) Sums {
  std::int32_t of[4][kSide][kSide];
};

/// 64 columns of the four products, or 32. Products of one sum wait for each other, so sums take
/// turns. kSigned: the bytes of weights have a sign.
template <bool kSigned, int kBlockPanels>
inline void products(const Call& c, const std::uint8_t* w, const std::uint8_t* x, std::int64_t width) {
  using namespace amx;
  load_tile<4>(w, width);
  load_tile<6>(x, kRowBytes);
  multiply_bytes<0, 4, 6, kSigned>();
  load_tile<5>(w + c.panel_bytes, width);
  multiply_bytes<1, 5, 6, kSigned>();
  if constexpr (kBlockPanels == 2) {
    load_tile<7>(x + c.lots.bytes, kRowBytes);
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
    const int panel = i % kBlockPanels, lot = i / kBlockPanels;
    const std::uint8_t* const x = b.x + lot * c.lots.bytes;
    const __m512 x_scale = _mm512_load_ps(x + c.lots.scales + x_block * kRowBytes);
    const __m512i x_sum = _mm512_load_si512(x + c.lots.sums + unit * kRowBytes);
    __m512 x_zero;
    if constexpr (kZeros == Zeros::floats)
      x_zero = _mm512_load_ps(x + c.lots.float_sums + unit * kRowBytes);
    const float* const scale = scales + panel * kSide;
    const std::int32_t* const zero = zeros + panel * kSide;
    float* const y = b.y + (lot * kPanels + panel) * kSide * kSide;
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

/// [panel][row][token] to [token][panel][row].
void transpose_lot(float* y) {
  alignas(64) float from[kRows * kSide];
  __builtin_memcpy(from, y, sizeof from);
  for (int panel = 0; panel < kPanels; ++panel) {
    __m512i v[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) v[i] = _mm512_load_si512(from + (panel * kSide + i) * kSide);
    V::transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) _mm512_store_si512(y + i * kRows + panel * kSide, v[i]);
  }
}

/// y is [tokens][kRows] without gaps.
void multiply(const Job& job, void* tile, const void* arranged, std::int64_t tokens, float* y,
              std::int64_t) {
  const Tile64 at(job);
  const Lots lots(job);
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
    const Call call{job, lots, panel_bytes, begin / job.unit, end / job.unit};
    for (std::int64_t lot = 0; lot < count; lot += 2) {
      ask_ahead(job, bytes, lot * kRows / count, (lot + 2 < count ? lot + 2 : count) * kRows / count, begin,
                end);
      for (int panel = 0; panel < kPanels; panel += 2) {
        const std::int64_t first = begin / job.group * kRows + panel * kSide;
        const bool two = lot + 1 < count;
        (two ? pair : single)(
            call, {.weights = bytes + at.piece + panel * panel_bytes,
                   .x = x + lot * lots.bytes,
                   .scales = reinterpret_cast<const float*>(bytes + at.scales) + first,
                   .zeros = reinterpret_cast<const std::int32_t*>(bytes + at.zeros) + first,
                   .y = y + (lot * kPanels + panel) * kSide * kSide});
        if (!two) break;
      }
    }
  }
  for (std::int64_t lot = 0; lot < count; ++lot) transpose_lot(y + lot * kSide * kRows);
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
                         .pass_bytes = kPassBytes,
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
