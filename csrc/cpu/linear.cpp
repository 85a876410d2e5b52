// SPDX-License-Identifier: Apache-2.0
//
// The driver: which of three ways a product takes, and how it is split over threads.
//
//   few tokens    weights stay packed through the caches and are decoded in registers
//   some tokens   tiles of rows are decoded once into the second-level cache, reused by all tokens
//   many tokens   larger tiles are decoded into memory and given to a library's matrix product
//
// x is put into the kernel's order of columns, and of tokens, once per call; everything after reads
// straight on.
#include "cpu/linear.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/integers.h"
#include "cpu/arrange.h"
#include "cpu/finish.h"
#include "cpu/isa.h"
#include "cpu/job.h"

namespace ladder::cpu {
namespace {

/// So much of x is multiplied by all rows before the next tokens are, as the second-level cache
/// holds beside a decoded tile; but so many tokens at least, because decoding takes the time of 8
/// tokens, with pairs of bfloat16 that of 16, with tiles that of 64.
constexpr std::int64_t kTokenBytes = 512 * 1024;
constexpr std::int64_t kLeastTokens[] = {240, 126}, kLeastTiled = 512;  // pairs, float32
/// Panels of x come from the third-level cache.
constexpr std::int64_t kPanelBytes = 16 * 1024 * 1024, kLeastPanels = 504;
/// Rows of one tile for the library: large enough for its own blocking and threads to work well.
constexpr std::int64_t kLibraryRows = 512;

/// Whether x and y are for tile registers.
bool is_tiled(const Kernels& kernels) { return kernels.arrange_tile != nullptr; }

struct Call {
  const Weight& weight;
  const Kernels& kernels;
  const Panels* panels;   ///< x lies in these; or null
  const std::uint8_t* x;  ///< arranged
  std::int64_t token;     ///< the first of them in y
  std::int64_t m;
  const Finish& to;
};

/// y[:, row .. row + count) of `sums` [m][stride].
void finish(const Call& call, std::int64_t token, std::int64_t tokens, std::int64_t row,
            std::int64_t count, float* sums, std::int64_t stride) {
  for (std::int64_t t = 0; t < tokens; ++t)
    finish(call.to, call.token + token + t, row, count, sums + t * stride);
}

void few_tokens(const Call& call, std::int64_t begin, std::int64_t end) {
  const std::int64_t x_stride = call.weight.job.stride * call.kernels.column_size;
  Scales scales(call.weight);
  Buffer sums(call.m * kChunk);
  float out[16 * kRows];
  for (std::int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const std::int64_t count = std::min(kChunk, end - chunk);
    scales.read(chunk, count);
    for (std::int64_t row = 0; row < count; row += kRows) {
      const Rows rows = scales.rows(chunk + row);
      for (std::int64_t token = 0; token < call.m; token += call.kernels.few) {
        const int tokens =
            static_cast<int>(std::min<std::int64_t>(call.kernels.few, call.m - token));
        call.kernels.dot(call.weight.job, rows, call.x + token * x_stride, tokens, out);
        for (int t = 0; t < tokens; ++t)
          std::copy_n(out + t * kRows, kRows, sums.data() + (token + t) * kChunk + row);
      }
    }
    finish(call, 0, call.m, chunk, count, sums.data(), kChunk);
  }
}

/// Tiles are as high as one preparation of scales, or two with pairs: of 4096 columns 256 KiB,
/// which the second-level cache holds beside what it reads of x. Those of AMX are higher, because
/// it reads x faster than that cache gives it; those for panels, so that x is read less often.
void some_tokens(const Call& call, std::int64_t begin, std::int64_t end) {
  const Job& job = call.weight.job;
  const std::int64_t row_bytes = job.stride * call.kernels.decoded_size;
  const std::int64_t height = call.panels != nullptr
                                  ? call.panels->rows
                                  : kChunk * (is_tiled(call.kernels)          ? 4
                                              : call.kernels.column_size == 4 ? 1
                                                                              : 2);
  // Those that no product reads are one, which stays in the cache.
  const std::int64_t chunks = call.kernels.split ? 1 : height / kChunk;
  std::vector<Scales> scales;
  scales.reserve(static_cast<std::size_t>(chunks));
  for (std::int64_t i = 0; i < chunks; ++i) scales.emplace_back(call.weight);
  Buffer tiles(height * row_bytes / 4);
  Buffer sums(round_up(call.m, kTogether) * height);
  for (std::int64_t first = begin; first < end; first += height) {
    const std::int64_t stop = std::min(first + height, end);
    Rows quads[4 * kChunk / kRows];
    int quad = 0;
    for (std::int64_t chunk = first; chunk < stop; chunk += kChunk) {
      Scales& mine = scales[static_cast<std::size_t>((chunk - first) / kChunk % chunks)];
      mine.read(chunk, std::min(kChunk, stop - chunk));
      for (std::int64_t row = chunk; row < std::min(chunk + kChunk, stop); row += kRows, ++quad) {
        quads[quad] = mine.rows(row);
        const std::int64_t within = quad * kRows % kChunk, sixteen = quad * kRows - within;
        call.kernels.decode(job, quads[quad],
                            tiles.bytes() + sixteen * row_bytes +
                                within * (is_tiled(call.kernels) ? 64 : row_bytes));
      }
    }
    if (call.panels != nullptr)
      call.panels->multiply(job, quad, tiles.data(), reinterpret_cast<const float*>(call.x), call.m,
                            sums.data(), height);
    else
      call.kernels.multiply(job, quads, quad, tiles.data(), call.x, call.m, sums.data(), height);
    finish(call, 0, call.m, first, stop - first, sums.data(), height);
  }
}

/// Decodes rows [begin, begin + count) to `out` [count rounded up to kRows][stride].
void decode_rows(const Weight& weight, Scales& scales, std::int64_t begin, std::int64_t count,
                 float* out) {
  for (std::int64_t chunk = 0; chunk < count; chunk += kChunk) {
    const std::int64_t rows = std::min(kChunk, count - chunk);
    scales.read(begin + chunk, rows);
    for (std::int64_t row = 0; row < rows; row += kRows)
      weight.kernels->decode(weight.job, scales.rows(begin + chunk + row),
                             out + (chunk + row) * weight.job.stride);
  }
}

void many_tokens(const Call& call, const Parallel& parallel, const Gemm& gemm) {
  const std::int64_t n = call.weight.view->n, k = call.weight.job.padded_k;
  const std::int64_t tile_rows = std::min(kLibraryRows, n);
  const std::int64_t padded_rows = round_up(tile_rows, kRows);
  Buffer tile(padded_rows * k);
  Buffer sums(call.m * tile_rows);
  for (std::int64_t row = 0; row < n; row += tile_rows) {
    const std::int64_t count = std::min(tile_rows, n - row);
    parallel(ceil_div(count, kRows), 4, [&](std::int64_t begin, std::int64_t end) {
      Scales scales(call.weight);
      decode_rows(call.weight, scales, row + begin * kRows,
                  std::min(end * kRows, count) - begin * kRows, tile.data() + begin * kRows * k);
    });
    gemm(reinterpret_cast<const float*>(call.x), call.m, k, tile.data(), count, sums.data(),
         tile_rows);
    parallel(call.m, 16, [&](std::int64_t begin, std::int64_t end) {
      finish(call, begin, end - begin, row, count, sums.data() + begin * tile_rows, tile_rows);
    });
  }
}

/// Passes of one size.
std::int64_t tokens_of_pass(const Kernels& kernels, const Panels* panels, std::int64_t tokens,
                            std::int64_t x_bytes) {
  const std::int64_t least = panels != nullptr   ? kLeastPanels
                             : is_tiled(kernels) ? kLeastTiled
                                                 : kLeastTokens[kernels.column_size == 4];
  const std::int64_t bytes = panels != nullptr ? kPanelBytes : kTokenBytes;
  const std::int64_t limit = std::max(least, bytes / x_bytes / 6 * 6);
  const std::int64_t even = ceil_div(tokens, ceil_div(tokens, limit));
  return panels != nullptr   ? round_up(even, panels->together)
         : is_tiled(kernels) ? round_up(even, kTogether)
                             : even;
}

/// Whether x of bfloat16 has neither infinities nor NaN.
bool is_finite(const Matrix& x, const Parallel& parallel) {
  constexpr std::uint16_t kExponent = 0x7f80;
  constexpr std::int64_t kGrain = 1 << 17;  // numbers
  std::atomic<bool> finite = true;
  parallel(x.rows, ceil_div(kGrain, std::max<std::int64_t>(x.columns, 1)),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t row = begin; row < end && finite; ++row) {
               const auto* numbers = static_cast<const std::uint16_t*>(x.data) + row * x.stride;
               std::uint16_t most = 0;
               for (std::int64_t i = 0; i < x.columns; ++i)
                 most = std::max(most, static_cast<std::uint16_t>(numbers[i] & kExponent));
               if (most == kExponent) finite = false;
             }
           });
  return finite;
}

}  // namespace

void linear(const WeightView& view, const Matrix& x, const Addends& addends, const Matrix& y,
            Isa isa, const Parallel& parallel, const Gemm& gemm) {
  LADDER_REQUIRE(x.columns == view.k, "x has ", x.columns, " columns, the weight ", view.k);
  LADDER_REQUIRE(y.columns == view.n, "y has ", y.columns, " columns, the weight ", view.n,
                 " rows");
  LADDER_REQUIRE(x.rows == y.rows, "x has ", x.rows, " rows, y ", y.rows);
  LADDER_REQUIRE(x.dtype == y.dtype, "x and y have different dtypes");
  const Kernels& widest = kernels_of(isa);
  if (x.rows == 0 || view.n == 0) return;

  Weight weight = read_weight(view, widest);
  if (x.dtype == Scalar::bf16 && widest.for_bfloat16 != nullptr)
    if (const Kernels* const faster = widest.for_bfloat16(weight.job, x.rows))
      if (!faster->split || is_finite(x, parallel)) weight.kernels = faster;
  const Kernels& kernels = *weight.kernels;
  const std::int64_t k = weight.job.padded_k;
  const bool library = gemm && x.rows >= kernels.many && k > 0 && kernels.column_size == 4;
  // Rows a power of two apart would share the few lines of one set of the first-level cache. A
  // library copes by itself, and wants rows without gaps.
  weight.job.stride = library || k % 128 != 0 ? k : k + 64 / kernels.column_size;
  const Panels* panels =
      !library && k > 0 && kernels.panels != nullptr && kernels.panels->quicker(x.rows)
          ? kernels.panels
          : nullptr;
  const bool dots = panels == nullptr && x.rows <= kernels.most_dots(weight.job);
  const std::int64_t x_bytes = std::max<std::int64_t>(
      1, panels != nullptr ? k * 4 : weight.job.stride * kernels.column_size);
  const std::int64_t most =
      dots || library ? x.rows : tokens_of_pass(kernels, panels, x.rows, x_bytes);
  Buffer arranged = panels != nullptr ? arrange(weight, *panels, x, most, parallel)
                                      : arrange(weight, x, parallel);
  Buffer wide_bias(addends.bias != nullptr ? view.n : 0);
  if (addends.bias != nullptr) kernels.widen(addends.bias, x.dtype, view.n, wide_bias.data());
  const Finish to{.kernels = kernels,
                  .factor = second_of_all(view),
                  .factors = seconds_of_rows(view),
                  .bias = addends.bias != nullptr ? wide_bias.data() : nullptr,
                  .residual = addends.residual,
                  .y = y};

  Call call{.weight = weight,
            .kernels = kernels,
            .panels = panels,
            .x = arranged.bytes(),
            .token = 0,
            .m = x.rows,
            .to = to};
  if (library) return many_tokens(call, parallel, gemm);
  // A thread takes whole tiles of kRows rows, and at least some microseconds of work.
  const std::int64_t tiles = ceil_div(view.n, kRows);
  const std::int64_t grain = std::max<std::int64_t>(
      1, 32768 / std::max<std::int64_t>(1, k * kRows * std::min(most, x.rows)));
  for (; call.token < x.rows; call.token += most, call.x += most * x_bytes) {
    call.m = std::min(most, x.rows - call.token);
    parallel(tiles, grain, [&](std::int64_t begin, std::int64_t end) {
      const auto path = dots ? few_tokens : some_tokens;
      path(call, begin * kRows, std::min(end * kRows, view.n));
    });
  }
}

}  // namespace ladder::cpu
