// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule.h"

#include <algorithm>
#include <numeric>

#include "base/joined.h"
#include "expr/decoding.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

std::string_view name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::none: return "none";
    case Reduction::cluster: return "cluster";
    case Reduction::ordered: return "ordered";
  }
  return "?";
}

std::string_view name_of(Route route) {
  switch (route) {
    case Route::multiply_add: return "multiply_add";
    case Route::in_place: return "in_place";
    case Route::digits: return "digits";
  }
  return "?";
}

std::string_view spelled(ScalePlace place) {
  switch (place) {
    case ScalePlace::usual: return "";
    case ScalePlace::sums: return ", scaled sums";
    case ScalePlace::operands: return ", scaled operands";
  }
  return "?";
}

}  // namespace

bool keeps_block_sums(const Schedule& s) {
  return s.reduction == Reduction::cluster && (s.sweeps > 1 || s.warps_k > kWarpsReadByPeers);
}

bool engine_by_rounds(const Schedule& s) { return s.sharers > 0 && s.x_rounds > 0; }

std::int64_t staged_parts(const Schedule& s) {
  return s.x_rounds > 0 && s.sharers == 0 ? s.x_rounds : 1;
}
std::int64_t staged_columns(const Schedule& s) {
  return s.x_rounds > 0 && s.sharers == 0 ? s.round_columns() : s.block_columns();
}

std::int64_t Schedule::splits(std::int64_t k) const {
  return (round_up(k, kBlock) + block_columns() - 1) / block_columns();
}
std::int64_t Schedule::tiles(std::int64_t n) const {
  const auto rows = block_rows() * sweeps;
  // Whole blocks of the image, so that a tile has the same part of its block in every sweep.
  return round_up((round_up(n, kBlock) + rows - 1) / rows,
                  std::lcm(kUnits / units, std::max(sharers, 1)));
}

std::string to_string(const Schedule& s) {
  return joined("tokens ", s.tokens, ", warps ", s.warps_n, "x", s.warps_k, ", blocks ",
                s.blocks_per_warp, ", rounds ", s.rounds, ", stages ", s.stages, ", ",
                name_of(s.reduction), ", ", name_of(s.route),
                s.units < kUnits ? joined(", units ", s.units) : "",
                s.depth > 0 ? joined(", depth ", s.depth) : "",
                s.sweeps > 1 ? joined(", sweeps ", s.sweeps) : "",
                s.sum_places > 1 ? joined(", sum places ", s.sum_places) : "",
                s.x_rounds > 0 ? joined(", x rounds ", s.x_rounds) : "",
                s.x_slack > 0 ? joined(", x slack ", s.x_slack) : "",
                s.sharers > 0 ? joined(", engine for ", s.sharers) : "",
                s.by_blocks ? ", block by block" : "", spelled(s.scale_place),
                s.dependent_launch ? ", dependent launch" : "", ", ", s.blocks_per_multiprocessor,
                " per multiprocessor");
}

std::int64_t staged_bytes(const Schedule& s, const Linear& expr) {
  return s.route == Route::digits ? 1 : bytes_of(expr.activation);
}

// In the order in which lowering declares buffers: words, scales and zero points of the ring, the
// activations, the table, the sums of the warps, and the block's.
std::int64_t shared_bytes(const Schedule& s, const Linear& expr) {
  const auto aligned = [](std::int64_t bytes) { return round_up(bytes, kSharedAlignment); };
  const std::int64_t warps = s.warps_n * s.warps_k, b = expr.bits;
  const auto sums = s.tokens * (s.block_rows() + kSumPad) * 4;
  const auto by_warp = s.sum_places * s.warps_k * sums;
  std::int64_t ring = 0, bytes = 0;
  if (s.stages > 1) {
    const std::int64_t columns = kBlock * s.blocks_per_warp;
    const auto groups =
        expr.groups() == 1 ? 1 : std::max<std::int64_t>(columns / expr.group_size(), 1);
    ring = s.stages * warps * s.blocks_per_warp * b * 512;
    // Each lane has its own copy of its rows' scales.
    const auto per_group = [&](Scalar scalar) {
      return aligned(s.stages * warps * groups * 256 * bytes_of(scalar));
    };
    bytes = aligned(ring) + (expr.scale ? per_group(*expr.scale) : 0) +
            (expr.stored_zero != Zero::none ? per_group(expr.zero_scalar()) : 0);
  }
  bytes += aligned(staged_parts(s) * s.tokens *
                   (staged_columns(s) * staged_bytes(s, expr) + kActivationPadBytes));
  if (decoding_kind(expr) == Decoding::Kind::table) bytes += table_entries(expr.bits) * kLanes * 4;
  // The sums of the warps lie over the words of the ring when they fit.
  if (by_warp > ring) bytes += aligned(by_warp);
  if (keeps_block_sums(s)) bytes += aligned(s.sweeps * sums);
  if (s.x_slack > 0) {
    bytes += (s.rounds > s.x_rounds ? 2 : 1) * s.x_rounds * kSignalBytes;
  }
  if (s.sharers > 0) bytes += (engine_by_rounds(s) ? s.rounds : 1) * kSignalBytes;
  return bytes;
}

}  // namespace ladder
