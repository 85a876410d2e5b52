// SPDX-License-Identifier: Apache-2.0
#include "pipelines/pruned.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "bounds/verdict.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

/// Codes and scales, once.
double weight_bytes(const Linear& expr) { return 2 * least_bytes(expr, 1) - least_bytes(expr, 2); }

bounds::Einsum einsum(const Linear& expr) {
  const double y = bytes_of(expr.y_scalar()), x = bytes_of(expr.x_scalar());
  const double weight = weight_bytes(expr) / (static_cast<double>(expr.n) * expr.k);
  return bounds::matmul(expr.max_m, expr.n, expr.k,
                        {{x, x}, {weight, weight, expr.bits / 8.0}, {y, y}});
}

std::vector<bounds::Level> levels(const Device& device) {
  std::vector<bounds::Level> out = {{std::string(device.global.name), device.l2.capacity_bytes, 1,
                                     device.global.bytes_per_second}};
  if (device.fill_bytes_per_second() > 0) {
    out.push_back({std::string(device.l2.name), device.shared.capacity_bytes,
                   device.multiprocessors, device.fill_bytes_per_second()});
  }
  return out;
}

}  // namespace

Traffic traffic(const Schedule& s, const Decisions& decisions) {
  const Linear& expr = decisions.expr;
  const CtaGrid grid = grid_of(s, expr);
  const double blocks = static_cast<double>(grid.count()), m = static_cast<double>(expr.max_m);
  const double weights = weight_bytes(expr);
  const double outputs = m * static_cast<double>(expr.n) * bytes_of(expr.y_scalar());
  const double inputs = m * static_cast<double>(expr.k) * bytes_of(expr.x_scalar());
  // A block reads its columns of the activations, and its rows of the weight, whatever its
  // neighbours have.
  const double of_blocks = static_cast<double>(grid.token_tiles) * weights +
                           static_cast<double>(grid.tiles) * inputs + outputs;
  const double fullest = std::ceil(blocks / decisions.device->multiprocessors);
  const double uneven = fullest * decisions.device->multiprocessors / blocks;
  return {weights + inputs + outputs, of_blocks * std::max(uneven, 1.0)};
}

bounds::Ruler ruler_of(const Linear& expr, const Device& device) {
  const double rate = expr.rounded_x == Scalar::e4m3 ? device.f8_flops
                      : expr.has_bytes_of_x()        ? device.i8_flops
                                                     : device.f16_flops;
  return {einsum(expr), levels(device), rate};
}

namespace {

bounds::Verdict judged(const bounds::Ruler& ruler, const Schedule& schedule,
                       const Decisions& decisions) {
  const auto moved = traffic(schedule, decisions);
  std::vector<double> bytes = {moved.global_bytes};
  if (decisions.device->fill_bytes_per_second() > 0) bytes.push_back(moved.shared_bytes);
  return ruler.judge(bytes);
}

}  // namespace

bounds::Verdict verdict_of(const Schedule& schedule, const Decisions& decisions) {
  return judged(ruler_of(decisions.expr, *decisions.device), schedule, decisions);
}

std::vector<Candidate> pruned(std::vector<Candidate> candidates, const Decisions& decisions,
                              double best_seconds) {
  LADDER_REQUIRE(best_seconds > 0, "a best time of ", best_seconds, " seconds");
  // What a launch of several products moves depends on a router.
  if (decisions.expr.experts) return candidates;
  const auto ruler = ruler_of(decisions.expr, *decisions.device);
  for (Candidate& candidate : candidates) {
    if (!candidate.dropped.empty() || is_dense(candidate.schedule)) continue;
    const auto verdict = judged(ruler, candidate.schedule, decisions);
    if (!bounds::prunes(verdict, best_seconds)) continue;
    std::ostringstream why;
    why << std::fixed << std::setprecision(1) << "needs " << 1e6 * verdict.seconds << " us for "
        << verdict.binding << " alone, the best takes " << 1e6 * best_seconds << " us";
    candidate.dropped = why.str();
  }
  std::ranges::stable_partition(candidates, [](const Candidate& c) { return c.dropped.empty(); });
  return candidates;
}

}  // namespace ladder
