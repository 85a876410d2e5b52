// SPDX-License-Identifier: Apache-2.0
//
// Decoding: up to 32 tokens, where reading the weights takes the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expr/decoding.h"
#include "expr/problem.h"
#include "pipelines/cost.h"
#include "schedule/decisions.h"
#include "schedule/route.h"

namespace ladder {

/// The most tokens that decode kernels serve.
constexpr std::int64_t kMostDecodeTokens = 32;

/// A decode kernel. A warp has 64 rows, or fewer, and, in each of `rounds`, some 64 x 64 blocks of
/// the weight image. With one stage a round's weight goes straight to registers, while the one
/// before is multiplied; with more, each lane copies what it will use itself to shared memory, that
/// many rounds ahead. With a depth the registers of a round are loaded anew as soon as they were
/// multiplied, across the end of a tile of rows where a block has several. Activations are staged
/// once, or come in rounds too, so that shared memory does not limit the columns of a block.
struct DecodeSchedule {
  int tokens;           ///< multiple of 8: the most that the kernel serves
  int warps_n;          ///< warps side by side along N
  int warps_k;          ///< warps side by side along K
  int blocks_per_warp;  ///< 64 x 64 blocks of the weight image that a warp has in a round
  int rounds;           ///< parts of the block's columns, one after the other
  int stages;           ///< rounds in flight or in use; 1: in registers
  Reduction reduction;
  Route route;
  /// Ask for weights before the preceding kernel ends: whoever launches promises that it, and those
  /// that may still run with it, write no constant of the program (docs/cuda.md).
  bool dependent_launch;
  int blocks_per_multiprocessor;  ///< thread blocks to leave registers and shared memory for
  int units = 4;   ///< 16 rows each, that a warp has: 4, or 2 or 1 of a block of the weight image
  int depth = 0;   ///< rounds in registers or on their way there; 0: as `stages` says
  int sweeps = 1;  ///< tiles of rows that a thread block has, for one staging of activations
  int sum_places = 1;  ///< for the sums of warps, that sweeps take in turn: 1 or 2
  /// Rounds whose activations are in shared memory or on their way; 0: all. With sharers: all are,
  /// and warps await those of a round when they come to it, where 0 awaits all at once.
  int x_rounds = 0;
  int x_slack = 0;  ///< of those, rounds that warps may be apart by; 0: a barrier each round
  /// Neighbouring tiles, a cluster, for which the copy engine stages the activations together; 0:
  /// the threads of each block copy them.
  int sharers = 0;
  bool by_blocks = false;  ///< each block of a deep round is loaded anew once it was multiplied
  ScalePlace scale_place = ScalePlace::usual;  ///< where scales multiply (expr/decoding.h)

  bool operator==(const DecodeSchedule&) const = default;
  std::int64_t block_rows() const { return std::int64_t{16} * units * warps_n; }  ///< in a sweep
  std::int64_t block_columns() const { return round_columns() * rounds; }
  std::int64_t round_columns() const { return std::int64_t{64} * warps_k * blocks_per_warp; }
  std::int64_t splits(std::int64_t k) const;  ///< blocks along K
  std::int64_t tiles(std::int64_t n) const;   ///< blocks along N; a sweep advances so many tiles
};

// What every pipeline has (pipelines/schedule.h).
std::string to_string(const DecodeSchedule& schedule);
std::optional<DecodeSchedule> decode_schedule_of(std::string_view text);
std::string objection(const DecodeSchedule& schedule, const Decisions& decisions);
Cost cost(const DecodeSchedule& schedule, const Decisions& decisions);
CtaGrid grid_of(const DecodeSchedule& schedule, const Problem& problem);
/// All that are considered, in a fixed order.
std::vector<DecodeSchedule> decode_space(const Decisions& decisions, bool dependent_launch);

/// Why the tiles of `schedule` are not whole tiles of what was decided; empty when they are: those
/// of a warp whole instructions, activations that are staged together whole tiles of the hint,
/// words of a lane whole granules.
std::string misaligned(const DecodeSchedule& schedule, const Decisions& decisions);

}  // namespace ladder
