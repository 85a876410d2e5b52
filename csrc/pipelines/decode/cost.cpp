// SPDX-License-Identifier: Apache-2.0
// What a schedule is expected to take.
#include <algorithm>
#include <cmath>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/decode/rounds_cost.h"
#include "pipelines/decode/schedule.h"
#include "pipelines/decode/shared_memory.h"
#include "pipelines/decode/wavefronts.h"
#include "schedule/decisions.h"
#include "schedule/decoding_cost.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

fitted::Way way_of(const DecodeSchedule& s) {
  using enum fitted::Way;
  if (s.sharers > 0) return engine;
  if (s.x_rounds > 0) return s.x_slack > 0 ? apart : together;
  if (s.depth > 0) return deep;
  if (s.stages > 1) return ring;
  return s.rounds > 1 ? registers : one_round;
}

}  // namespace

Cost cost(const DecodeSchedule& s, const Decisions& decisions) {
  using namespace fitted;
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const Costs::Decode& costs = device.costs.decode;
  const Carried carried = carried_to(device);
  const double activations =
      s.sharers > 0 ? (engine_by_rounds(s) ? kByRounds : kByEngine) / s.sharers : kActivations;
  const MatrixInstruction& mma = *decisions.of(s.route).core.instruction;
  const double columns = static_cast<double>(s.tokens) / mma.n;
  const bool own_zero = s.route != Route::multiply_add && (s.sweeps == 1 || s.x_rounds > 0);
  const double steps = static_cast<double>(kBlock) / mma.k;  // of a block
  const double unit = costs.decoding * decoding_cycles(problem, s.route, s.scale_place) +
                      scaled_sums_cycles(problem, s) +
                      carried.matrix * steps * columns * (own_zero ? 1 + 1.0 / s.units : 1) +
                      costs.load_matrix * steps * columns / s.units;
  const auto products = static_cast<double>(problem.products());
  const double units =
      products * static_cast<double>(round_up(problem.n, kBlock) * round_up(problem.k, kBlock)) /
      1024;  // of 16 rows and 64 columns
  const double blocks = products * static_cast<double>(s.tiles(problem.n) * s.splits(problem.k));
  const double per_device = blocks / device.multiprocessors;
  const double moved =
      carried.from_l2 * (activations * static_cast<double>(problem.m * s.block_columns() *
                                                           bytes_of(problem.activation())) +
                         (s.reduction == Reduction::ordered
                              ? kSums * static_cast<double>(s.block_rows() * s.tokens * 8)
                              : 0));
  Cost out{};
  out.memory_seconds =
      (least_bytes(problem, problem.m) + blocks * moved) / device.global.bytes_per_second;
  out.issue_seconds = units * unit / (carried.clock * device.schedulers * device.multiprocessors);
  out.shared_seconds = static_cast<double>(shared_wavefronts(s, problem)) * blocks /
                       (carried.clock * device.multiprocessors);
  const WayModel& way = model_of(way_of(s));
  const WayCosts& taken = costs.ways[static_cast<std::size_t>(way_of(s))];
  const double waves = std::max(per_device / s.blocks_per_multiprocessor, 1.0);
  // A block that loads all it has at once costs by what it loads.
  const double block_bytes =
      static_cast<double>(s.block_rows() * s.block_columns()) * problem.weight.bits / 8;
  const double share = s.rounds == 1 ? std::max(1.0, block_bytes / carried.wave_bytes) : 1.0;
  out.fixed_seconds =
      1e-6 *
      (taken.fixed + (taken.per_wave * share + 1e6 * table_seconds(problem, device)) * waves +
       (s.reduction == Reduction::cluster ? taken.cluster : 0));
  const double resident = std::min<double>(s.blocks_per_multiprocessor, std::ceil(per_device));
  const double warps = resident * s.warps_n * s.warps_k;
  double uneven = std::min(std::ceil(per_device) / per_device, 2.0), uneven_power = way.uneven;
  if (problem.has_items() && s.sweeps > 1) {
    // CTAs that go over many rows do not share what is left, and some of a product have fewer.
    const double rows = static_cast<double>(s.tiles(problem.n) * s.sweeps * s.block_rows());
    uneven = std::ceil(per_device) / per_device * rows / static_cast<double>(problem.n);
    uneven_power = 1;
  }
  const double tail = std::ceil(waves) / waves;
  // Memory and instructions overlap in part: more than the larger, less than the sum.
  const double issue = way.issue * (s.tokens > 8 ? way.wide : 1);
  const double instructions = std::max(issue * out.issue_seconds, out.shared_seconds);
  const bool chains =
      lookups_per_pair(problem) > 0 ||
      (s.depth > 0 && s.tokens <= 8 && decoding_kind(problem) == Decoding::Kind::fields);
  const double of_chains = s.x_slack > 0 ? kOverlapOfChainsApart : kOverlapOfChains;
  const double overlap = chains ? std::min(way.overlap, of_chains) : way.overlap;
  const double both = std::pow(
      std::pow(out.memory_seconds, overlap) + std::pow(instructions, overlap), 1 / overlap);
  out.seconds = both *
                    std::pow(std::max(carried.hiding_warps / warps, 1.0),
                             way.latency + lookup_latency(problem)) *
                    std::pow(uneven, uneven_power) * std::pow(tail, way.tail) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
