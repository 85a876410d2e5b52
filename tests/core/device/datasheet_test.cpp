// SPDX-License-Identifier: Apache-2.0
//
// Rows against the arithmetic of their documents: a rate is units x clock x operations, a bandwidth
// is bus x pins. A digit of a row that was mistaken shows in one of the two.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/device.h"

namespace ladder {
namespace {

/// Of the product pages and white papers that the rows name; 0: not published, or measured instead.
struct Datasheet {
  std::string_view name;
  double boost_mhz;      ///< of the vector units
  int f16_per_cycle;     ///< multiply-adds of a multiprocessor's matrix units, f32 sums
  int bus_bits;          ///< of all memory
  double gigatransfers;  ///< a second, of one pin
};
constexpr Datasheet kDatasheets[] = {
    {"a100", 1410, 1024, 5120, 3.186}, {"a6000", 1800, 512, 384, 16},
    {"b200", 1980, 4096, 8192, 0},     {"h100", 1980, 2048, 5120, 5.235},
    {"h200", 1980, 0, 6144, 0},        {"l40s", 2520, 512, 384, 18},
    {"mi210", 1700, 512, 4096, 3.2},   {"mi250", 1700, 512, 4096, 3.2},
    {"mi300x", 2100, 1024, 8192, 5.2}, {"rtx4090", 2520, 256, 384, 21},
    {"rtx5090", 2407, 256, 512, 28},   {"t4", 1590, 512, 256, 10},
    {"v100", 1530, 512, 4096, 1.752},  {"x86_avx2", 2450, 0, 512, 3.2},
    {"x86_avx512", 2300, 0, 512, 3.2},
};

// Documents print at least two digits of 8.1, and three of everything else: half a unit of the
// last.
constexpr double kRounding = 0.05 / 8.1;

TEST(Datasheet, is_there_for_every_row) {
  for (const Device& row : devices()) {
    EXPECT_EQ(std::ranges::count(kDatasheets, row.name, &Datasheet::name), 1) << row.name;
  }
}

TEST(Datasheet, vector_rates_are_lanes_by_clock) {
  for (const Datasheet& sheet : kDatasheets) {
    EXPECT_NEAR(device(sheet.name).clock() / (sheet.boost_mhz * 1e6), 1, kRounding) << sheet.name;
  }
}

// Matrix units of large dies run up to a tenth slower than vector units: 1830 MHz of the H100's
// 1980 (NVIDIA H100 Tensor Core GPU Architecture).
constexpr double kMatrixClock = 0.9;

TEST(Datasheet, f16_rates_are_matrix_units_by_clock) {
  for (const Datasheet& sheet : kDatasheets) {
    if (sheet.f16_per_cycle == 0) continue;
    const Device& row = device(sheet.name);
    const double clock = row.f16_flops / (2.0 * sheet.f16_per_cycle * row.multiprocessors);
    EXPECT_LE(clock / (sheet.boost_mhz * 1e6), 1 + kRounding) << sheet.name;
    EXPECT_GE(clock / (sheet.boost_mhz * 1e6), kMatrixClock) << sheet.name;
  }
}

// Narrower operands: a power of two as many as of float16.
TEST(Datasheet, other_matrix_rates_are_powers_of_two_times_the_f16_rate) {
  for (const Device& row : devices()) {
    if (row.family == Family::x86) continue;
    const bool measured = row.source.find("measured") != std::string_view::npos;
    const double f16 = measured ? device("h100").f16_flops : row.f16_flops;
    for (double rate : {measured ? 0 : row.bf16_flops, row.f8_flops, row.i8_flops}) {
      if (rate == 0) continue;
      const double times = rate / f16;
      EXPECT_NEAR(times / std::exp2(std::round(std::log2(times))), 1, kRounding) << row.name;
    }
  }
}

TEST(Datasheet, bandwidths_are_bus_by_pins) {
  for (const Datasheet& sheet : kDatasheets) {
    const double bytes = sheet.bus_bits / 8.0 * sheet.gigatransfers * 1e9;
    if (bytes == 0) continue;
    EXPECT_NEAR(device(sheet.name).global.bytes_per_second / bytes, 1, kRounding) << sheet.name;
  }
}

/// Of the CUDA C++ Programming Guide, technical specifications by compute capability.
struct Capability {
  int capability, shared_kib, threads, f32_lanes;
};
constexpr Capability kCapabilities[] = {
    {70, 96, 2048, 64},   {75, 64, 1024, 64},   {80, 164, 2048, 64},   {86, 100, 1536, 128},
    {89, 100, 1536, 128}, {90, 228, 2048, 128}, {100, 228, 2048, 128}, {120, 100, 1536, 128},
};

TEST(Datasheet, multiprocessors_are_those_of_their_capability) {
  for (const Device& row : devices()) {
    if (row.family != Family::nvidia) continue;
    const auto known = std::ranges::find(kCapabilities, row.capability, &Capability::capability);
    ASSERT_NE(known, std::end(kCapabilities)) << row.name;
    EXPECT_EQ(row.shared.capacity_bytes, known->shared_kib * 1024) << row.name;
    // From 8.0 on, the driver keeps 1 KiB for itself of each block's.
    const int kept = row.capability >= 80 ? 1024 : 0;
    EXPECT_EQ(row.shared_per_block_bytes, known->shared_kib * 1024 - kept) << row.name;
    EXPECT_EQ(row.threads, known->threads) << row.name;
    EXPECT_EQ(row.f32_lanes, known->f32_lanes) << row.name;
    EXPECT_EQ(row.registers, 64 * 1024) << row.name;
    EXPECT_EQ(row.shared.banks * row.shared.bank_bytes, 128) << row.name;
    // Cluster size 8 is the portable one; larger ones each device may refuse.
    EXPECT_EQ(row.max_cluster, row.capability >= 90 ? 8 : 1) << row.name;
  }
}

// Read bytes a clock of all slices: NVIDIA A100 Tensor Core GPU Architecture (which gives Volta's
// too), AMD CDNA 2 white paper; 17.2 TB/s of the MI300X is its own number.
TEST(Datasheet, published_bandwidths_of_l2_are_slices_by_clock) {
  for (auto [name, bytes] :
       {std::pair{"a100", 5120}, {"v100", 2048}, {"mi210", 4096}, {"mi250", 4096}}) {
    const Device& row = device(name);
    EXPECT_NEAR(row.l2.bytes_per_second / (bytes * row.clock()), 1, kRounding) << name;
  }
}

}  // namespace
}  // namespace ladder
