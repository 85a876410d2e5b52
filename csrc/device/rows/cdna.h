// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/rows/units.h"

namespace ladder::rows {

inline constexpr Device kCdna[] = {
    {.name = "mi210",
     .architecture = "gfx90a",
     .family = Family::cdna,
     .capability = 0,
     .generation = 2,
     .multiprocessors = 104,
     .warp = 64,
     .global = {"global", 64 * kGB, 1638.4 * kGB, 64},
     .l2 = {"L2", 8 * kMiB, 6963 * kGB, 128},
     .shared = {"LDS", 64 * kKiB, 0, 128, 32, 4},
     .shared_per_block_bytes = 64 * 1024,
     .registers = 131072,
     .threads = 2048,
     .f32_lanes = 64,
     .f16_lanes = 512,
     .f32_flops = 22.6 * kTera,
     .f16_flops = 181 * kTera,
     .bf16_flops = 181 * kTera,
     .i8_flops = 181 * kTera,
     .max_cluster = 1,
     .sources = {.capacities =
                     "AMD Instinct MI210 datasheet; AMD CDNA 2 white paper (32 slices of L2 of 256"
                     " KiB)",
                 .bandwidths = "the same datasheet and white paper (L2: 4096 bytes a clock)",
                 .rates = "the same datasheet and white paper (matrix units: 512 a clock)",
                 .limits =
                     "AMD Instinct MI200 ISA; ROCm documentation, MI200 performance counters"}},
    {.name = "mi250",
     .architecture = "gfx90a",
     .family = Family::cdna,
     .capability = 0,
     .generation = 2,
     .multiprocessors = 104,
     .warp = 64,
     .global = {"global", 64 * kGB, 1638.4 * kGB, 64},
     .l2 = {"L2", 8 * kMiB, 6963 * kGB, 128},
     .shared = {"LDS", 64 * kKiB, 0, 128, 32, 4},
     .shared_per_block_bytes = 64 * 1024,
     .registers = 131072,
     .threads = 2048,
     .f32_lanes = 64,
     .f16_lanes = 512,
     .f32_flops = 22.6 * kTera,
     .f16_flops = 181 * kTera,
     .bf16_flops = 181 * kTera,
     .i8_flops = 181 * kTera,
     .max_cluster = 1,
     .sources = {.capacities =
                     "one of the two dies of a package, which is what a kernel runs on: half of "
                     "the AMD Instinct MI250 datasheet; otherwise as the MI210",
                 .bandwidths = "half of the same datasheet; otherwise as the MI210",
                 .rates = "half of the same datasheet; otherwise as the MI210",
                 .limits = "as the MI210"}},
    {.name = "mi300x",
     .architecture = "gfx942",
     .family = Family::cdna,
     .capability = 0,
     .generation = 3,
     .multiprocessors = 304,
     .warp = 64,
     .global = {"global", 192 * kGB, 5300 * kGB, 64},
     .l2 = {"Infinity Cache", 256 * kMiB, 17200 * kGB, 128},
     .shared = {"LDS", 64 * kKiB, 0, 128, 32, 4},
     .shared_per_block_bytes = 64 * 1024,
     .registers = 131072,
     .threads = 2048,
     .f32_lanes = 128,
     .f16_lanes = 1024,
     .f32_flops = 163.4 * kTera,
     .f16_flops = 1307.4 * kTera,
     .bf16_flops = 1307.4 * kTera,
     .f8_flops = 2614.9 * kTera,
     .i8_flops = 2614.9 * kTera,
     .max_cluster = 1,
     .sources = {.capacities =
                     "AMD Instinct MI300X datasheet; AMD CDNA 3 white paper (the L2 of 4 MiB is "
                     "private to a die, so the Infinity Cache stands in its place: 128 slices of 2"
                     " MiB)",
                 .bandwidths =
                     "the same datasheet and white paper (Infinity Cache: 8192 bytes a clock)",
                 .rates = "the same datasheet and white paper (matrix units: 1024 a clock); ROCm "
                          "documentation, MI300 series microarchitecture (304 compute units)",
                 .limits = "AMD Instinct MI300 ISA"}},
};

}  // namespace ladder::rows
