// SPDX-License-Identifier: Apache-2.0
#include "schedule/tile_plan.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

std::string_view level_name(const Device& device, int level) {
  return level == 0   ? std::string_view("registers")
         : level == 1 ? device.shared.name
                      : device.global.name;
}

LevelTile tile(const Device& device, int level, const TileType& type, Shape shape) {
  return {std::string(level_name(device, level)), type, std::move(shape)};
}

/// The two moves of an operand whose rows are `whole[0]`; `early`: it has its operand type in
/// shared memory already.
std::vector<TileMove> operand_moves(const TilePlan& plan, const TileType& stored, Shape whole,
                                    Shape block, Shape fragment, bool early) {
  const Device& device = *plan.device;
  const TileType operand{&plan.decisions.core.operand()};
  const TileType shared = early ? operand : stored;
  const auto piece = tile(device, 0, operand, std::move(fragment));
  // Codes that wait in shared memory lie as the registers will want their operands.
  auto first =
      schedule_move(tile(device, 2, stored, std::move(whole)),
                    tile(device, 1, operand, std::move(block)), piece, plan.decisions.hint);
  first.to.type = shared;
  std::vector<TileMove> moves = {first};
  if (first.map) {
    moves.push_back(read_piece(first, piece));
  } else {
    moves.push_back({first.to, piece, {}});
  }
  return moves;
}

}  // namespace

TilePlan tile_plan(const Problem& problem, const Device& device, OperandDecisions decisions) {
  TilePlan plan{problem, &device, std::move(decisions), {}, {}, {}};
  const OperandDecisions& d = plan.decisions;
  const Shape& block = d.block;
  plan.fragment = fragment_tile(d.core, d.hint);
  for (int i = 0; i < 3; ++i) {
    LADDER_REQUIRE(block[i] >= 1 && block[i] % plan.fragment[i] == 0, "a block of ",
                   to_string(block), " is not whole fragments of ", to_string(plan.fragment));
  }
  const bool early = d.place != ConvertPlace::shared_to_registers;
  plan.a = operand_moves(plan, {&element_of(problem.activation())}, {problem.m, problem.k},
                         {block[0], block[2]}, {plan.fragment[0], plan.fragment[2]}, true);
  plan.b = operand_moves(plan, tile_type(problem.weight), {problem.n, problem.k},
                         {block[1], block[2]}, {plan.fragment[1], plan.fragment[2]}, early);
  return plan;
}

TilePlan tile_plan(const Problem& problem, const Device& device) {
  if (has_tile_programs(device) && refusal(problem).empty()) {
    auto decisions = decide(problem, device).whole;
    if (not_while_multiplying(decisions, problem.m).empty()) {
      return tile_plan(problem, device, std::move(decisions));
    }
  }
  return tile_plan(problem, device, decide_operands(problem, device));
}

std::vector<Transform> TilePlan::store(std::int64_t row, std::int64_t column) const {
  const std::int64_t rows = problem.m - row * decisions.block[0],
                     columns = problem.n - column * decisions.block[1];
  LADDER_REQUIRE(row >= 0 && column >= 0 && rows > 0 && columns > 0, "block ", row, ", ", column,
                 " of ", problem.m, " x ", problem.n);
  std::vector<Transform> out = {
      Slice{{0, 0}, {std::min(rows, decisions.block[0]), std::min(columns, decisions.block[1])}}};
  const TileType y{&element_of(problem.formats.y)};
  if (y.element->name != decisions.core.instruction->sum) out.emplace_back(ConvertTo{y});
  return out;
}

std::string to_string(const TilePlan& plan) {
  std::ostringstream out;
  out << to_string(plan.decisions, plan.problem, *plan.device);
  out << "tiles [m, n, k]: registers " << to_string(plan.fragment) << ", "
      << plan.device->shared.name << ' ' << to_string(plan.decisions.block) << '\n';
  for (const auto& [name, moves] : {std::pair{"a", &plan.a}, {"w", &plan.b}}) {
    for (const TileMove& move : *moves) out << name << ": " << to_string(move) << '\n';
  }
  out << "out: " << plan.decisions.core.instruction->sum << " sums to "
      << element_of(plan.problem.formats.y).name;
  for (const Transform& step : plan.store(0, 0)) out << "\n  " << to_string(step);
  out << '\n';
  return out.str();
}

}  // namespace ladder
