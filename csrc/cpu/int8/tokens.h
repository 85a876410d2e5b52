// SPDX-License-Identifier: Apache-2.0
//
// x to 8 bits, and into the two orders of the x86 kernels. Plain loops, which the compiler turns
// into the vectors of the file that includes them. All instruction sets give the same bits: no
// product here is contracted with a sum (csrc/CMakeLists.txt).
//
// 32 neighbouring columns are two halves of 16 bytes, first and second:
//   bits != 4   columns 0 to 15, columns 16 to 31
//   bits == 4   the even columns, the odd columns, as the low and high halves of code bytes are
#pragma once

#include "cpu/int8/kernels.h"

namespace ladder::cpu::int8 {
namespace {

/// Blocks of x below this count as zeros: 127 / their largest magnitude might not be finite.
constexpr float kLeast = 0x1p-100f;

/// x [k] to q [padded_k], zeros after k, and one scale per block: the nearest multiples, ties to
/// even, of the largest magnitude / 127. Numbers that are not finite make the scale so.
inline void quantize(const Job& job, const float* x, std::int8_t* q, float* scales) {
  for (std::int64_t begin = 0, block = 0; begin < job.padded_k; begin += job.block, ++block) {
    const std::int64_t left = job.k - begin;
    const std::int64_t count = left < 0 ? 0 : left < job.block ? left : job.block;
    const float* from = x + begin;
    std::int8_t* to = q + begin;
    // Compared as integers, bits above infinity's are NaNs and win.
    std::uint32_t most_bits = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, from + i, 4);
      bits &= 0x7fffffff;
      most_bits = bits > most_bits ? bits : most_bits;
    }
    float most;
    __builtin_memcpy(&most, &most_bits, 4);
    const bool zeros = most < kLeast;
    const float inverse = zeros ? 0.0f : 127.0f / most;
    scales[block] = zeros ? 0.0f : most / 127.0f;
    for (std::int64_t i = 0; i < count; ++i) {
      // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits, ties to even.
      const float shifted = from[i] * inverse + 0x1.8p23f;
      std::int32_t bits;
      __builtin_memcpy(&bits, &shifted, 4);
      to[i] = static_cast<std::int8_t>(bits - 0x4b400000);
    }
    for (std::int64_t i = count; i < job.block; ++i) to[i] = 0;
  }
}

/// x as `dot` reads it: kBlock columns. Lane l of 16 holds 4 bytes of first halves and 4 of second
/// ones: lanes 4i to 4i + 3 those of the i-th 32 columns.
struct alignas(64) Piece {
  std::int8_t first[64], second[64];
  float scale[16];              ///< of the lane's columns
  std::int32_t first_sum[16];   ///< -Job::zero, or -1, times the sum of the lane's bytes of `first`
  std::int32_t second_sum[16];  ///< likewise; added to first_sum, and 0 here, unless `split`
};

/// Whether the two halves of a lane may lie in different groups.
inline bool split(const Job& job) { return job.group < 32; }

/// What sums of x are multiplied by: kernels add the product.
inline int factor(const Job& job) { return job.integer_zeros || job.float_zeros ? -1 : -job.zero; }

/// The halves of 32 columns.
inline void halve(int bits, const std::int8_t* q, std::int8_t* first, std::int8_t* second) {
  if (bits == 4) {
    for (int i = 0; i < 16; ++i) {
      first[i] = q[2 * i];
      second[i] = q[2 * i + 1];
    }
  } else {
    __builtin_memcpy(first, q, 16);
    __builtin_memcpy(second, q + 16, 16);
  }
}

inline void sum_fours(const std::int8_t* bytes, std::int32_t times, std::int32_t* sums) {
  for (int lane = 0; lane < 16; ++lane) {
    const std::int8_t* b = bytes + 4 * lane;
    sums[lane] = times * (b[0] + b[1] + b[2] + b[3]);
  }
}

inline void arrange_pieces(const Job& job, const std::int8_t* q, const float* scales,
                           Piece* pieces) {
  const std::int32_t times = factor(job);
  const bool apart = split(job);
  const std::int64_t per_piece = kBlock / job.block;
  for (std::int64_t p = 0; p < job.padded_k / kBlock; ++p) {
    Piece& piece = pieces[p];
    for (int i = 0; i < 4; ++i)
      halve(job.bits, q + p * kBlock + 32 * i, piece.first + 16 * i, piece.second + 16 * i);
    for (int lane = 0; lane < 16; ++lane)
      piece.scale[lane] = scales[p * per_piece + (per_piece == 1 ? 0 : lane / 4)];
    sum_fours(piece.first, times, piece.first_sum);
    sum_fours(piece.second, times, piece.second_sum);
    if (apart) continue;
    for (int lane = 0; lane < 16; ++lane) {
      piece.first_sum[lane] += piece.second_sum[lane];
      piece.second_sum[lane] = 0;
    }
  }
}

/// x as `multiply` reads it: bytes in order of columns, but with 4 bits the even ones of every 8
/// before the odd ones; then the scales, the sums, and, for float zeros, sums times scales.
struct Tokens {
  std::int64_t scales, sums, float_sums, bytes;  ///< offsets in bytes, and of the next token
};

inline Tokens tokens_of(const Job& job) {
  const auto lines = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const std::int64_t units = job.padded_k / job.unit;
  Tokens t;
  t.scales = lines(job.padded_k);
  t.sums = t.scales + lines(job.padded_k / job.block * 4);
  t.float_sums = t.sums + lines(units * 4);
  t.bytes = t.float_sums + (job.float_zeros ? lines(units * 4) : 0);
  // Tokens a power of two apart would share the few lines of one set of the first-level cache.
  if (t.bytes % 1024 == 0) t.bytes += 64;
  return t;
}

inline void arrange_for_tiles(const Job& job, const float* x, std::uint8_t* out) {
  const Tokens at = tokens_of(job);
  auto* q = reinterpret_cast<std::int8_t*>(out);
  auto* scales = reinterpret_cast<float*>(out + at.scales);
  auto* sums = reinterpret_cast<std::int32_t*>(out + at.sums);
  quantize(job, x, q, scales);
  const std::int32_t times = factor(job);
  const std::int64_t units = job.padded_k / job.unit;
  for (std::int64_t u = 0; u < units; ++u) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < job.unit; ++i) sum += q[u * job.unit + i];
    sums[u] = times * sum;
  }
  if (job.float_zeros) {
    auto* float_sums = reinterpret_cast<float*>(out + at.float_sums);
    for (std::int64_t u = 0; u < units; ++u)
      float_sums[u] = static_cast<float>(sums[u]) * scales[u * job.unit / job.block];
  }
  if (job.bits != 4) return;
  for (std::int64_t i = 0; i < job.padded_k; i += 8) {
    std::int8_t eight[8];
    __builtin_memcpy(eight, q + i, 8);
    for (int j = 0; j < 4; ++j) {
      q[i + j] = eight[2 * j];
      q[i + 4 + j] = eight[2 * j + 1];
    }
  }
}

/// Kernels::token_bytes and ::arrange of the x86 kernels. A token for `dot` has room for bytes and
/// scales before they are in order, after its pieces.
inline std::int64_t token_bytes(const Job& job, bool tiles) {
  if (tiles) return tokens_of(job).bytes;
  const std::int64_t blocks = job.padded_k / kBlock;
  return blocks * static_cast<std::int64_t>(sizeof(Piece)) + job.padded_k +
         (blocks * 16 + 63) / 64 * 64;
}

inline void arrange(const Job& job, bool tiles, const float* x, void* out) {
  auto* bytes = static_cast<std::uint8_t*>(out);
  if (tiles) return arrange_for_tiles(job, x, bytes);
  auto* rest = bytes + job.padded_k / kBlock * static_cast<std::int64_t>(sizeof(Piece));
  auto* q = reinterpret_cast<std::int8_t*>(rest);
  auto* scales = reinterpret_cast<float*>(rest + job.padded_k);
  quantize(job, x, q, scales);
  arrange_pieces(job, q, scales, static_cast<Piece*>(out));
}

}  // namespace
}  // namespace ladder::cpu::int8
