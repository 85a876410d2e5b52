// SPDX-License-Identifier: Apache-2.0
//
// Exponents and shares of the cost of decode kernels, and how the costs of the machine on which all
// was fitted (device/costs.h) are carried to others.
//
// All were fitted to the kernels that benchmarks/results/linear.md lists, and that
// docs/dev/notebook_gpu.md discusses, on one H200. On the machine of Costs::at every factor of
// Carried is exactly 1 and every difference 0. For others:
//
//   launches and first bytes             as they are: they take about as long
//   cycles of instructions               cycles, at the row's clock over that of Costs::at
//   cycles of a matrix instruction       with the difference of the rows' matrix units
//   what is read again from L2           by the rate of DRAM over that of L2
//   bytes and warps that hide latency    by the bandwidth of one multiprocessor
//   exponents, shares                    as they are
//
// A calibration (device/calibration.h) puts measured numbers in the place of the row's.
#pragma once

#include <array>

#include "device/device.h"

namespace ladder::fitted {

/// Ways of going through the k-tiles: of weights where activations come at once, else of these.
/// Costs::Decode::ways has them in this order.
enum class Way { at_once, double_buffered, ring, register_stages, bulk_copy, signalled, staged };

/// How the parts of a way's time add up.
struct WayModel {
  double latency;        ///< to the power of which fewer than hiding_warps hide less
  double uneven;         ///< to the power of which the fullest multiprocessor holds up the others
  double issue = 1;      ///< how much of the time of instructions counts
  double overlap = 2.5;  ///< of memory and instructions: 1 adds them, many takes the larger
  double wide = 1;       ///< times `issue`, for more than eight tokens
  double tail = 0;       ///< to the power of which a last wave that is not full counts as one
};
constexpr std::array<WayModel, 7> kModels = {{{0.23, 0},
                                              {0.06, 0.58, 1, 3, 1, 0.35},
                                              {0.05, 2},
                                              {0, 0.75, 1, 4},
                                              {0, 0.75, 1, 6, 1.1},
                                              {0, 0.43, 0.92, 12},
                                              {0, 0.75, 1, 1.75}}};
constexpr const WayModel& model_of(Way way) { return kModels[static_cast<std::size_t>(way)]; }

// Activations and sums come from the second-level cache, in part while the weights come anyway.
// Those of a bulk copy come all at once, or by k-tiles; a cluster reads them once.
constexpr double kActivations = 0.44, kByBulkCopy = 0.7, kByKTiles = 0.6, kSums = 0.3;

/// Of the multiprocessors those that have a CTA where clusters of two or four CTAs, one on each,
/// are all that runs: 124 of an H200's 132, which lie in groups of unlike size.
constexpr double kInClusters = 124.0 / 132;
/// Where items go over many rows, against the same kernels of one product: by mxfp4, 5760 x 2880
/// and 2880 x 2880, 137 and 72 us where the model has 102 and 54.
constexpr double kPersistentItems = 1.34;

/// Overlap where look-ups wait for shared memory, or register stages of few tokens for fields of
/// floats, which are chains of operations; the more so beside signals.
constexpr double kOverlapOfChains = 2.5, kOverlapOfChainsApart = 2;
/// To the power of which fewer than hiding_warps hide less of the way to a table and back: nf4 at
/// 28672 x 8192 took 42 to 45 us with eight warps, 37 to 41 with sixteen.
constexpr double kLatencyOfLookups = 0.1;

/// What differs from machine to machine of a device's costs.
struct Carried {
  double clock;         ///< of the cycles in Costs, a second
  double matrix;        ///< cycles of an m16n8k16, with all that feeds it
  double from_l2;       ///< times the shares of what is read again
  double hidden;        ///< times the bytes and warps that hide latency
  double wave_bytes;    ///< as Costs::Decode::wave_bytes
  double hiding_warps;  ///< as Costs::Decode::hiding_warps
};
Carried carried_to(const Device& device);

}  // namespace ladder::fitted
