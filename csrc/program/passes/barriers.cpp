// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "program/passes.h"
#include "program/passes/hazards.h"

namespace ladder {
namespace {

using Body = std::vector<Statement>;

Body* body_of(Statement& statement) {
  if (auto* loop = std::get_if<For>(&statement.op)) return &loop->body;
  if (auto* branch = std::get_if<If>(&statement.op)) return &branch->body;
  if (auto* part = std::get_if<Within>(&statement.op)) return &part->body;
  if (auto* part = std::get_if<Produce>(&statement.op)) return &part->body;
  if (auto* part = std::get_if<Alternate>(&statement.op)) return &part->body;
  return nullptr;
}

void strip(Body& body) {
  std::erase_if(body, [](const Statement& s) { return std::holds_alternative<Barrier>(s.op); });
  for (Statement& statement : body) {
    if (Body* inner = body_of(statement)) strip(*inner);
  }
}

/// The body that a path of indices leads to, all but the last `above` of them taken.
Body& walk(Program& program, const std::vector<int>& path, std::size_t depth) {
  Body* body = &program.body;
  for (std::size_t d = 0; d < depth; ++d) body = body_of((*body)[path[d]]);
  return *body;
}

/// Just before `after`, in the innermost body that both sides are in: within a loop only when one
/// trip depends on another. True when that is in a loop or condition.
bool separate(Program& program, const Hazard& hazard) {
  const auto &before = hazard.before, &after = hazard.after;
  // Producers are behind what all did only by a barrier of all.
  const auto common = common_statements(program);
  if (program.roles && static_cast<std::size_t>(before.path.front()) < common) {
    program.body.insert(program.body.begin() + static_cast<std::ptrdiff_t>(common),
                        Statement{Barrier{}});
    return false;
  }
  std::size_t depth = 0;
  while (before.path[depth] == after.path[depth]) {
    const bool leaf = depth + 1 == before.path.size() || depth + 1 == after.path.size();
    if (leaf || before.trips[depth] != after.trips[depth]) {
      LADDER_CHECK(!leaf, "threads meet in one instruction, which no barrier orders, in: ",
                   hazard.instruction);
      ++depth;
      break;
    }
    ++depth;
  }
  Body& body = walk(program, after.path, depth);
  body.insert(body.begin() + after.path[depth], Statement{Barrier{}});
  return depth > 0;
}

/// True for what neither touches memory nor waits for it. A load is better begun before a
/// barrier, and a view of it stays with it.
bool only_registers(const Statement& statement) {
  const auto all = [&](const Body& body) {
    return std::all_of(body.begin(), body.end(),
                       [](const Statement& s) { return only_registers(s); });
  };
  return std::visit(Match{[&](const For& i) { return all(i.body); }, answer(InRegisters{}, true),
                          answer(InMemory{}, false), answer(InTensorMemory{}, false),
                          answer(InTime{}, false), answer(OnSignals{}, false),
                          answer(Group<If, Within, Produce, Alternate, Reinterpret>{}, false)},
                    statement.op);
}

/// Barriers go up to what they wait for, so that a program has one text.
void raise(Body& body) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (Body* inner = body_of(body[i])) raise(*inner);
    if (!std::holds_alternative<Barrier>(body[i].op)) continue;
    for (std::size_t at = i; at > 0 && only_registers(body[at - 1]); --at) {
      std::swap(body[at - 1], body[at]);
    }
  }
}

/// Calls `visit` with each body that has a barrier and its index there, until one returns true.
template <class Visit>
bool any_barrier(Body& body, const Visit& visit) {
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (std::holds_alternative<Barrier>(body[i].op) && visit(body, i)) return true;
    if (Body* inner = body_of(body[i]); inner != nullptr && any_barrier(*inner, visit)) return true;
  }
  return false;
}

}  // namespace

int count_barriers(const Program& program) {
  Body body = program.body;
  int count = 0;
  any_barrier(body, [&](Body&, std::size_t) {
    ++count;
    return false;
  });
  return count;
}

Program with_barriers(Program program) {
  // Their barriers keep halves apart, too.
  if (std::ranges::any_of(program.body, [](const Statement& s) {
        return std::holds_alternative<Alternate>(s.op);
      })) {
    fail<Unsupported>("barriers of halves that alternate are placed by hand");
  }
  strip(program.body);
  bool in_loop = false;
  while (const auto hazard = Hazards(program).first()) {
    in_loop |= separate(program, *hazard);
  }
  // One in a loop may do the work of another. Outside of loops each serves an access that all
  // before it left open.
  const auto spare = [&](Body& body, std::size_t i) {
    const Statement kept = body[i];
    body.erase(body.begin() + static_cast<std::ptrdiff_t>(i));
    if (!Hazards(program).first()) return true;
    body.insert(body.begin() + static_cast<std::ptrdiff_t>(i), kept);
    return false;
  };
  while (in_loop && any_barrier(program.body, spare)) {
  }
  raise(program.body);
  return program;
}

}  // namespace ladder
