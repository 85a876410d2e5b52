// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "device/rows/units.h"

namespace ladder::rows {

// Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking (arXiv
// 1804.06826): load throughput of L2; later generations kept the width. Sectors of 32 bytes, lines
// of 128 and 32 banks of 4 bytes: CUDA C++ Programming and Best Practices Guides.
constexpr int kFill = 64;

// 1256 of 2048 multiply-adds a cycle and multiprocessor, measured on an H200; the rest needs a
// warpgroup. sm_100 reaches its rate through tensor memory.
constexpr double kHopperWarps = 0.61, kNotPublished = 0;

// In kMatrixOperands' order, 0: as above. Of e4m3 sm_90 has an instruction for warpgroups alone:
// mma.sync is SASS's HMMA of float16 twice, behind conversions. Of int8 as 31 kernels of 96 ran on
// an H200 (docs/dev/notebook_gpu.md).
constexpr std::array<double, 4> kHopperWarpShares = {0, 0, 0.45, kHopperWarps * 761 / 1978.9};

// As cuOccupancyMaxActiveClusters of an H200 told, rounded (docs/dev/notebook_gpu.md); taken for
// all of GH100.
constexpr std::array<double, 8> kHopperClusters = {1, 1, 0.886, 0.909, 0.833, 0.773, 0.795, 0.909};

constexpr std::string_view kCapabilities = "CUDA C++ Programming Guide, table of capabilities";

constexpr Memory dram(double gigabytes, double gigabytes_per_second) {
  return {"global", gigabytes * kGB, gigabytes_per_second * kGB, 32};
}
constexpr Memory l2(double mebibytes, double gigabytes_per_second = 0) {
  return {"L2", mebibytes * kMiB, gigabytes_per_second * kGB, 32};
}
constexpr Memory banked(double kibibytes) { return {"shared", kibibytes * kKiB, 0, 128, 32, 4}; }

inline constexpr Device kNvidia[] = {
    {.name = "a100",
     .architecture = "sm_80",
     .capability = 80,
     .generation = 80,
     .multiprocessors = 108,
     .global = dram(80, 2039),
     .l2 = l2(40, 7200),
     .shared = banked(164),
     .shared_per_block_bytes = 163 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f32_lanes = 64,
     .f16_lanes = 1024,
     .f32_flops = 19.5 * kTera,
     .f16_flops = 312 * kTera,
     .bf16_flops = 312 * kTera,
     .i8_flops = 624 * kTera,
     .fill_bytes = kFill,
     .max_cluster = 1,
     .sources = {.capacities =
                     "NVIDIA A100 Tensor Core GPU datasheet 1758950, 80 GB SXM; NVIDIA A100 Tensor"
                     " Core GPU Architecture (80 slices of L2 of 512 KiB)",
                 .bandwidths = "the same datasheet and architecture (L2: 5120 bytes a clock); a "
                               "multiprocessor's part of L2: arXiv 1804.06826",
                 .rates = "the same datasheet and architecture (matrix units: 1024 a clock)",
                 .limits = kCapabilities}},
    {.name = "a6000",
     .architecture = "sm_86",
     .capability = 86,
     .generation = 86,
     .multiprocessors = 84,
     .global = dram(48, 768),
     .l2 = l2(6),
     .shared = banked(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f32_lanes = 128,
     .f16_lanes = 512,
     .f32_flops = 38.7 * kTera,
     .f16_flops = 154.8 * kTera,
     .bf16_flops = 154.8 * kTera,
     .i8_flops = 309.7 * kTera,
     .fill_bytes = kFill,
     .max_cluster = 1,
     .sources = {.capacities =
                     "RTX A6000 datasheet; NVIDIA Ampere GA102 GPU Architecture (512 KiB of L2 for"
                     " each of 12 memory controllers)",
                 .bandwidths =
                     "the same datasheet; a multiprocessor's part of L2: arXiv 1804.06826",
                 .rates = "the same datasheet and architecture (matrix units: 512 a clock)",
                 .limits = kCapabilities}},
    {.name = "b200",
     .architecture = "sm_100a",
     .capability = 100,
     .generation = 100,
     .multiprocessors = 148,
     .global = dram(180, 7700),
     .l2 = l2(126),
     .shared = banked(228),
     .shared_per_block_bytes = 227 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f32_lanes = 128,
     .f16_lanes = 4096,
     .f32_flops = 75 * kTera,
     .f16_flops = 2250 * kTera,
     .bf16_flops = 2250 * kTera,
     .f8_flops = 4500 * kTera,
     .i8_flops = 4500 * kTera,
     .warp_share = kNotPublished,
     .tensor_columns = 512,
     .fill_bytes = kFill,
     .max_cluster = 8,
     .sources = {.capacities =
                     "NVIDIA Blackwell datasheet, table of one GPU of an HGX B200; L2 as its "
                     "driver tells; tensor memory: PTX ISA",
                 .bandwidths = "the same table (a DGX B200 is said to have 8 TB/s); a "
                               "multiprocessor's part of L2: arXiv 1804.06826",
                 .rates =
                     "the same table at 1000 W, without sparsity; multiprocessors as its driver "
                     "tells",
                 .limits = kCapabilities}},
    {.name = "h100",
     .architecture = "sm_90a",
     .capability = 90,
     .generation = 90,
     .multiprocessors = 132,
     .global = dram(80, 3350),
     .l2 = l2(50),
     .shared = banked(228),
     .shared_per_block_bytes = 227 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f32_lanes = 128,
     .f16_lanes = 2048,
     .f32_flops = 66.9 * kTera,
     .f16_flops = 761 * kTera,
     .bf16_flops = 761 * kTera,
     .f8_flops = 1978.9 * kTera,
     .i8_flops = 1978.9 * kTera,
     .warp_share = kHopperWarps,
     .warp_shares = kHopperWarpShares,
     .fill_bytes = kFill,
     .max_cluster = 8,
     .cluster_shares = kHopperClusters,
     .sources = {.capacities = "H100 SXM datasheet; NVIDIA H100 Tensor Core GPU Architecture (L2)",
                 .bandwidths =
                     "the same datasheet; a multiprocessor's part of L2: arXiv 1804.06826",
                 .rates =
                     "f16 and bf16 measured on one, as on an H200 (benchmarks/results/sweep.md; "
                     "datasheet: 989 TFLOP/s), others of the datasheet, without sparsity; matrix "
                     "units: 2048 a clock",
                 .limits = kCapabilities}},
    {.name = "h200",
     .architecture = "sm_90a",
     .capability = 90,
     .generation = 90,
     .multiprocessors = 132,
     .global = dram(141, 4530),
     .l2 = l2(60),
     .shared = banked(228),
     .shared_per_block_bytes = 227 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f32_lanes = 128,
     .f16_lanes = 2048,
     .f32_flops = 66.9 * kTera,
     .f16_flops = 761 * kTera,
     .bf16_flops = 761 * kTera,
     .f8_flops = 1978.9 * kTera,
     .i8_flops = 1978.9 * kTera,
     .warp_share = kHopperWarps,
     .warp_shares = kHopperWarpShares,
     .fill_bytes = kFill,
     .max_cluster = 8,
     .cluster_shares = kHopperClusters,
     .sources = {.capacities = "H200 SXM datasheet; L2 as the driver of one tells",
                 .bandwidths = "read rate measured on one (docs/performance.md; datasheet: 4.8 "
                               "TB/s); a multiprocessor's part of L2: arXiv 1804.06826",
                 .rates =
                     "f16 and bf16 measured on one (docs/performance.md; datasheet: 989 TFLOP/s), "
                     "others of the datasheet; matrix units as the H100",
                 .limits = kCapabilities}},
    {.name = "l40s",
     .architecture = "sm_89",
     .capability = 89,
     .generation = 89,
     .multiprocessors = 142,
     .global = dram(48, 864),
     .l2 = l2(96),
     .shared = banked(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f32_lanes = 128,
     .f16_lanes = 512,
     .f32_flops = 91.6 * kTera,
     .f16_flops = 366.5 * kTera,
     .bf16_flops = 366.5 * kTera,
     .f8_flops = 733 * kTera,
     .i8_flops = 733 * kTera,
     .fill_bytes = kFill,
     .max_cluster = 1,
     .sources =
         {.capacities = "NVIDIA L40S datasheet; NVIDIA Ada GPU Architecture (L2 of the full AD102)",
          .bandwidths = "the same datasheet; a multiprocessor's part of L2: arXiv 1804.06826",
          .rates = "the same datasheet, matrix rates half of those with sparsity (362 TFLOP/s, "
                   "which it has for f16 without, is not what its clock gives), and architecture"
                   " (matrix units: 512 a clock)",
          .limits = kCapabilities}},
    {.name = "rtx4090",
     .architecture = "sm_89",
     .capability = 89,
     .generation = 89,
     .multiprocessors = 128,
     .global = dram(24, 1008),
     .l2 = l2(72),
     .shared = banked(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f32_lanes = 128,
     .f16_lanes = 256,
     .f32_flops = 82.6 * kTera,
     .f16_flops = 165.2 * kTera,
     .bf16_flops = 165.2 * kTera,
     .f8_flops = 330.3 * kTera,
     .i8_flops = 660.6 * kTera,
     .fill_bytes = kFill,
     .max_cluster = 1,
     .sources = {.capacities = "NVIDIA Ada GPU Architecture, table of the GeForce RTX 4090",
                 .bandwidths = "the same table; a multiprocessor's part of L2: arXiv 1804.06826",
                 .rates = "the same table, FP32 accumulation without sparsity (matrix units: 256 a "
                          "clock so)",
                 .limits = kCapabilities}},
    {.name = "rtx5090",
     .architecture = "sm_120a",
     .capability = 120,
     .generation = 120,
     .multiprocessors = 170,
     .global = dram(32, 1792),
     .l2 = l2(96),
     .shared = banked(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f32_lanes = 128,
     .f16_lanes = 256,
     .f32_flops = 104.8 * kTera,
     .f16_flops = 209.5 * kTera,
     .bf16_flops = 209.5 * kTera,
     .f8_flops = 419 * kTera,
     .i8_flops = 838 * kTera,
     .fill_bytes = kFill,
     .max_cluster = 8,
     .sources = {.capacities =
                     "NVIDIA RTX Blackwell GPU Architecture, table of the GeForce RTX 5090",
                 .bandwidths = "the same table; a multiprocessor's part of L2: arXiv 1804.06826",
                 .rates = "the same table, FP32 accumulation without sparsity (matrix units: 256 a "
                          "clock so)",
                 .limits = kCapabilities}},
    {.name = "t4",
     .architecture = "sm_75",
     .capability = 75,
     .generation = 75,
     .multiprocessors = 40,
     .global = dram(16, 320),
     .l2 = l2(4),
     .shared = banked(64),
     .shared_per_block_bytes = 64 * 1024,
     .registers = 65536,
     .threads = 1024,
     .f32_lanes = 64,
     .f16_lanes = 512,
     .f32_flops = 8.1 * kTera,
     .f16_flops = 65 * kTera,
     .i8_flops = 130 * kTera,
     .fill_bytes = kFill,
     .max_cluster = 1,
     .sources = {.capacities =
                     "T4 datasheet; NVIDIA Turing GPU Architecture (512 KiB of L2 for each of 8 "
                     "memory controllers)",
                 .bandwidths =
                     "the same datasheet; a multiprocessor's part of L2: arXiv 1804.06826",
                 .rates = "the same datasheet and architecture (matrix units: 512 a clock)",
                 .limits = kCapabilities}},
    {.name = "v100",
     .architecture = "sm_70",
     .capability = 70,
     .generation = 70,
     .multiprocessors = 80,
     .global = dram(16, 900),
     .l2 = l2(6, 3130),
     .shared = banked(96),
     .shared_per_block_bytes = 96 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f32_lanes = 64,
     .f16_lanes = 512,
     .f32_flops = 15.7 * kTera,
     .f16_flops = 125 * kTera,
     .fill_bytes = kFill,
     .max_cluster = 1,
     .sources = {.capacities =
                     "V100 SXM2 datasheet; NVIDIA Tesla V100 GPU Architecture (768 KiB of L2 for "
                     "each of 8 memory controllers)",
                 .bandwidths =
                     "the same datasheet; NVIDIA A100 Tensor Core GPU Architecture (L2: 2048 bytes"
                     " a clock); a multiprocessor's part of L2: arXiv 1804.06826",
                 .rates = "the same datasheet and architecture (matrix units: 512 a clock)",
                 .limits = kCapabilities}},
};

}  // namespace ladder::rows
