// SPDX-License-Identifier: Apache-2.0
#include "pipelines/linear/splits.h"

#include <algorithm>
#include <utility>

#include "base/integers.h"

namespace ladder {
namespace {

constexpr std::int64_t kReduction = 2;  // k-tiles that take as long as adding up parts

}  // namespace

std::vector<std::int64_t> splits_for(std::int64_t tiles, std::int64_t k_tiles, std::int64_t places,
                                     std::int64_t most, std::size_t more) {
  std::vector<std::pair<std::int64_t, std::int64_t>> by_work;
  for (std::int64_t splits = 2; splits <= most; ++splits) {
    const auto of_cta = ceil_div(k_tiles, splits) + kReduction;
    by_work.emplace_back(ceil_div(tiles * splits, places) * of_cta, splits);
  }
  std::ranges::sort(by_work);
  by_work.resize(std::min(by_work.size(), more));
  std::vector<std::int64_t> out = {1};
  for (const auto& [work, splits] : by_work) out.push_back(splits);
  return out;
}

std::vector<TailSplits> tails_of(std::int64_t tiles, std::int64_t k_tiles, std::int64_t places,
                                 std::int64_t most, std::size_t count) {
  const auto left = tiles % places;
  if (tiles < places || left == 0) return {};
  // The block that comes last adds up the parts of all.
  const auto work = [&](std::int64_t splits) {
    return ceil_div(left * splits, places) * ceil_div(k_tiles, splits) +
           (splits > 1 ? kReduction + splits / 2 : 0);
  };
  std::vector<std::pair<std::int64_t, std::int64_t>> by_work;
  for (std::int64_t splits = 2; splits <= most; ++splits) {
    if (work(splits) < work(1)) by_work.emplace_back(work(splits), splits);
  }
  std::ranges::sort(by_work);
  std::vector<TailSplits> out;
  for (const auto& [_, splits] : by_work) {
    if (out.size() < count) out.push_back({left, splits});
  }
  return out;
}

}  // namespace ladder
