// SPDX-License-Identifier: Apache-2.0
//
// The ruler of benchmarks/cpu_linear.py: how fast this machine reads memory when a thread does
// nothing else than add up 64-byte vectors. Compiled by the benchmark with -O3 -march=native.
#include <cstdint>
#include <thread>
#include <vector>

typedef std::int64_t Vector __attribute__((vector_size(64)));

/// Sum of `count` 64-byte vectors, split over `threads`. 16 sums hide the latency of an addition.
extern "C" std::int64_t sum(const Vector* data, std::int64_t count, int threads) {
  std::vector<std::int64_t> totals(threads);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([=, &totals] {
      Vector sums[16] = {};
      const std::int64_t end = count * (t + 1) / threads;
      for (std::int64_t i = count * t / threads; i + 16 <= end; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += data[i + j];
      std::int64_t total = 0;
      for (const Vector& s : sums)
        for (int lane = 0; lane < 8; ++lane) total += s[lane];
      totals[t] = total;
    });
  for (std::thread& thread : pool) thread.join();
  std::int64_t total = 0;
  for (const std::int64_t t : totals) total += t;
  return total;
}
