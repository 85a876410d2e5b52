// SPDX-License-Identifier: Apache-2.0
//
// How a CTA uses shared memory, declared once: objections count on it, and lowering lays it out so.
#pragma once

#include <cstdint>

#include "expr/problem.h"
#include "pipelines/decode/schedule.h"
#include "pipelines/linear/padding.h"

namespace ladder {

/// Up to this many warps along K leave their sums to the peers of the cluster to add.
constexpr std::int64_t kWarpsReadByPeers = 2;
/// Scales of a group in the ring of a warp, whose lanes have a copy each of their rows'.
constexpr std::int64_t kOfGroup = 256;

/// Bytes of an element of x as it is staged: one of each digit, or the whole.
std::int64_t staged_bytes(const DecodeSchedule& schedule, const Problem& problem);
/// Parts of activations that shared memory has room for, and the columns of one: all in one part,
/// or the stages of k-tiles.
std::int64_t staged_parts(const DecodeSchedule& schedule);
std::int64_t staged_columns(const DecodeSchedule& schedule);
/// The peers of a cluster read sums of the CTA, one for each of its tiles, rather than those of
/// warps.
bool keeps_cta_sums(const DecodeSchedule& schedule);
/// Groups whose scales and zero points one warp needs in one k-tile.
std::int64_t groups_of_k_tile(const DecodeSchedule& schedule, const Problem& problem);
/// The place of a k-tile's activations is taken by later ones.
bool reuses_stages(const DecodeSchedule& schedule);

/// The buffers of a CTA, in elements, in the order in which they lie; 0: there is none.
struct SharedMemory {
  std::int64_t words;      ///< u32, of the ring of weights
  std::int64_t per_group;  ///< of the ring: scales, then as many zero points, where there are such
  std::int64_t per_superblock;  ///< second scales of these
  std::int64_t x_pitch;         ///< from one row of activations to the next
  std::int64_t activations;     ///< of staged_bytes() each
  std::int64_t table;           ///< u32, of a type that is looked up
  std::int64_t sum_pitch;       ///< from the sums of one token to those of the next
  std::int64_t sums;            ///< f32, of the warps, in all their buffers
  bool sums_over_words;         ///< they take the place of the words, which are all multiplied
  std::int64_t cta_sums;        ///< f32, for the peers of a cluster
  std::int64_t signals;
};
SharedMemory shared_memory(const DecodeSchedule& schedule, const Problem& problem);

/// Bytes of shared memory that a CTA asks for, to the byte.
std::int64_t shared_bytes(const DecodeSchedule& schedule, const Problem& problem);

}  // namespace ladder
