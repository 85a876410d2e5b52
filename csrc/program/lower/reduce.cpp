// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/integers.h"
#include "program/lower/lowering.h"

namespace ladder {
namespace {

// Loads of parts that a loop over them keeps in flight.
constexpr int kPartsInFlight = 16;

}  // namespace

// [1, rows, tokens] over all threads: two neighbouring rows of one token each, so that y is
// written in whole words. Threads that have tokens together reach past the last one where these are
// no whole number of times as many; nothing is there.
Layout Lowering::output_layout(std::int64_t rows) const {
  const std::int64_t pairs = rows / 2, tokens = schedule_.tokens;
  const auto together = std::max<std::int64_t>(program_.threads / pairs, 1);
  return local({1, std::max<std::int64_t>(pairs / program_.threads, 1), 1}) *
         local({1, 1, ceil_div(tokens, together)}) *
         lifted(column_spatial({std::min<std::int64_t>(pairs, program_.threads), together})) *
         local({1, 2, 1});
}

void Lowering::declare_sums(std::int64_t rows) {
  sum_ = reg("sum", Scalar::f32, output_layout(rows));
  part_ = reg("part", Scalar::f32, output_layout(rows));
}

ViewId Lowering::share_sums(Body& body, const Affine& sweep) {
  const std::int64_t tokens = schedule_.tokens, pitch = shared_.sum_pitch;
  const auto sums = buffer("sums", Level::shared, Scalar::f32, shared_.sums);
  if (shared_.sums_over_words) {
    // All rounds are over: their memory is free once every thread is here.
    program_.buffers[sums].over = ring_buffer_;
    emit(body, Barrier{});
  }
  end_sums(body);
  const auto by_warp = view(sums, {schedule_.warps_k, rows(), kTokens}, {tokens * pitch, 1, pitch});
  if (schedule_.sum_places > 1) {
    program_.views[by_warp].offset =
        times(remainder(sweep, schedule_.sum_places), schedule_.warps_k * tokens * pitch);
  }
  emit(body, Store{acc_, by_warp, {0, 0, 0}});
  return by_warp;
}

void Lowering::add_warps(Body& body, const Affine& sweep, const std::function<void(Body&)>& use) {
  const auto by_warp = share_sums(body, sweep);
  emit(body, Barrier{});
  declare_sums(rows());
  Body sums;
  emit(sums, Load{sum_, by_warp, {0, 0, 0}});
  add_parts(sums, schedule_.warps_k, 1, "warp", [&](Affine w) -> Load {
    return {part_, by_warp, {std::move(w), 0, 0}};
  });
  use(sums);
  emit(body, Within{sum_, by_warp, {0, 0, 0}, std::move(sums)});
}

void Lowering::add_parts(Body& body, std::int64_t count, std::int64_t first, std::string name,
                         const std::function<Load(Affine)>& load) {
  if (count <= first) return;
  const auto part = variable(std::move(name), count - first);
  Body each;
  emit(each, load(Affine::of(part) + Affine(first)));
  emit(each, Add{sum_, part_});
  emit(body, For{part, count - first, std::move(each), kPartsInFlight});
}

void Lowering::finish(Body& body, const Affine& first) {
  const auto out = reg("out", expr_.activation, program_.registers[sum_].layout);
  const auto y = view(y_, {1, expr_.n, kTokens}, {0, 1, expr_.n});
  scale_and_bias(body, first);
  emit(body, Cast{out, sum_});
  emit(body, Store{out, y, {0, first, 0}});
}

Affine Lowering::first_row(const Affine& sweep) const {
  return Affine::of(kTile, rows()) + times(sweep, schedule_.tiles(expr_.n) * rows());
}

void Lowering::add_cluster(Body& body) {
  const std::int64_t share = rows() / program_.cluster;
  if (keeps_block_sums(schedule_)) {
    add_warps(body, 0, [&](Body& sums) { keep_sums(sums, 0); });
    emit(body, ClusterBarrier{});
    declare_sums(share);
    add_kept(body, 0);
  } else {
    const auto sums = share_sums(body);
    emit(body, ClusterBarrier{});
    declare_sums(share);
    const auto mine = Affine::of(kRank, share);
    for (std::int64_t w = 0; w < schedule_.warps_k; ++w) {
      if (w == 0) emit(body, Load{sum_, sums, {0, mine, 0}, Cache::many, true, 0});
      add_parts(body, program_.cluster, w == 0 ? 1 : 0, "peer", [&](Affine rank) -> Load {
        return {part_, sums, {w, mine, 0}, Cache::many, true, std::move(rank)};
      });
    }
    finish(body, first_row() + mine);
  }
  emit(body, ClusterBarrier{});
}

void Lowering::keep_sums(Body& body, const Affine& sweep) {
  const std::int64_t pitch = shared_.sum_pitch, all = schedule_.tokens * pitch;
  const auto shared = buffer("block_sum", Level::shared, Scalar::f32, shared_.block_sums);
  kept_ = view(shared, {schedule_.sweeps, rows(), kTokens}, {all, 1, pitch});
  emit(body, Store{sum_, kept_, {sweep, 0, 0}});
}

void Lowering::add_kept(Body& body, const Affine& sweep) {
  const auto mine = Affine::of(kRank, rows() / program_.cluster);
  const std::vector<Affine> at = {sweep, mine, 0};
  Body sums;
  emit(sums, Load{sum_, kept_, at, Cache::many, true, 0});
  add_parts(sums, program_.cluster, 1, "peer", [&](Affine rank) -> Load {
    return {part_, kept_, at, Cache::many, true, std::move(rank)};
  });
  finish(sums, first_row(sweep) + mine);
  emit(body, Within{sum_, kept_, at, std::move(sums)});
}

void Lowering::add_in_order(Body& body) {
  const auto splits = schedule_.splits(expr_.k), tiles = schedule_.tiles(expr_.n);
  const auto parts =
      view(workspace_, {tiles * splits, rows(), kTokens}, {schedule_.tokens * rows(), 1, rows()});
  const auto counter = view(counters_, {tiles}, {1});
  const auto arrived = variable("arrived", splits);
  const auto first = Affine::of(kTile, splits);
  add_warps(body, 0, [&](Body& sums) {
    emit(sums, Store{sum_, parts, {first + Affine::of(kSplit), 0, 0}});
  });
  emit(body, Ticket{arrived, counter, {Affine::of(kTile)}, splits});
  Body last;
  emit(last, Load{sum_, parts, {first, 0, 0}});
  add_parts(last, splits, 1, "earlier", [&](Affine split) -> Load {
    return {part_, parts, {first + split, 0, 0}};
  });
  finish(last, Affine::of(kTile, rows()));
  emit(body, If{arrived, splits - 1, std::move(last)});
}

}  // namespace ladder
