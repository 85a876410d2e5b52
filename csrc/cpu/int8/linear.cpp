// SPDX-License-Identifier: Apache-2.0
//
// Few tokens: rows of the weight stay packed and are decoded in registers. More: tiles of rows are
// decoded to bytes once and multiplied by all tokens.
#include "cpu/int8/linear.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"
#include "cpu/finish.h"
#include "cpu/int8/codes.h"
#include "cpu/isa.h"
#include "cpu/job.h"

namespace ladder::cpu::int8 {
namespace {

/// So much of x, arranged, is multiplied by all rows before the next tokens are.
constexpr std::int64_t kTokenBytes = 4 * 1024 * 1024;

/// A weight as these kernels see it: scales and zeros are read by what cpu::linear reads them with.
struct Packed {
  Weight weight;
  Job job;
};

Packed read(const WeightView& view, const cpu::Kernels& floats, const Kernels& kernels) {
  const TType& type = *view.type;
  check_type(type, view.k);
  if (view.g_idx != nullptr)
    fail<Unsupported>(
        "activation_type int8 does not take a weight with g_idx: the columns of a group are no "
        "neighbours, so their products have no common scale");
  Packed packed{.weight = read_weight(view, floats)};
  Job& job = packed.job;
  job.bits = type.element->bits;
  job.codes = &codes_of(*type.element);
  job.k = view.k;
  job.padded_k = std::max(kBlock, round_up(view.k, kBlock));
  job.row_bytes = packed.weight.job.row_bytes;
  job.block = x_block(type, view.k);
  std::int64_t columns = type.block.columns;
  if (columns == 0 || columns >= view.k) columns = job.padded_k;
  // Scales are in the order of groups, spread where vectors do not divide groups evenly.
  const bool even = columns % kBlock == 0 || kBlock % columns == 0;
  job.group = even ? columns : columns % 32 == 0 ? 32 : columns % 16 == 0 ? 16 : 8;
  std::vector<std::int32_t>& spread = packed.weight.group_of;
  spread.clear();
  if (!even) {
    const std::int64_t last = packed.weight.groups - 1;
    for (std::int64_t at = 0; at < job.padded_k; at += job.group)
      spread.push_back(static_cast<std::int32_t>(std::min(at / columns, last)));
    packed.weight.job.padded_k = static_cast<std::int64_t>(spread.size());
  }
  for (int lane = 0; lane < 16; ++lane) {
    const bool pairs = job.bits == 4;  // even and odd columns: one group has both
    const int column = lane / 4 * 32 + lane % 4 * (pairs ? 8 : 4);
    job.first_group[lane] = static_cast<std::int32_t>(column / job.group);
    job.second_group[lane] = static_cast<std::int32_t>((column + (pairs ? 0 : 16)) / job.group);
  }
  job.unit = std::min(job.block, job.group);
  job.integer_zeros = packed.weight.job.integer_zeros;
  job.float_zeros = packed.weight.job.float_zeros;
  job.zero =
      job.codes->zero - kernels.less(job) + (type.zero == Zero::midpoint ? 1 << (job.bits - 1) : 0);
  return packed;
}

struct Call {
  const Packed& packed;
  const Kernels& kernels;
  const cpu::Kernels& floats;
  const std::uint8_t* x;  ///< [m] arranged tokens
  std::int64_t token_bytes, token, m;
  const Finish& to;
};

/// y[:, row .. row + count) of `sums` [m][stride].
void finish(const Call& call, std::int64_t row, std::int64_t count, float* sums,
            std::int64_t stride) {
  for (std::int64_t t = 0; t < call.m; ++t)
    cpu::finish(call.to, call.token + t, row, count, sums + t * stride);
}

/// Rows [begin, begin + count) as kernels take them; `scales` has read them.
Row row_of(const Scales& scales, std::int64_t row) {
  const Rows rows = scales.rows(row);
  return {rows.codes[0], rows.scales[0]};
}

/// Asks for the scales and zeros of a row some time before they are read: they are a stream of
/// their own, too short for the hardware to foresee.
class Ahead {
 public:
  explicit Ahead(const WeightView& view) : view_(view) {
    const TType& type = *view.type;
    const std::int64_t groups = type.groups(view.k);
    if (type.block.rows != 1) return;
    if (type.scale != nullptr) scale_bytes_ = groups * std::max(1, type.scale->bits / 8);
    if (type.zero == Zero::integer) zero_bytes_ = groups;
    if (type.zero == Zero::quantized) zero_bytes_ = row_words(groups, type.element->bits) * 4;
    if (type.zero == Zero::original || type.zero == Zero::rescale) zero_bytes_ = scale_bytes_;
  }
  void row(std::int64_t row) const {
    if (row >= view_.n) return;
    ask(view_.scales, row, scale_bytes_);
    ask(view_.zeros, row, zero_bytes_);
  }

 private:
  static void ask(const void* data, std::int64_t row, std::int64_t bytes) {
    const auto* from = static_cast<const std::uint8_t*>(data) + row * bytes;
    for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
  }
  const WeightView& view_;
  std::int64_t scale_bytes_ = 0, zero_bytes_ = 0;
};

void few_tokens(const Call& call, std::int64_t begin, std::int64_t end) {
  Scales scales(call.packed.weight);
  const Ahead ahead(*call.packed.weight.view);
  Buffer sums(call.m * kChunk);
  float out[16];
  for (std::int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const std::int64_t count = std::min(kChunk, end - chunk);
    scales.read(chunk, count);
    for (std::int64_t row = 0; row < count; ++row) {
      const Row mine = row_of(scales, chunk + row);
      ahead.row(chunk + row + kChunk);
      for (std::int64_t token = 0; token < call.m; token += call.kernels.few) {
        const int tokens =
            static_cast<int>(std::min<std::int64_t>(call.kernels.few, call.m - token));
        call.kernels.dot(call.packed.job, mine, call.x + token * call.token_bytes, tokens, out);
        for (int t = 0; t < tokens; ++t) sums.data()[(token + t) * kChunk + row] = out[t];
      }
    }
    finish(call, chunk, count, sums.data(), kChunk);
  }
}

void many_tokens(const Call& call, std::int64_t begin, std::int64_t end) {
  const Job& job = call.packed.job;
  const std::int64_t height = call.kernels.tile_rows;
  // One preparation of scales has kChunk rows: a tile takes several.
  std::vector<Scales> scales;
  for (std::int64_t r = 0; r < height; r += kChunk) scales.emplace_back(call.packed.weight);
  Buffer tile(call.kernels.tile_bytes(job) / 4);
  Buffer sums(round_up(call.m, kTogether) * height);
  Row rows[64];
  for (std::int64_t first = begin; first < end; first += height) {
    const std::int64_t count = std::min(height, end - first);
    for (std::int64_t r = 0; r < count; r += kChunk)
      scales[static_cast<std::size_t>(r / kChunk)].read(first + r, std::min(kChunk, count - r));
    for (std::int64_t r = 0; r < height; ++r) {
      const std::int64_t row = std::min(r, count - 1);
      rows[r] = row_of(scales[static_cast<std::size_t>(row / kChunk)], first + row);
    }
    call.kernels.decode(job, rows, tile.data());
    call.kernels.multiply(job, tile.data(), call.x, call.m, sums.data(), height);
    finish(call, first, count, sums.data(), height);
  }
}

}  // namespace

std::int64_t x_block(const TType& type, std::int64_t k) {
  const std::int64_t columns = type.block.columns;
  return columns == 0 || columns >= k || columns % 128 == 0 ? 128 : 32;
}

void linear(const WeightView& view, const Matrix& x, const Addends& addends, const Matrix& y,
            Isa isa, const Parallel& parallel) {
  LADDER_REQUIRE(x.columns == view.k, "x has ", x.columns, " columns, the weight ", view.k);
  LADDER_REQUIRE(y.columns == view.n, "y has ", y.columns, " columns, the weight ", view.n,
                 " rows");
  LADDER_REQUIRE(x.rows == y.rows, "x has ", x.rows, " rows, y ", y.rows);
  LADDER_REQUIRE(x.dtype == y.dtype, "x and y have different dtypes");
  const cpu::Kernels& floats = kernels_of(isa);
  const Kernels& widest = int8_kernels_of(isa);
  const Packed packed = read(view, floats, widest);
  const Job& job = packed.job;
  if (x.rows == 0 || view.n == 0) return;
  const bool wider = widest.wider != nullptr && widest.fits(job, x.rows);
  const Kernels& kernels = wider ? *widest.wider : widest;

  const bool dots = x.rows <= kernels.most_dots(job);
  const std::int64_t token_bytes = kernels.token_bytes(job, !dots);
  const std::int64_t most =
      dots ? x.rows
           : std::clamp<std::int64_t>(kTokenBytes / token_bytes / 48 * 48, 48, x.rows + 48);
  const std::int64_t together = kernels.together;
  Buffer arranged(round_up(std::min(most, x.rows), together) * token_bytes / 4);
  Buffer wide_bias(addends.bias != nullptr ? view.n : 0);
  if (addends.bias != nullptr) floats.widen(addends.bias, x.dtype, view.n, wide_bias.data());
  const Finish to{.kernels = floats,
                  .factor = job.codes->step * second_of_all(view),
                  .factors = seconds_of_rows(view),
                  .bias = addends.bias != nullptr ? wide_bias.data() : nullptr,
                  .residual = addends.residual,
                  .y = y};
  Call call{.packed = packed,
            .kernels = kernels,
            .floats = floats,
            .x = arranged.bytes(),
            .token_bytes = token_bytes,
            .token = 0,
            .m = x.rows,
            .to = to};
  // A thread takes whole chunks or tiles, and at least some microseconds of work.
  const std::int64_t height = dots ? kChunk : kernels.tile_rows;
  const std::int64_t tiles = ceil_div(view.n, height);
  const std::int64_t grain =
      std::max<std::int64_t>(1, 131072 / (job.padded_k * height * std::min(most, x.rows)));
  for (; call.token < x.rows; call.token += most) {
    call.m = std::min(most, x.rows - call.token);
    parallel(
        ceil_div(call.m, together), std::max<std::int64_t>(1, 65536 / (job.padded_k * together)),
        [&](std::int64_t begin, std::int64_t end) {
          Buffer wide(job.padded_k * together);
          for (std::int64_t row = begin * together; row < std::min(end * together, call.m);
               row += together) {
            const auto count = static_cast<int>(std::min(together, call.m - row));
            for (int t = 0; t < count; ++t)
              floats.widen(static_cast<const std::uint8_t*>(x.data) +
                               (call.token + row + t) * x.stride * size_of(x.dtype),
                           x.dtype, job.k, wide.data() + t * job.padded_k);
            kernels.arrange(job, !dots, wide.data(), count, arranged.bytes() + row * token_bytes);
          }
        });
    parallel(tiles, grain, [&](std::int64_t begin, std::int64_t end) {
      (dots ? few_tokens : many_tokens)(call, begin * height, std::min(end * height, view.n));
    });
  }
}

}  // namespace ladder::cpu::int8
