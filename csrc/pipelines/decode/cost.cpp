// SPDX-License-Identifier: Apache-2.0
// What a schedule is expected to take.
#include <algorithm>
#include <cmath>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/decode/schedule.h"
#include "pipelines/decode/shared_memory.h"
#include "pipelines/decode/wavefronts.h"
#include "program/program.h"
#include "schedule/decisions.h"
#include "schedule/decoding_cost.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

fitted::Way way_of_weights(const DecodeSchedule& s) {
  using enum fitted::Way;
  return std::visit(Match{[](const weights::AtOnce&) { return at_once; },
                          [](const weights::DoubleBuffered&) { return double_buffered; },
                          [](const weights::Ring&) { return ring; },
                          [](const weights::RegisterStages&) { return register_stages; }},
                    s.weights);
}

fitted::Way way_of(const DecodeSchedule& s) {
  using enum fitted::Way;
  return std::visit(Match{[&](const activations::AtOnce&) { return way_of_weights(s); },
                          [](const activations::Staged&) { return staged; },
                          [](const activations::Signalled&) { return signalled; },
                          [](const activations::BulkCopy&) { return bulk_copy; }},
                    s.activations);
}

// Of the activations of a CTA, how much counts as read again from the second-level cache.
double read_again(const DecodeSchedule& s) {
  const auto* copy = s.bulk_copy();
  if (copy == nullptr) return fitted::kActivations;
  return (copy->by_k_tiles ? fitted::kByKTiles : fitted::kByBulkCopy) / copy->multicast;
}

/// Cycles in which a quarter of a multiprocessor issues the scaling of sums of 16 rows by 64
/// columns, all of which count: they wait for the matrix instruction. 0 unless operands could have
/// the scales; other groups are wide, or have nothing to choose.
/// Two scales a lane and group: by SASS of nvfp4 six operations on integers, two conversions and
/// two products, of mxfp4 as many, two sums begun anew in place of the conversions; then a
/// multiply-add for each of the four sums of eight tokens.
double scaled_sums_cycles(const Problem& problem, const DecodeSchedule& s) {
  const bool chosen =
      s.scale_place == ScalePlace::sums && usual_scale_place(problem) == ScalePlace::operands;
  const bool usual = s.scale_place == ScalePlace::usual && joins_powers(problem);
  if (problem.groups() == 1 || !(chosen || usual)) return 0;
  const double groups = static_cast<double>(kBlock) / static_cast<double>(problem.group_size());
  return groups * (6 * kIntegerCycles + 4 * kPackedCycles + s.tokens / 8 * 4 * kPackedCycles);
}

/// Operands that take powers by one product (joins_powers) end each k-step in a branch over large
/// scales, across which no instruction moves: less of a warp's work overlaps than with other types,
/// and less still of two blocks a k-tile and of several register stages. Fitted to nine cells of
/// mxfp4, 32 kernels each, 1 to 16 tokens, on an H200 (docs/dev/notebook_gpu.md).
double time_of_branches(const DecodeSchedule& s, const Problem& problem, double warps) {
  if (s.scale_place != ScalePlace::rounded || !joins_powers(problem)) return 1;
  constexpr double kHidingWarps = 16, kHiding = 0.4;
  const auto* ahead = s.register_stages();
  const double of_blocks = s.blocks_per_warp == 1 ? 1 : ahead == nullptr ? 1.2 : 1.07;
  const double of_stages = ahead == nullptr ? 1 : ahead->stages == 1 ? 1.06 : 1.14;
  return of_blocks * of_stages * std::pow(std::max(kHidingWarps / warps, 1.0), kHiding);
}

}  // namespace

Cost cost(const DecodeSchedule& s, const Decisions& decisions) {
  using namespace fitted;
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const Costs::Decode& costs = device.costs.decode;
  const Carried carried = carried_to(device);
  const MatrixInstruction& mma = *decisions.of(s.route).core.instruction;
  const double columns = static_cast<double>(s.tokens) / mma.n;
  const bool own_zero =
      s.route != Route::multiply_add && (s.tiles_per_cta() == 1 || s.activation_stages() > 0);
  const double steps = static_cast<double>(kBlock) / mma.k;  // of a block
  const double unit = costs.decoding * decoding_cycles(problem, device, s.route, s.scale_place) +
                      scaled_sums_cycles(problem, s) +
                      carried.matrix * steps * columns * (own_zero ? 1 + 1.0 / s.m16_tiles : 1) +
                      costs.load_matrix * steps * columns / s.m16_tiles;
  const auto products = static_cast<double>(problem.products());
  const double units =
      products * static_cast<double>(round_up(problem.n, kBlock) * round_up(problem.k, kBlock)) /
      1024;  // of 16 rows and 64 columns
  const double blocks = products * static_cast<double>(s.tiles(problem.n) * s.splits(problem.k));
  const bool persistent_items = problem.has_items() && s.tiles_per_cta() > 1;
  const bool clusters = s.reduction == Reduction::cluster;
  const double per_device =
      blocks / (device.multiprocessors * (persistent_items && clusters ? kInClusters : 1));
  const double moved =
      carried.from_l2 * (read_again(s) * static_cast<double>(problem.m * s.cta_columns() *
                                                             bytes_of(problem.activation())) +
                         (s.reduction == Reduction::ordered
                              ? kSums * static_cast<double>(s.tile_rows() * s.tokens * 8)
                              : 0));
  Cost out{};
  out.memory_seconds =
      (least_bytes(problem, problem.m) + blocks * moved) / device.global.bytes_per_second;
  out.issue_seconds = units * unit / (carried.clock * device.schedulers * device.multiprocessors);
  out.shared_seconds = static_cast<double>(shared_wavefronts(s, problem)) * blocks /
                       (carried.clock * device.multiprocessors);
  const WayModel& way = model_of(way_of(s));
  const WayCosts& taken = costs.ways[static_cast<std::size_t>(way_of(s))];
  const double waves = std::max(per_device / s.ctas_per_sm, 1.0);
  // A block that loads all it has at once costs by what it loads.
  const double block_bytes =
      static_cast<double>(s.tile_rows() * s.cta_columns()) * problem.weight.bits / 8;
  const double share = s.k_tiles() == 1 ? std::max(1.0, block_bytes / carried.wave_bytes) : 1.0;
  out.fixed_seconds =
      1e-6 *
      (taken.fixed + (taken.per_wave * share + 1e6 * table_seconds(problem, device)) * waves +
       (s.reduction == Reduction::cluster ? taken.cluster : 0));
  const double resident = std::min<double>(s.ctas_per_sm, std::ceil(per_device));
  const double warps = resident * s.warps_n * s.warps_k;
  double uneven = std::min(std::ceil(per_device) / per_device, 2.0), uneven_power = way.uneven;
  if (persistent_items) {
    // CTAs that go over many rows do not share what is left, and some of a product have fewer.
    const double rows = static_cast<double>(s.tiles(problem.n) * s.tiles_per_cta() * s.tile_rows());
    uneven = std::ceil(per_device) / per_device * rows / static_cast<double>(problem.n) *
             kPersistentItems;
    uneven_power = 1;
  }
  const double tail = std::ceil(waves) / waves;
  // Memory and instructions overlap in part: more than the larger, less than the sum.
  const double issue = way.issue * (s.tokens > 8 ? way.wide : 1);
  const double instructions = std::max(issue * out.issue_seconds, out.shared_seconds);
  const bool chains =
      lookups_per_pair(problem) > 0 || (s.register_stages() != nullptr && s.tokens <= 8 &&
                                        decoding_kind(problem) == Decoding::Kind::fields);
  const double of_chains = s.signalled() != nullptr ? kOverlapOfChainsApart : kOverlapOfChains;
  const double overlap = chains ? std::min(way.overlap, of_chains) : way.overlap;
  const double both = std::pow(
      std::pow(out.memory_seconds, overlap) + std::pow(instructions, overlap), 1 / overlap);
  out.seconds = both *
                    std::pow(std::max(carried.hiding_warps / warps, 1.0),
                             way.latency + lookup_latency(problem)) *
                    time_of_branches(s, problem, warps) * std::pow(uneven, uneven_power) *
                    std::pow(tail, way.tail) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
