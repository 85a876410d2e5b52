// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/rows/units.h"

namespace ladder::rows {

// Not fitted, as those of CDNA. A SIMD issues an instruction of 32 lanes in a clock, and WMMA are
// instructions of the vector units: neither hides the other. In flight: 0.96 TB/s times 0.8 us over
// 96.
inline constexpr Costs kRdnaCosts = [] {
  Costs costs = kFittedCosts;
  costs.waves.issue_clocks = 2;
  costs.waves.bytes_in_flight = 8192;
  costs.waves.tile_clocks = 200;
  costs.waves.alone = 1.2;
  costs.waves.beside = 1;
  return costs;
}();

inline constexpr Device kRdna[] = {
    {.name = "rx7900xtx",
     .architecture = "gfx1100",
     .family = Family::rdna,
     .capability = 0,
     .generation = 3,
     .multiprocessors = 96,
     .warp = 32,
     .global = {"global", 24 * kGB, 960 * kGB, 64},
     .l2 = {"Infinity Cache", 96 * kMiB, 0, 128},
     .shared = {"LDS", 64 * kKiB, 0, 128, 32, 4},
     .shared_per_block_bytes = 64 * 1024,
     .registers = 98304,
     .threads = 1024,
     .schedulers = 2,
     .f32_lanes = 128,
     .f16_lanes = 256,
     .f32_flops = 61.4 * kTera,
     .f16_flops = 122.8 * kTera,
     .bf16_flops = 122.8 * kTera,
     .i8_flops = 122.8 * kTera,
     .max_cluster = 1,
     .sources = {.capacities = "AMD Radeon RX 7900 XTX product page (Infinity Cache of 96 MB)",
                 .bandwidths = "the same page (384 bits of 20 Gbit/s); that of the Infinity Cache "
                               "is not published for reads of compute units",
                 .rates = "the same page (96 compute units at 2.5 GHz); AMD RDNA 3 ISA (512 "
                          "operations a clock by WMMA of float16 and of bytes)",
                 .limits =
                     "AMD RDNA 3 ISA (of half a workgroup processor: 64 KiB of LDS, two SIMDs "
                     "of 1536 registers of 32 lanes, 16 waves each)"},
     .costs = kRdnaCosts},
    {.name = "rx9070xt",
     .architecture = "gfx1201",
     .family = Family::rdna,
     .capability = 0,
     .generation = 4,
     .multiprocessors = 64,
     .warp = 32,
     .global = {"global", 16 * kGB, 640 * kGB, 64},
     .l2 = {"Infinity Cache", 64 * kMiB, 0, 128},
     .shared = {"LDS", 64 * kKiB, 0, 128, 32, 4},
     .shared_per_block_bytes = 64 * 1024,
     .registers = 98304,
     .threads = 1024,
     .schedulers = 2,
     .f32_lanes = 128,
     .f16_lanes = 512,
     .f32_flops = 48.7 * kTera,
     .f16_flops = 195 * kTera,
     .bf16_flops = 195 * kTera,
     .f8_flops = 389 * kTera,
     .i8_flops = 389 * kTera,
     .max_cluster = 1,
     .sources = {.capacities = "AMD Radeon RX 9070 XT product page (Infinity Cache of 64 MB)",
                 .bandwidths = "the same page (256 bits of 20 Gbit/s); that of the Infinity Cache "
                               "is not published",
                 .rates = "the same page (64 compute units at 2.97 GHz; matrix rates without "
                          "sparsity)",
                 .limits = "AMD RDNA 4 ISA, as RDNA 3"},
     .costs = kRdnaCosts},
};

}  // namespace ladder::rows
