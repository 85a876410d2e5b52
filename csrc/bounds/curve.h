// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace ladder::bounds {

/// A buffer of `buffer_bytes` suffices to move only `traffic_bytes` from and to the backing store.
struct Point {
  double buffer_bytes;
  double traffic_bytes;
  bool operator==(const Point&) const = default;
};

/// A ski slope: the least traffic of any mapping of a space, against the size of the buffer.
/// Points rise in buffer and fall in traffic. Numbers are exact while bytes, counted in the
/// smallest fraction of a byte used, stay below 2^53.
class Curve {
 public:
  /// The Pareto front of `candidates`.
  explicit Curve(std::vector<Point> candidates = {});

  const std::vector<Point>& points() const& { return points_; }
  std::vector<Point> points() && { return std::move(points_); }

  /// Least traffic with at most `buffer_bytes`; infinite below the first point.
  double at(double buffer_bytes) const;

  /// The same with straight lines between points, as the paper draws curves of one Einsum.
  double interpolated(double buffer_bytes) const;

  /// The last point: a larger buffer helps no more. Throws InvalidArgument for an empty curve.
  Point max_effectual() const;

  /// Both numbers of every point multiplied: copies of a problem, side by side or one by one.
  Curve scaled(double buffer, double traffic) const;

 private:
  std::vector<Point> points_;
};

/// Least traffic of problems executed one after the other, each with the whole buffer.
Curve sum(std::span<const Curve> curves);

/// Least traffic of the better of several ways to do the same.
Curve envelope(std::span<const Curve> curves);

}  // namespace ladder::bounds
