// SPDX-License-Identifier: Apache-2.0
#include "bounds/lower_bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "bounds/slope.h"

namespace ladder::bounds {
namespace {

using Address = std::pair<int, std::int64_t>;  // tensor, element

/// Words moved when a matmul runs its multiplications in the order given, with a cache of
/// `capacity` words that evicts what is used again last (Belady). Sums start at zero, so the first
/// touch of c reads nothing; a sum is written when it leaves and at the end.
double belady(std::int64_t n, std::int64_t k, const std::vector<std::array<std::int64_t, 3>>& order,
              std::size_t capacity) {
  std::vector<Address> trace;
  for (const auto& [i, j, l] : order) {
    trace.insert(trace.end(), {{0, i * k + l}, {1, j * k + l}, {2, i * n + j}});
  }
  constexpr std::size_t kNever = ~std::size_t{0};
  std::vector<std::size_t> next(trace.size(), kNever);
  std::map<Address, std::size_t> seen;
  for (std::size_t t = trace.size(); t-- > 0;) {
    if (seen.contains(trace[t])) next[t] = seen[trace[t]];
    seen[trace[t]] = t;
  }
  std::map<Address, std::size_t> cached, started;  // to the next use
  std::map<std::size_t, Address> by_use;           // sums that are done leave at once
  double moved = 0;
  for (std::size_t t = 0; t < trace.size(); ++t) {
    const Address& a = trace[t];
    if (const auto hit = cached.find(a); hit != cached.end()) {
      by_use.erase(hit->second);
      cached.erase(hit);
    } else if (a.first != 2 || started.contains(a)) {
      ++moved;
    }
    started[a] = t;
    if (next[t] == kNever) {
      moved += a.first == 2;
      continue;
    }
    cached[a] = next[t];
    by_use[next[t]] = a;
    if (cached.size() > capacity) {
      const auto last = std::prev(by_use.end());
      moved += last->second.first == 2;
      cached.erase(last->second);
      by_use.erase(last);
    }
  }
  return moved;
}

/// The multiplications of a tiled matmul: blocks of rows, of columns, then k.
std::vector<std::array<std::int64_t, 3>> tiled(std::int64_t m, std::int64_t n, std::int64_t k,
                                               std::int64_t tile_m, std::int64_t tile_n) {
  std::vector<std::array<std::int64_t, 3>> order;
  for (std::int64_t i0 = 0; i0 < m; i0 += tile_m) {
    for (std::int64_t j0 = 0; j0 < n; j0 += tile_n) {
      for (std::int64_t l = 0; l < k; ++l) {
        for (std::int64_t i = i0; i < std::min(m, i0 + tile_m); ++i) {
          for (std::int64_t j = j0; j < std::min(n, j0 + tile_n); ++j) order.push_back({i, j, l});
        }
      }
    }
  }
  return order;
}

TEST(LowerBound, no_random_schedule_with_the_best_replacement_beats_it) {
  std::mt19937 random(4);
  for (int i = 0; i < 60; ++i) {
    const auto up_to = [&](int most) { return static_cast<std::int64_t>(random() % most + 1); };
    const std::int64_t m = up_to(16), n = up_to(16), k = up_to(16);
    auto order = tiled(m, n, k, up_to(16), up_to(16));
    if (i % 3 == 0) std::shuffle(order.begin(), order.end(), random);
    for (const std::int64_t capacity : {4, 16, 50, 200}) {
      EXPECT_GE(belady(n, k, order, capacity), lower_bound(matmul(m, n, k), capacity))
          << m << " " << n << " " << k << " " << capacity;
    }
  }
}

TEST(LowerBound, holds_where_a_cache_goes_below_the_staircase) {
  // The staircase is a bound of mappings, not of caches: the cache keeps a part of `a` besides.
  const double moved = belady(24, 24, tiled(24, 24, 24, 24, 12), 361);
  const Einsum einsum = matmul(24, 24, 24);
  EXPECT_LT(moved, ski_slope(einsum, kPaper).at(361));
  EXPECT_EQ(ski_slope(einsum, kPaper).at(361), 2304);
  EXPECT_GE(moved, lower_bound(einsum, 361));
}

TEST(LowerBound, curves_of_every_space_stay_above_it) {
  std::mt19937 random(5);
  const auto size = [&] { return static_cast<std::int64_t>(random() % 300 + 1); };
  std::vector<Einsum> einsums{matmul(4096, 4096, 4096), matmul(16, 4096, 4096),
                              matmul(4096, 64, 4096), matmul(1, 4096, 4096),
                              grouped_matmul(32, 8, 256, 256, 128)};
  for (int i = 0; i < 40; ++i) {
    einsums.push_back(matmul(size(), size(), size()));
    einsums.push_back(matmul(size(), size(), size(), {{2, 2}, {0.53, 2, 0.5}, {2, 4}}));
    einsums.push_back(batched_matmul(4, size(), size(), size()));
  }
  for (int kernel : {1, 2, 3, 5}) {
    for (int stride : {1, 2, 3}) {
      for (int dilation : {1, 2}) {
        einsums.push_back(conv2d({.in_channels = 8,
                                  .out_channels = 16,
                                  .height = 12,
                                  .width = 12,
                                  .kernel_height = kernel,
                                  .kernel_width = kernel,
                                  .stride = stride,
                                  .dilation = dilation}));
      }
    }
  }
  for (const Einsum& einsum : einsums) {
    for (const Space space : {Space::uniform, Space::streaming}) {
      const Curve curve = ski_slope(einsum, {Factors::divisors, space});
      for (const Point& p : curve.points()) {
        EXPECT_GE(p.traffic_bytes, lower_bound(einsum, p.buffer_bytes) * (1 - 1e-12));
      }
    }
  }
}

TEST(LowerBound, is_within_twice_the_curve_of_large_matmuls) {
  for (const Einsum& einsum : {matmul(4096, 4096, 4096), matmul(16384, 1024, 1024)}) {
    for (const Point& p : ski_slope(einsum).points()) {
      if (p.buffer_bytes < 64) continue;
      EXPECT_LT(p.traffic_bytes, 1.8 * lower_bound(einsum, p.buffer_bytes)) << p.buffer_bytes;
    }
  }
}

TEST(LowerBound, of_squares_has_the_constant_of_the_literature) {
  const double n = 4096, words = 16384;
  EXPECT_GE(lower_bound(matmul(4096, 4096, 4096), words),
            (2 * n * n * n / std::sqrt(words) - 2 * words) * (1 - 1e-9));
}

TEST(LowerBound, stays_below_what_thin_matmuls_attain) {
  // 2MNK / sqrt(S) + MN is 22.7e6 here and would be wrong.
  const Einsum thin = matmul(4096, 4096, 64);
  EXPECT_EQ(ski_slope(matmul(4096, 64, 4096)).at(131072) < 22.7e6, true);
  EXPECT_LE(lower_bound(thin, 131072), ski_slope(thin).at(131072));
  EXPECT_LE(lower_bound(matmul(4096, 64, 4096), 131072),
            ski_slope(matmul(4096, 64, 4096)).at(131072));
}

TEST(LowerBound, falls_with_capacity_to_the_algorithmic_minimum) {
  const Einsum einsum = matmul(512, 512, 512);
  double before = lower_bound(einsum, 3);
  for (double capacity = 4; capacity < 1e6; capacity *= 1.1) {
    const double now = lower_bound(einsum, capacity);
    EXPECT_LE(now, before * (1 + 1e-3)) << capacity;  // T is taken from a grid
    before = now;
  }
  EXPECT_EQ(before, algorithmic_minimum(einsum));
}

TEST(LowerBound, of_private_buffers_is_that_of_one_less_a_little_for_each) {
  const Einsum einsum = matmul(4096, 4096, 4096);
  const double capacity = 65536, one = lower_bound(einsum, capacity),
               many = lower_bound(einsum, capacity, 132),
               pool = lower_bound(einsum, 132 * capacity);
  EXPECT_LT(many, one);
  EXPECT_GT(many, one - 132 * 20 * capacity);
  EXPECT_GT(many, 2 * pool);
}

TEST(LowerBound, counts_codes_alone_where_scales_may_be_at_hand) {
  const Bytes half{2, 2};
  const Einsum amortised = matmul(4096, 4096, 4096, {half, {0.515625, 0.5, 0}, half});
  const Einsum codes = matmul(4096, 4096, 4096, {half, {0.515625, 0.5, 0.5}, half});
  EXPECT_LE(lower_bound(codes, 1e5), lower_bound(amortised, 1e5));
  EXPECT_EQ(lower_bound(codes, 1e9), lower_bound(amortised, 1e9));
}

TEST(LowerBound, of_an_einsum_outside_the_theorem_is_the_algorithmic_minimum) {
  const Einsum outer{{{"M", 6}, {"K", 9}}, {{"a", {{{0}}, {{1}}}}, {"o", {{{0}}}, true}}};
  EXPECT_EQ(lower_bound(outer, 2), 60);
}

TEST(LowerBound, refuses_buffers_of_nothing) {
  EXPECT_THROW(lower_bound(matmul(2, 2, 2), 0), InvalidArgument);
  EXPECT_THROW(lower_bound(matmul(2, 2, 2), 8, 0), InvalidArgument);
}

}  // namespace
}  // namespace ladder::bounds
