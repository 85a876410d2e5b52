// SPDX-License-Identifier: Apache-2.0
//
// Layers of experts, small enough to run without a device. Internal to the tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/integers.h"
#include "expr/constructors.h"
#include "pipelines/linear/raster.h"
#include "program/linear_case.h"

namespace ladder::testing {

/// A program for the items of a table: each item is a LinearCase of its own.
struct ExpertCase {
  Problem problem;
  std::vector<LinearCase> experts;   ///< their weights
  std::vector<LinearCase> items;     ///< with rows of activations; of none: an empty item
  std::vector<std::uint32_t> table;  ///< of the program

  /// Items in an order that is not that of their experts: one expert has none, one has two. Rows of
  /// activations lie in yet another order.
  static ExpertCase integers(Problem problem, unsigned seed) {
    constexpr std::uint32_t kExperts = 4;
    const std::vector<std::uint32_t> of_items = {2, 0, 2, 3, 1};
    std::int64_t bytes = 4 * image_words(problem.n, problem.k, problem.weight.bits);
    bytes = std::max(bytes, 4 * problem.groups() * round_up(problem.n, kBlock));
    bytes = std::max(bytes, 4 * problem.k);
    problem.rows = RoutedRows{5, 1, round_up(bytes, kPartBytes) + kPartBytes};
    ExpertCase out{problem, {}, {}, {}};
    for (unsigned e = 0; e < kExperts; ++e) {
      out.experts.push_back(LinearCase::integers(problem, 1, kExperts * seed + e));
      out.experts.back().data.y_scale = out.experts.front().data.y_scale;  // one of the call
    }
    for (std::size_t i = 0; i < of_items.size(); ++i) {
      const auto rows = i == 3 ? 0 : 1 + (seed + 7 * static_cast<unsigned>(i)) % problem.m;
      LinearCase item = out.experts[of_items[i]];
      item.m = static_cast<std::int64_t>(rows);
      const auto drawn =
          LinearCase::integers(problem, item.m, seed + 100 + static_cast<unsigned>(i)).data;
      item.data.x = drawn.x;
      item.data.x_scales = drawn.x_scales;
      out.items.push_back(std::move(item));
    }
    const auto slots =
        round_up(static_cast<std::int64_t>(of_items.size()), items_together(problem.m));
    out.table.resize(slots * kItemWords);
    std::uint32_t first = 0;
    for (std::size_t i = of_items.size(); i-- > 0;) {  // the last item has the first rows
      const auto rows = static_cast<std::uint32_t>(out.items[i].m);
      std::ranges::copy(std::array{of_items[i], first, rows},
                        out.table.begin() + static_cast<std::ptrdiff_t>(i) * kItemWords);
      first += rows;
    }
    return out;
  }

  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const LinearCase& item : items) sum += item.m;
    return sum;
  }

  /// Of the table: items, and those without rows that make whole groups.
  std::int64_t slots() const { return static_cast<std::int64_t>(table.size()) / kItemWords; }

  /// The parameter of that name, as pipelines/lower.h says.
  Argument argument(const std::string& name, const Schedule& schedule) const {
    const auto count = slots();
    const Workspace workspace = workspace_of(problem, schedule);
    if (name == "items") return Argument::input(table.data(), table.size() * 4);
    if (name == "y") return Argument::output(rows() * problem.columns_of_y() * y_bytes());
    if (name == "y_scale") return experts.front().argument(name, schedule);
    if (name == "workspace") return Argument::output(workspace.floats * 4 * count);
    if (name == "counters") {
      const std::vector<std::uint32_t> zeros(counters_of_item(workspace.counters) * count);
      return Argument::input(zeros.data(), zeros.size() * 4);
    }
    if (name == "x" || name == "x_scales") {
      const std::int64_t of_row = name == "x" ? problem.k * bytes_of(problem.formats.x) : 4;
      Argument all = Argument::output(rows() * of_row);
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (items[i].m > 0) put(all, items[i].argument(name, schedule), first_row(i) * of_row);
      }
      return all;
    }
    const std::int64_t step =
        name == "bias" ? bytes_of(problem.formats.bias) * round_up(problem.n, kBiasOfExpert)
                       : problem.experts()->bytes;
    Argument all = Argument::output(static_cast<std::int64_t>(experts.size()) * step);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      put(all, experts[e].argument(name, schedule), static_cast<std::int64_t>(e) * step);
    }
    return all;
  }

  std::int64_t y_bytes() const { return bytes_of(problem.formats.y); }
  std::int64_t first_row(std::size_t item) const { return table[item * kItemWords + 1]; }

  /// Why `y`, the argument of the program, is not what it should be; "" when it is.
  std::string objection_to(const Argument& y) const {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].m == 0) continue;
      const auto wanted = items[i].exact();
      const Reference reference = evaluate(items[i].problem, items[i].data);
      for (std::size_t at = 0; at < wanted.size(); ++at) {
        const auto number = first_row(i) * problem.columns_of_y() + at;
        const auto where = "y[" + std::to_string(at) + "] of item " + std::to_string(i);
        if (!y.written[y_bytes() * number]) return where + " was not written";
        const double found = items[i].number(y.bytes, number);
        if (found == wanted[at]) continue;
        // Values that a table rounds are not exact, nor gates.
        const bool exact = decoding_error(problem) == 0 && !problem.has_gate();
        const double allowed = exact ? 0 : items[i].bound(reference, at);
        if (!(std::fabs(found - (allowed > 0 ? reference.y[at] : wanted[at])) <= allowed)) {
          return where + " is " + std::to_string(found) + ", not " + std::to_string(wanted[at]);
        }
      }
    }
    return "";
  }

 private:
  static void put(Argument& to, const Argument& from, std::int64_t at) {
    std::ranges::copy(from.bytes, to.bytes.begin() + at);
    std::fill_n(to.written.begin() + at, from.bytes.size(), true);
  }
};

/// Types with every part that an expert may have, and one of tables.
inline std::vector<Problem> expert_types(std::int64_t max_m, std::int64_t n, std::int64_t k) {
  std::vector<Problem> out;
  for (const char* spelled :
       {"uint4,group=64,scale=float16,zero=midpoint", "uint3,group=64,scale=float16,zero=integer",
        "mxfp4", "nvfp4", "nf4,group=64,scale=float16", "int8,channel,scale=float16"}) {
    for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
      Problem problem = linear_of(ttype(spelled), n, k, activation, max_m);
      problem.set_bias(true);
      out.push_back(problem);
    }
  }
  return out;
}

/// The same of activations of 8 bits, as far as the device multiplies them.
inline std::vector<Problem> expert_types_of_bytes(std::int64_t max_m, std::int64_t n,
                                                  std::int64_t k, const Device& device) {
  std::vector<Problem> out;
  for (const auto& [spelled, x] : {std::pair{"int8,channel,scale=float32", Scalar::s8},
                                   {"uint4,group=64,scale=float16,zero=integer", Scalar::s8},
                                   {"float8_e4m3,group=128,scale=float32", Scalar::e4m3},
                                   {"mxfp4", Scalar::e4m3},
                                   {"int4,group=128,scale=bfloat16", Scalar::e4m3}}) {
    if (tile_instruction(x, device) == nullptr) continue;
    for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
      Problem problem = linear_of(ttype(spelled), n, k, activation, max_m);
      problem.set_bias(true);
      problem.round_x(x);
      out.push_back(problem);
    }
  }
  return out;
}

/// Of the candidates for `problem`, the best of each pipeline and reduction.
inline std::vector<Schedule> expert_schedules(const Problem& problem, const Device& device,
                                              bool dependent) {
  std::vector<Schedule> out;
  std::set<std::string> seen;
  for (const Candidate& c : candidates(decide(problem, device), dependent)) {
    if (!c.dropped.empty()) continue;
    const std::string text = to_string(c.schedule);
    std::string kind = text.substr(0, text.find(' '));
    for (const char* part : {"ordered", "cluster", "sweeps", "engine", "depth", "warpgroups",
                             "producers", "stages 2", "stages 3", "token tiles"}) {
      if (text.find(part) != std::string::npos) kind += part;
    }
    if (seen.insert(kind).second) out.push_back(c.schedule);
  }
  return out;
}

}  // namespace ladder::testing
