// SPDX-License-Identifier: Apache-2.0
//
// Products of a batch, and windows of images, small enough to run without a device. Internal to the
// tests.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/integers.h"
#include "base/joined.h"
#include "expr/constructors.h"
#include "layout/image_parts.h"
#include "program/expert_case.h"
#include "program/linear_case.h"

namespace ladder::testing {

/// A program whose items are not in a table: products side by side, each a LinearCase of its own,
/// or one of windows.
struct BatchCase {
  Problem problem;  ///< of the program: of so many rows an item
  std::int64_t m;   ///< rows of each product
  std::vector<LinearCase> products;

  static BatchCase integers(const Problem& problem, std::int64_t m, unsigned seed) {
    BatchCase out{problem, m, {}};
    Problem one = problem;
    one.batch = one.passes = 1;
    if (problem.windows() != nullptr) one.m = m;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      const auto of_one = seed + 100 * static_cast<unsigned>(b);
      LinearCase product = LinearCase::integers(one, m, of_one);
      if (const Windows* windows = problem.windows()) {
        // As many numbers as the images have, of those that windows have.
        const auto images = ceil_div(m, windows->positions());
        const auto numbers = static_cast<std::size_t>(images * windows->numbers());
        const auto given = product.data.x;
        product.data.x.clear();
        for (std::size_t i = 0; i < numbers; ++i)
          product.data.x.push_back(given[i * 7 % given.size()]);
      }
      if (b > 0) product.data.y_scale = out.products.front().data.y_scale;  // one of the call
      out.products.push_back(std::move(product));
    }
    return out;
  }

  /// The parameter of that name, as pipelines/lower.h says.
  Argument argument(const std::string& name, const Program& program,
                    const Schedule& schedule) const {
    const auto items = count_of(*program.items, m);
    const Workspace workspace = workspace_of(problem, schedule);
    if (name == "y") return Argument::output(problem.batch * m * row_bytes());
    if (name == "workspace") return Argument::output(workspace.floats * 4 * items);
    if (name == "counters") {
      const std::vector<std::uint32_t> zeros(counters_of_item(workspace.counters) * items);
      return Argument::input(zeros.data(), zeros.size() * 4);
    }
    const bool of_rows = name == "x" || name == "x_scales" || name == "residual";
    if (name == "y_scale") return products.front().argument(name, schedule);
    const auto of_bias = bytes_of(problem.formats.bias) * round_up(problem.n, kBiasOfExpert);
    const std::int64_t step = name == "bias" ? of_bias
                              : of_rows      ? 0
                                             : 4 * image_parts(problem).words;
    Argument all = Argument::output(problem.batch * step);
    for (std::size_t b = 0; b < products.size(); ++b) {
      const Argument one = products[b].argument(name, schedule);
      const auto at = of_rows ? all.bytes.size() : b * static_cast<std::size_t>(step);
      all.bytes.resize(std::max(all.bytes.size(), at + one.bytes.size()));
      all.written.resize(all.bytes.size());
      std::ranges::copy(one.bytes, all.bytes.begin() + static_cast<std::ptrdiff_t>(at));
      std::fill_n(all.written.begin() + static_cast<std::ptrdiff_t>(at), one.bytes.size(), true);
    }
    return all;
  }

  std::int64_t row_bytes() const { return problem.n * bytes_of(problem.formats.y); }
  /// Why the bytes of y are not what they should be; "" when they are.
  std::string objection_to(const std::vector<std::uint8_t>& y) const {
    const auto size = static_cast<std::ptrdiff_t>(m * row_bytes());
    for (std::size_t b = 0; b < products.size(); ++b) {
      const auto first = y.begin() + static_cast<std::ptrdiff_t>(b) * size;
      auto why = products[b].objection_to({first, first + size});
      if (!why.empty()) return joined("product ", b, ": ", why);
    }
    return "";
  }

  /// The same of what the interpreter makes of `program`.
  std::string objection_to(const Program& program, const Schedule& schedule) const {
    std::vector<Argument> memory;
    std::size_t y = 0;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.level != Level::global) continue;
      if (buffer.name == "y") y = memory.size();
      memory.push_back(argument(buffer.name, program, schedule));
    }
    try {
      interpret(program, memory, m);
    } catch (const InternalError& error) {
      return error.what();
    }
    const auto& written = memory[y].written;
    if (std::ranges::find(written, false) != written.end()) return "y was not written";
    return objection_to(memory[y].bytes);
  }
};

/// Convolutions with every kind of border: [of a copy of 16 bytes, of single numbers].
inline std::vector<Windows> kinds_of_windows(std::int64_t channels) {
  return {
      {{.size = 6, .taps = 3, .padding = 1}, {.size = 5, .taps = 3, .padding = 1}, channels},
      {{.size = 9, .taps = 3, .stride = 2}, {.size = 8, .taps = 2, .stride = 3}, channels},
      {{.size = 7, .taps = 3, .padding = 2, .dilation = 2},
       {.size = 6, .taps = 1, .stride = 2, .padding = 1},
       channels},
      {{.size = 4, .taps = 4, .stride = 4}, {.size = 8, .taps = 4, .stride = 4}, channels},
      {{.size = 1, .taps = 1}, {.size = 9, .taps = 5, .padding = 4, .dilation = 2}, channels},
  };
}

}  // namespace ladder::testing
