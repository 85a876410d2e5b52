// SPDX-License-Identifier: Apache-2.0
// What the scheduler asks: how much a candidate moves between neighbouring memory levels, how much
// it could not help moving, and whether it can still beat the best kernel measured.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bounds/einsum.h"
#include "bounds/slope.h"

namespace ladder::bounds {

/// One memory level as a candidate uses it, traffic being that with the level below (outside).
struct Level {
  std::string name;            ///< of the level: "L2", "shared"
  double capacity_bytes;       ///< of one instance
  std::int64_t instances = 1;  ///< private buffers that share the work: SMs; 1 for a shared cache
  double bytes_per_second;     ///< into all instances together
  double traffic_bytes;  ///< of the candidate, all instances together: traffic_bytes of its tile
};

struct LevelVerdict {
  std::string name;
  double traffic_bytes;
  double bound_bytes;        ///< lower_bound at the capacity: no schedule moves less
  double curve_bytes;        ///< ski slope of one buffer at the capacity: the best mapping
  double fraction_of_bound;  ///< bound / traffic, at most 1 for an honest traffic
  double fraction_of_curve;  ///< curve / traffic; above 1 where a cache keeps parts of tiles
  double seconds;            ///< traffic / bandwidth
  double floor_seconds;      ///< bound / bandwidth
};

struct Verdict {
  std::vector<LevelVerdict> levels;
  double arithmetic_seconds;
  double seconds;        ///< the slowest of arithmetic and all levels, for the candidate
  double floor_seconds;  ///< the same for any schedule
  std::string binding;   ///< what decides `seconds`: a level's name or "arithmetic"
  std::string floor_binding;
};

/// Judges a candidate. Throws InvalidArgument for numbers that are not positive or for a traffic
/// below the bound, which no candidate can have.
Verdict judge(const Einsum& einsum, std::span<const Level> levels, double operations_per_second,
              const Options& options = {});

/// Whether a candidate may be dropped unmeasured: the least time its traffic takes exceeds the best
/// measured.
bool prunes(const Verdict& verdict, double best_seconds);

/// Whether no candidate can be faster than `best_seconds` by more than `margin` of it.
bool finished(const Verdict& verdict, double best_seconds, double margin = 0.02);

/// A verdict in lines of text, one for each level.
std::string to_string(const Verdict& verdict);

}  // namespace ladder::bounds
