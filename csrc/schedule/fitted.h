// SPDX-License-Identifier: Apache-2.0
//
// The constants of the cost model that no device row gives, and how they are carried to devices
// other than the one on which they were fitted.
//
// All were fitted to the kernels that benchmarks/results/linear.md lists, and that
// docs/dev/notebook_gpu.md discusses, on one H200. On that row every factor of Carried is exactly 1
// and every difference 0. For others no measurement exists; what is carried how:
//
//   latencies (Way, but for exponents)   microseconds: launches and first bytes take about as long
//   cycles of instructions               cycles, at the row's clock over the H200's
//   cycles of a matrix instruction       with the difference of the rows' matrix units
//   what is read again from L2           by the rate of DRAM over that of L2
//   bytes and warps that hide latency    by the bandwidth of one multiprocessor
//   exponents, shares                    as they are
#pragma once

#include <string_view>

#include "device/device.h"

namespace ladder::fitted {

/// What a way of going through the rounds costs beside moving and multiplying, in microseconds and
/// exponents.
struct Way {
  double fixed;          ///< launch, first bytes, the last reduction
  double per_wave;       ///< of blocks that are resident together
  double latency;        ///< to the power of which fewer than kHidingWarps hide less
  double uneven;         ///< to the power of which the fullest multiprocessor holds up the others
  double cluster;        ///< blocks that wait for each other
  double issue = 1;      ///< how much of the time of instructions counts
  double overlap = 2.5;  ///< of memory and instructions: 1 adds them, many takes the larger
  double wide = 1;       ///< times `issue`, for more than eight tokens
  double tail = 0;       ///< to the power of which a last wave that is not full counts as one
};
constexpr Way kOneRound = {3.4, 0.3, 0.23, 0, 0.3},
              kRegisters = {3.74, 0.3, 0.06, 0.58, 0.5, 1, 3, 1, 0.35},
              kRing = {3.5, 0.3, 0.05, 2, 1.04}, kDeep = {2.3, 2.25, 0, 0.75, 0, 1, 4},
              kEngine = {2.7, 0, 0, 0.75, 0.3, 1, 6, 1.1},
              kApart = {2.8, 1.55, 0, 0.43, 0, 0.92, 12},
              kTogether = {2.3, 2.25, 0, 0.75, 0, 1, 1.75};

/// The row of the device.
constexpr std::string_view kFittedOn = "h200";

/// At which cycles were counted; kernels ran between it and the row's, which is the boost clock.
constexpr double kClock = 1.755e9;

// Cycles of a quarter of a multiprocessor. Masks and shifts run at half rate and one m16n8k16 takes
// 6.5 by itself; fitted together, matrix instructions count 1.9 times, with all that feeds them,
// and the rest mostly hides behind them.
constexpr double kAlu = 0.4, kMatrix = 1.9 * 6.5, kLoadMatrix = 6;

// Activations and sums come from the second-level cache, in part while the weights come anyway.
// Those that the engine brings come all at once, or round by round; a cluster reads them once.
constexpr double kActivations = 0.44, kByEngine = 0.7, kByRounds = 0.6, kSums = 0.3;

/// Bytes of a block that loads all it has at once, above which a wave costs by what it loads.
constexpr double kWaveBytes = 32768;
/// Of a multiprocessor, that hide the latency of its memory.
constexpr double kHidingWarps = 16;

/// Overlap where look-ups wait for shared memory, or deep rounds of few tokens for fields of
/// floats, which are chains of operations; the more so beside signals.
constexpr double kOverlapOfChains = 2.5, kOverlapOfChainsApart = 2;
/// To the power of which fewer than kHidingWarps hide less of the way to a table and back: nf4 at
/// 28672 x 8192 took 42 to 45 us with eight warps, 37 to 41 with sixteen.
constexpr double kLatencyOfLookups = 0.1;
/// In which a block fills so many bytes of a table, at kClock.
constexpr double kTableSeconds = 0.7e-6, kTableBytes = 32768;

/// The constants that differ from device to device.
struct Carried {
  double clock;         ///< of the cycles above, a second
  double matrix;        ///< cycles of an m16n8k16, with all that feeds it
  double from_l2;       ///< times the shares of what is read again
  double wave_bytes;    ///< as kWaveBytes
  double hiding_warps;  ///< as kHidingWarps
};
Carried carried_to(const Device& device);

}  // namespace ladder::fitted
