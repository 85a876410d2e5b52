// SPDX-License-Identifier: Apache-2.0
#include "schedule/core.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/joined.h"

namespace ladder {
namespace {

std::string rate_text(const Device& device, const MatrixInstruction& row) {
  const double rate = operations_per_second(device, row);
  std::ostringstream out;
  if (rate > 0) {
    out << rate / 1e12 << " TFLOP/s";
  } else {
    out << "rate not published";
  }
  return out.str();
}

/// The device's instructions by operand type, narrowest first, and fastest first in each.
std::vector<std::vector<const MatrixInstruction*>> by_operand_type(const Device& device) {
  std::vector<std::vector<const MatrixInstruction*>> out;
  for (const MatrixInstruction* row : instructions(device)) {
    const auto same = std::ranges::find_if(
        out, [&](const auto& rows) { return rows.front()->operand == row->operand; });
    (same == out.end() ? out.emplace_back() : *same).push_back(row);
  }
  std::ranges::stable_sort(out, {}, [](const auto& rows) { return rows.front()->operand_bits(); });
  return out;
}

}  // namespace

bool holds(const Element& to, const TileType& from) {
  if (from.zero == 0) return converts_exactly(*from.element, to);
  for (int code = 0; code < from.element->code_count(); ++code) {
    const double value = decode(*from.element, static_cast<std::uint32_t>(code)) - from.zero;
    if (!std::isfinite(value)) return false;
    if (decode(to, encode(to, value)) != value) return false;
  }
  return true;
}

Core choose_core(const Device& device, const Element& activation, const TileType& weight,
                 Multiplier by, std::int64_t group) {
  Core core{nullptr, true, {}};
  const MatrixInstruction* rounding = nullptr;
  const auto consider = [&](const MatrixInstruction& row, const auto&... verdict) {
    core.considered.push_back(
        joined(row.operand, " by ", row.name, ", ", rate_text(device, row), ": ", verdict...));
  };
  for (const auto& rows : by_operand_type(device)) {
    const Element& operand = element(rows.front()->operand);
    if (!converts_exactly(activation, operand)) {
      consider(*rows.front(), "does not hold every ", activation.name);
      continue;
    }
    const bool keeps = holds(operand, weight);
    for (const MatrixInstruction* row : rows) {
      if (by == Multiplier::tile_programs && !tile_operand(*row)) {
        consider(*row, row->in_tiles ? "warpgroups of tiles multiply by it"
                                     : "no tile program multiplies by it");
        continue;
      }
      const auto shorter = [&](const MatrixInstruction* other) {
        return other->k < row->k && tile_operand(*other);
      };
      if (group % row->k != 0 && std::ranges::any_of(rows, shorter)) {
        consider(*row, "groups of ", group, " columns are no whole steps");
        continue;
      }
      if (!keeps) {
        consider(*row, "does not hold every ", to_string(weight));
        if (rounding == nullptr || operand.name == activation.name) rounding = row;
      } else {
        consider(*row, core.instruction == nullptr ? "chosen" : "wider");
        if (core.instruction == nullptr) core.instruction = row;
      }
      break;
    }
  }
  if (core.instruction == nullptr && rounding != nullptr) {
    core.instruction = rounding;
    core.exact = false;
    core.considered.push_back(std::string(rounding->operand) + " by " +
                              std::string(rounding->name) + ": chosen, weights rounded");
  }
  if (core.instruction == nullptr) {
    std::ostringstream why;
    for (const auto& line : core.considered) why << "\n  " << line;
    fail<Unsupported>("no instruction of ", device.name, " multiplies ", activation.name, ":",
                      why.str());
  }
  return core;
}

}  // namespace ladder
