// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/rows/units.h"

namespace ladder::rows {

inline constexpr Device kX86[] = {
    {.name = "x86_avx2",
     .architecture = "x86-64-v3",
     .family = Family::x86,
     .capability = 0,
     .generation = 256,
     .multiprocessors = 64,
     .warp = 1,
     .global = {"DRAM", 512 * kGB, 204.8 * kGB, 64},
     .l2 = {"L3", 256 * kMiB, 0, 64},
     .shared = {"L1", 32 * kKiB, 0, 64, 2, 32},
     .shared_per_block_bytes = 32 * 1024,
     .registers = 128,
     .threads = 1,
     .schedulers = 1,
     .f32_lanes = 16,
     .f32_flops = 5.018 * kTera,
     .f16_flops = 5.018 * kTera,
     .max_cluster = 1,
     .sources = {.capacities =
                     "AMD EPYC 7763 product page; Software Optimization Guide for Family 19h. The "
                     "L3 lies in 8 slices of 32 MiB. DRAM: 8 modules of 64 GB",
                 .bandwidths = "the same product page: 8 channels of DDR4-3200",
                 .rates =
                     "at the base clock of 2.45 GHz of the same product page: two multiply-adds of"
                     " 8 lanes a clock",
                 .limits = "the same guide: 16 registers of 256 bits"}},
    {.name = "x86_avx512",
     .architecture = "x86-64-v4",
     .family = Family::x86,
     .capability = 0,
     .generation = 512,
     .multiprocessors = 40,
     .warp = 1,
     .global = {"DRAM", 512 * kGB, 204.8 * kGB, 64},
     .l2 = {"L3", 60 * kMiB, 0, 64},
     .shared = {"L1", 48 * kKiB, 0, 64, 2, 64},
     .shared_per_block_bytes = 48 * 1024,
     .registers = 512,
     .threads = 1,
     .schedulers = 1,
     .f32_lanes = 32,
     .f32_flops = 5.888 * kTera,
     .f16_flops = 5.888 * kTera,
     .max_cluster = 1,
     .sources = {.capacities =
                     "Intel Xeon Platinum 8380, ARK product page; Intel 64 and IA-32 Optimization "
                     "Reference Manual, Ice Lake. DRAM: 8 modules of 64 GB",
                 .bandwidths = "the same product page: 8 channels of DDR4-3200",
                 .rates =
                     "at the base clock of 2.3 GHz of the same product page: two multiply-adds of "
                     "16 lanes a clock",
                 .limits = "the same manual: 32 registers of 512 bits"}},
};

}  // namespace ladder::rows
