// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits in plain C++: tiles of 4 rows, one byte per code in order of columns.
#include <cstring>

#include "cpu/int8/kernels.h"
#include "cpu/int8/tokens.h"

namespace ladder::cpu::int8 {
namespace {

constexpr int kTileRows = 4;

/// Where the parts of a tile lie: bytes [rows][padded_k], then [rows][groups] of floats each.
struct Tile {
  std::int64_t groups, scales, zeros, offsets, bytes;
  explicit Tile(const Job& job)
      : groups(job.padded_k / job.group + (job.padded_k % job.group != 0)),
        scales(kTileRows * job.padded_k),
        zeros(scales + kTileRows * groups * 4),
        offsets(zeros + kTileRows * groups * 4),
        bytes((offsets + kTileRows * groups * 4 + 63) / 64 * 64) {}
};

std::int64_t tile_bytes(const Job& job) { return Tile(job).bytes; }

/// Code k of a row, whose bytes from row_bytes on do not exist and count as zeros.
unsigned code_at(const Job& job, const std::uint8_t* codes, std::int64_t k) {
  const std::int64_t bit = k * job.bits, at = bit / 8;
  unsigned window = at < job.row_bytes ? codes[at] : 0;
  if (at + 1 < job.row_bytes) window |= unsigned{codes[at + 1]} << 8;
  return window >> (bit % 8) & ((1u << job.bits) - 1);
}

void decode(const Job& job, const Row* rows, void* out) {
  const Tile tile(job);
  auto* bytes = static_cast<std::uint8_t*>(out);
  for (int r = 0; r < kTileRows; ++r) {
    std::uint8_t* to = bytes + r * job.padded_k;
    for (std::int64_t k = 0; k < job.padded_k; ++k)
      to[k] = job.codes->u[code_at(job, rows[r].codes, k)];
    // The kernels of x86 have even columns first in every 8 of 4 bits, and so has x.
    for (std::int64_t k = 0; job.bits == 4 && k < job.padded_k; k += 8) {
      const std::uint8_t eight[8] = {to[k],     to[k + 2], to[k + 4], to[k + 6],
                                     to[k + 1], to[k + 3], to[k + 5], to[k + 7]};
      std::memcpy(to + k, eight, 8);
    }
    const auto copy = [&](std::int64_t at, const float* from) {
      std::memcpy(bytes + at + r * tile.groups * 4, from,
                  static_cast<std::size_t>(tile.groups) * 4);
    };
    copy(tile.scales, rows[r].scales.scale);
    copy(tile.zeros, rows[r].scales.zero);
    copy(tile.offsets, rows[r].scales.offset);
  }
}

float product(const Job& job, const std::uint8_t* tile, int r, const std::uint8_t* x) {
  const Tile at(job);
  const Tokens token = tokens_of(job);
  const std::uint8_t* u = tile + r * job.padded_k;
  const auto floats = [&](std::int64_t from) {
    return reinterpret_cast<const float*>(tile + from) + r * at.groups;
  };
  const float *scale = floats(at.scales), *zero = floats(at.zeros), *offset = floats(at.offsets);
  const auto* q = reinterpret_cast<const std::int8_t*>(x);
  const auto* x_scale = reinterpret_cast<const float*>(x + token.scales);
  const auto* sums = reinterpret_cast<const std::int32_t*>(x + token.sums);
  const auto* float_sums = reinterpret_cast<const float*>(x + token.float_sums);
  float total = 0;
  for (std::int64_t k = 0, unit = 0; k < job.padded_k; k += job.unit, ++unit) {
    const std::int64_t group = k / job.group;
    std::int32_t sum = 0;
    for (std::int64_t i = k; i < k + job.unit; ++i) sum += q[i] * u[i];
    if (job.integer_zeros)
      sum += sums[unit] * (static_cast<std::int32_t>(zero[group]) + job.zero);
    else if (!job.float_zeros)
      sum += sums[unit];
    total += static_cast<float>(sum) * (scale[group] * x_scale[k / job.block]);
    if (job.float_zeros)
      total += float_sums[unit] *
               (scale[group] * (zero[group] + static_cast<float>(job.zero)) + offset[group]);
  }
  return total;
}

void multiply(const Job& job, void* tile, const void* x, std::int64_t tokens, float* y,
              std::int64_t y_stride) {
  const auto* bytes = static_cast<const std::uint8_t*>(x);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (int r = 0; r < kTileRows; ++r)
      y[t * y_stride + r] = product(job, static_cast<const std::uint8_t*>(tile), r,
                                    bytes + t * token_bytes(job, true));
}

}  // namespace

const Kernels& generic_kernels() {
  static constexpr Kernels kernels{.tile_rows = kTileRows,
                                   .few = 0,
                                   .most_dots = [](const Job&) -> std::int64_t { return 0; },
                                   .less = [](const Job&) { return 0; },
                                   .together = 1,
                                   .token_bytes = token_bytes,
                                   .arrange = [](const Job& job, bool tiles, const float* x, int,
                                                 void* out) { arrange(job, tiles, x, out); },
                                   .dot = nullptr,
                                   .tile_bytes = tile_bytes,
                                   .decode = decode,
                                   .multiply = multiply,
                                   .wider = nullptr,
                                   .fits = nullptr};
  return kernels;
}

}  // namespace ladder::cpu::int8
