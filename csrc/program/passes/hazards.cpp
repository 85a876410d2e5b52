// SPDX-License-Identifier: Apache-2.0
#include "program/passes/hazards.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

constexpr std::int64_t kMostBlocks = 64;

int smallest_scalar(const Program& program) {
  int bytes = 4;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.level == Level::shared) bytes = std::min(bytes, bytes_of(buffer.scalar));
  }
  return bytes;
}

void collect_loops(const std::vector<Statement>& body, std::set<VariableId>& loops) {
  for (const Statement& statement : body) {
    if (const auto* loop = std::get_if<For>(&statement.op)) {
      loops.insert(loop->variable);
      collect_loops(loop->body, loops);
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      collect_loops(branch->body, loops);
    } else if (const auto* part = std::get_if<Within>(&statement.op)) {
      collect_loops(part->body, loops);
    } else if (const auto* part = std::get_if<Produce>(&statement.op)) {
      collect_loops(part->body, loops);
    } else if (const auto* part = std::get_if<Alternate>(&statement.op)) {
      collect_loops(part->body, loops);
    }
  }
}

}  // namespace

Hazards::Hazards(const Program& program, bool same)
    : program_(program), same_(same), granule_(smallest_scalar(program)) {}

std::int64_t Hazards::granules(BufferId buffer) const {
  return program_.shared_offset(buffer) / granule_;
}

std::optional<Hazard> Hazards::first() {
  // Barriers that only these need would not be found.
  if (!program_.tensors.empty()) fail<Unsupported>("hazards of tensor memory are not followed");
  const auto block_numbers = block_variables();
  std::int64_t blocks = 1;
  for (auto variable : block_numbers) blocks *= program_.variables[variable].extent;
  if (blocks > kMostBlocks) {
    fail<Unsupported>("shared memory indexed by ", blocks,
                      " combinations of block numbers, of at "
                      "most ",
                      kMostBlocks);
  }
  const std::int64_t kinds = program_.tail ? 2 : 1;
  for (std::int64_t block = 0; block < blocks * kinds && !found_; ++block) {
    in_tail_ = block >= blocks;
    variables_.assign(program_.variables.size(), 0);
    auto rest = block % blocks;
    for (auto variable : block_numbers) {
      variables_[variable] = rest % program_.variables[variable].extent;
      rest /= program_.variables[variable].extent;
    }
    facts_.assign(ceil_div(program_.shared_bytes(), granule_), {});
    phases_.clear();
    for (const Signal& signal : program_.signals) phases_.emplace_back(signal.count);
    initialised_.assign(program_.signals.size(), -1);
    initialised_moment_.assign(program_.signals.size(), 0);
    written_.assign(program_.buffers.size(), {});
    read_ = written_;
    reads_.assign(program_.buffers.size(), {});
    groups_.assign(1, {});
    looked_up_.clear();
    products_.clear();
    moments_.clear();
    now_ = {};
    epoch_ = 0;
    role_ = 0;
    known_ = {-1, -1};
    run(program_.body);
  }
  return found_;
}

/// Numbers of the block by which this block's own shared memory is indexed.
std::vector<VariableId> Hazards::block_variables() const {
  std::set<VariableId> loops, used;
  collect_loops(program_.body, loops);
  const auto note = [&](const Affine& affine) {
    for (const auto& term : affine.terms) {
      if (!loops.contains(term.variable)) used.insert(term.variable);
    }
  };
  const auto look = [&](const auto& self, const std::vector<Statement>& body) -> void {
    const auto at = [&](ViewId view, const std::vector<Affine>& index) {
      if (program_.buffers[program_.views[view].buffer].level != Level::shared) return;
      note(program_.views[view].offset);
      for (const Affine& affine : index) note(affine);
    };
    for (const Statement& statement : body) {
      std::visit(
          Match{[&](const For& i) { self(self, i.body); }, [&](const If& i) { self(self, i.body); },
                [&](const Within& i) { self(self, i.body); },
                [&](const Produce& i) { self(self, i.body); },
                [&](const Alternate& i) { self(self, i.body); },
                [&](const Load& i) {
                  if (!i.remote) at(i.from, i.at);
                },
                [&](const Store& i) { at(i.to, i.at); },
                [&](const LoadMatrix& i) { at(i.from, i.at); },
                [&](const LoadUnits& i) { at(i.from, i.at); },
                [&](const MmaShared& i) { at(i.from, i.at); },
                [&](const TensorMma& i) { at(i.from, i.at); },
                [&](const TensorCommit& i) { note(i.index); }, nothing(InTensorMemory{}),
                [&](const CopyAsync& i) { at(i.to, {}), note(i.guard); },
                [&](const CopyOwn& i) { at(i.to, i.to_at), note(i.guard); },
                [&](const CopyBulk& i) { at(i.to, {i.index}), note(i.guard); },
                [&](const CopyRows& i) { at(i.to, {i.index}); },
                [&](const Await& i) { note(i.index), note(i.parity); },
                [&](const CopyElements& i) { at(i.to, {}), note(i.guard); },
                [&](const SplitDigits& i) { at(i.to, {}); }, nothing(InRegisters{}),
                [&](const Expect& i) { note(i.index), note(i.guard); },
                [&](const Arrive& i) { note(i.index); }, nothing(InTime{}),
                // Global memory, or the whole of a view.
                nothing(OnTables{}),
                nothing(Group<Reinterpret, Reduce, AtomicAdd, Ticket, SignalInit>{})},
          statement.op);
    }
  };
  look(look, program_.body);
  return {used.begin(), used.end()};
}

std::int64_t Hazards::value(const Affine& affine) const {
  auto sum = affine.constant;
  for (const auto& term : affine.terms) sum += term.at(variables_[term.variable]);
  return sum;
}

void Hazards::run(const std::vector<Statement>& body) {
  now_.path.push_back(0);
  for (std::size_t s = 0; s < body.size() && !found_; ++s) {
    now_.path.back() = static_cast<int>(s);
    const Statement& statement = body[s];
    if (now_.trips.empty()) together_ = s < common_statements(program_);
    if (const auto* loop = std::get_if<For>(&statement.op)) {
      now_.trips.push_back(0);
      const auto trips = in_tail_ && loop->tail_trips > 0 ? loop->tail_trips : loop->trips;
      for (std::int64_t trip = 0; trip < trips && !found_; ++trip) {
        now_.trips.back() = variables_[loop->variable] = trip;
        run(loop->body);
      }
      now_.trips.pop_back();
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      if (program_.tail && branch->variable == program_.tail->is_tail &&
          branch->value != (in_tail_ ? 1 : 0)) {
        continue;
      }
      // Not every block comes here, so what is ordered within is not ordered after.
      const auto before = known_;
      now_.trips.push_back(0);
      run(branch->body);
      now_.trips.pop_back();
      known_ = before;
    } else if (const auto* part = std::get_if<Produce>(&statement.op)) {
      role_ = 1;
      now_.trips.push_back(0);
      run(part->body);
      now_.trips.pop_back();
      role_ = 0;
    } else if (const auto* part = std::get_if<Alternate>(&statement.op)) {
      alternate(*part);
    } else if (const auto* part = std::get_if<Within>(&statement.op)) {
      now_.trips.push_back(0);
      run(part->body);
      now_.trips.pop_back();
    } else {
      statement_ = &statement;
      moments_.push_back(now_);
      instruction(statement);
    }
  }
  now_.path.pop_back();
}

void Hazards::alternate(const Alternate& part) {
  const auto first = phases_of(part, Half::first), second = phases_of(part, Half::second);
  for (std::size_t n = 0; n < std::min(first.size(), second.size()) && !found_; ++n) {
    for (const Half half : {Half::first, Half::second}) {
      half_ = half;
      for (const auto& [statement, trips] : (half == Half::first ? first : second)[n]) {
        if (found_) break;
        for (const auto& [variable, trip] : trips) variables_[variable] = trip;
        statement_ = statement;
        moments_.push_back(now_);
        instruction(*statement);
      }
    }
    if (n + 1 < first.size()) barrier();
  }
  half_ = Half::both;
}

void Hazards::instruction(const Statement& statement) {
  const auto level = [&](ViewId view) {
    return program_.buffers[program_.views[view].buffer].level;
  };
  const auto load = [&](const void* key, RegisterId to, ViewId from,
                        const std::vector<Affine>& at) {
    const Layout& layout = program_.registers[to].layout;
    if (level(from) == Level::shared) {
      access(key, layout, from, at, false, false);
    } else if (!program_.buffers[program_.views[from].buffer].constant) {
      global(program_.views[from].buffer, layout, from, at, false);
    }
  };
  std::visit(
      Match{[&](const Load& i) {
              if (!i.remote) load(&i, i.to, i.from, i.at);
            },
            [&](const LoadMatrix& i) { load(&i, i.to, i.from, i.at); },
            [&](const LoadUnits& i) { load_units(i); },
            [&](const Store& i) {
              const Layout& layout = program_.registers[i.from].layout;
              if (level(i.to) == Level::shared) {
                access(&i, layout, i.to, i.at, true, false);
              } else {
                global(program_.views[i.to].buffer, layout, i.to, i.at, true);
              }
            },
            [&](const CopyAsync& i) { copy_async(i); },
            [&](const CopyOwn& i) {
              if (value(i.guard) < i.below) access(&i, i.to_layout, i.to, i.to_at, true, true);
            },
            [&](const CopyBulk& i) { copy_bulk(i); }, [&](const CopyRows& i) { copy_rows(i); },
            [&](const Commit&) { groups_.emplace_back(); },
            [&](const Wait& i) {
              note_reads();
              while (static_cast<int>(groups_.size()) - 1 > i.pending) {
                for (const Copy& copy : groups_.front()) {
                  for (std::int64_t g = copy.first; g < copy.first + copy.count; ++g) {
                    facts_[g].pending = false;
                    facts_[g].write_epoch = epoch_;
                    facts_[g].write_moment = static_cast<int>(moments_.size()) - 1;
                  }
                }
                groups_.erase(groups_.begin());
              }
            },
            [&](const Barrier&) { barrier(); },
            [&](const ClusterBarrier& i) {
              std::fill(initialised_.begin(), initialised_.end(), -1);
              if (!i.signals_only) barrier();
            },
            [&](const Ticket&) { barrier(); }, [&](const Reduce& i) { reduce(i); },
            [&](const SignalInit& i) {
              initialised_[i.signal] = epoch_;
              initialised_moment_[i.signal] = static_cast<int>(moments_.size()) - 1;
            },
            [&](const Expect& i) {
              if (initialised_[i.signal] > synchronised()) clash(initialised_moment_[i.signal]);
            },
            [&](const Arrive& i) {
              if (initialised_[i.signal] > synchronised()) clash(initialised_moment_[i.signal]);
              Phase& phase = phases_[i.signal][value(i.index)];
              if (i.by == Arrival::copies) {
                auto& open = groups_.back();
                phase.copies.insert(phase.copies.end(), open.begin(), open.end());
                open.clear();
              } else {
                phase.arrived_at = epoch_++;
              }
            },
            [&](const Await& i) {
              if (initialised_[i.signal] > synchronised()) clash(initialised_moment_[i.signal]);
              Phase& phase = phases_[i.signal][value(i.index)];
              if (phase.number % 2 != value(i.parity)) return;
              note_reads();
              for (const Copy& copy : phase.copies) {
                for (std::int64_t g = copy.first; g < copy.first + copy.count; ++g) {
                  facts_[g].pending = false;
                  facts_[g].write_epoch = synchronised();
                }
              }
              known_[role_] = std::max(known_[role_], phase.arrived_at);
              phase = {phase.number + 1, -1, {}};
            },
            [&](const MmaShared& i) { multiply(i); },
            [&](const MmaWait& i) { end_products(i.pending); },
            nothing(Group<TensorStore, TensorWait, TensorFence, TensorMma, TensorCommit,
                          TensorLoad>{}),  // first() refuses them
            [&](const FillTable& i) { plain_copy(i.to, 4); },
            [&](const FillWords& i) { plain_copy(i.to, 1); },
            [&](const CopyElements& i) {
              if (value(i.guard) < i.below) plain_copy(i.to, 2);
            },
            [&](const SplitDigits& i) {
              plain_copy(i.to, 4);
              barrier();
            },
            [&](const Lookup& i) { look_up(i.table); },
            [&](const LookupRelative& i) { look_up(i.table); },
            // Registers only, or the business of other checks.
            nothing(InRegisters{}), nothing(Nested{}),
            nothing(Group<Reinterpret, AtomicAdd, DependentLaunch, DependentWait, MatrixFence,
                          Priority>{})},
      statement.op);
}

}  // namespace ladder
