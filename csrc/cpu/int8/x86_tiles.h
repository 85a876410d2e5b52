// SPDX-License-Identifier: Apache-2.0
//
// Decoded tiles of rows by many tokens, for any vectors V and decoder D of x86_loops.h.
#pragma once

#include "cpu/int8/tokens.h"

namespace ladder::cpu::int8 {
namespace {

/// A tile: for every 4 bytes of a token those of kRows rows; then scales and zeros, rows within
/// groups. Zeros are integers, or, for float zeros, zero * scale + offset.
template <class V>
struct Tile {
  static constexpr int kRows = V::kVectors * V::kLanes;
  std::int64_t groups, scales, zeros, bytes;
  explicit Tile(const Job& job) {
    groups = (job.padded_k + job.group - 1) / job.group;
    const std::int64_t room = (groups + V::kLanes - 1) / V::kLanes * V::kLanes * kRows * 4;
    scales = kRows * job.padded_k;
    zeros = scales + room;
    bytes = zeros + (job.integer_zeros || job.float_zeros ? room : 0);
  }
};

template <class V>
std::int64_t tile_bytes(const Job& job) {
  return Tile<V>(job).bytes;
}

/// kLanes rows to every kVectors-th vector of a tile, from `out` on.
template <class V, class D>
void decode_rows(const Job& job, const Row* rows, std::uint8_t* out) {
  constexpr int kLanes = V::kLanes;
  using Int = typename V::Int;
  const auto table = D::table(*job.codes);
  constexpr std::int64_t kRowOfTile = Tile<V>::kRows * 4;
  const auto at = [&](std::int64_t dword) { return out + dword * kRowOfTile; };
  for (std::int64_t step = 0; step < job.padded_k / (8 * kLanes); ++step) {
    const std::int64_t byte = step * job.bits * kLanes, first_dword = step * 2 * kLanes;
    Int a[kLanes];
    if constexpr (D::kPacked) {
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r)
        a[r] = D::packed(rows[r].codes + byte, rows[r].codes + job.row_bytes);
      V::transpose(a);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) {
        V::store(at(first_dword + 2 * lane), D::low(a[lane], table));
        V::store(at(first_dword + 2 * lane + 1), D::high(a[lane], table));
      }
    } else {
      Int b[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r)
        D::halves(rows[r].codes + byte, rows[r].codes + job.row_bytes, table, a[r], b[r]);
      V::transpose(a);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane)
        V::store(at(first_dword + lane / 4 * 8 + lane % 4), a[lane]);
      V::transpose(b);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane)
        V::store(at(first_dword + lane / 4 * 8 + 4 + lane % 4), b[lane]);
    }
  }
}

/// Scales and zeros of kLanes rows, transposed.
template <class V>
void decode_scales(const Job& job, const Row* rows, std::uint8_t* tile, int vector) {
  constexpr int kLanes = V::kLanes;
  const Tile<V> at(job);
  const auto each = [&](std::int64_t offset, auto of) {
    for (std::int64_t group = 0; group < at.groups; group += kLanes) {
      typename V::Int v[kLanes];
      for (int r = 0; r < kLanes; ++r) v[r] = of(rows[r].scales, group);
      V::transpose(v);
      for (int g = 0; g < kLanes; ++g)
        V::store(tile + offset + ((group + g) * Tile<V>::kRows + vector * kLanes) * 4, v[g]);
    }
  };
  each(at.scales,
       [](const RowScales& s, std::int64_t g) { return V::as_int(V::loadu(s.scale + g)); });
  if (job.integer_zeros)
    each(at.zeros, [&](const RowScales& s, std::int64_t g) {
      return V::add(V::to_int(V::loadu(s.zero + g)), V::broadcast(job.zero));
    });
  if (job.float_zeros)
    each(at.zeros, [&](const RowScales& s, std::int64_t g) {
      const auto z = V::add(V::loadu(s.zero + g), V::broadcast(static_cast<float>(job.zero)));
      return V::as_int(V::multiply_add(z, V::loadu(s.scale + g), V::loadu(s.offset + g)));
    });
}

template <class V, class D>
void decode(const Job& job, const Row* rows, void* tile) {
  auto* bytes = static_cast<std::uint8_t*>(tile);
  for (int v = 0; v < V::kVectors; ++v) {
    decode_rows<V, D>(job, rows + v * V::kLanes, bytes + v * V::kLanes * 4);
    decode_scales<V>(job, rows + v * V::kLanes, bytes, v);
  }
}

/// Units [begin, end) of kCount tokens by all rows of a tile.
template <class V, int kCount>
void multiply_tokens(const Job& job, const std::uint8_t* tile, const std::uint8_t* x,
                     std::int64_t begin, std::int64_t end, float* y, std::int64_t y_stride) {
  constexpr int kLanes = V::kLanes, kVectors = V::kVectors, kRows = Tile<V>::kRows;
  using Int = typename V::Int;
  using Float = typename V::Float;
  const Tile<V> at(job);
  const Tokens token = tokens_of(job);
  const std::int64_t dwords = job.unit / 4, unit_columns = job.unit;
  const std::int64_t group_units = job.group / job.unit, block_units = job.block / job.unit;
  [[maybe_unused]] const std::int64_t run = V::run(job);
  std::int64_t group = begin / group_units, within = begin % group_units;
  std::int64_t block = begin / block_units, block_within = begin % block_units;
  const std::uint8_t* w = tile + begin * unit_columns * kRows;
  const auto* scales = reinterpret_cast<const float*>(tile + at.scales) + group * kRows;
  const std::uint8_t* zeros = tile + at.zeros + group * kRows * 4;
  Float sums[kCount][kVectors];
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[t][v] = begin == 0 ? V::no_floats() : V::loadu(y + t * y_stride + v * kLanes);
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::uint8_t* q = x + unit * unit_columns;
    const auto sum_of = [&](int t) {
      return reinterpret_cast<const std::int32_t*>(x + t * token.bytes + token.sums)[unit];
    };
    Int acc[kCount][kVectors];
    if (job.integer_zeros) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Int zero = V::load(zeros + v * kLanes * 4);
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t) acc[t][v] = V::multiply_low(V::broadcast(sum_of(t)), zero);
      }
    } else {
#pragma GCC unroll 8
      for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          acc[t][v] = job.float_zeros ? V::none() : V::broadcast(sum_of(t));
    }
    const auto products = [&](Int(&to)[kCount][kVectors], std::int64_t from, std::int64_t to_end) {
      for (std::int64_t i = from; i < to_end; ++i, w += kRows * 4) {
        Int u[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) u[v] = V::load(w + v * kLanes * 4);
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t) {
          const Int four = V::broadcast_four(q + t * token.bytes + 4 * i);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) V::step(to[t][v], u[v], four);
        }
      }
    };
    if constexpr (!V::kRuns) {
      products(acc, 0, dwords);
    } else {
      for (std::int64_t d = 0; d < dwords; d += run) {
        Int part[kCount][kVectors];
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) part[t][v] = V::none();
        products(part, d, d + run < dwords ? d + run : dwords);
#pragma GCC unroll 8
        for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) acc[t][v] = V::end(acc[t][v], part[t][v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Float scale = V::load(scales + v * kLanes);
#pragma GCC unroll 8
      for (int t = 0; t < kCount; ++t) {
        const float x_scale =
            reinterpret_cast<const float*>(x + t * token.bytes + token.scales)[block];
        sums[t][v] = V::multiply_add(V::to_float(acc[t][v]),
                                     V::multiply(scale, V::broadcast(x_scale)), sums[t][v]);
      }
      if (job.float_zeros) {
        const Float zero = V::load(reinterpret_cast<const float*>(zeros) + v * kLanes);
        for (int t = 0; t < kCount; ++t) {
          const float sum =
              reinterpret_cast<const float*>(x + t * token.bytes + token.float_sums)[unit];
          sums[t][v] = V::multiply_add(zero, V::broadcast(sum), sums[t][v]);
        }
      }
    }
    if (++within == group_units) within = 0, scales += kRows, zeros += kRows * 4;
    if (++block_within == block_units) block_within = 0, ++block;
  }
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) V::storeu(y + t * y_stride + v * kLanes, sums[t][v]);
}

/// Columns of a tile that stay in the first-level cache while all tokens pass.
constexpr std::int64_t kPieceBytes = 24 * 1024;

template <class V>
void multiply(const Job& job, void* tile, const void* x, std::int64_t tokens, float* y,
              std::int64_t y_stride) {
  using Some = void (*)(const Job&, const std::uint8_t*, const std::uint8_t*, std::int64_t,
                        std::int64_t, float*, std::int64_t);
  static constexpr Some kSome[] = {multiply_tokens<V, 1>, multiply_tokens<V, 2>,
                                   multiply_tokens<V, 3>, multiply_tokens<V, 4>,
                                   multiply_tokens<V, 5>, multiply_tokens<V, 6>};
  const std::int64_t units = job.padded_k / job.unit, bytes = tokens_of(job).bytes;
  const std::int64_t whole = kPieceBytes / (Tile<V>::kRows * job.unit);
  const std::int64_t piece = whole > 0 ? whole : 1;
  for (std::int64_t begin = 0; begin < units; begin += piece) {
    const std::int64_t end = begin + piece < units ? begin + piece : units;
    for (std::int64_t t = 0; t < tokens; t += V::kTokens) {
      const std::int64_t count = tokens - t < V::kTokens ? tokens - t : V::kTokens;
      kSome[count - 1](job, static_cast<const std::uint8_t*>(tile),
                       static_cast<const std::uint8_t*>(x) + t * bytes, begin, end,
                       y + t * y_stride, y_stride);
    }
  }
}

}  // namespace
}  // namespace ladder::cpu::int8
