// SPDX-License-Identifier: Apache-2.0
//
// Halves that alternate: that they meet, that while one multiplies the other does not, and that a
// barrier parts what one writes to shared memory from what the other reads there.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "program/check.h"
#include "program/passes/hazards.h"

namespace ladder {
namespace {

constexpr int kWave = 64;  // threads

/// What a thread does without the other half.
bool stays_in_half(const Program& program, const Statement& statement) {
  const auto level = [&](ViewId view) { return program.buffers[program.views[view].buffer].level; };
  return std::visit(
      Match{[&](const For& i) {
              return i.tail_trips == 0 && std::ranges::all_of(i.body, [&](const Statement& s) {
                       return stays_in_half(program, s);
                     });
            },
            [&](const Load& i) { return !i.remote; },
            [&](const Store& i) { return level(i.to) == Level::shared; },
            answer(InRegisters{}, true),
            answer(Group<Reinterpret, Lookup, Barrier, Priority>{}, true),
            answer(Group<CopyAsync, CopyOwn, CopyBulk, CopyRows, CopyElements, LoadMatrix,
                         LoadUnits, MmaShared, TensorMma, LookupRelative, FillTable, FillWords,
                         SplitDigits, Reduce, AtomicAdd, Ticket>{},
                   false),
            answer(Group<Commit, Wait, ClusterBarrier, DependentLaunch, DependentWait, MmaWait,
                         MatrixFence, TensorWait, TensorFence>{},
                   false),
            answer(OnSignals{}, false), answer(InTensorMemory{}, false),
            answer(Group<If, Within, Produce, Alternate>{}, false)},
      statement.op);
}

/// Of a phase: whether it has products, and its first fault.
struct Kind {
  bool multiplies = false;
  std::string fault;
};

Kind kind_of(const Program& program, const Phase& phase) {
  Kind out;
  const PhaseStep* access = nullptr;
  bool raised = false;
  for (const PhaseStep& step : phase) {
    const Statement& statement = *step.statement;
    if (const auto* priority = std::get_if<Priority>(&statement.op)) raised = priority->raised;
    const bool product = std::holds_alternative<Mma>(statement.op);
    if (product && !raised) {
      out.fault = "a product without priority, in: " + to_string(program, statement);
      return out;
    }
    out.multiplies |= product;
    const bool moves = std::visit(
        Match{answer(InMemory{}, true), [](const auto&) { return false; }}, statement.op);
    if (moves) access = &step;
  }
  if (raised) out.fault = "a phase ends with priority";
  if (out.multiplies && access != nullptr) {
    out.fault = "a phase with products, in: " + to_string(program, *access->statement);
  }
  return out;
}

/// Shared memory is touched at another place in each trip of the loop.
bool goes_on(const Program& program, const std::vector<Statement>& body, VariableId variable) {
  const auto has = [&](const Affine& affine) {
    return std::ranges::count(affine.terms, variable, &Affine::Term::variable) > 0;
  };
  const auto access = [&](ViewId id, const std::vector<Affine>& at) {
    const View& view = program.views[id];
    return program.buffers[view.buffer].level == Level::shared &&
           (has(view.offset) || std::ranges::any_of(at, has));
  };
  return std::ranges::any_of(body, [&](const Statement& statement) {
    return std::visit(Match{[&](const Load& i) { return access(i.from, i.at); },
                            [&](const Store& i) { return access(i.to, i.at); },
                            [&](const For& i) { return goes_on(program, i.body, variable); },
                            [](const auto&) { return false; }},
                      statement.op);
  });
}

/// Trips that are like each other, and have a barrier, need not be followed all.
void shorten(const Program& program, std::vector<Statement>& body) {
  constexpr std::int64_t kEnough = 4;
  for (Statement& statement : body) {
    if (auto* part = std::get_if<Alternate>(&statement.op)) shorten(program, part->body);
    auto* loop = std::get_if<For>(&statement.op);
    if (loop == nullptr) continue;
    const bool meets = std::ranges::any_of(loop->body, [](const Statement& s) {
      const auto* barrier = std::get_if<Barrier>(&s.op);
      return barrier != nullptr && barrier->half == Half::both;
    });
    if (meets && !goes_on(program, loop->body, loop->variable)) {
      loop->trips = std::min(loop->trips, kEnough);
    }
  }
}

}  // namespace

Faults check_phases(Program program) {
  Faults faults;
  shorten(program, program.body);
  if (const auto hazard = Hazards(program, true).first()) {
    add(faults, "no barrier parts it from another thread's access, in: ", hazard->instruction);
  }
  return faults;
}

Faults check(const Program& program, const Alternate& i) {
  Faults faults;
  if (program.threads % (kHalves * kWave) != 0) {
    add(faults, program.threads, " threads are no two halves of whole waves");
  }
  if (program.cluster > 1 || program.roles || program.tail) {
    add(faults, "halves of blocks that have clusters, producers or a tail");
  }
  for (const Statement& s : i.body) {
    if (!stays_in_half(program, s)) {
      add(faults, "what a half does not do alone: ", to_string(program, s));
    }
  }
  const std::array<std::vector<Phase>, kHalves> halves = {phases_of(i, Half::first),
                                                          phases_of(i, Half::second)};
  const auto count = halves[0].size();
  if (halves[1].size() != count) {
    add(faults, "the first half meets ", count - 1, " barriers, the second ", halves[1].size() - 1);
    return faults;
  }
  for (std::size_t phase = 0; phase < count; ++phase) {
    std::size_t multiply = 0;
    for (const auto& half : halves) {
      const Kind kind = kind_of(program, half[phase]);
      multiply += kind.multiplies ? 1 : 0;
      if (!kind.fault.empty()) {
        faults.push_back(kind.fault);
        return faults;
      }
    }
    if (multiply == kHalves) {
      add(faults, "both halves multiply behind barrier ", phase);
      return faults;
    }
  }
  return faults;
}

}  // namespace ladder
