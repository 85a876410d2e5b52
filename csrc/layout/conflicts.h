// SPDX-License-Identifier: Apache-2.0
//
// What one access of a warp costs the memory it goes to.
//
// Shared memory has 32 banks of 4 bytes. Lanes of a warp are served together, lanes of a half warp
// where each moves 8 bytes, of a quarter where each moves 16: a *phase*. A phase takes as many
// wavefronts as the most different words of it lie in one bank; lanes that want the same word get
// it from one read. Without conflicts a phase takes one.
//
// Global memory moves 32-byte sectors of 128-byte lines. An access asks for every sector that one
// of its lanes touches, once; it wastes nothing when the sectors hold only bytes that were wanted.
//
// Source: CUDA C++ Best Practices Guide, shared memory and coalesced access; the phases of wide
// accesses are what profilers of these devices count (ideal wavefronts of 64- and 128-bit
// accesses).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "layout/layout.h"
#include "layout/linear_form.h"

namespace ladder {

constexpr int kBanks = 32;
constexpr int kBankBytes = 4;
constexpr int kSectorBytes = 32;
constexpr int kLineBytes = 128;

/// Address of a lane that takes no part.
constexpr std::int64_t kIdleLane = -1;

/// Wavefronts of one access: lane i moves `bytes` (a power of two up to 16) at byte addresses[i],
/// a multiple of `bytes`. At most 32 lanes. Throws InvalidArgument for other sizes and addresses.
int shared_wavefronts(std::span<const std::int64_t> addresses, int bytes);
/// Phases with a lane in them: what the access takes without conflicts.
int shared_phases(std::span<const std::int64_t> addresses, int bytes);

struct GlobalTransactions {
  int sectors, lines;
  bool operator==(const GlobalTransactions&) const = default;
};
/// Sectors and lines that one access touches.
GlobalTransactions global_transactions(std::span<const std::int64_t> addresses, int bytes);
/// The fewest sectors that hold as many bytes as the access wants, lanes with one address together.
int least_sectors(std::span<const std::int64_t> addresses, int bytes);

/// Sums over the accesses of a tile, or of more.
struct AccessCount {
  std::int64_t accesses = 0;                ///< of a warp: load or store instructions
  std::int64_t wavefronts = 0, phases = 0;  ///< shared memory; conflicts are the difference
  std::int64_t sectors = 0, least_sectors = 0, lines = 0;  ///< global memory

  AccessCount& operator+=(const AccessCount& other);
  AccessCount operator*(std::int64_t times) const;
  bool operator==(const AccessCount&) const = default;
};

/// One access as counts of both memories.
AccessCount count_access(std::span<const std::int64_t> addresses, int bytes);

/// How a register tile is moved: element x of the tile is at byte `element_bytes` times sum x[d]
/// strides[d], put through `swizzle` if there is one, and `width` consecutive slots move together.
struct TileAccess {
  Layout tile;
  std::vector<std::int64_t> strides;
  int element_bytes, width;
  std::optional<BitMatrix> swizzle = {};
};
/// All warps of the tile, all slots. Throws InvalidArgument when slots that are to move together do
/// not lie together.
AccessCount count_access(const TileAccess& access);

}  // namespace ladder
