// SPDX-License-Identifier: Apache-2.0
#include "bounds/matmul.h"

#include <algorithm>

#include "base/integers.h"
#include "bounds/checked.h"

namespace ladder::bounds {
namespace {

bool plain(const Tensor& tensor) {
  return std::ranges::all_of(
      tensor.axes, [](const Axis& axis) { return axis.size() == 1 && axis[0].coefficient == 1; });
}

/// The tensor that stays, its two ranks (of sizes `p` and `q`), and the innermost rank `r`, of
/// which one element at a time is in the buffer. `on_p` is indexed by p and r, `on_q` by q and r.
struct Family {
  const Tensor &stays, &on_p, &on_q;
  std::int64_t p, q, r;
  int p_rank, q_rank, r_rank;
};

double moved(const Tensor& tensor, double elements, double times) {
  return tensor.store_bytes * elements * (tensor.output ? 2 * times - 1 : times);
}

void visit_family(const Family& f, const MatmulShape& shape, const Options& options,
                  const std::function<void(const Mapped&)>& visit) {
  const double p = f.p, q = f.q, r = f.r, repeats = shape.repeats;
  const std::vector<std::int64_t> p_sizes = tile_sizes(f.p, options.factors);
  const std::vector<std::int64_t> q_sizes = tile_sizes(f.q, options.factors);
  const double b_p = f.on_p.buffer_bytes, b_q = f.on_q.buffer_bytes;
  Mapped mapped;
  Mapping& mapping = mapped.mapping;
  // Ranks of one block, or of none, may stand anywhere; the ranks common to all are outermost.
  int at = 0;
  for (const int rank : shape.common_ranks) mapping.order[at++] = static_cast<std::int8_t>(rank);
  for (const int rank : {f.p_rank, f.q_rank, f.r_rank}) {
    if (rank >= 0) mapping.order[at++] = static_cast<std::int8_t>(rank);
  }
  mapping.tile.fill(1);
  for (const std::int64_t p_tile : p_sizes) {
    const double p_blocks = static_cast<double>(ceil_div(f.p, p_tile));
    if (f.p_rank >= 0) mapping.tile[f.p_rank] = p_tile;
    for (const std::int64_t q_tile : q_sizes) {
      const double q_blocks = static_cast<double>(ceil_div(f.q, q_tile));
      if (f.q_rank >= 0) mapping.tile[f.q_rank] = q_tile;
      const double u = static_cast<double>(p_tile), v = static_cast<double>(q_tile);
      const double passing = options.space == Space::uniform
                                 ? u * b_p + v * b_q
                                 : std::min(u * b_p + b_q, v * b_q + b_p);
      mapped.point = {f.stays.buffer_bytes * u * v + passing,
                      repeats * (moved(f.stays, p * q, 1) + moved(f.on_p, p * r, q_blocks) +
                                 moved(f.on_q, q * r, p_blocks))};
      visit(mapped);
    }
  }
}

}  // namespace

std::optional<MatmulShape> matmul_shape(const Einsum& einsum) {
  if (einsum.tensors.size() != 3) return std::nullopt;
  if (!std::ranges::all_of(einsum.tensors, plain)) return std::nullopt;
  const Tensor &a = einsum.tensors[0], &w = einsum.tensors[1], &c = einsum.tensors[2];
  MatmulShape shape{1, 1, 1, 1, -1, -1, -1, {}, a, w, c};
  for (int r = 0; r < std::ssize(einsum.ranks); ++r) {
    const std::int64_t size = einsum.ranks[r].size;
    const bool in_a = relevant(a, r), in_w = relevant(w, r), in_c = relevant(c, r);
    if (in_a && in_w && in_c) {
      shape.repeats *= size;
      shape.common_ranks.push_back(r);
      continue;
    }
    if (in_a + in_w + in_c != 2) return std::nullopt;
    int& own = !in_w ? shape.m_rank : !in_a ? shape.n_rank : shape.k_rank;
    if (own >= 0) return std::nullopt;
    own = r;
    (!in_w ? shape.m : !in_a ? shape.n : shape.k) = size;
  }
  return shape;
}

void for_each_matmul_candidate(const MatmulShape& s, const Options& options,
                               const std::function<void(const Mapped&)>& visit) {
  visit_family({s.c, s.a, s.w, s.m, s.n, s.k, s.m_rank, s.n_rank, s.k_rank}, s, options, visit);
  visit_family({s.w, s.a, s.c, s.k, s.n, s.m, s.k_rank, s.n_rank, s.m_rank}, s, options, visit);
  visit_family({s.a, s.w, s.c, s.k, s.m, s.n, s.k_rank, s.m_rank, s.n_rank}, s, options, visit);
}

}  // namespace ladder::bounds
