// SPDX-License-Identifier: Apache-2.0
#include "schedule/tile_plan.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "layout/bit_plan.h"

namespace ladder {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

/// Elements of one run of the hint.
std::int64_t run_of(const Core& core, const Hint& hint) {
  return hint.run_bytes() * 8 / core.instruction->operand_bits();
}

/// The hint's tile in elements, k innermost: whole instructions along every axis.
Shape fragment_tile(const Core& core, const Hint& hint) {
  const auto& row = *core.instruction;
  const std::int64_t elements = run_of(core, hint) * hint.shape[0];
  const std::int64_t rows = std::max<std::int64_t>(elements / row.k, 1);
  return {std::lcm<std::int64_t>(rows, row.n), std::lcm<std::int64_t>(rows, row.m), row.k};
}

double traffic(const TileMatmul& p, std::int64_t m, std::int64_t n, double a_bytes,
               double b_bytes) {
  return static_cast<double>(ceil_div(p.n, n)) * static_cast<double>(p.m * p.k) * a_bytes +
         static_cast<double>(ceil_div(p.m, m)) * static_cast<double>(p.n * p.k) * b_bytes;
}

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
  const TileType operand{&plan.core.operand()};
  const TileType shared = early ? operand : stored;
  const auto piece = tile(device, 0, operand, std::move(fragment));
  // Codes that wait in shared memory lie as the registers will want their operands.
  auto first = schedule_move(tile(device, 2, stored, std::move(whole)),
                             tile(device, 1, operand, std::move(block)), piece, plan.hint);
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

Shape block_tile(const TileMatmul& p, const Device& device, const Core& core, const Hint& hint) {
  const Shape unit = fragment_tile(core, hint);
  const double bytes = core.instruction->operand_bits() / 8.0;
  const double code_bytes = p.b.element->bits / 8.0;
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

TilePlan tile_plan(const TileMatmul& matmul, const Device& device) {
  const Core core = choose_core(device, *matmul.a.element, matmul.b);
  const Hint found = hint(device, *core.instruction);
  return tile_plan(matmul, device, block_tile(matmul, device, core, found));
}

TilePlan tile_plan(const TileMatmul& matmul, const Device& device, const Shape& block) {
  LADDER_REQUIRE(matmul.m >= 1 && matmul.n >= 1 && matmul.k >= 1, "a matmul of ", matmul.m, " x ",
                 matmul.n, " x ", matmul.k);
  TilePlan plan{
      matmul, &device, choose_core(device, *matmul.a.element, matmul.b), {}, block, {}, {}, {}, {}};
  plan.hint = hint(device, *plan.core.instruction);
  plan.fragment = fragment_tile(plan.core, plan.hint);
  for (int d = 0; d < 3; ++d) {
    LADDER_REQUIRE(block[d] >= 1 && block[d] % plan.fragment[d] == 0, "a block of ",
                   to_string(block), " is not whole fragments of ", to_string(plan.fragment));
  }
  const TileType operand{&plan.core.operand()};
  bool early = true;
  if (matmul.b != operand) {
    const int window = std::clamp(plan.core.operand().mantissa_bits + 1, 8, kFloat16Window);
    plan.places = convert_costs(
        device,
        {.m = matmul.m,
         .n = matmul.n,
         .k = matmul.k,
         .block_m = block[0],
         .block_n = block[1],
         .warps_m = ceil_div(block[0], 64),
         .weight_bits = matmul.b.element->bits,
         .operand_bits = plan.core.instruction->operand_bits(),
         .instructions = instructions_per_weight(std::min(matmul.b.element->bits, 8), window),
         .operations_rate = operations_per_second(device, *plan.core.instruction)});
    early = plan.places.front().place != ConvertPlace::shared_to_registers;
  }
  plan.a = operand_moves(plan, matmul.a, {matmul.m, matmul.k}, {block[0], block[2]},
                         {plan.fragment[0], plan.fragment[2]}, true);
  plan.b = operand_moves(plan, matmul.b, {matmul.n, matmul.k}, {block[1], block[2]},
                         {plan.fragment[1], plan.fragment[2]}, early);
  return plan;
}

std::vector<Transform> TilePlan::store(std::int64_t row, std::int64_t column) const {
  const std::int64_t rows = matmul.m - row * block[0], columns = matmul.n - column * block[1];
  LADDER_REQUIRE(row >= 0 && column >= 0 && rows > 0 && columns > 0, "block ", row, ", ", column,
                 " of ", matmul.m, " x ", matmul.n);
  std::vector<Transform> out = {
      Slice{{0, 0}, {std::min(rows, block[0]), std::min(columns, block[1])}}};
  if (matmul.out.element->name != core.instruction->sum) out.emplace_back(ConvertTo{matmul.out});
  return out;
}

std::string to_string(const TilePlan& plan) {
  std::ostringstream out;
  out << "core: " << plan.core.instruction->name
      << (plan.core.exact ? ", exact\n" : ", weights rounded\n");
  for (const auto& line : plan.core.considered) out << "  " << line << '\n';
  out << "hint: " << to_string(plan.hint) << '\n';
  for (const auto& layer : hint_layers(*plan.device, *plan.core.instruction)) {
    out << "  " << layer.name << ": " << layer.granule_bytes << " B x " << to_string(layer.shape)
        << '\n';
  }
  out << "tiles [m, n, k]: registers " << to_string(plan.fragment) << ", "
      << plan.device->shared.name << ' ' << to_string(plan.block) << '\n';
  if (!plan.places.empty()) {
    out << "weights are converted\n";
    for (const auto& place : plan.places) out << "  " << to_string(place) << '\n';
  }
  for (const auto& [name, moves] : {std::pair{"a", &plan.a}, {"w", &plan.b}}) {
    for (const TileMove& move : *moves) out << name << ": " << to_string(move) << '\n';
  }
  out << "out: " << plan.core.instruction->sum << " sums to " << to_string(plan.matmul.out);
  for (const Transform& step : plan.store(0, 0)) out << "\n  " << to_string(step);
  out << '\n';
  return out.str();
}

}  // namespace ladder
