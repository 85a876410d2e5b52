// SPDX-License-Identifier: Apache-2.0
//
// A linear layer with data, run through the interpreter, and what is right. Internal to the tests.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "layout/weight_image.h"
#include "program/interpret.h"
#include "program/lower.h"

namespace ladder::testing {

struct LinearCase {
  Linear expr;
  std::int64_t m;
  std::vector<std::uint8_t> codes;       // [n, k]
  std::vector<std::uint16_t> x, scales;  // [m, k], [n, groups]

  /// Activations in {-2 .. 2} and scales of a quarter to one: every partial sum is exact.
  static LinearCase integers(const Linear& expr, std::int64_t m, unsigned seed = 1) {
    std::mt19937 random(seed);
    LinearCase out{expr, m, {}, {}, {}};
    for (std::int64_t i = 0; i < expr.n * expr.k; ++i) {
      out.codes.push_back(static_cast<std::uint8_t>(random() % (1u << expr.bits)));
    }
    for (std::int64_t i = 0; i < m * expr.k; ++i) {
      out.x.push_back(bits(expr, static_cast<int>(random() % 5) - 2));
    }
    for (std::int64_t i = 0; i < expr.n * expr.groups(); ++i) {
      out.scales.push_back(bits(expr, std::ldexp(1.0, -static_cast<int>(random() % 3))));
    }
    return out;
  }

  static LinearCase reals(const Linear& expr, std::int64_t m, unsigned seed = 1) {
    LinearCase out = integers(expr, m, seed);
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (auto& x : out.x) x = bits(expr, normal(random));
    for (auto& s : out.scales) s = bits(expr, 0.01 * std::exp(0.3 * normal(random)));
    return out;
  }

  static std::uint16_t bits(const Linear& expr, double value) {
    return static_cast<std::uint16_t>(to_bits(expr.activation, value));
  }

  std::vector<Argument> arguments(const Schedule& schedule) const {
    const auto row = (expr.k * expr.bits + 31) / 32;
    std::vector<std::uint32_t> canonical(expr.n * row);
    for (std::int64_t n = 0; n < expr.n; ++n) {
      for (std::int64_t k = 0; k < expr.k; ++k) {
        for (int b = 0; b < expr.bits; ++b) {
          const auto at = k * expr.bits + b;
          canonical[n * row + at / 32] |= (codes[n * expr.k + k] >> b & 1u) << at % 32;
        }
      }
    }
    std::vector<std::uint32_t> image(image_words(expr.n, expr.k, expr.bits));
    pack_image(canonical.data(), expr.n, expr.k, expr.bits, 0, image.data());
    std::vector<std::uint16_t> table(expr.groups() * round_up(expr.n, kBlock));
    pack_scales(scales.data(), expr.n, expr.groups(), 0, table.data());
    std::vector<Argument> out = {Argument::input(image.data(), image.size() * 4),
                                 Argument::input(table.data(), table.size() * 2),
                                 Argument::input(x.data(), x.size() * 2),
                                 Argument::output(m * expr.n * 2)};
    const auto workspace = workspace_of(expr, schedule);
    out.push_back(Argument::output(workspace.floats * 4));
    const std::vector<std::uint32_t> zeros(workspace.counters);
    out.push_back(Argument::input(zeros.data(), zeros.size() * 4));
    return out;
  }

  /// y [m, n] as the program computes it.
  std::vector<double> run(const Program& program, const Schedule& schedule) const {
    auto memory = arguments(schedule);
    interpret(program, memory, m);
    std::vector<double> y;
    for (std::int64_t i = 0; i < m * expr.n; ++i) {
      if (!memory[3].written[2 * i]) fail<InternalError>("y[", i, "] was not written");
      y.push_back(
          to_number(expr.activation, memory[3].bytes[2 * i] | memory[3].bytes[2 * i + 1] << 8));
    }
    return y;
  }

  /// The expression in double, rounded as y is.
  std::vector<double> exact() const {
    auto y = evaluate(expr, x, codes, scales).y;
    for (double& value : y) value = to_number(expr.activation, to_bits(expr.activation, value));
    return y;
  }
};

}  // namespace ladder::testing
