// SPDX-License-Identifier: Apache-2.0
//
// What the documents say of which the rows name the titles, in the units of the documents: clocks,
// buses, slices. datasheet_test.cpp works the rows out from it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "device/device.h"

namespace ladder {

/// Of product pages and white papers. 0: not published, or not by such parts.
struct Datasheet {
  std::string_view name;
  double boost_mhz;        ///< of the vector units
  int f16_per_cycle;       ///< multiply-adds of a multiprocessor's matrix units, f32 sums
  double f16_tera;         ///< operations a second, where these do not give it: measured
  int bus_bits;            ///< of all memory
  double gigatransfers;    ///< a second, of one pin
  double gb_per_second;    ///< where these do not give it: of the document or measured
  int modules, module_gb;  ///< of memory; 1: as the document says
  int slices, slice_kib;   ///< of the last cache; 1: as the document or driver says
  int l2_bytes_a_clock;    ///< read, of all slices
};
constexpr Datasheet kDatasheets[] = {
    {"a100", 1410, 1024, 0, 5120, 3.186, 0, 5, 16, 80, 512, 5120},
    {"a6000", 1800, 512, 0, 384, 16, 0, 24, 2, 12, 512, 0},
    {"b200", 1980, 4096, 0, 8192, 0, 7700, 1, 180, 1, 126 * 1024, 0},
    {"h100", 1980, 2048, 761, 5120, 5.235, 0, 5, 16, 1, 50 * 1024, 0},
    {"h200", 1980, 2048, 761, 6144, 0, 4530, 1, 141, 1, 60 * 1024, 0},
    {"l40s", 2520, 512, 0, 384, 18, 0, 24, 2, 1, 98304, 0},
    {"mi210", 1700, 512, 0, 4096, 3.2, 0, 4, 16, 32, 256, 4096},
    {"mi250", 1700, 512, 0, 4096, 3.2, 0, 4, 16, 32, 256, 4096},
    {"mi300x", 2100, 1024, 0, 8192, 5.2, 0, 8, 24, 128, 2048, 8192},
    {"mi355x", 2400, 2048, 0, 8192, 0, 8000, 8, 36, 128, 2048, 0},
    {"rtx4090", 2520, 256, 0, 384, 21, 0, 12, 2, 1, 73728, 0},
    {"rtx5090", 2407, 256, 0, 512, 28, 0, 16, 2, 1, 98304, 0},
    {"rx7900xtx", 2500, 256, 0, 384, 20, 0, 12, 2, 1, 98304, 0},
    {"rx9070xt", 2970, 512, 0, 256, 20, 0, 8, 2, 1, 65536, 0},
    {"t4", 1590, 512, 0, 256, 10, 0, 8, 2, 8, 512, 0},
    {"v100", 1530, 512, 0, 4096, 1.752, 0, 4, 4, 8, 768, 2048},
    {"x86_avx2", 2450, 0, 0, 512, 3.2, 0, 8, 64, 8, 32 * 1024, 0},
    {"x86_avx512", 2300, 0, 0, 512, 3.2, 0, 8, 64, 40, 1536, 0},
};

/// Of the table of technical specifications of an instruction set's guide: of one multiprocessor.
struct Limits {
  Family family;
  int generation;
  int shared_kib;
  int kept_kib;  ///< by the driver, of each block's
  int registers, threads, schedulers, warp, f32_lanes;
  int fill_bytes;   ///< from L2 in a cycle
  int max_cluster;  ///< 8 is the portable size; larger ones each device may refuse
  int global_transaction, l2_transaction, shared_transaction, banks, bank_bytes;
  double warp_share = 1;                      ///< of sm_90 as an H200 gave; of sm_100 nobody says
  std::array<double, 8> cluster_shares = {};  ///< likewise
};
constexpr Family kNv = Family::nvidia, kAmd = Family::cdna, kRadeon = Family::rdna,
                 kCpu = Family::x86;
constexpr std::array<double, 8> kSm90Clusters = {1, 1, 0.886, 0.909, 0.833, 0.773, 0.795, 0.909};
constexpr Limits kLimits[] = {
    {kNv, 70, 96, 0, 65536, 2048, 4, 32, 64, 64, 1, 32, 32, 128, 32, 4},
    {kNv, 75, 64, 0, 65536, 1024, 4, 32, 64, 64, 1, 32, 32, 128, 32, 4},
    {kNv, 80, 164, 1, 65536, 2048, 4, 32, 64, 64, 1, 32, 32, 128, 32, 4},
    {kNv, 86, 100, 1, 65536, 1536, 4, 32, 128, 64, 1, 32, 32, 128, 32, 4},
    {kNv, 89, 100, 1, 65536, 1536, 4, 32, 128, 64, 1, 32, 32, 128, 32, 4},
    {kNv, 90, 228, 1, 65536, 2048, 4, 32, 128, 64, 8, 32, 32, 128, 32, 4, 0.61, kSm90Clusters},
    {kNv, 100, 228, 1, 65536, 2048, 4, 32, 128, 64, 8, 32, 32, 128, 32, 4, 0},
    {kNv, 120, 100, 1, 65536, 1536, 4, 32, 128, 64, 8, 32, 32, 128, 32, 4},
    // 512 KiB of vector registers; the lanes of CDNA 3 issue two of f32 at once.
    {kAmd, 2, 64, 0, 131072, 2048, 4, 64, 64, 0, 1, 64, 128, 128, 32, 4},
    {kAmd, 3, 64, 0, 131072, 2048, 4, 64, 128, 0, 1, 64, 128, 128, 32, 4},
    {kAmd, 4, 160, 0, 131072, 2048, 4, 64, 128, 0, 1, 64, 128, 128, 64, 4},
    // Half a workgroup processor: 384 KiB of vector registers, whose lanes issue two of f32 at
    // once.
    {kRadeon, 3, 64, 0, 98304, 1024, 2, 32, 128, 0, 1, 64, 128, 128, 32, 4},
    {kRadeon, 4, 64, 0, 98304, 1024, 2, 32, 128, 0, 1, 64, 128, 128, 32, 4},
    // A core: 16 registers of 8, or 32 of 16; two multiply-adds and two loads of a vector in a
    // cycle.
    {kCpu, 256, 32, 0, 128, 1, 1, 1, 16, 0, 1, 64, 64, 64, 2, 32},
    {kCpu, 512, 48, 0, 512, 1, 1, 1, 32, 0, 1, 64, 64, 64, 2, 64},
};

}  // namespace ladder
