// SPDX-License-Identifier: Apache-2.0
#include "schedule/decisions.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "layout/bit_plan.h"

namespace ladder {
namespace {

/// Elements of one run of the hint.
std::int64_t run_of(const Core& core, const Hint& hint) {
  return hint.run_bytes() * 8 / core.instruction->operand_bits();
}

double traffic(const Problem& p, std::int64_t m, std::int64_t n, double a_bytes, double b_bytes) {
  return static_cast<double>(ceil_div(p.n, n)) * static_cast<double>(p.m * p.k) * a_bytes +
         static_cast<double>(ceil_div(p.m, m)) * static_cast<double>(p.n * p.k) * b_bytes;
}

/// Columns of a group, of which steps are whole parts; 0 where the group is all of K.
std::int64_t shared_group(const Problem& problem) {
  return problem.groups() == 1 ? 0 : problem.group_size();
}

std::vector<ConvertCost> places_of(const Problem& p, const Device& device, const Core& core,
                                   const Shape& block) {
  const Element& numbers = element_of(p.activation());
  const Core dense = choose_core(device, numbers, {&numbers}, Multiplier::any);
  const int window = std::clamp(core.operand().mantissa_bits + 1, 8, kFloat16Window);
  return convert_costs(device,
                       {.m = p.m,
                        .n = p.n,
                        .k = p.k,
                        .block_m = block[0],
                        .block_n = block[1],
                        .warps_m = ceil_div(block[0], 64),
                        .weight_bits = p.weight.bits,
                        .operand_bits = core.instruction->operand_bits(),
                        .instructions = instructions_per_weight(std::min(p.weight.bits, 8), window),
                        .operations_rate = operations_per_second(device, *core.instruction),
                        .dense_rate = operations_per_second(device, *dense.instruction)});
}

}  // namespace

Shape fragment_tile(const Core& core, const Hint& hint) {
  const auto& row = *core.instruction;
  const std::int64_t elements = run_of(core, hint) * hint.shape[0];
  const std::int64_t rows = std::max<std::int64_t>(elements / row.k, 1);
  return {std::lcm<std::int64_t>(rows, row.n), std::lcm<std::int64_t>(rows, row.m), row.k};
}

Shape block_tile(const Problem& p, const Device& device, const Core& core, const Hint& hint) {
  const Shape unit = fragment_tile(core, hint);
  const double bytes = core.instruction->operand_bits() / 8.0;
  const double code_bytes = p.weight.bits / 8.0;
  Shape block = {unit[0], unit[1], run_of(core, hint)};
  auto fits = [&](const Shape& tile) {
    const double shared =
        2.0 * static_cast<double>(tile[2]) * static_cast<double>(tile[0] + tile[1]) * bytes;
    return shared <= device.shared_per_block_bytes && tile[0] * tile[1] <= device.registers / 2 &&
           ceil_div(p.m, tile[0]) * ceil_div(p.n, tile[1]) >= device.multiprocessors;
  };
  while (true) {
    const double now = traffic(p, block[0], block[1], bytes, code_bytes);
    Shape best;
    double best_score = 0;
    for (const int axis : {1, 0}) {
      Shape larger = block;
      larger[axis] *= 2;
      if (larger[axis] > round_up(axis == 0 ? p.m : p.n, unit[axis]) || !fits(larger)) continue;
      const double saved = now - traffic(p, larger[0], larger[1], bytes, code_bytes);
      const double score = saved / static_cast<double>((larger[axis] - block[axis]) * block[2]);
      if (score > best_score) {
        best_score = score;
        best = larger;
      }
    }
    if (best.empty()) return block;
    block = best;
  }
}

// (code * 2^shift - zero) * 2^exponent: powers of two multiply sums.
TileType tile_type(const Weight& weight) {
  if (weight.element != nullptr) return {weight.element};
  return {&element(joined("uint", weight.bits)), std::ldexp(weight.zero, -weight.shift)};
}

OperandDecisions decide_operands(const Problem& problem, const Device& device, Multiplier by,
                                 std::optional<Shape> block) {
  check(problem);
  const TileType weight = tile_type(problem.weight);
  OperandDecisions out{
      choose_core(device, element_of(problem.activation()), weight, by, shared_group(problem)),
      {},
      {},
      {},
      {}};
  out.hint = hint(device, *out.core.instruction);
  out.block = block ? *block : block_tile(problem, device, out.core, out.hint);
  if (weight == TileType{&out.core.operand()}) return out;
  out.places = places_of(problem, device, out.core, out.block);
  const bool kernels = has_tile_programs(device);
  const auto found = std::ranges::find_if(out.places, [&](const ConvertCost& cost) {
    return !kernels || no_kernel(cost.place, problem.m).empty();
  });
  out.place = found->place;
  return out;
}

Decisions decide(const Problem& problem, const Device& device) {
  check(problem);
  if (const auto why = refusal(problem); !why.empty()) fail<Unsupported>(why);
  if (!has_tile_programs(device)) {
    fail<Unsupported>("no tile program multiplies on ", device.name);
  }
  if (problem.windows() != nullptr && !device.copies_to_shared()) {
    fail<Unsupported>("kernels of ", device.name, " read rows of x, not windows");
  }
  auto whole = decide_operands(problem, device, Multiplier::tile_programs);
  // No library multiplies by experts that the device chooses, and those of a batch and of windows
  // are their callers' to ask.
  if (problem.has_items() && whole.place) whole.place = ConvertPlace::shared_to_registers;
  auto digits = whole;
  const bool floats = problem.rounded_x() == Scalar::e4m3;
  const auto* const row = tile_instruction(floats ? Scalar::e4m3 : Scalar::s8, device);
  if (row == nullptr) {
    if (!problem.has_bytes_of_x()) return {problem, &device, whole, digits};
    fail<Unsupported>("no tile program multiplies ", name_of(*problem.rounded_x()), " on ",
                      device.name);
  }
  // One instruction takes bytes with and without a sign; which codes are such is for objection().
  const Element& bytes = element(row->operand);
  digits.core =
      choose_core(device, bytes, {&bytes}, Multiplier::tile_programs, shared_group(problem));
  digits.hint = hint(device, *digits.core.instruction);
  return {problem, &device, whole, std::move(digits)};
}

std::string not_while_multiplying(const OperandDecisions& decisions, std::int64_t m) {
  if (!decisions.place || decisions.place == ConvertPlace::shared_to_registers) return {};
  const auto why = no_kernel(ConvertPlace::shared_to_registers, m);
  return joined("weights of ", m, " tokens are converted ", name_of(*decisions.place),
                why.empty() ? "" : ": ", why);
}

std::string to_string(const OperandDecisions& d, const Problem& problem, const Device& device) {
  std::ostringstream out;
  out << "core: " << d.core.instruction->name
      << (d.core.exact ? ", exact\n" : ", weights rounded\n");
  for (const auto& line : d.core.considered) out << "  " << line << '\n';
  out << "hint: " << to_string(d.hint) << '\n';
  for (const auto& layer : hint_layers(device, *d.core.instruction)) {
    out << "  " << layer.name << ": " << layer.granule_bytes << " B x " << to_string(layer.shape)
        << '\n';
  }
  if (!d.place) return out.str();
  out << "weights are converted " << name_of(*d.place) << '\n';
  for (const auto& cost : d.places) {
    const auto why_not = has_tile_programs(device) ? no_kernel(cost.place, problem.m) : "";
    out << "  " << to_string(cost) << (why_not.empty() ? "" : "; ") << why_not << '\n';
  }
  return out.str();
}

}  // namespace ladder
