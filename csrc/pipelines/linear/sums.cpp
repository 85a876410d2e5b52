// SPDX-License-Identifier: Apache-2.0
// From the sums of warps to y.
#include <algorithm>
#include <numeric>

#include "base/integers.h"
#include "pipelines/linear/linear_lowering.h"
#include "pipelines/lower.h"

namespace ladder {
namespace {

// Parts that a loop over them keeps in flight, where a thread has few sums; else parts of so many
// sums together.
// Tokens whose parts are added up together, of sums that are direct, and at most of a tail, whose
// loads are in flight together.
constexpr std::int64_t kSliceTokens = 8, kMostSliceTokens = 32;
constexpr std::int64_t kPartsInFlight = 16, kFewSums = 16, kManySums = 128;

}  // namespace

// [1, rows, tokens] over all threads: two neighbouring rows of one token each, so that y is
// written in whole words, or gate and up. Threads that have tokens together reach past the last one
// where these are no whole number of times as many; nothing is there.
Layout LinearLowering::output_layout(std::int64_t rows) const {
  const std::int64_t pairs = rows / 2, tokens = sums_.tokens;
  const auto together = std::max<std::int64_t>(program_.threads / pairs, 1);
  const Layout pair = local({1, 2, 1});
  const auto side_by_side = std::min<std::int64_t>(pairs, program_.threads);
  const Layout of_thread = local({1, std::max<std::int64_t>(pairs / program_.threads, 1), 1}) *
                           local({1, 1, ceil_div(tokens, together)});
  if (!problem_.has_gate()) {
    return of_thread * lifted(column_spatial({side_by_side, together})) * pair;
  }
  return of_thread * lifted(column_spatial({side_by_side / kGateRows, together})) * pair *
         spatial({1, kGateRows, 1});
}

void LinearLowering::declare_sums(std::int64_t rows) {
  sum_ = reg("sum", Scalar::f32, output_layout(rows));
  part_ = reg("part", Scalar::f32, output_layout(rows));
}

ViewId LinearLowering::share_sums(Body& body, const Affine& sweep) {
  const std::int64_t tokens = sums_.tokens, pitch = sums_.pitch;
  const auto sums = buffer("sums", Level::shared, Scalar::f32, sums_.elements + sums_.token_scales);
  program_.buffers[sums].over = sums_.over;
  const auto scales = sums_.token_scales > 0 ? load_token_scales(body) : RegisterId{-1};
  // All k-tiles are multiplied: their memory is free once every thread is here.
  if (sums_.over >= 0 && sums_.read_last) emit(body, Barrier{});
  if (!sums_.bring) end_sums(body);
  const auto by_warp =
      view(sums, {sums_.warps_k, sums_.rows, sums_.token_extent}, {tokens * pitch, 1, pitch});
  if (sums_.places > 1) {
    program_.views[by_warp].offset =
        times(remainder(sweep, sums_.places), sums_.warps_k * tokens * pitch);
  }
  if (sums_.bring) {
    sums_.bring(body, by_warp);
  } else {
    emit(body, Store{acc_, by_warp, {0, 0, 0}});
  }
  if (scales >= 0) share_token_scales(body, sums, scales);
  return by_warp;
}

// A thread of y has a row or two and many tokens: if each read the scales of these, all CTAs of a
// launch would ask for the same few lines of the second-level cache again and again (28672 x 4096,
// 128 tokens: 57,000 requests for four lines, 10 of 45 us on an H200).
RegisterId LinearLowering::load_token_scales(Body& body) {
  const std::int64_t threads = program_.threads;
  const auto scales = reg("token_scales", Scalar::f32,
                          local({1, 1, sums_.token_scales / threads}) * spatial({1, 1, threads}));
  emit(body, Load{scales, view(x_scales_, {1, 1, kTokens}, {0, 0, 1}), {0, 0, sums_.first_token}});
  return scales;
}

void LinearLowering::share_token_scales(Body& body, BufferId sums, RegisterId scales) {
  token_scales_ = view(sums, {1, sums_.rows, sums_.token_scales}, {0, 0, 1});
  program_.views[token_scales_].offset = Affine(sums_.elements);
  emit(body, Store{scales, token_scales_, {0, 0, 0}});
}

void LinearLowering::add_warps(Body& body, const Affine& sweep,
                               const std::function<void(Body&)>& use) {
  if (sums_.direct) {
    end_sums(body);
    sum_ = acc_;
    return use(body);
  }
  const auto by_warp = share_sums(body, sweep);
  emit(body, Barrier{});
  declare_sums(sums_.rows);
  with_sums(body, by_warp, use);
}

void LinearLowering::with_sums(Body& body, ViewId by_warp, const std::function<void(Body&)>& use) {
  Body sums;
  emit(sums, Load{sum_, by_warp, {0, 0, 0}});
  add_parts(sums, sums_.warps_k, 1, "warp", [&](Affine w) -> Load {
    return {part_, by_warp, {std::move(w), 0, 0}};
  });
  use(sums);
  emit(body, Within{sum_, by_warp, {0, 0, 0}, std::move(sums)});
}

void LinearLowering::add_parts(Body& body, std::int64_t count, std::int64_t first, std::string name,
                               const std::function<Load(Affine)>& load) {
  if (count <= first) return;
  const auto part = variable(std::move(name), count - first);
  Body each;
  emit(each, load(Affine::of(part) + Affine(first)));
  emit(each, Add{sum_, part_});
  const auto sums = program_.registers[sum_].layout.slot_count();
  // Waves of 32 lanes have half of the registers.
  const auto most = instruction_.family == Family::rdna ? kFewSums / 2 : kFewSums;
  const bool few = sums <= most || count - first == 1;
  const auto in_flight = few ? kPartsInFlight : std::max<std::int64_t>(kManySums / sums, 1);
  emit(body, For{part, count - first, std::move(each), static_cast<int>(in_flight)});
}

void LinearLowering::finish(Body& body, const Affine& first) {
  const auto columns = problem_.columns_of_y();
  // Declared in the order in which programs have had them: their texts are keys of stored kernels.
  const auto narrow = [&](RegisterId from) {
    return reg("out", problem_.activation(), program_.registers[from].layout);
  };
  const bool gated = problem_.has_gate(), as_they_are = problem_.wide_y() || y_scale_ >= 0;
  RegisterId out = as_they_are || gated ? sum_ : narrow(sum_);
  const auto y = view(y_, {1, columns, kTokens}, {0, 1, columns});
  const auto numbers = after_sums(body, first);
  if (gated || as_they_are) out = as_they_are ? numbers : narrow(numbers);
  if (!as_they_are) emit(body, Cast{out, numbers});
  emit(body, Store{out, y, {0, gated ? exact_quotient(first, 2) : first, sums_.first_token}});
}

void LinearLowering::reduce(Body& body, Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      add_warps(body, 0, [&](Body& sums) { finish(sums, sums_.first_row(0)); });
      break;
    case Reduction::cluster: add_cluster(body); break;
    case Reduction::ordered: add_in_order(body); break;
  }
}

void LinearLowering::add_cluster(Body& body) {
  const std::int64_t share = sums_.rows / program_.cluster;
  if (sums_.kept > 0) {
    add_warps(body, 0, [&](Body& sums) { keep_sums(sums, 0); });
    emit(body, ClusterBarrier{});
    declare_sums(share);
    add_kept(body, 0);
  } else {
    const auto sums = share_sums(body);
    emit(body, ClusterBarrier{});
    declare_sums(share);
    const auto mine = Affine::of(kRank, share);
    for (std::int64_t w = 0; w < sums_.warps_k; ++w) {
      if (w == 0) emit(body, Load{sum_, sums, {0, mine, 0}, Cache::many, true, 0});
      add_parts(body, program_.cluster, w == 0 ? 1 : 0, "peer", [&](Affine rank) -> Load {
        return {part_, sums, {w, mine, 0}, Cache::many, true, std::move(rank)};
      });
    }
    finish(body, sums_.first_row(0) + mine);
  }
  emit(body, ClusterBarrier{});
}

void LinearLowering::keep_sums(Body& body, const Affine& sweep) {
  const std::int64_t pitch = sums_.pitch, all = sums_.tokens * pitch;
  const auto shared = buffer("block_sum", Level::shared, Scalar::f32, sums_.kept);
  kept_ = view(shared, {sums_.sweeps, sums_.rows, sums_.token_extent}, {all, 1, pitch});
  emit(body, Store{sum_, kept_, {sweep, 0, 0}});
}

void LinearLowering::add_kept(Body& body, const Affine& sweep) {
  const auto mine = Affine::of(kRank, sums_.rows / program_.cluster);
  const std::vector<Affine> at = {sweep, mine, 0};
  Body sums;
  emit(sums, Load{sum_, kept_, at, Cache::many, true, 0});
  add_parts(sums, program_.cluster, 1, "peer", [&](Affine rank) -> Load {
    return {part_, kept_, at, Cache::many, true, std::move(rank)};
  });
  finish(sums, sums_.first_row(sweep) + mine);
  emit(body, Within{sum_, kept_, at, std::move(sums)});
}

ViewId LinearLowering::parts_in_order() {
  const auto rows = sums_.rows;
  return view(workspace_, {sums_.tiles * sums_.splits, rows, sums_.token_extent},
              {sums_.tokens * rows, 1, rows});
}

void LinearLowering::leave_part(Body& body, ViewId parts) {
  const auto first = Affine::of(shared_tile(), sums_.splits);
  emit(body, Store{sum_, parts, {first + Affine::of(kSplit), 0, 0}});
}

void LinearLowering::add_in_order(Body& body) {
  const auto parts = parts_in_order();
  if (program_.items) {
    auto& shifts = program_.items->shifts;
    shifts.push_back(
        {workspace_, Items::By::item, sums_.tiles * sums_.splits * sums_.tokens * sums_.rows});
    shifts.push_back({counters_, Items::By::item, counters_of_item(sums_.tiles)});
  }
  add_warps(body, 0, [&](Body& sums) { leave_part(sums, parts); });
  add_if_last(body, parts);
}

void LinearLowering::add_tail(Body& body) {
  const auto parts = parts_in_order();
  const auto by_warp = share_sums(body);
  emit(body, Barrier{});
  declare_sums(sums_.rows);
  Body whole, shared;
  with_sums(whole, by_warp, [&](Body& sums) { finish(sums, sums_.first_row(0)); });
  with_sums(shared, by_warp, [&](Body& sums) { leave_part(sums, parts); });
  add_if_last(shared, parts);
  emit(body, If{program_.tail->is_tail, 0, std::move(whole)});
  emit(body, If{program_.tail->is_tail, 1, std::move(shared)});
}

void LinearLowering::add_if_last(Body& body, ViewId parts) {
  const auto splits = sums_.splits, rows = sums_.rows;
  const auto counter = view(counters_, {sums_.tiles}, {1});
  const auto arrived = variable("arrived", splits);
  const auto first = Affine::of(shared_tile(), splits);
  emit(body, Ticket{arrived, counter, {Affine::of(shared_tile())}, splits});
  Body last;
  const auto add = [&](Body& to, const Affine& token) {
    emit(to, Load{sum_, parts, {first, 0, token}});
    add_parts(to, splits, 1, "earlier", [&](Affine split) -> Load {
      return {part_, parts, {first + split, 0, token}};
    });
    finish(to, sums_.first_row(0));
  };
  if (sums_.direct || program_.tail) {
    // As many tokens at a time as keep few registers and conditions.
    const auto most = sums_.direct ? kSliceTokens : kMostSliceTokens;
    const auto tokens = std::gcd(sums_.tokens, most), slices = sums_.tokens / tokens;
    const auto slice = Affine::of(variable("slice", slices), tokens);
    sums_.tokens = tokens;
    declare_sums(rows);
    sums_.first_token = sums_.first_token + slice;
    sums_.in_tile = slice;
    Body each;
    add(each, slice);
    emit(last, For{slice.terms.front().variable, slices, std::move(each), 1});
  } else {
    add(last, 0);
  }
  emit(body, If{arrived, splits - 1, std::move(last)});
}

}  // namespace ladder
