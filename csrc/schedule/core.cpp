// SPDX-License-Identifier: Apache-2.0
#include "schedule/core.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"

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

/// The device's operand types, narrowest first, then fastest.
std::vector<const MatrixInstruction*> fastest_of_each_type(const Device& device) {
  std::vector<const MatrixInstruction*> out;
  for (const MatrixInstruction* row : instructions(device)) {
    const bool known = std::ranges::any_of(
        out, [&](const MatrixInstruction* other) { return other->operand == row->operand; });
    if (!known) out.push_back(row);
  }
  std::ranges::stable_sort(out, {},
                           [](const MatrixInstruction* row) { return row->operand_bits(); });
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

Core choose_core(const Device& device, const Element& activation, const TileType& weight) {
  Core core{nullptr, true, {}};
  const MatrixInstruction* rounding = nullptr;
  for (const MatrixInstruction* row : fastest_of_each_type(device)) {
    const Element& operand = element(row->operand);
    const bool takes = converts_exactly(activation, operand);
    const bool keeps = holds(operand, weight);
    std::ostringstream line;
    line << row->operand << " by " << row->name << ", " << rate_text(device, *row) << ": ";
    if (!takes) {
      line << "does not hold every " << activation.name;
    } else if (!keeps) {
      line << "does not hold every " << to_string(weight);
      if (rounding == nullptr || operand.name == activation.name) rounding = row;
    } else {
      line << (core.instruction == nullptr ? "chosen" : "wider");
      if (core.instruction == nullptr) core.instruction = row;
    }
    core.considered.push_back(line.str());
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
