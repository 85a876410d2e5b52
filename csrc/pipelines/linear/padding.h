// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

/// Floats after a row of partial sums, a multiple of 64: the tokens of a warp fall into different
/// banks.
constexpr std::int64_t kSumPad = 4;
/// Bytes after a row of activations, a multiple of 128: the eight rows that load-matrix reads
/// together lie in different banks.
constexpr std::int64_t kActivationPadBytes = 16;

/// Of a panel of activations that warpgroups read: eight tokens are one pattern of the swizzle.
constexpr std::int64_t kSwizzledBytes = 128;

}  // namespace ladder
