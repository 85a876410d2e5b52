// SPDX-License-Identifier: Apache-2.0
#include "program/passes/hazards.h"

#include <algorithm>
#include <set>

#include "base/error.h"
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
    }
  }
}

/// Sum of the digits of every number below their product.
std::vector<std::int64_t> sums(const std::vector<Digit>& digits,
                               const std::vector<std::int64_t>& weights) {
  std::vector<std::int64_t> out{0};
  for (const Digit& digit : digits) {
    std::vector<std::int64_t> next;
    for (auto sum : out) {
      for (std::int64_t v = 0; v < digit.extent; ++v) {
        next.push_back(sum + v * digit.stride * weights[digit.dim]);
      }
    }
    out = std::move(next);
  }
  return out;
}

}  // namespace

Hazards::Hazards(const Program& program) : program_(program), granule_(smallest_scalar(program)) {}

std::int64_t Hazards::granules(BufferId buffer) const {
  return program_.shared_offset(buffer) / granule_;
}

std::optional<Hazard> Hazards::first() {
  const auto block_numbers = block_variables();
  std::int64_t blocks = 1;
  for (auto variable : block_numbers) blocks *= program_.variables[variable].extent;
  if (blocks > kMostBlocks) {
    fail<Unsupported>("shared memory indexed by ", blocks,
                      " combinations of block numbers, of at "
                      "most ",
                      kMostBlocks);
  }
  for (std::int64_t block = 0; block < blocks && !found_; ++block) {
    variables_.assign(program_.variables.size(), 0);
    auto rest = block;
    for (auto variable : block_numbers) {
      variables_[variable] = rest % program_.variables[variable].extent;
      rest /= program_.variables[variable].extent;
    }
    facts_.assign((program_.shared_bytes() + granule_ - 1) / granule_, {});
    phases_.clear();
    for (const Signal& signal : program_.signals) phases_.emplace_back(signal.count);
    initialised_.assign(program_.signals.size(), -1);
    initialised_moment_.assign(program_.signals.size(), 0);
    written_.assign(program_.buffers.size(), {});
    read_ = written_;
    groups_.assign(1, {});
    looked_up_.clear();
    moments_.clear();
    now_ = {};
    epoch_ = 0;
    synchronised_ = -1;
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
                [&](const Load& i) {
                  if (!i.remote) at(i.from, i.at);
                },
                [&](const Store& i) { at(i.to, i.at); },
                [&](const LoadMatrix& i) { at(i.from, i.at); },
                [&](const CopyAsync& i) { at(i.to, {}), note(i.guard); },
                [&](const CopyOwn& i) { at(i.to, i.to_at), note(i.guard); },
                [&](const CopyBulk& i) { at(i.to, {i.index}), note(i.guard); },
                [&](const Await& i) { note(i.index), note(i.parity); },
                [&](const CopyElements& i) { at(i.to, {}); }, [](const auto&) {}},
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
    if (const auto* loop = std::get_if<For>(&statement.op)) {
      now_.trips.push_back(0);
      for (std::int64_t trip = 0; trip < loop->trips && !found_; ++trip) {
        now_.trips.back() = variables_[loop->variable] = trip;
        run(loop->body);
      }
      now_.trips.pop_back();
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      // Not every block comes here, so what is ordered within is not ordered after.
      const int before = synchronised_;
      now_.trips.push_back(0);
      run(branch->body);
      now_.trips.pop_back();
      synchronised_ = before;
    } else {
      statement_ = &statement;
      moments_.push_back(now_);
      instruction(statement);
    }
  }
  now_.path.pop_back();
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
  std::visit(Match{[&](const Load& i) {
                     if (!i.remote) load(&i, i.to, i.from, i.at);
                   },
                   [&](const LoadMatrix& i) { load(&i, i.to, i.from, i.at); },
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
                     if (value(i.guard) < i.below)
                       access(&i, i.to_layout, i.to, i.to_at, true, true);
                   },
                   [&](const CopyBulk& i) { copy_bulk(i); },
                   [&](const Commit&) { groups_.emplace_back(); },
                   [&](const Wait& i) {
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
                   [&](const Barrier&) { barrier(); }, [&](const ClusterBarrier&) { barrier(); },
                   [&](const Ticket&) { barrier(); }, [&](const Reduce& i) { reduce(i); },
                   [&](const SignalInit& i) {
                     initialised_[i.signal] = epoch_;
                     initialised_moment_[i.signal] = static_cast<int>(moments_.size()) - 1;
                   },
                   [&](const Expect& i) {
                     if (initialised_[i.signal] > synchronised_)
                       clash(initialised_moment_[i.signal]);
                   },
                   [&](const Arrive& i) {
                     if (initialised_[i.signal] > synchronised_)
                       clash(initialised_moment_[i.signal]);
                     phases_[i.signal][value(i.index)].arrived_at = epoch_++;
                   },
                   [&](const Await& i) {
                     if (initialised_[i.signal] > synchronised_)
                       clash(initialised_moment_[i.signal]);
                     Phase& phase = phases_[i.signal][value(i.index)];
                     if (phase.number % 2 != value(i.parity)) return;
                     for (const Copy& copy : phase.copies) {
                       for (std::int64_t g = copy.first; g < copy.first + copy.count; ++g) {
                         facts_[g].pending = false;
                         facts_[g].write_epoch = synchronised_;
                       }
                     }
                     synchronised_ = std::max(synchronised_, phase.arrived_at);
                     phase = {phase.number + 1, -1, {}};
                   },
                   [&](const FillTable& i) { plain_copy(i.to, table_entries(i.bits), kLanes, 4); },
                   [&](const CopyElements& i) {
                     const View& to = program_.views[i.to];
                     plain_copy(i.to, to.extents[0], to.extents[1], 2);
                   },
                   [&](const Lookup& i) { lookup(i); },
                   // Registers only, or the business of other checks.
                   [](const Unpack&) {}, [](const UnpackFloat&) {}, [](const ZeroOperand&) {},
                   [](const Offset&) {}, [](const Multiply&) {}, [](const Mma&) {},
                   [](const Fill&) {}, [](const Reinterpret&) {}, [](const Scale&) {},
                   [](const Add&) {}, [](const Cast&) {}, [](const Unary&) {}, [](const Binary&) {},
                   [](const AtomicAdd&) {}, [](const DependentLaunch&) {},
                   [](const DependentWait&) {}, [](const For&) {}, [](const If&) {}},
             statement.op);
}

void Hazards::clash(int before) {
  if (!found_) found_ = Hazard{moments_[before], now_, to_string(program_, *statement_)};
}

void Hazards::touch(std::int64_t granule, int thread, bool write, bool pending) {
  Facts& facts = facts_[granule];
  const int moment = static_cast<int>(moments_.size()) - 1;
  if (facts.writer != kNobody && facts.writer != thread && !facts.pending &&
      facts.write_epoch > synchronised_) {
    clash(facts.write_moment);
  }
  const bool fresh = facts.reader != kNobody && facts.read_epoch > synchronised_;
  if (write) {
    if (fresh && facts.reader != thread) clash(facts.read_moment);
    facts = {thread, kNobody, epoch_, 0, moment, 0, pending};
  } else {
    facts.reader = !fresh || facts.reader == thread ? thread : kSeveral;
    facts.read_epoch = epoch_;
    facts.read_moment = moment;
  }
}

/// The extent of a dimension that the call decides, from how far its memory reaches.
std::int64_t Hazards::limit(const View& view, std::size_t d) const {
  auto within = program_.buffers[view.buffer].elements;
  for (auto stride : view.strides) {
    if (stride > view.strides[d]) within = std::min(within, stride);
  }
  return within / view.strides[d];
}

const Hazards::Footprint& Hazards::footprint(const void* key, const Layout& layout,
                                             const View& view) {
  const auto known = footprints_.find(key);
  if (known != footprints_.end()) return known->second;
  Footprint out{{sums(layout.threads, view.strides), sums(layout.slots, view.strides)}, {}};
  for (std::size_t d = 0; d < view.extents.size(); ++d) {
    if (view.extents[d] != kTokens) continue;
    std::vector<std::int64_t> only(view.strides.size(), 0);
    only[d] = 1;
    out.bounded.push_back({{sums(layout.threads, only), sums(layout.slots, only)}, limit(view, d)});
  }
  return footprints_.emplace(key, std::move(out)).first->second;
}

std::int64_t Hazards::place(const View& view) const {
  return granules(view.buffer) +
         value(view.offset) * (bytes_of(program_.buffers[view.buffer].scalar) / granule_);
}

void Hazards::access(const void* key, const Layout& layout, ViewId id,
                     const std::vector<Affine>& at, bool write, bool pending) {
  const View& view = program_.views[id];
  const Footprint& tile = footprint(key, layout, view);
  const std::int64_t width = bytes_of(program_.buffers[view.buffer].scalar) / granule_;
  std::int64_t origin = 0;
  for (std::size_t d = 0; d < at.size(); ++d) origin += value(at[d]) * view.strides[d];
  for (std::size_t thread = 0; thread < tile.elements.threads.size(); ++thread) {
    for (std::size_t slot = 0; slot < tile.elements.slots.size(); ++slot) {
      const bool outside =
          std::any_of(tile.bounded.begin(), tile.bounded.end(), [&](const auto& bound) {
            return bound.first.threads[thread] + bound.first.slots[slot] >= bound.second;
          });
      if (outside) continue;
      const auto first =
          place(view) +
          (origin + tile.elements.threads[thread] + tile.elements.slots[slot]) * width;
      LADDER_CHECK(first >= 0 && first + width <= static_cast<std::int64_t>(facts_.size()),
                   "an access outside shared memory, in: ", to_string(program_, *statement_));
      for (std::int64_t g = first; g < first + width; ++g) {
        touch(g, static_cast<int>(thread), write, pending);
      }
      if (pending) groups_.back().push_back({first, width});
      if (found_) return;
    }
  }
}

void Hazards::copy_async(const CopyAsync& i) {
  if (value(i.guard) >= i.below) return;
  const View& to = program_.views[i.to];
  const int size = bytes_of(program_.buffers[to.buffer].scalar);
  const std::int64_t pieces = to.extents[1] * size / 16, width = 16 / granule_;
  for (std::int64_t piece = 0; piece < to.extents[0] * pieces; ++piece) {
    const auto first =
        place(to) + piece / pieces * to.strides[0] * (size / granule_) + piece % pieces * width;
    for (std::int64_t g = first; g < first + width; ++g) {
      touch(g, static_cast<int>(piece % program_.threads), true, true);
    }
    groups_.back().push_back({first, width});
  }
}

// Rows in pieces of `run` elements, one after the other by one thread after the other.
void Hazards::plain_copy(ViewId id, std::int64_t rows, std::int64_t columns, std::int64_t run) {
  const View& to = program_.views[id];
  const std::int64_t width = bytes_of(program_.buffers[to.buffer].scalar) / granule_;
  for (std::int64_t piece = 0; piece < rows * columns / run; ++piece) {
    const auto row = piece / (columns / run), column = piece % (columns / run) * run;
    const auto first = place(to) + (row * to.strides[0] + column) * width;
    for (auto g = first; g < first + run * width; ++g) {
      touch(g, static_cast<int>(piece % program_.threads), true, false);
    }
  }
}

// Which entries a thread reads depends on the codes: all of them, by all threads, once until the
// next barrier.
void Hazards::lookup(const Lookup& i) {
  int& looked = looked_up_.emplace(i.table, -1).first->second;
  if (looked == epoch_) return;
  looked = epoch_;
  const View& table = program_.views[i.table];
  const auto size = table_entries(i.bits) * kLanes * 4 / granule_;
  for (std::int64_t g = place(table); g < place(table) + size; ++g) {
    touch(g, kSeveral, false, false);
  }
}

void Hazards::copy_bulk(const CopyBulk& i) {
  if (value(i.guard) >= i.below) return;
  const View& to = program_.views[i.to];
  const int width = bytes_of(program_.buffers[to.buffer].scalar) / granule_;
  std::vector<std::int64_t> ones(to.strides.size(), 1);
  std::vector<Digit> digits;
  for (std::size_t d = 0; d < to.extents.size(); ++d) {
    digits.push_back({static_cast<int>(d), to.extents[d], to.strides[d]});
  }
  auto& phase = phases_[i.signal][value(i.index)];
  for (auto element : sums(digits, ones)) {
    const auto first = place(to) + element * width;
    for (auto g = first; g < first + width; ++g) touch(g, kEngine, true, true);
    phase.copies.push_back({first, width});
  }
}

// Each thread writes its own words of the scratch memory; two barriers follow.
void Hazards::reduce(const Reduce& i) {
  if (i.scratch < 0) return;
  const auto slots = program_.registers[i.to].layout.slot_count();
  const std::int64_t width = 4 / granule_;
  for (std::int64_t word = 0; word < slots * program_.threads; ++word) {
    for (std::int64_t g = 0; g < width; ++g) {
      touch(granules(i.scratch) + word * width + g, static_cast<int>(word % program_.threads), true,
            false);
    }
  }
  barrier();
}

// By whole buffers, except that equal tiles at equal places have equal threads.
void Hazards::global(BufferId buffer, const Layout& layout, ViewId view,
                     const std::vector<Affine>& at, bool write) {
  const int moment = static_cast<int>(moments_.size()) - 1;
  const auto meets = [&](const GlobalUse& use) {
    return use.epoch > synchronised_ &&
           !(use.view == view && *use.layout == layout && use.at == at);
  };
  if (meets(written_[buffer]) && !write) clash(written_[buffer].moment);
  if (write && meets(read_[buffer])) clash(read_[buffer].moment);
  (write ? written_ : read_)[buffer] = {epoch_, moment, &layout, view, at};
}

}  // namespace ladder
