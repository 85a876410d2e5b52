// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "expr/decoding.h"
#include "layout/bit_plan.h"
#include "layout/weight_image.h"
#include "schedule/decoding_cost.h"
#include "schedule/wavefronts.h"

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
  return route == Route::multiply_add ? "multiply_add" : "in_place";
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace

bool keeps_block_sums(const Schedule& s) {
  return s.reduction == Reduction::cluster && (s.sweeps > 1 || s.warps_k > kWarpsReadByPeers);
}

std::int64_t Schedule::splits(std::int64_t k) const {
  return (round_up(k, kBlock) + block_columns() - 1) / block_columns();
}
std::int64_t Schedule::tiles(std::int64_t n) const {
  const auto rows = block_rows() * sweeps;
  // Whole blocks of the image, so that a tile has the same part of its block in every sweep.
  return round_up((round_up(n, kBlock) + rows - 1) / rows, kUnits / units);
}

std::string to_string(const Schedule& s) {
  return text(
      "tokens ", s.tokens, ", warps ", s.warps_n, "x", s.warps_k, ", blocks ", s.blocks_per_warp,
      ", rounds ", s.rounds, ", stages ", s.stages, ", ", name_of(s.reduction), ", ",
      name_of(s.route), s.units < kUnits ? text(", units ", s.units) : "",
      s.depth > 0 ? text(", depth ", s.depth) : "", s.sweeps > 1 ? text(", sweeps ", s.sweeps) : "",
      s.dependent_launch ? ", dependent launch" : "", ", ", s.blocks_per_multiprocessor,
      " per multiprocessor");
}

// In the order in which lowering declares buffers: words, scales and zero points of the ring, the
// activations, the table, the sums of the warps, and the block's.
std::int64_t shared_bytes(const Schedule& s, const Linear& expr) {
  const auto aligned = [](std::int64_t bytes) { return round_up(bytes, kSharedAlignment); };
  const std::int64_t warps = s.warps_n * s.warps_k, b = expr.bits;
  const auto sums = s.tokens * (s.block_rows() + kSumPad) * 4, by_warp = s.warps_k * sums;
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
  bytes +=
      aligned(s.tokens * (s.block_columns() * bytes_of(expr.activation) + kActivationPadBytes));
  if (decoding_kind(expr) == Decoding::Kind::table) bytes += table_entries(expr.bits) * kLanes * 4;
  // The sums of the warps lie over the words of the ring when they fit.
  if (by_warp > ring) bytes += aligned(by_warp);
  if (keeps_block_sums(s)) bytes += aligned(s.sweeps * sums);
  return bytes;
}

std::string objection(const Schedule& s, const Linear& expr, const Device& device) {
  const auto splits = s.splits(expr.k), group = expr.group_size();
  const std::int64_t warp_columns = kBlock * s.blocks_per_warp;
  if (s.tokens < expr.max_m) return text("serves ", s.tokens, " tokens of ", expr.max_m);
  if (s.tokens % 8 != 0) return text(s.tokens, " tokens are not whole instructions of 8");
  if (s.reduction == Reduction::none && splits != 1) return text("K is split over ", splits);
  if (s.reduction != Reduction::none && splits == 1) return "nothing to reduce";
  if (s.reduction == Reduction::cluster && splits > device.max_cluster) {
    return text("a cluster of ", splits, ", of at most ", device.max_cluster);
  }
  if (s.reduction == Reduction::cluster &&
      (s.block_rows() % splits != 0 || s.block_rows() / splits % 2 != 0)) {
    return text(s.block_rows(), " rows do not divide into pairs for ", splits, " blocks");
  }
  if (s.dependent_launch && !device.dependent_launch()) return "no dependent launch";
  if (s.units < kUnits) {
    if (kUnits % s.units != 0) return text(s.units, " row units do not divide ", kUnits);
    if (s.warps_n != 1 || s.stages != 1) return "parts of blocks are for one warp along N";
    if (expr.stored_zero != Zero::none) return "stored zero points are for whole blocks";
    if (s.units * expr.bits % 4 != 0) {
      return text(s.units, " row units of ", expr.bits, " bits are not whole pieces of 16 bytes");
    }
  }
  if (s.depth > 0 && (s.stages != 1 || s.rounds % s.depth != 0)) {
    return text(s.rounds, " rounds, ", s.stages, " stages at depth ", s.depth);
  }
  if (s.sweeps > 1 && (s.depth == 0 || s.reduction == Reduction::ordered)) {
    return "sweeps are for a depth, and for sums that wait in shared memory";
  }
  if (s.stages > 1 && (s.stages > s.rounds + 1 || !device.async_copy())) return "idle stages";
  if (expr.groups() > 1) {
    if (group >= warp_columns) {
      const auto sharing = group / warp_columns;
      const auto per_block = std::int64_t{s.rounds} * s.warps_k;
      if (group % warp_columns != 0 ||
          (sharing < s.warps_k ? s.warps_k % sharing : sharing % s.warps_k) != 0 ||
          (sharing < per_block ? per_block % sharing : sharing % per_block) != 0) {
        return text("groups of ", group, " do not follow warps of ", warp_columns, " columns");
      }
    } else if (warp_columns % group != 0 || group % 16 != 0 || (group < 64 && 64 % group != 0) ||
               (group > 64 && group % 64 != 0)) {
      return text("groups of ", group, " do not divide a warp's ", warp_columns, " columns");
    }
  }
  if (s.route == Route::in_place) {
    if (expr.element != nullptr) return text(expr.element->name, " is no integer");
    if (expr.shift != 0) return "a zero point between two codes";
    if (expr.zero != 0 && expr.stored_zero != Zero::none)
      return "a constant and a stored zero point";
    if (expr.activation != Scalar::f16) return "products of bf16 codes in place underflow";
    const auto plan = unpack_plan(expr.bits, kFloat16Window);
    for (int pair = 4; pair < kPairsPerUnit; ++pair) {
      if (plan.pairs[pair].offset != plan.pairs[pair % 2].offset) {
        return text("codes of ", expr.bits, " bits lie at offsets that differ by step");
      }
    }
  }
  const int threads = kLanes * s.warps_n * s.warps_k;
  const auto pairs = s.block_rows() / 2, most = std::max<std::int64_t>(threads, pairs);
  if (most % std::min<std::int64_t>(threads, pairs) != 0) return "threads do not divide the rows";
  if (threads * s.blocks_per_multiprocessor > device.threads) return "too many threads";
  const auto bytes = shared_bytes(s, expr);
  if (bytes > device.shared_per_block_bytes) return text(bytes, " bytes of shared memory");
  if ((bytes + 1024) * s.blocks_per_multiprocessor > device.shared.capacity_bytes) {
    return text(bytes, " bytes of shared memory for each of ", s.blocks_per_multiprocessor);
  }
  const auto outputs = s.block_rows() * s.tokens / threads;
  if (s.reduction == Reduction::ordered && outputs > 16) return text(outputs, " sums a thread");
  // Words in flight, sums, and twenty for operands and addresses; the compiler has the last word.
  const auto sums = (s.rounds > 1 || group < warp_columns ? 2 : 1) * s.units * s.tokens / 2;
  const auto in_flight = s.depth > 0 ? s.depth : s.stages == 1 && s.rounds > 1 ? 2 : 1;
  const auto registers =
      in_flight * s.units * expr.bits * s.blocks_per_warp + sums + 16 +
      (s.rounds > 1 && s.route == Route::in_place ? s.tokens / 2 * (s.sweeps > 1 ? s.rounds : 2)
                                                  : 0) +
      decoding_registers(expr);
  if (registers * threads * s.blocks_per_multiprocessor > device.registers) {
    return text(registers, " registers a thread");
  }
  return {};
}

namespace {

/// What a way of going through the rounds costs beside moving and multiplying, in microseconds and
/// exponents; fitted to the measurements of benchmarks/results/linear.md on one H200.
struct Way {
  double fixed;     ///< launch, first bytes, the last reduction
  double per_wave;  ///< of blocks that are resident together
  double latency;   ///< to the power of which fewer than sixteen warps hide less
  double uneven;    ///< to the power of which the fullest multiprocessor holds up the others
  double cluster;   ///< blocks that wait for each other
};
constexpr Way kOneRound = {3.4, 0.3, 0.23, 0, 0.3}, kRegisters = {3.6, 0.44, 0.06, 0.58, 0.5},
              kRing = {3.5, 0.3, 0.05, 2, 1.04}, kDeep = {2.3, 2.25, 0, 0.75, 0};

const Way& way_of(const Schedule& s) {
  return s.depth > 0 ? kDeep : s.stages > 1 ? kRing : s.rounds > 1 ? kRegisters : kOneRound;
}

}  // namespace

Cost cost(const Schedule& s, const Linear& expr, const Device& device) {
  constexpr double kClock = 1.755e9, kQuarters = 4;
  // Cycles of a quarter of a multiprocessor. Masks and shifts run at half rate and one m16n8k16
  // takes 6.5 by itself; fitted together, matrix instructions count 1.9 times, with all that feeds
  // them, and the rest mostly hides behind them.
  constexpr double kAlu = 0.4, kMatrix = 1.9 * 6.5, kLoadMatrix = 6;
  // Activations and sums come from the second-level cache, in part while the weights come anyway.
  constexpr double kActivations = 0.44, kSums = 0.3;
  const double columns = s.tokens / 8.0;
  const bool in_place = s.route == Route::in_place, own_zero = in_place && s.sweeps == 1;
  const double unit = kAlu * decoding_cycles(expr, s.route) +
                      kMatrix * 4 * columns * (own_zero ? 1 + 1.0 / s.units : 1) +
                      kLoadMatrix * 4 * columns / s.units;
  const double units = static_cast<double>(round_up(expr.n, kBlock) * round_up(expr.k, kBlock)) /
                       1024;  // of 16 rows and 64 columns
  const double blocks = static_cast<double>(s.tiles(expr.n) * s.splits(expr.k));
  const double per_device = blocks / device.multiprocessors;
  const double moved = kActivations * static_cast<double>(expr.max_m * s.block_columns() *
                                                          bytes_of(expr.activation)) +
                       (s.reduction == Reduction::ordered
                            ? kSums * static_cast<double>(s.block_rows() * s.tokens * 8)
                            : 0);
  Cost out{};
  out.memory_seconds =
      (least_bytes(expr, expr.max_m) + blocks * moved) / device.global.bytes_per_second;
  out.issue_seconds = units * unit / (kClock * kQuarters * device.multiprocessors);
  out.shared_seconds =
      static_cast<double>(shared_wavefronts(s, expr)) * blocks / (kClock * device.multiprocessors);
  const Way& way = way_of(s);
  const double waves = std::max(per_device / s.blocks_per_multiprocessor, 1.0);
  // A block that loads all it has at once costs by what it loads.
  const double block_bytes =
      static_cast<double>(s.block_rows() * s.block_columns()) * expr.bits / 8;
  const double share = s.rounds == 1 ? std::max(1.0, block_bytes / 32768) : 1.0;
  out.fixed_seconds =
      1e-6 * (way.fixed + (way.per_wave * share + 1e6 * table_seconds(expr)) * waves +
              (s.reduction == Reduction::cluster ? way.cluster : 0));
  const double resident = std::min<double>(s.blocks_per_multiprocessor, std::ceil(per_device));
  const double warps = resident * s.warps_n * s.warps_k;
  const double uneven = std::min(std::ceil(per_device) / per_device, 2.0);
  // Memory and instructions overlap in part: more than the larger, less than the sum.
  constexpr double kOverlap = 2.5;
  const double both =
      std::pow(std::pow(out.memory_seconds, kOverlap) +
                   std::pow(std::max(out.issue_seconds, out.shared_seconds), kOverlap),
               1 / kOverlap);
  out.seconds =
      both * std::pow(std::max(16 / warps, 1.0), way.latency) * std::pow(uneven, way.uneven) +
      out.fixed_seconds;
  return out;
}

// Rounds that keep registers of their own are written out: more make long texts.
constexpr int kMostDeepRounds = 8;

std::vector<Candidate> candidates(const Linear& expr, const Device& device) {
  check(expr);
  std::vector<Candidate> all;
  const int tokens = static_cast<int>(round_up(expr.max_m, 8));
  auto add = [&](const Schedule& schedule) {
    all.push_back({schedule, cost(schedule, expr, device), objection(schedule, expr, device)});
  };
  struct Warps {
    int n, k;
  };
  for (Route route : {Route::in_place, Route::multiply_add}) {
    for (int resident : {1, 2, 3, 4}) {
      // All of a block's weight at once.
      for (int blocks : {1, 2, 4}) {
        for (Warps warps : {Warps{1, 8}, {2, 4}, {1, 4}}) {
          for (Reduction reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
            add({tokens, warps.n, warps.k, blocks, 1, 1, reduction, route, false, resident});
          }
        }
      }
      // In rounds, through a ring or through registers.
      for (int blocks : {1, 2}) {
        for (Warps warps : {Warps{4, 2}, {4, 1}, {2, 4}, {2, 2}}) {
          for (int splits : {1, 2, 4, 8, 14, 28}) {
            const auto columns = kBlock * blocks * warps.k * splits;
            const auto rounds =
                static_cast<int>((round_up(expr.k, kBlock) + columns - 1) / columns);
            if (rounds == 1) continue;
            for (int stages : {1, 2, 3}) {
              const auto split = stages == 1 ? Reduction::ordered : Reduction::cluster;
              add({tokens, warps.n, warps.k, blocks, rounds, stages,
                   splits == 1 ? Reduction::none : split, route, false, resident});
            }
          }
        }
      }
    }
    // Rounds kept in registers, over as many rows as fill the device once.
    for (int splits : {1, 2}) {
      for (Warps warps : {Warps{1, 8}, {1, 16}}) {
        const auto columns = kBlock * 2 * warps.k * splits;
        const auto rounds = static_cast<int>((round_up(expr.k, kBlock) + columns - 1) / columns);
        if (rounds > kMostDeepRounds) continue;
        for (int units : {2, 4}) {
          for (int depth : {2, 4}) {
            for (int resident : {1, 2}) {
              if (depth * resident > 4) continue;  // no registers left to move instructions about
              Schedule deep{tokens,
                            warps.n,
                            warps.k,
                            2,
                            rounds,
                            1,
                            splits == 1 ? Reduction::none : Reduction::cluster,
                            route,
                            false,
                            resident,
                            units,
                            depth};
              const auto tiles = deep.tiles(expr.n) * splits;
              const auto at_once = std::int64_t{device.multiprocessors} * resident;
              deep.sweeps = static_cast<int>((tiles + at_once - 1) / at_once);
              add(deep);
            }
          }
        }
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    if (a.dropped.empty() != b.dropped.empty()) return a.dropped.empty();
    return a.cost.seconds < b.cost.seconds;
  });
  return all;
}

Schedule best_schedule(const Linear& expr, const Device& device) {
  const auto all = candidates(expr, device);
  if (all.front().dropped.empty()) return all.front().schedule;
  std::ostringstream why;
  for (const auto& candidate : all) {
    why << "\n  " << to_string(candidate.schedule) << ": " << candidate.dropped;
  }
  fail<Unsupported>("no schedule for ", to_string(expr), " on ", device.name, ":", why.str());
}

}  // namespace ladder
