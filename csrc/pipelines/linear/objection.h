// SPDX-License-Identifier: Apache-2.0
//
// Objections that pipelines share. Each is why something cannot be; empty when it can.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "expr/decoding.h"
#include "schedule/decisions.h"
#include "schedule/route.h"

namespace ladder {

/// A number of a schedule that somebody wrote down: what divides and counts.
struct Count {
  const char* what;
  int least, value;
};
std::string count_objection(std::initializer_list<Count> counts);

/// Of tiles: for fewer the tokens of an instruction would be mostly padding.
constexpr std::int64_t kFewestOfTiles = 17;

/// Tokens from which on operands may be scaled and rounded (ScalePlace::rounded): where that rounds
/// some weight, only where products by exact weights are slower.
std::int64_t fewest_of_rounded(const Problem& problem);

/// Codes become operands by `route`, with scales at `place`. What digits ask of a schedule is for
/// its pipeline.
std::string code_objection(Route route, ScalePlace place, const Decisions& decisions);

/// Products by single warps of so many tokens. Of more than 256 no kernel was measured
/// beside a library's.
std::string too_many_for_warps(std::int64_t tokens);

/// `splits` CTAs that share `rows` rows add their sums up so.
std::string reduction_objection(Reduction reduction, std::int64_t splits, std::int64_t rows,
                                const Device& device);

/// So many CTAs of `threads` threads and `bytes` of shared memory are on one multiprocessor.
std::string residence_objection(std::int64_t threads, std::int64_t bytes, int ctas,
                                const Device& device);

/// Rows of activations, or the runs of windows, may be copied asynchronously, in whole granules of
/// so many bytes.
bool has_whole_pieces(const Problem& problem, int granule);

/// `rows` rows of sums have gate and up of the same columns of y, where a problem has such.
std::string gate_objection(const Problem& problem, std::int64_t rows);

/// Threads add up `rows` rows in pairs, of neighbours or of gate and up.
std::string pairs_objection(const Problem& problem, std::int64_t threads, std::int64_t rows);

}  // namespace ladder
