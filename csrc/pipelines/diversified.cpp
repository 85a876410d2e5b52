// SPDX-License-Identifier: Apache-2.0
#include "pipelines/diversified.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

namespace ladder {
namespace {

constexpr double kAlike = 1.01;    // a further one of its kind
constexpr double kHopeless = 1.4;  // of the best, for the sake of another way only

using Kind = std::array<int, 10>;

Kind kind_of(const DecodeSchedule& s) {
  return {0,
          static_cast<int>(s.weights.index()),
          static_cast<int>(s.activations.index()),
          s.bulk_copy() != nullptr && s.bulk_copy()->by_k_tiles,
          s.k_tiles() > 1,
          s.warps_n,
          s.warps_k,
          s.blocks_per_warp,
          static_cast<int>(s.route)};
}
Kind kind_of(const TileSchedule& s) {
  return {1,
          s.rows,
          s.tokens,
          s.columns,
          s.warps_n,
          s.warps_m,
          s.reduction == Reduction::none,
          static_cast<int>(s.route)};
}
Kind kind_of(const DenseSchedule&) { return {2}; }
Kind kind_of(const WaveSchedule& s) {
  return {3,
          s.waves_n,
          s.waves_m,
          s.waves_k,
          s.tokens,
          s.columns,
          s.groups_per_cu,
          s.reduction == Reduction::none,
          static_cast<int>(s.route)};
}
Kind kind_of(const Schedule& schedule) {
  return std::visit([](const auto& s) { return kind_of(s); }, schedule);
}

/// Its warps wait for each other with k-tiles on their way to register stages; other schedules have
/// several CTAs per multiprocessor, of which some multiply while others wait.
bool is_deep(const DecodeSchedule& s) { return s.register_stages() != nullptr; }
bool is_deep(const TileSchedule& s) { return s.ctas_per_sm == 1; }
bool is_deep(const DenseSchedule&) { return false; }
bool is_deep(const WaveSchedule& s) { return s.groups_per_cu == 1; }
bool is_deep(const Schedule& schedule) {
  return std::visit([](const auto& s) { return is_deep(s); }, schedule);
}

/// Of schedules whose registers a compiler may find too few, which a count does not foresee: what
/// they depend on, the most first. Those of NVIDIA are counted by what ptxas did.
using Registers = std::tuple<std::int64_t, std::int64_t, bool, std::int64_t>;
std::optional<Registers> registers_of(const Schedule& schedule) {
  const auto* s = std::get_if<WaveSchedule>(&schedule);
  if (s == nullptr) return {};
  return Registers{s->wave_tokens(), s->columns, !s->behind, s->waves() * s->groups_per_cu};
}

/// The kept candidate from `next` on that needs the fewest registers, where none before it needs as
/// few and multiplying a dequantised weight is not expected to be faster; else `kept`.
auto leanest(std::vector<Candidate>& all, std::vector<Candidate>::iterator next,
             std::vector<Candidate>::iterator kept) {
  const auto dense =
      std::find_if(all.begin(), kept, [](const Candidate& c) { return is_dense(c.schedule); });
  auto best = kept;
  for (auto c = all.begin(); c != kept; ++c) {
    const auto registers = registers_of(c->schedule);
    if (!registers || (dense != kept && c->cost.seconds > dense->cost.seconds)) continue;
    if (best == kept || *registers < *registers_of(best->schedule)) best = c;
  }
  return best < next ? kept : best;
}

}  // namespace

std::vector<Candidate> diversified(std::vector<Candidate> all, std::size_t count) {
  const auto kept =
      std::ranges::find_if(all, [](const Candidate& c) { return !c.dropped.empty(); });
  count = std::min<std::size_t>(count, kept - all.begin());
  if (count == 0) return all;
  const bool deep = is_deep(all.front().schedule);  // the first stays the first
  std::map<Kind, int> taken;
  for (auto next = all.begin(); next != all.begin() + count; ++next) {
    const auto seconds = [&](const Candidate& c) {
      const auto alike = taken.find(kind_of(c.schedule));
      return c.cost.seconds * (alike == taken.end() ? 1.0 : std::pow(kAlike, alike->second));
    };
    auto best = std::ranges::min_element(next, kept, {}, seconds);
    const bool last = count > 1 && next + 1 == all.begin() + count;
    if (last && std::all_of(all.begin(), next,
                            [&](const Candidate& c) { return is_deep(c.schedule) == deep; })) {
      const auto other =
          std::find_if(next, kept, [&](const Candidate& c) { return is_deep(c.schedule) != deep; });
      if (other != kept && other->cost.seconds < kHopeless * all.front().cost.seconds) best = other;
    }
    if (last) {
      if (const auto lean = leanest(all, next, kept); lean != kept) best = lean;
    }
    ++taken[kind_of(best->schedule)];
    std::rotate(next, best, best + 1);
  }
  return all;
}

}  // namespace ladder
