// SPDX-License-Identifier: Apache-2.0
#include "pipelines/pruned.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "bounds/of_problem.h"
#include "bounds/verdict.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

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
  const Problem& problem = decisions.problem;
  const CtaGrid grid = grid_of(s, problem);
  const double products = static_cast<double>(problem.products());
  const double blocks = products * static_cast<double>(grid.count());
  const double m = static_cast<double>(problem.m);
  const double weights = weight_bytes(problem);
  const int like_y = problem.has_residual() ? 2 : 1;
  const double outputs = m * static_cast<double>(problem.n) * like_y * bytes_of(problem.formats.y);
  const double inputs = m * static_cast<double>(problem.k) * bytes_of(problem.formats.x);
  // A block reads its columns of the activations, and its rows of the weight, whatever its
  // neighbours have.
  const double of_blocks = products * (static_cast<double>(grid.token_tiles) * weights +
                                       static_cast<double>(grid.tiles) * inputs + outputs);
  const double fullest = std::ceil(blocks / decisions.device->multiprocessors);
  const double uneven = fullest * decisions.device->multiprocessors / blocks;
  return {least_bytes(problem, problem.m), of_blocks * std::max(uneven, 1.0)};
}

double arithmetic_rate(const Problem& problem, const Device& device) {
  if (problem.rounded_x() == Scalar::e4m3) return device.f8_flops;
  return problem.has_bytes_of_x() ? device.i8_flops : device.f16_flops;
}

bounds::Ruler ruler_of(const Problem& problem, const Device& device) {
  const double rate = arithmetic_rate(problem, device);
  // What nobody has published bounds nothing: data alone do.
  return {bounds::einsum_of(problem), levels(device), rate > 0 ? rate : HUGE_VAL};
}

namespace {

bounds::Verdict judged(const bounds::Ruler& ruler, const Schedule& schedule,
                       const Decisions& decisions) {
  const auto moved = traffic(schedule, decisions);
  // Each tensor once is less than the cache of a small machine allows for many tokens.
  std::vector<double> bytes = {std::max(moved.global_bytes, ruler.bound_bytes(0))};
  if (decisions.device->fill_bytes_per_second() > 0) bytes.push_back(moved.shared_bytes);
  return ruler.judge(bytes);
}

}  // namespace

bounds::Verdict verdict_of(const Schedule& schedule, const Decisions& decisions) {
  return judged(ruler_of(decisions.problem, *decisions.device), schedule, decisions);
}

std::vector<Candidate> pruned(std::vector<Candidate> candidates, const Decisions& decisions,
                              double best_seconds) {
  LADDER_REQUIRE(best_seconds > 0, "a best time of ", best_seconds, " seconds");
  // What a launch of several products moves depends on a router, and on what is in L2 of it.
  if (decisions.problem.has_items()) return candidates;
  const auto ruler = ruler_of(decisions.problem, *decisions.device);
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
