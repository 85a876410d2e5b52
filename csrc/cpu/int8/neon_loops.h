// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits on 64-bit ARM, for any instruction V that sums products of bytes. Tiles
// of rows are decoded to bytes with a sign, u or u - 128, in the natural order of columns, and
// multiplied by all tokens; a single token gains nothing from staying in registers, where it saves
// a load and a store of 16 bytes.
//
// V has
//   kPairs                 two rows of a tile lie side by side, by 8 columns
//   Sums<kTokens>          of 4 rows; add(w, x, padded_k, k) those of columns k to k + 15;
//                          of(t), the four sums of a token
#pragma once

#include <arm_neon.h>

#include "cpu/int8/tokens.h"
#include "cpu/neon/codes.h"

namespace ladder::cpu::int8 {
namespace {

constexpr int kQuad = 4, kTileRows = 2 * kQuad;
constexpr int kTokens = 4;  ///< by 4 rows: 16 sums of the 32 registers

/// 128 where u would not fit a byte with a sign.
inline int less(const Job& job) { return job.codes->most > 127 ? 128 : 0; }

/// Tokens in order of columns, as 8 bits have them.
inline Job natural(Job job) {
  job.bits = 8;
  return job;
}

/// A tile: kTileRows * padded_k bytes; then for each group scales of the rows, and zeros: integers,
/// or, for float zeros, zero * scale + offset.
struct Tile {
  std::int64_t groups, scales, zeros, bytes;
  explicit Tile(const Job& job)
      : groups((job.padded_k + job.group - 1) / job.group),
        scales(kTileRows * job.padded_k),
        zeros(scales + groups * kTileRows * 4),
        bytes((zeros + groups * kTileRows * 4 + 63) / 64 * 64) {}
};

/// Where the byte of row r, column k lies; 8 columns are neighbours, and 16 where no rows are
/// pairs.
template <class V>
inline std::int64_t place(std::int64_t padded_k, std::int64_t r, std::int64_t k) {
  return V::kPairs ? r / 2 * 2 * padded_k + k * 2 + r % 2 * 8 : r * padded_k + k;
}

/// Codes to bytes with a sign.
template <int kBits, Codes::Kind kKind>
struct Map {
  static constexpr bool kTable = kKind == Codes::Kind::table;
  static constexpr int kParts = kTable && kBits > 4 ? 1 << (kBits - 4) : 1;
  uint8x16_t part[kParts];

  explicit Map(const Job& job) {
    const uint8x16_t sign = vdupq_n_u8(static_cast<std::uint8_t>(less(job)));
    if constexpr (kTable) {
      for (int i = 0; i < kParts; ++i) part[i] = veorq_u8(vld1q_u8(job.codes->u + 16 * i), sign);
    } else {
      part[0] = kKind == Codes::Kind::flip ? veorq_u8(sign, vdupq_n_u8(1 << (kBits - 1))) : sign;
    }
  }
  uint8x16_t operator()(uint8x16_t codes) const {
    if constexpr (!kTable) return veorq_u8(codes, part[0]);
    if constexpr (kParts == 1) return vqtbl1q_u8(part[0], codes);
    if constexpr (kParts == 2) return vqtbl2q_u8({{part[0], part[1]}}, codes);
    if constexpr (kParts >= 4) {
      // An index out of range looks up 0 first, and leaves what was there afterwards.
      uint8x16_t all = vqtbl4q_u8({{part[0], part[1], part[2], part[3]}}, codes);
      for (int i = 4; i < kParts; i += 4)
        all = vqtbx4q_u8(all, {{part[i], part[i + 1], part[i + 2], part[i + 3]}},
                         vsubq_u8(codes, vdupq_n_u8(static_cast<std::uint8_t>(16 * i))));
      return all;
    }
  }
};

template <class V, int kBits, Codes::Kind kKind>
void decode_codes(const Job& job, const Row* rows, std::uint8_t* tile) {
  using neon::kColumns, neon::kLoad;
  constexpr std::int64_t kBytes = 2 * kBits;
  const Map<kBits, kKind> map(job);
  const std::int64_t steps = job.padded_k / kColumns;
  std::int64_t whole =
      job.row_bytes < kLoad<kBits> ? 0 : (job.row_bytes - kLoad<kBits>) / kBytes + 1;
  if (whole > steps) whole = steps;
  for (int r = 0; r < kTileRows; ++r) {
    // Steps that would read past the end of the row read a copy: those of the padding and two more.
    std::uint8_t last[(kBlock / kColumns + 4) * kBytes + 16];
    if (whole < steps) {
      const std::int64_t left = job.row_bytes - whole * kBytes;
      __builtin_memset(last, 0, sizeof last);
      if (left > 0)
        __builtin_memcpy(last, rows[r].codes + whole * kBytes, static_cast<std::size_t>(left));
    }
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::uint8_t* const p =
          step < whole ? rows[r].codes + step * kBytes : last + (step - whole) * kBytes;
      const uint8x16_t bytes = map(neon::codes_of<kBits>(p));
      std::uint8_t* const to = tile + place<V>(job.padded_k, r, step * kColumns);
      if constexpr (V::kPairs) {
        vst1_u8(to, vget_low_u8(bytes));
        vst1_u8(to + 16, vget_high_u8(bytes));
      } else {
        vst1q_u8(to, bytes);
      }
    }
  }
}

template <class V>
void decode(const Job& job, const Row* rows, void* out) {
  using Decode = void (*)(const Job&, const Row*, std::uint8_t*);
  constexpr auto kIdentity = Codes::Kind::identity, kFlip = Codes::Kind::flip,
                 kTable = Codes::Kind::table;
#define LADDER_OF_BITS(bits) \
  { decode_codes<V, bits, kIdentity>, decode_codes<V, bits, kFlip>, decode_codes<V, bits, kTable> }
  static constexpr Decode kDecode[8][3] = {LADDER_OF_BITS(1), LADDER_OF_BITS(2), LADDER_OF_BITS(3),
                                           LADDER_OF_BITS(4), LADDER_OF_BITS(5), LADDER_OF_BITS(6),
                                           LADDER_OF_BITS(7), LADDER_OF_BITS(8)};
#undef LADDER_OF_BITS
  auto* tile = static_cast<std::uint8_t*>(out);
  kDecode[job.bits - 1][static_cast<int>(job.codes->kind)](job, rows, tile);
  const Tile at(job);
  auto* scales = reinterpret_cast<float*>(tile + at.scales);
  auto* floats = reinterpret_cast<float*>(tile + at.zeros);
  auto* integers = reinterpret_cast<std::int32_t*>(tile + at.zeros);
  for (std::int64_t group = 0; group < at.groups; ++group)
    for (int r = 0; r < kTileRows; ++r) {
      const RowScales& s = rows[r].scales;
      const std::int64_t to = group * kTileRows + r;
      scales[to] = s.scale[group];
      if (job.integer_zeros) {
        integers[to] = static_cast<std::int32_t>(s.zero[group]) + job.zero;
      } else if (job.float_zeros) {
        floats[to] =
            s.scale[group] * (s.zero[group] + static_cast<float>(job.zero)) + s.offset[group];
      }
    }
}

/// Sums of 8 columns: groups so short are rare.
template <class V, int kCount>
inline void short_sums(const std::uint8_t* w, const std::int8_t* const* x, std::int64_t padded_k,
                       std::int64_t k, int32x4_t* sums) {
  for (int t = 0; t < kCount; ++t) {
    std::int32_t four[kQuad];
    for (int r = 0; r < kQuad; ++r) {
      const int8x8_t u = vreinterpret_s8_u8(vld1_u8(w + place<V>(padded_k, r, k)));
      four[r] = vaddlvq_s16(vmull_s8(u, vld1_s8(x[t] + k)));
    }
    sums[t] = vld1q_s32(four);
  }
}

/// 4 rows, from row `first` of a tile on, by kCount tokens.
template <class V, int kCount>
void quad(const Job& job, const std::uint8_t* tile, int first, const std::uint8_t* x,
          std::int64_t token_bytes, float* y, std::int64_t y_stride) {
  const Tile at(job);
  const Tokens token = tokens_of(job);
  const std::uint8_t* const w = tile + first * job.padded_k;
  const auto* scales = reinterpret_cast<const float*>(tile + at.scales) + first;
  const auto* floats = reinterpret_cast<const float*>(tile + at.zeros) + first;
  const auto* integers = reinterpret_cast<const std::int32_t*>(tile + at.zeros) + first;
  const std::int8_t* q[kCount];
  float32x4_t totals[kCount];
  for (int t = 0; t < kCount; ++t) {
    q[t] = reinterpret_cast<const std::int8_t*>(x + t * token_bytes);
    totals[t] = vdupq_n_f32(0);
  }
  const std::int64_t units_of_group = job.group / job.unit, units_of_block = job.block / job.unit;
  std::int64_t in_group = 0, in_block = 0, group = 0, block = 0;
  for (std::int64_t k = 0, unit = 0; k < job.padded_k; k += job.unit, ++unit) {
    int32x4_t products[kCount];
    if (job.unit < neon::kColumns) {
      short_sums<V, kCount>(w, q, job.padded_k, k, products);
    } else {
      typename V::template Sums<kCount> sums;
      for (std::int64_t i = k; i < k + job.unit; i += neon::kColumns)
        sums.add(w, q, job.padded_k, i);
      for (int t = 0; t < kCount; ++t) products[t] = sums.of(t);
    }
    const float32x4_t scale = vld1q_f32(scales + group * kTileRows);
    for (int t = 0; t < kCount; ++t) {
      const std::uint8_t* const mine = x + t * token_bytes;
      const auto* x_scales = reinterpret_cast<const float*>(mine + token.scales);
      const auto* sums = reinterpret_cast<const std::int32_t*>(mine + token.sums);
      int32x4_t sum = products[t];
      if (job.integer_zeros)
        sum = vmlaq_n_s32(sum, vld1q_s32(integers + group * kTileRows), sums[unit]);
      else if (!job.float_zeros)
        sum = vaddq_s32(sum, vdupq_n_s32(sums[unit]));
      totals[t] = vfmaq_f32(totals[t], vcvtq_f32_s32(sum), vmulq_n_f32(scale, x_scales[block]));
      if (job.float_zeros) {
        const auto* float_sums = reinterpret_cast<const float*>(mine + token.float_sums);
        totals[t] = vfmaq_n_f32(totals[t], vld1q_f32(floats + group * kTileRows), float_sums[unit]);
      }
    }
    if (++in_group == units_of_group) in_group = 0, ++group;
    if (++in_block == units_of_block) in_block = 0, ++block;
  }
  for (int t = 0; t < kCount; ++t) vst1q_f32(y + t * y_stride, totals[t]);
}

template <class V>
void multiply(const Job& job, void* tile, const void* x, std::int64_t tokens, float* y,
              std::int64_t y_stride) {
  using Quad = void (*)(const Job&, const std::uint8_t*, int, const std::uint8_t*, std::int64_t,
                        float*, std::int64_t);
  static constexpr Quad kQuads[] = {nullptr, quad<V, 1>, quad<V, 2>, quad<V, 3>, quad<V, 4>};
  const std::int64_t bytes = tokens_of(job).bytes;
  for (std::int64_t t = 0; t < tokens; t += kTokens) {
    const std::int64_t some = tokens - t < kTokens ? tokens - t : kTokens;
    for (int first = 0; first < kTileRows; first += kQuad)
      kQuads[some](job, static_cast<const std::uint8_t*>(tile), first,
                   static_cast<const std::uint8_t*>(x) + t * bytes, bytes, y + t * y_stride + first,
                   y_stride);
  }
}

template <class V>
inline constexpr Kernels kKernels{
    .tile_rows = kTileRows,
    .few = 0,
    .most_dots = [](const Job&) -> std::int64_t { return 0; },
    .less = less,
    .together = 1,
    .token_bytes = [](const Job& job, bool) { return tokens_of(job).bytes; },
    .arrange =
        [](const Job& job, bool, const float* x, int, void* out) {
          arrange_for_tiles(natural(job), x, static_cast<std::uint8_t*>(out));
        },
    .dot = nullptr,
    .tile_bytes = [](const Job& job) { return Tile(job).bytes; },
    .decode = decode<V>,
    .multiply = multiply<V>,
    .wider = nullptr,
    .fits = nullptr};

/// Sums of rows and tokens by an instruction that adds 16 products to 4 sums.
template <class Add>
struct Fours {
  static constexpr bool kPairs = false;
  template <int kCount>
  struct Sums {
    int32x4_t sums[kCount][kQuad];

    Sums() {
      for (auto& token : sums)
        for (int32x4_t& sum : token) sum = vdupq_n_s32(0);
    }
    void add(const std::uint8_t* w, const std::int8_t* const* x, std::int64_t padded_k,
             std::int64_t k) {
      int8x16_t tokens[kCount];
      for (int t = 0; t < kCount; ++t) tokens[t] = vld1q_s8(x[t] + k);
      for (int r = 0; r < kQuad; ++r) {
        const int8x16_t row = vreinterpretq_s8_u8(vld1q_u8(w + r * padded_k + k));
        for (int t = 0; t < kCount; ++t) sums[t][r] = Add::add(sums[t][r], row, tokens[t]);
      }
    }
    int32x4_t of(int t) const {
      return vpaddq_s32(vpaddq_s32(sums[t][0], sums[t][1]), vpaddq_s32(sums[t][2], sums[t][3]));
    }
  };
};

}  // namespace
}  // namespace ladder::cpu::int8
