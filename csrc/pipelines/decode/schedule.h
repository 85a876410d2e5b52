// SPDX-License-Identifier: Apache-2.0
//
// Decoding: up to 32 tokens, where reading the weights takes the time.
//
// A warp has 64 rows, or fewer, and, in each k-tile, some 64 x 64 blocks of the weight image. How
// the weights of the k-tiles reach its registers, and how the activations reach shared memory, are
// two closed sets, `weights` and `activations`: which a schedule has is never told from numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "expr/decoding.h"
#include "expr/problem.h"
#include "pipelines/cost.h"
#include "schedule/decisions.h"
#include "schedule/route.h"

namespace ladder {

/// The most tokens that decode kernels serve.
constexpr std::int64_t kMostDecodeTokens = 32;

/// How weights reach the registers of the warp that multiplies them.
namespace weights {

/// One k-tile, all loads at once.
struct AtOnce {
  bool operator==(const AtOnce&) const = default;
};

/// K-tiles through registers: the next is on its way to registers while one is multiplied.
struct DoubleBuffered {
  int k_tiles;  ///< at least 2
  bool operator==(const DoubleBuffered&) const = default;
};

/// K-tiles through shared memory: each lane copies what it will use itself.
struct Ring {
  int k_tiles;
  int stages;  ///< k-tiles in shared memory or on their way there, at least 2
  bool operator==(const Ring&) const = default;
};

/// K-tiles in registers of their own, which are loaded anew as soon as they were multiplied, across
/// the end of a tile of rows where a CTA has several.
struct RegisterStages {
  int k_tiles;
  int stages;                   ///< k-tiles in registers or on their way there; divide k_tiles
  int tiles_per_cta = 1;        ///< tiles of rows, for one staging of activations
  int reduction_buffers = 1;    ///< for sums of warps, which tiles take in turn: 1 or 2
  bool block_by_block = false;  ///< each block of a k-tile is loaded anew once it was multiplied
  bool operator==(const RegisterStages&) const = default;
};

}  // namespace weights
using Weights =
    std::variant<weights::AtOnce, weights::DoubleBuffered, weights::Ring, weights::RegisterStages>;

/// How activations reach shared memory.
namespace activations {

/// Threads copy those of all k-tiles at first.
struct AtOnce {
  bool operator==(const AtOnce&) const = default;
};

/// Threads copy those of a k-tile some k-tiles ahead, with a barrier in each k-tile.
struct Staged {
  int stages;  ///< k-tiles in shared memory or on their way there, at least 2
  bool operator==(const Staged&) const = default;
};

/// The same with mbarriers in place of the barrier.
struct Signalled {
  int stages;        ///< as Staged has them
  int consumer_lag;  ///< k-tiles of those that warps may be apart by, at least 1
  bool operator==(const Signalled&) const = default;
};

/// The copy engine brings those of all k-tiles at first.
struct BulkCopy {
  int multicast;  ///< neighbouring tiles, a cluster, which share them; 1: none does
  bool by_k_tiles =
      false;  ///< each k-tile has a signal of its own, else one says that all are there
  bool operator==(const BulkCopy&) const = default;
};

}  // namespace activations
using Activations = std::variant<activations::AtOnce, activations::Staged, activations::Signalled,
                                 activations::BulkCopy>;

struct DecodeSchedule {
  int tokens;           ///< multiple of 8: the most that the kernel serves
  int warps_n;          ///< warps side by side along N
  int warps_k;          ///< warps side by side along K
  int blocks_per_warp;  ///< 64 x 64 blocks of the weight image that a warp has in a k-tile
  int m16_tiles = 4;    ///< 16 rows each, that a warp has: 4, or 2 or 1 of a block of the image
  Weights weights;
  Activations activations;
  Reduction reduction = Reduction::none;
  Route route = Route::multiply_add;
  ScalePlace scale_place = ScalePlace::usual;  ///< where scales multiply (expr/decoding.h)
  /// Ask for weights before the preceding kernel ends: whoever launches promises that it, and those
  /// that may still run with it, write no constant of the program (docs/cuda.md).
  bool dependent_launch = false;
  int ctas_per_sm = 1;  ///< to leave registers and shared memory for

  bool operator==(const DecodeSchedule&) const = default;

  int k_tiles() const;            ///< of a CTA, one after the other
  int tiles_per_cta() const;      ///< tiles of rows, one after the other
  int reduction_buffers() const;  ///< for the sums of its warps
  /// Stages of activations in shared memory; 0: those of all k-tiles are there.
  int activation_stages() const;
  /// The way that it has, else null.
  const weights::Ring* ring() const { return std::get_if<weights::Ring>(&weights); }
  const weights::RegisterStages* register_stages() const {
    return std::get_if<weights::RegisterStages>(&weights);
  }
  const activations::Signalled* signalled() const {
    return std::get_if<activations::Signalled>(&activations);
  }
  const activations::BulkCopy* bulk_copy() const {
    return std::get_if<activations::BulkCopy>(&activations);
  }

  std::int64_t tile_rows() const { return std::int64_t{16} * m16_tiles * warps_n; }
  std::int64_t cta_columns() const { return k_tile_columns() * k_tiles(); }
  std::int64_t k_tile_columns() const { return std::int64_t{64} * warps_k * blocks_per_warp; }
  std::int64_t splits(std::int64_t k) const;  ///< CTAs along K
  std::int64_t tiles(std::int64_t n) const;   ///< CTAs along N; the next tile of one is so far on
};

// What every pipeline has (pipelines/schedule.h).
/// "tokens 8, warps 4x1, blocks 2, k-tiles 8, stages 4, cluster, in_place, 2 per multiprocessor".
std::string to_string(const DecodeSchedule& schedule);
std::optional<DecodeSchedule> decode_schedule_of(std::string_view text);
std::string objection(const DecodeSchedule& schedule, const Decisions& decisions);
Cost cost(const DecodeSchedule& schedule, const Decisions& decisions);
CtaGrid grid_of(const DecodeSchedule& schedule, const Problem& problem);
/// All that are considered, in a fixed order.
std::vector<DecodeSchedule> decode_space(const Decisions& decisions, bool dependent_launch);

}  // namespace ladder
