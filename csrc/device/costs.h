// SPDX-License-Identifier: Apache-2.0
//
// What the cost model has to know of a machine that no data sheet states: times of launches, cycles
// of instructions, bytes that hide latency. Every number is of the machine that Costs::at
// describes; schedule/fitted.h carries them to others. Exponents and shares, which are of the model
// and of no machine, stay with the model.
#pragma once

#include <array>
#include <string_view>

namespace ladder {

/// What a way of going through the k-tiles of a decode kernel takes beside moving and multiplying,
/// in microseconds.
struct WayCosts {
  double fixed;     ///< launch, first bytes, the last reduction
  double per_wave;  ///< of CTAs that are resident together
  double cluster;   ///< CTAs that wait for each other
};

struct Costs {
  /// Numbers of the row of the machine on which the others were fitted.
  struct Machine {
    int multiprocessors;
    double clock;             ///< cycles per second
    double bytes_per_second;  ///< read rate of memory over multiprocessors
    double matrix_cycles;     ///< in which a scheduler issues one m16n8k16 of float16
    double l2_time;           ///< of the time of a byte from memory, that of a byte from L2
    // Operations per second of a scheduler, by matrix instructions of single warps, of float16 and
    // bfloat16, and of int8.
    double warp_flops, warp_integer_flops;
    // Operations per second of the device by instructions of warpgroups, of which the costs of
    // tiles are a multiple: float16, bfloat16, int8, float8_e4m3.
    std::array<double, 4> warpgroup_flops;
  };
  struct Decode {
    /// In the order of fitted::Way.
    std::array<WayCosts, 7> ways;
    // Cycles of a scheduler: of one of decoding_cycles(), which masks and shifts that run at half
    // rate take; of an m16n8k16, with all that feeds it; of a load-matrix.
    double decoding, matrix, load_matrix;
    double wave_bytes;     ///< of a CTA that loads all at once, above which a wave costs by them
    double hiding_warps;   ///< of a multiprocessor, that hide the latency of memory
    double table_seconds;  ///< in which a CTA fills `table_bytes` of a table
    double table_bytes;
  };
  struct Tiles {
    double beside;                ///< cycles of a scheduler: of one of decoding_cycles()
    double scale_cycles;          ///< of a pair of scales: conversions and products
    double load_matrix_cycles;    ///< of a load-matrix of four matrices, with its address
    double tile_cycles;           ///< of a k-tile of a warp: a barrier, a wait, addresses
    std::array<double, 3> alone;  ///< how much longer products of 1, 2, 3 warps of a scheduler take
    double bytes_in_flight;       ///< of a multiprocessor: fewer do not reach the read rate
    double launch_seconds;        ///< and first bytes
    double cluster_seconds;       ///< adding up in a cluster
    double ticket_seconds;        ///< a semaphore of split-K, with its fences
  };
  /// How copies and products share a multiprocessor: how much longer products take than by the
  /// rate; cycles of a k-tile of a warp, and those that nothing hides.
  struct Pace {
    double product, tile_cycles, serial_cycles;
  };
  struct Warpgroups {
    // Cycles of a scheduler, for a warp: of one of decoding_cycles(); of a sum that is scaled,
    // which waits for its products; of a k-step.
    double decoding, scaling, step_cycles;
    double least_product;  ///< cycles of a multiprocessor; a single warpgroup has it half as often
    Pace together;         ///< warps copy and multiply
    Pace apart;            ///< producers copy, up to three stages ahead
    Pace far_apart;        ///< more stages
    double fill_bytes;     ///< that a multiprocessor takes in a cycle from L2, or by way of it
    double launch_seconds, cluster_seconds;  ///< the latter in each wave
    double ordered_sum_seconds;              ///< of a number that CTAs add in order
    double tail_seconds;                     ///< of a last wave that is split, beside its sums
    /// Of experts: of each wave, in which a CTA finds its item, fills its ring and adds up at the
    /// end. Of several CTAs of a multiprocessor each hides an equal share.
    double item_seconds;
    double weights_ahead_seconds;  ///< that a dependent launch gains by asking for weights early
    // Of tensor memory, measured nowhere. Cycles of a scheduler: a store of 16 rows; what a barrier
    // in front of the products of 64 columns leaves idle.
    double store_cycles, meeting_cycles;
  };
  /// Of compute units of AMD, not fitted: counts of instructions and published figures.
  struct Waves {
    double issue_clocks;     ///< in which a SIMD issues an instruction of 64 lanes
    double reached;          ///< of peak, that copies reach
    double bytes_in_flight;  ///< that a compute unit needs on their way to reach it
    double tile_clocks;      ///< of a k-tile of a wave: the barrier, addresses, the loop
    double alone;            ///< how much longer a wave takes that has a SIMD to itself
    double beside;           ///< of matrix or vector instructions, the lesser, that nothing hides
    double launch_seconds;   ///< and first bytes under a graph
    double ticket_seconds;   ///< fences empty the cache of a die
  };
  /// A product by a library behind a kernel that decodes.
  struct Dense {
    double launch_seconds;  ///< of both
    double least_seconds;   ///< of the smallest product
  };

  Machine at;
  double clock;  ///< a second, of the cycles below: kernels ran between it and the boost clock
  Decode decode;
  Tiles tiles;
  Warpgroups warpgroups;
  Waves waves;
  Dense dense;
  std::string_view source;
};

/// What every row has that no calibration has changed: nobody has fitted others.
inline constexpr Costs kFittedCosts = {
    // An H200's row (device/rows/nvidia.h), of which tests/core/pipelines has the numbers equal.
    .at = {.multiprocessors = 132,
           .clock = 66.9 * 1e12 / (2.0 * 128 * 132),
           .bytes_per_second = 4530e9 / 132,
           .matrix_cycles = 2048.0 * 4 / (2048 * 0.61),
           .l2_time = 4530e9 / (64.0 * 132 * (66.9 * 1e12 / (2.0 * 128 * 132))),
           .warp_flops = 761e12 * 0.61 / (132 * 4),
           .warp_integer_flops = 1978.9 * 1e12 * 0.45 / (132 * 4),
           .warpgroup_flops = {761e12, 761e12, 1978.9e12, 1978.9e12}},
    .clock = 1.755e9,
    .decode = {.ways = {{{3.4, 0.3, 0.3},
                         {3.74, 0.3, 0.5},
                         {3.5, 0.3, 1.04},
                         {2.3, 2.25, 0},
                         {2.7, 0, 0.3},
                         {2.8, 1.55, 0},
                         {2.3, 2.25, 0}}},
               .decoding = 0.4,
               // One takes 6.5 by itself. Fitted together it counts 1.9 times, and the rest mostly
               // hides behind it.
               .matrix = 1.9 * 6.5,
               .load_matrix = 6,
               .wave_bytes = 32768,
               .hiding_warps = 16,
               .table_seconds = 0.7e-6,
               .table_bytes = 32768},
    // Of tiles by warps nothing was fitted. Beside a matrix instruction each other instruction
    // takes about a clock of its scheduler, where decoding_cycles() counts two
    // (docs/dev/notebook_gpu.md, sixteen tokens); bytes in flight are of the same notebook; the
    // rest is guessed.
    .tiles = {.beside = 0.55,
              .scale_cycles = 4,
              .load_matrix_cycles = 3,
              .tile_cycles = 150,
              .alone = {1.6, 1.12, 1.04},
              .bytes_in_flight = 40960,
              .launch_seconds = 3.7e-6,
              .cluster_seconds = 4e-6,
              .ticket_seconds = 1.3e-6},
    // Of 288 kernels of uint4, 32 to 1024 tokens, by their logarithms, of which the model has 13 %
    // at the root of the mean square. Producers: one H100, clocks of one shape, and products, which
    // overlap with more, from 25 problems of 1536 to 8192 tokens (docs/dev/notebook_gpu.md). Items:
    // 50 cells of experts, 722 kernels, on an H200.
    .warpgroups = {.decoding = 1.33,
                   .scaling = 4,
                   .step_cycles = 2,
                   .least_product = 13.1,
                   .together = {1.1, 81, 160},
                   .apart = {0.94, 30, 100},
                   .far_apart = {0.94, 30, 40},
                   .fill_bytes = 40,
                   .launch_seconds = 3.7e-6,
                   .cluster_seconds = 4e-6,
                   .ordered_sum_seconds = 5.6e-11,
                   .tail_seconds = 4e-6,
                   .item_seconds = 5e-6,
                   .weights_ahead_seconds = 1e-6,
                   .store_cycles = 4,
                   .meeting_cycles = 40},
    // 16 lanes a clock: CDNA 3 ISA. Reached: BabelStream and rocBLAS on an MI300X (arXiv
    // 2510.27583; rocm-libraries, pull request 12329). In flight: 5.3 TB/s times 0.8 us over 304.
    .waves = {.issue_clocks = 4,
              .reached = 0.85,
              .bytes_in_flight = 14336,
              .tile_clocks = 400,
              .alone = 1.4,
              .beside = 0.2,
              .launch_seconds = 5e-6,
              .ticket_seconds = 2e-6},
    // 64 to 512 tokens of four layers and 544 to 4096 of three on two H200s (benchmarks/results:
    // peers.md, sweep.md). A library takes some 9 us for the smallest.
    .dense = {.launch_seconds = 5e-6, .least_seconds = 11e-6},
    .source = "fitted to one H200, for waves of AMD counted from published figures",
};

}  // namespace ladder
