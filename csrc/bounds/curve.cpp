// SPDX-License-Identifier: Apache-2.0
#include "bounds/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace ladder::bounds {

Curve::Curve(std::vector<Point> candidates) {
  std::ranges::sort(candidates, [](const Point& a, const Point& b) {
    return a.buffer_bytes != b.buffer_bytes ? a.buffer_bytes < b.buffer_bytes
                                            : a.traffic_bytes < b.traffic_bytes;
  });
  for (const Point& point : candidates) {
    if (!std::isfinite(point.traffic_bytes)) continue;
    if (points_.empty() || point.traffic_bytes < points_.back().traffic_bytes) {
      points_.push_back(point);
    }
  }
}

double Curve::at(double buffer_bytes) const {
  const auto above = std::ranges::upper_bound(points_, buffer_bytes, {}, &Point::buffer_bytes);
  return above == points_.begin() ? std::numeric_limits<double>::infinity()
                                  : std::prev(above)->traffic_bytes;
}

double Curve::interpolated(double buffer_bytes) const {
  const auto above = std::ranges::upper_bound(points_, buffer_bytes, {}, &Point::buffer_bytes);
  if (above == points_.begin() || above == points_.end()) return at(buffer_bytes);
  const Point& low = *std::prev(above);
  const double share = (buffer_bytes - low.buffer_bytes) / (above->buffer_bytes - low.buffer_bytes);
  return low.traffic_bytes + share * (above->traffic_bytes - low.traffic_bytes);
}

Point Curve::max_effectual() const {
  LADDER_REQUIRE(!points_.empty(), "a curve without points has no last point");
  return points_.back();
}

Curve Curve::scaled(double buffer, double traffic) const {
  LADDER_REQUIRE(buffer > 0 && traffic > 0, "a curve scaled by ", buffer, " and ", traffic);
  std::vector<Point> points = points_;
  for (Point& point : points) {
    point.buffer_bytes *= buffer;
    point.traffic_bytes *= traffic;
  }
  return Curve(std::move(points));
}

Curve sum(std::span<const Curve> curves) {
  std::vector<double> sizes;
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points()) sizes.push_back(point.buffer_bytes);
  }
  std::ranges::sort(sizes);
  const auto repeated = std::ranges::unique(sizes);
  sizes.erase(repeated.begin(), repeated.end());
  std::vector<Point> points;
  std::vector<std::size_t> next(curves.size());  // points of each curve at or below `size`
  for (const double size : sizes) {
    double traffic = 0;
    for (std::size_t i = 0; i < curves.size(); ++i) {
      const std::vector<Point>& own = curves[i].points();
      while (next[i] < own.size() && own[next[i]].buffer_bytes <= size) ++next[i];
      traffic +=
          next[i] == 0 ? std::numeric_limits<double>::infinity() : own[next[i] - 1].traffic_bytes;
    }
    points.push_back({size, traffic});
  }
  return Curve(std::move(points));
}

Curve envelope(std::span<const Curve> curves) {
  std::vector<Point> points;
  for (const Curve& curve : curves) {
    points.insert(points.end(), curve.points().begin(), curve.points().end());
  }
  return Curve(std::move(points));
}

}  // namespace ladder::bounds
