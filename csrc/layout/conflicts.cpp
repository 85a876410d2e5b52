// SPDX-License-Identifier: Apache-2.0
#include "layout/conflicts.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"
#include "base/integers.h"

namespace ladder {
namespace {

constexpr int kWarp = 32;

void check(std::span<const std::int64_t> addresses, int bytes) {
  LADDER_REQUIRE(bytes >= 1 && bytes <= 16 && std::has_single_bit(static_cast<unsigned>(bytes)),
                 "accesses of ", bytes, " bytes");
  LADDER_REQUIRE(addresses.size() <= kWarp, addresses.size(), " lanes of a warp");
  for (auto address : addresses) {
    LADDER_REQUIRE(address == kIdleLane || (address >= 0 && address % bytes == 0), "an access of ",
                   bytes, " bytes at ", address);
  }
}

/// Lanes that are served together.
std::size_t lanes_of_phase(int bytes) { return bytes == 16 ? 8 : bytes == 8 ? 16 : 32; }

/// At most 32 lanes of 16 bytes each touch what these hold.
struct Distinct {
  std::array<std::int64_t, 4 * kWarp> values;
  int size = 0;
  void add(std::int64_t value) { values[size++] = value; }
  int count() {
    std::sort(values.begin(), values.begin() + size);
    return static_cast<int>(std::unique(values.begin(), values.begin() + size) - values.begin());
  }
};

int wavefronts_of_phase(std::span<const std::int64_t> lanes, int bytes) {
  Distinct words;
  for (auto address : lanes) {
    if (address == kIdleLane) continue;
    const auto last = (address + bytes - 1) / kBankBytes;
    for (auto word = address / kBankBytes; word <= last; ++word) words.add(word);
  }
  std::array<int, kBanks> in_bank = {};
  const int distinct = words.count();
  for (int i = 0; i < distinct; ++i) ++in_bank[words.values[i] % kBanks];
  return *std::max_element(in_bank.begin(), in_bank.end());
}

}  // namespace

int shared_wavefronts(std::span<const std::int64_t> addresses, int bytes) {
  check(addresses, bytes);
  const auto phase = lanes_of_phase(bytes);
  int sum = 0;
  for (std::size_t first = 0; first < addresses.size(); first += phase) {
    sum += wavefronts_of_phase(addresses.subspan(first, std::min(phase, addresses.size() - first)),
                               bytes);
  }
  return sum;
}

int shared_phases(std::span<const std::int64_t> addresses, int bytes) {
  check(addresses, bytes);
  const auto phase = lanes_of_phase(bytes);
  int sum = 0;
  for (std::size_t first = 0; first < addresses.size(); first += phase) {
    const auto lanes = addresses.subspan(first, std::min(phase, addresses.size() - first));
    sum += std::any_of(lanes.begin(), lanes.end(), [](auto a) { return a != kIdleLane; });
  }
  return sum;
}

GlobalTransactions global_transactions(std::span<const std::int64_t> addresses, int bytes) {
  check(addresses, bytes);
  Distinct sectors, lines;  // an aligned access of at most 16 bytes lies in one of each
  for (auto address : addresses) {
    if (address == kIdleLane) continue;
    sectors.add(address / kSectorBytes);
    lines.add(address / kLineBytes);
  }
  return {sectors.count(), lines.count()};
}

int least_sectors(std::span<const std::int64_t> addresses, int bytes) {
  check(addresses, bytes);
  Distinct wanted;
  for (auto address : addresses) {
    if (address != kIdleLane) wanted.add(address);
  }
  return ceil_div(wanted.count() * bytes, kSectorBytes);
}

AccessCount& AccessCount::operator+=(const AccessCount& other) {
  accesses += other.accesses;
  wavefronts += other.wavefronts;
  phases += other.phases;
  sectors += other.sectors;
  least_sectors += other.least_sectors;
  lines += other.lines;
  return *this;
}

AccessCount AccessCount::operator*(std::int64_t times) const {
  return {accesses * times, wavefronts * times,    phases * times,
          sectors * times,  least_sectors * times, lines * times};
}

AccessCount count_access(std::span<const std::int64_t> addresses, int bytes) {
  const int phases = shared_phases(addresses, bytes);
  if (phases == 0) return {};
  const auto global = global_transactions(addresses, bytes);
  return {1,
          shared_wavefronts(addresses, bytes),
          phases,
          global.sectors,
          least_sectors(addresses, bytes),
          global.lines};
}

AccessCount count_access(const TileAccess& access) {
  const auto& [tile, strides, element_bytes, width, swizzle] = access;
  LADDER_REQUIRE(strides.size() == tile.shape.size(), strides.size(),
                 " strides for a tile of rank ", tile.shape.size());
  LADDER_REQUIRE(width >= 1 && tile.slot_count() % width == 0, tile.slot_count(),
                 " slots do not move ", width, " at a time");
  const auto place = [&](std::int64_t thread, std::int64_t slot) {
    const auto at = tile(thread, slot);
    std::int64_t element = 0;
    for (std::size_t d = 0; d < at.size(); ++d) element += at[d] * strides[d];
    const auto byte = element * element_bytes;
    if (!swizzle) return byte;
    return static_cast<std::int64_t>((*swizzle)(static_cast<std::uint64_t>(byte)));
  };
  AccessCount sum;
  for (std::int64_t warp = 0; warp < tile.thread_count(); warp += kWarp) {
    const auto lanes = std::min<std::int64_t>(kWarp, tile.thread_count() - warp);
    for (std::int64_t slot = 0; slot < tile.slot_count(); slot += width) {
      std::vector<std::int64_t> addresses;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        addresses.push_back(place(warp + lane, slot));
        for (int i = 1; i < width; ++i) {
          LADDER_REQUIRE(place(warp + lane, slot + i) == addresses.back() + i * element_bytes,
                         "slots ", slot, " and ", slot + i, " of thread ", warp + lane,
                         " do not lie together");
        }
      }
      sum += count_access(addresses, element_bytes * width);
    }
  }
  return sum;
}

}  // namespace ladder
