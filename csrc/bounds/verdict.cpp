// SPDX-License-Identifier: Apache-2.0
#include "bounds/verdict.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "bounds/lower_bound.h"

namespace ladder::bounds {

Verdict judge(const Einsum& einsum, std::span<const Level> levels, double operations_per_second,
              const Options& options) {
  LADDER_REQUIRE(operations_per_second > 0, operations_per_second, " operations per second");
  const Curve curve = ski_slope(einsum, options);
  Verdict verdict;
  verdict.arithmetic_seconds = static_cast<double>(operations(einsum)) / operations_per_second;
  verdict.seconds = verdict.floor_seconds = verdict.arithmetic_seconds;
  verdict.binding = verdict.floor_binding = "arithmetic";
  for (const Level& level : levels) {
    LADDER_REQUIRE(level.bytes_per_second > 0 && level.traffic_bytes > 0, "level ", level.name,
                   " moves ", level.traffic_bytes, " bytes at ", level.bytes_per_second,
                   " bytes per second");
    LevelVerdict v;
    v.name = level.name;
    v.traffic_bytes = level.traffic_bytes;
    v.bound_bytes = lower_bound(einsum, level.capacity_bytes, level.instances);
    v.curve_bytes = curve.at(level.capacity_bytes);
    LADDER_REQUIRE(v.traffic_bytes >= v.bound_bytes * (1 - 1e-9), "level ", level.name, " moves ",
                   v.traffic_bytes, " bytes, less than the ", v.bound_bytes,
                   " that any schedule moves");
    v.fraction_of_bound = v.bound_bytes / v.traffic_bytes;
    v.fraction_of_curve = v.curve_bytes / v.traffic_bytes;
    v.seconds = v.traffic_bytes / level.bytes_per_second;
    v.floor_seconds = v.bound_bytes / level.bytes_per_second;
    if (v.seconds > verdict.seconds) {
      verdict.seconds = v.seconds;
      verdict.binding = level.name;
    }
    if (v.floor_seconds > verdict.floor_seconds) {
      verdict.floor_seconds = v.floor_seconds;
      verdict.floor_binding = level.name;
    }
    verdict.levels.push_back(std::move(v));
  }
  return verdict;
}

bool prunes(const Verdict& verdict, double best_seconds) { return verdict.seconds > best_seconds; }

bool finished(const Verdict& verdict, double best_seconds, double margin) {
  return verdict.floor_seconds >= best_seconds * (1 - margin);
}

std::string to_string(const Verdict& verdict) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1);
  for (const LevelVerdict& v : verdict.levels) {
    text << v.name << ": moves " << v.traffic_bytes / (1 << 20) << " MiB, at least "
         << v.bound_bytes / (1 << 20) << " MiB (" << 100 * v.fraction_of_bound
         << " % of it needed), " << 1e6 * v.seconds << " us\n";
  }
  text << "arithmetic: " << 1e6 * verdict.arithmetic_seconds << " us\n"
       << "bound by " << verdict.binding << ": " << 1e6 * verdict.seconds << " us, floor "
       << 1e6 * verdict.floor_seconds << " us\n";
  return text.str();
}

}  // namespace ladder::bounds
