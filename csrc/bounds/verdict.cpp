// SPDX-License-Identifier: Apache-2.0
#include "bounds/verdict.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "bounds/lower_bound.h"

namespace ladder::bounds {

Ruler::Ruler(const Einsum& einsum, std::vector<Level> levels, double operations_per_second,
             const Options& options)
    : levels_(std::move(levels)) {
  LADDER_REQUIRE(operations_per_second > 0, operations_per_second, " operations per second");
  const Curve curve = ski_slope(einsum, options);
  arithmetic_seconds_ = static_cast<double>(operations(einsum)) / operations_per_second;
  for (const Level& level : levels_) {
    LADDER_REQUIRE(level.bytes_per_second > 0, "level ", level.name, " moves ",
                   level.bytes_per_second, " bytes per second");
    bound_bytes_.push_back(lower_bound(einsum, level.capacity_bytes, level.instances));
    curve_bytes_.push_back(curve.at(level.capacity_bytes));
  }
}

double Ruler::floor_seconds() const {
  double seconds = arithmetic_seconds_;
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    seconds = std::max(seconds, bound_bytes_[i] / levels_[i].bytes_per_second);
  }
  return seconds;
}

Verdict Ruler::judge(std::span<const double> traffic_bytes) const {
  LADDER_REQUIRE(traffic_bytes.size() == levels_.size(), traffic_bytes.size(), " traffics for ",
                 levels_.size(), " levels");
  Verdict verdict;
  verdict.arithmetic_seconds = arithmetic_seconds_;
  verdict.seconds = verdict.floor_seconds = arithmetic_seconds_;
  verdict.binding = verdict.floor_binding = "arithmetic";
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    const Level& level = levels_[i];
    const double traffic = traffic_bytes[i], bound = bound_bytes_[i];
    // Bounds come out of a bisection in double; a traffic that meets one exactly must pass.
    LADDER_REQUIRE(traffic >= bound * (1 - 1e-9), "level ", level.name, " moves ", traffic,
                   " bytes, less than the ", bound, " that any schedule moves");
    verdict.levels.push_back({.name = level.name,
                              .traffic_bytes = traffic,
                              .bound_bytes = bound,
                              .curve_bytes = curve_bytes_[i],
                              .fraction_of_bound = std::min(1.0, bound / traffic),
                              .fraction_of_curve = curve_bytes_[i] / traffic,
                              .seconds = traffic / level.bytes_per_second,
                              .floor_seconds = bound / level.bytes_per_second});
    const LevelVerdict& v = verdict.levels.back();
    if (v.seconds > verdict.seconds) {
      verdict.seconds = v.seconds;
      verdict.binding = level.name;
    }
    if (v.floor_seconds > verdict.floor_seconds) {
      verdict.floor_seconds = v.floor_seconds;
      verdict.floor_binding = level.name;
    }
  }
  return verdict;
}

bool prunes(const Verdict& verdict, double best_seconds) { return verdict.seconds > best_seconds; }

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
