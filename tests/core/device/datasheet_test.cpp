// SPDX-License-Identifier: Apache-2.0
//
// Every number of a row against the arithmetic of its documents: a rate is units x clock x
// operations, a bandwidth is bus x pins, a capacity is modules or slices. A digit of a row that was
// mistaken shows in one of them, which the last test makes sure of by mistaking each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/device.h"
#include "documents.h"

namespace ladder {
namespace {

// Documents print at least two digits of 8.1, and three of everything else: half a unit of the
// last.
constexpr double kRounding = 0.05 / 8.1;
// Matrix units of large dies run up to a tenth slower than vector units: 1830 MHz of the H100's
// 1980 (NVIDIA H100 Tensor Core GPU Architecture).
constexpr double kMatrixClock = 0.9;

/// What of `row` its documents contradict, by name.
class Contradictions {
 public:
  explicit Contradictions(const Device& row) : row_(row) {
    const auto sheet = std::ranges::find(kDatasheets, row.name, &Datasheet::name);
    expect(sheet != std::end(kDatasheets), "no datasheet");
    const auto limits = std::ranges::find_if(kLimits, [&](const Limits& known) {
      return known.family == row.family && known.generation == row.generation;
    });
    expect(limits != std::end(kLimits), "no limits");
    expect(row_.family != Family::rdna ||
               (row.generation == 3) == row.architecture.starts_with("gfx11"),
           "generation");
    if (!found_.empty()) return;
    sizes(*sheet, *limits);
    bandwidths(*sheet, *limits);
    rates(*sheet, *limits);
    multiprocessor(*limits);
  }
  std::vector<std::string> found() && { return std::move(found_); }

 private:
  void expect(bool holds, const char* what) {
    if (!holds) found_.push_back(what);
  }
  /// `value` is `documented`, as its document rounds it; at least `least` times it.
  void near(double value, double documented, const char* what, double least = 1) {
    const double ratio = value / documented;
    expect(least - kRounding <= ratio && ratio <= 1 + kRounding, what);
  }
  void sizes(const Datasheet& sheet, const Limits& limits) {
    expect(row_.global.capacity_bytes == 1e9 * sheet.modules * sheet.module_gb, "memory");
    expect(row_.l2.capacity_bytes == 1024.0 * sheet.slices * sheet.slice_kib, "last cache");
    expect(row_.shared.capacity_bytes == 1024.0 * limits.shared_kib, "shared memory");
    expect(row_.shared_per_block_bytes == 1024 * (limits.shared_kib - limits.kept_kib),
           "shared memory of a block");
  }
  void bandwidths(const Datasheet& sheet, const Limits& limits) {
    const double bus = sheet.bus_bits / 8.0 * sheet.gigatransfers;
    near(row_.global.bytes_per_second, 1e9 * (bus > 0 ? bus : sheet.gb_per_second), "bandwidth");
    if (sheet.l2_bytes_a_clock > 0) {
      near(row_.l2.bytes_per_second, sheet.l2_bytes_a_clock * 1e6 * sheet.boost_mhz, "of L2");
    } else {
      expect(row_.l2.bytes_per_second == 0, "of L2, which nobody published");
    }
    expect(row_.fill_bytes == limits.fill_bytes, "fill from L2");
    expect(row_.shared.bytes_per_second == 0, "of shared memory, which banks give");
  }
  void rates(const Datasheet& sheet, const Limits& limits) {
    expect(row_.f32_lanes == limits.f32_lanes, "lanes");
    near(row_.clock(), 1e6 * sheet.boost_mhz, "vector rate");
    expect(row_.f16_lanes == sheet.f16_per_cycle, "matrix units");
    const double units = 2e6 * row_.f16_lanes * row_.multiprocessors * sheet.boost_mhz;
    double f16 = units;
    if (row_.family == Family::x86) {
      expect(row_.f16_flops == row_.f32_flops, "f16 rate");  // decoded to f32
    } else if (sheet.f16_tera > 0) {
      near(row_.f16_flops, 1e12 * sheet.f16_tera, "f16 rate");
    } else {
      f16 = row_.f16_flops;
      near(f16, units, "f16 rate", kMatrixClock);
    }
    expect(row_.bf16_flops == 0 || row_.bf16_flops == row_.f16_flops, "bf16 rate");
    // Narrower operands: a power of two as many as of float16.
    for (const auto& [rate, what] :
         {std::pair{row_.f8_flops, "f8 rate"}, {row_.i8_flops, "i8 rate"}}) {
      if (rate == 0) continue;
      near(rate, f16 * std::exp2(std::round(std::log2(rate / f16))), what, kMatrixClock);
    }
  }
  void multiprocessor(const Limits& limits) {
    expect(row_.registers == limits.registers, "registers");
    expect(row_.threads == limits.threads, "threads");
    expect(row_.schedulers == limits.schedulers, "schedulers");
    expect(row_.warp == limits.warp, "warp");
    expect(row_.max_cluster == limits.max_cluster, "cluster");
    expect(row_.warp_share == limits.warp_share, "share of single warps");
    expect(row_.cluster_shares == limits.cluster_shares, "shares of clusters");
    expect(row_.capability == (row_.family == Family::nvidia ? row_.generation : 0), "capability");
    expect(row_.global.transaction_bytes == limits.global_transaction, "transaction");
    expect(row_.l2.transaction_bytes == limits.l2_transaction, "transaction of the last cache");
    expect(row_.shared.transaction_bytes == limits.shared_transaction, "of shared memory");
    expect(row_.shared.banks == limits.banks && row_.shared.bank_bytes == limits.bank_bytes,
           "banks");
    expect(row_.global.banks == 0 && row_.l2.banks == 0, "banks of nothing banked");
  }

  const Device& row_;
  std::vector<std::string> found_;
};

std::vector<std::string> contradictions(const Device& row) { return Contradictions(row).found(); }

TEST(Datasheet, is_there_once_for_every_row) {
  for (const Device& row : devices()) {
    EXPECT_EQ(std::ranges::count(kDatasheets, row.name, &Datasheet::name), 1) << row.name;
  }
  EXPECT_EQ(std::size(kDatasheets), devices().size());
}

TEST(Datasheet, contradicts_no_row) {
  for (const Device& row : devices()) {
    for (const auto& what : contradictions(row)) ADD_FAILURE() << row.name << ": " << what;
  }
}

/// Every number of a row, and its name.
template <class Row, class Visit>
void each_number(Row& row, const Visit& visit) {
  visit("multiprocessors", row.multiprocessors);
  visit("capability", row.capability);
  visit("generation", row.generation);
  visit("warp", row.warp);
  for (auto* memory : {&row.global, &row.l2, &row.shared}) {
    visit("capacity", memory->capacity_bytes);
    visit("bandwidth", memory->bytes_per_second);
    visit("transaction", memory->transaction_bytes);
    visit("banks", memory->banks);
    visit("bank_bytes", memory->bank_bytes);
  }
  visit("shared_per_block_bytes", row.shared_per_block_bytes);
  visit("registers", row.registers);
  visit("threads", row.threads);
  visit("schedulers", row.schedulers);
  visit("f32_lanes", row.f32_lanes);
  visit("f16_lanes", row.f16_lanes);
  visit("f32_flops", row.f32_flops);
  visit("f16_flops", row.f16_flops);
  visit("bf16_flops", row.bf16_flops);
  visit("f8_flops", row.f8_flops);
  visit("i8_flops", row.i8_flops);
  visit("fill_bytes", row.fill_bytes);
  visit("max_cluster", row.max_cluster);
  visit("warp_share", row.warp_share);
  for (auto& share : row.cluster_shares) visit("cluster_shares", share);
}

// A sixth more or less: more than the tenth that matrix units may be slower by.
TEST(Datasheet, contradicts_any_row_of_which_one_number_is_mistaken) {
  for (const Device& row : devices()) {
    for (double factor : {7.0 / 6, 5.0 / 6}) {
      int numbers = 0;
      each_number(row, [&](const char*, const auto&) { ++numbers; });
      for (int mistaken = 0; mistaken < numbers; ++mistaken) {
        Device wrong = row;
        const char* name = "";
        bool changed = false;
        int at = 0;
        each_number(wrong, [&](const char* what, auto& number) {
          if (at++ != mistaken || number == 0) return;
          using Number = std::remove_reference_t<decltype(number)>;
          const auto before = number;
          number = static_cast<Number>(factor > 1 ? std::ceil(number * factor)
                                                  : std::floor(number * factor));
          name = what, changed = number != before;
        });
        if (!changed) continue;
        EXPECT_FALSE(contradictions(wrong).empty()) << row.name << ": " << name;
      }
    }
  }
}

}  // namespace
}  // namespace ladder
