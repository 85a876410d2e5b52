// SPDX-License-Identifier: Apache-2.0
// What the scheduler asks: how much a candidate moves between neighbouring memory levels, how much
// it could not help moving, and whether it can still beat the best kernel measured.
//
//   const Ruler ruler(einsum, {{"L2", 60e6, 1, 4.5e12}, {"shared", 228e3, 132, 5e12}}, 761e12);
//   for (candidate) ... ruler.judge({l2_traffic, shared_traffic}).seconds ...
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bounds/curve.h"
#include "bounds/einsum.h"
#include "bounds/slope.h"

namespace ladder::bounds {

/// One memory level; its traffic is that with the next level out.
struct Level {
  std::string name;
  double capacity_bytes;       ///< of one instance
  std::int64_t instances = 1;  ///< private buffers that share the work: SMs; 1 for a shared cache
  double bytes_per_second;     ///< into all instances together
};

/// A candidate at one level, and what is possible there.
struct LevelVerdict {
  std::string name;
  double traffic_bytes;
  double bound_bytes;        ///< lower_bound at the capacity: no schedule moves less
  double curve_bytes;        ///< ski slope of one buffer at the capacity: the best mapping
  double fraction_of_bound;  ///< bound / traffic, at most 1
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

/// What is possible for one Einsum on one machine, computed once; judging a candidate is then a
/// few divisions.
class Ruler {
 public:
  /// Throws InvalidArgument for capacities, instances or rates that are not positive.
  Ruler(const Einsum& einsum, std::vector<Level> levels, double operations_per_second,
        const Options& options = {});

  /// Judges a candidate by its traffic at each level, all instances together: `traffic_bytes` of
  /// its tile, or measured. Throws InvalidArgument unless there is one traffic for each level, none
  /// below the bound: such a candidate does not compute the Einsum.
  Verdict judge(std::span<const double> traffic_bytes) const;

  /// The least time of any schedule.
  double floor_seconds() const;
  /// The least bytes that any schedule moves at that level.
  double bound_bytes(std::size_t level) const { return bound_bytes_.at(level); }

  /// Whether no candidate can be faster than `best_seconds` by more than `margin` of it: the search
  /// may end.
  bool finished(double best_seconds, double margin = 0.02) const {
    return floor_seconds() >= best_seconds * (1 - margin);
  }

 private:
  std::vector<Level> levels_;
  std::vector<double> bound_bytes_, curve_bytes_;
  double arithmetic_seconds_;
};

/// Whether a candidate may be dropped unmeasured: the least time that its own traffic and
/// arithmetic take exceeds the best measured.
bool prunes(const Verdict& verdict, double best_seconds);

/// A verdict in lines of text, one for each level.
std::string to_string(const Verdict& verdict);

}  // namespace ladder::bounds
