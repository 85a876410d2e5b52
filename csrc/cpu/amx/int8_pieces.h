// SPDX-License-Identifier: Apache-2.0
//
// Weights for AMX with x of 8 bits: pieces of 64 rows, decoded to bytes in the order of rows.
#pragma once

#include "cpu/amx/tiles.h"
#include "cpu/int8/x86_512.h"

namespace ladder::cpu::int8 {
namespace {

using amx::kRowBytes;
using amx::kSide;
using amx::kTileBytes;

constexpr int kPanels = 4;  ///< of kSide rows
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
  each(at.scales,
       [](const RowScales& s, std::int64_t g) { return V::as_int(V::loadu(s.scale + g)); });
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
  const __m512i zero =
      _mm512_set1_epi8(static_cast<char>(zeros_of(job) == Zeros::in_codes ? job.zero : 0));
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

/// Prefetches the codes of columns [begin, end) of the next tile's rows [first, last): 64 rows are
/// more streams than the hardware follows, and decoding a piece takes less time than memory does.
void prefetch_next_tile(const Job& job, const std::uint8_t* rows, std::int64_t first,
                        std::int64_t last, std::int64_t begin, std::int64_t end) {
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

}  // namespace
}  // namespace ladder::cpu::int8
