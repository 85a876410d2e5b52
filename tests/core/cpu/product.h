// SPDX-License-Identifier: Apache-2.0
//
// A linear layer on the CPU with numbers in buffers of exactly their sizes, and what must hold of
// its result. Internal to the tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/integers.h"
#include "cpu/linear.h"
#include "cpu/random_weight.h"
#include "types/scalar.h"

namespace ladder::cpu {

using testing::RandomWeight;

/// Of activations.
constexpr Scalar kDtypes[] = {Scalar::f32, Scalar::f16, Scalar::bf16};

/// Tests of an instruction set, skipped by name where the machine lacks it.
class OnIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const auto isas = available_isas();
    if (std::ranges::find(isas, GetParam()) == isas.end())
      GTEST_SKIP() << "this machine has no " << name(GetParam());
  }
};

/// Every instruction set of this build, of those that the machine has the first of each
/// kernels(isa).
template <class KernelsOf>
std::vector<Isa> isas_that_differ(KernelsOf kernels) {
  const auto available = available_isas();
  std::set<decltype(kernels(Isa::generic))> seen;
  std::vector<Isa> isas;
  for (const Isa isa : built_isas()) {
    const bool runs = std::ranges::find(available, isa) != available.end();
    if (!runs || seen.insert(kernels(isa)).second) isas.push_back(isa);
  }
  return isas;
}

/// Threads that start when asked for, `threads` of them.
inline Parallel on_threads(std::int64_t threads) {
  return [threads](std::int64_t count, std::int64_t, const RangeBody& body) {
    std::vector<std::thread> all;
    const std::int64_t some = ceil_div(count, threads);
    for (std::int64_t begin = 0; begin < count; begin += some)
      all.emplace_back([&, begin] { body(begin, std::min(begin + some, count)); });
    for (std::thread& each : all) each.join();
  };
}

/// Of one of kDtypes. Found once: a product asks for it at every number.
inline const Element& format_of(Scalar dtype) {
  static const std::array formats = {&element_of(kDtypes[0]), &element_of(kDtypes[1]),
                                     &element_of(kDtypes[2])};
  return *formats.at(static_cast<std::size_t>(std::ranges::find(kDtypes, dtype) - kDtypes));
}

/// A float matrix in a buffer of exactly its size.
struct Numbers {
  Numbers(std::int64_t rows, std::int64_t columns, Scalar dtype)
      : rows(rows),
        columns(columns),
        dtype(dtype),
        size(dtype == Scalar::f32 ? 4 : 2),
        bytes(new std::uint8_t[static_cast<std::size_t>(rows * columns * size)]) {}
  void set(std::int64_t row, std::int64_t column, double value) {
    const std::uint32_t code = encode(format_of(dtype), value, Overflow::special);
    std::memcpy(&bytes[static_cast<std::size_t>((row * columns + column) * size)], &code,
                static_cast<std::size_t>(size));
  }
  double get(std::int64_t row, std::int64_t column) const {
    std::uint32_t code = 0;
    std::memcpy(&code, &bytes[static_cast<std::size_t>((row * columns + column) * size)],
                static_cast<std::size_t>(size));
    return decode(format_of(dtype), code);
  }
  Matrix matrix() { return {bytes.get(), dtype, rows, columns, columns}; }

  std::int64_t rows, columns;
  Scalar dtype;
  int size;
  std::unique_ptr<std::uint8_t[]> bytes;
};

/// The library's product that the binding would pass, in its plainest form.
inline void plain_gemm(const float* x, std::int64_t m, std::int64_t k, const float* w,
                       std::int64_t n, float* y, std::int64_t y_stride) {
  for (std::int64_t t = 0; t < m; ++t)
    for (std::int64_t r = 0; r < n; ++r) {
      float sum = 0;
      for (std::int64_t i = 0; i < k; ++i) sum += x[t * k + i] * w[r * k + i];
      y[t * y_stride + r] = sum;
    }
}

struct Case {
  Scalar dtype = Scalar::f32;
  std::int64_t m = 1;
  bool bias = false, residual = false;
};

struct Product {
  Numbers x, bias, residual, y;
  std::vector<double> x_values;  ///< [m, k], as x holds them

  Addends addends(const Case& c) const {
    return {.bias = c.bias ? bias.bytes.get() : nullptr,
            .residual = c.residual ? residual.bytes.get() : nullptr};
  }
};

template <class Value>
Product product(const RandomWeight& w, Isa isa, Case c, Value x_value, const Gemm& gemm = {}) {
  Product p{{c.m, w.k, c.dtype}, {1, w.n, c.dtype}, {c.m, w.n, c.dtype}, {c.m, w.n, c.dtype}, {}};
  for (std::int64_t t = 0; t < c.m; ++t)
    for (std::int64_t i = 0; i < w.k; ++i) {
      p.x.set(t, i, x_value(t, i));
      p.x_values.push_back(p.x.get(t, i));
    }
  for (std::int64_t r = 0; r < w.n; ++r) p.bias.set(0, r, static_cast<double>(r % 5) - 2);
  for (std::int64_t t = 0; t < c.m; ++t)
    for (std::int64_t r = 0; r < w.n; ++r)
      p.residual.set(t, r, static_cast<double>((7 * t + 3 * r) % 61) - 30);
  linear(w.view(), p.x.matrix(), p.addends(c), p.y.matrix(), isa, serial, gemm);
  return p;
}

inline double exact_sum(const RandomWeight& w, const Product& p, const Case& c, std::int64_t t,
                        std::int64_t r) {
  double sum = (c.bias ? p.bias.get(0, r) : 0) + (c.residual ? p.residual.get(t, r) : 0);
  for (std::int64_t i = 0; i < w.k; ++i)
    sum += p.x_values[static_cast<std::size_t>(t * w.k + i)] *
           w.values[static_cast<std::size_t>(r * w.k + i)];
  return sum;
}

inline std::string label(const RandomWeight& w, Isa isa, const Case& c) {
  return std::string(name(isa)) + " " + to_string(w.type) + " n=" + std::to_string(w.n) +
         " k=" + std::to_string(w.k) + " m=" + std::to_string(c.m) +
         " dtype=" + std::string(format_of(c.dtype).name) + (w.g_idx.empty() ? "" : " g_idx");
}

/// Stops at the first difference: one line names the case better than thousands.
inline void expect_exact(const RandomWeight& w, Isa isa, Case c, unsigned seed,
                         const Gemm& gemm = {}) {
  std::mt19937 random(seed);
  const Product p = product(
      w, isa, c, [&](auto, auto) { return static_cast<double>(random() % 5) - 2; }, gemm);
  for (std::int64_t t = 0; t < c.m; ++t)
    for (std::int64_t r = 0; r < w.n; ++r) {
      const Element& format = format_of(c.dtype);
      const double expected =
          decode(format, encode(format, exact_sum(w, p, c, t, r), Overflow::special));
      ASSERT_EQ(p.y.get(t, r), expected) << label(w, isa, c) << " at " << t << ", " << r;
    }
}

/// DESIGN.md: |y - y64| <= 6 sqrt(K) 2^-p sum|a||w| + 2^-q |y64|; float32 sums, p = 24.
inline void expect_within_bound(const RandomWeight& w, Isa isa, Case c, unsigned seed,
                                const Gemm& gemm = {}) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const Product p = product(
      w, isa, c, [&](auto, auto) { return normal(random); }, gemm);
  const int q = c.dtype == Scalar::f32 ? 24 : c.dtype == Scalar::f16 ? 11 : 8;
  for (std::int64_t t = 0; t < c.m; ++t)
    for (std::int64_t r = 0; r < w.n; ++r) {
      double magnitude = c.bias ? std::abs(p.bias.get(0, r)) : 0;
      if (c.residual) magnitude += std::abs(p.residual.get(t, r));
      for (std::int64_t i = 0; i < w.k; ++i)
        magnitude += std::abs(p.x_values[static_cast<std::size_t>(t * w.k + i)] *
                              w.values[static_cast<std::size_t>(r * w.k + i)]);
      const double expected = exact_sum(w, p, c, t, r);
      const double bound = 6 * std::sqrt(static_cast<double>(w.k)) * 0x1p-24 * magnitude +
                           std::ldexp(std::abs(expected), -q);
      // Beyond the largest number of the output is infinity, and right.
      if (std::isinf(p.y.get(t, r)) && std::abs(expected) + bound >= max_value(format_of(c.dtype)))
        continue;
      ASSERT_LE(std::abs(p.y.get(t, r) - expected), bound)
          << label(w, isa, c) << " at " << t << ", " << r;
    }
}

}  // namespace ladder::cpu
