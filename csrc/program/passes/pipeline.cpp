// SPDX-License-Identifier: Apache-2.0
//
// A loop that waits for what it copied becomes one that waits for what it copied trips before:
//
//     for i:  copy(i)  wait  compute        copy(0) .. copy(stages - 2)
//                                           for i:  wait  copy(i + stages - 1)  compute
//
// Every buffer that is copied to becomes a ring; trip i uses part i % stages. The copies come
// after the wait, so that one barrier between them serves both: it shows what trip i waited for,
// and says that trip i - 1 no longer needs the part that is now overwritten.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/integers.h"
#include "program/passes.h"

namespace ladder {
namespace {

using Body = std::vector<Statement>;

/// `affine` with `variable` replaced by `value`, itself plus a number or a number.
Affine substituted(const Affine& affine, VariableId variable, const Affine& value) {
  Affine out = affine.constant;
  for (Affine::Term term : affine.terms) {
    if (term.variable != variable) {
      out.terms.push_back(term);
    } else if (value.terms.empty()) {
      out.constant += term.at(value.constant);
    } else {
      term.offset += value.constant;
      out.terms.push_back(term);
    }
  }
  return out;
}

class Pipeline {
 public:
  Pipeline(Program& program, int stages) : program_(program), stages_(stages) {}

  void run() { run(program_.body, false); }

 private:
  void run(Body& body, bool in_loop) {
    for (std::size_t s = 0; s < body.size(); ++s) {
      if (auto* branch = std::get_if<If>(&body[s].op)) run(branch->body, in_loop);
      if (auto* part = std::get_if<Within>(&body[s].op)) run(part->body, in_loop);
      auto* loop = std::get_if<For>(&body[s].op);
      if (loop == nullptr) continue;
      if (!begins_with_copies(*loop, in_loop)) {
        run(loop->body, true);
        continue;
      }
      Body around = pipelined(std::move(*loop));
      body.erase(body.begin() + static_cast<std::ptrdiff_t>(s));
      body.insert(body.begin() + static_cast<std::ptrdiff_t>(s), around.begin(), around.end());
      s += around.size() - 1;
    }
  }

  /// Sorts the beginning of the body into copies_, waits and the rest; false when it has another
  /// form.
  bool begins_with_copies(const For& loop, bool in_loop) {
    copies_.clear();
    bool async = false, bulk = false, waited = false;
    rest_ = 0;
    for (const Statement& s : loop.body) {
      const bool waits = std::holds_alternative<Wait>(s.op) || std::holds_alternative<Await>(s.op);
      const bool copies = std::holds_alternative<CopyAsync>(s.op) ||
                          std::holds_alternative<CopyBulk>(s.op) ||
                          std::holds_alternative<Expect>(s.op);
      if (!waits && !copies && !std::holds_alternative<Commit>(s.op) &&
          !std::holds_alternative<Barrier>(s.op)) {
        break;
      }
      ++rest_;
      if (copies && waited) return false;
      waited = waited || waits;
      if (copies) copies_.push_back(s);
      async = async || std::holds_alternative<CopyAsync>(s.op);
      bulk = bulk || std::holds_alternative<CopyBulk>(s.op);
    }
    if (!waited || async == bulk || has_copies(loop.body, rest_)) return false;
    // Run again, a signal would go on counting phases where it stopped.
    if ((bulk && in_loop) || !alone(loop)) return false;
    return std::all_of(copies_.begin(), copies_.end(), [&](const Statement& s) {
      const auto plain = [](const Affine& guard) { return guard == Affine(0); };
      if (const auto* i = std::get_if<CopyAsync>(&s.op)) return plain(i->guard);
      if (const auto* i = std::get_if<CopyBulk>(&s.op)) return plain(i->guard);
      return plain(std::get<Expect>(s.op).guard);
    });
  }

  /// True when nothing else in the program has to do with the loop's buffers and signals.
  bool alone(const For& loop) const {
    std::map<BufferId, int> inside, everywhere;
    std::map<SignalId, int> inside_signals, all_signals;
    count_uses(loop.body, inside, inside_signals);
    count_uses(program_.body, everywhere, all_signals);
    return std::all_of(copies_.begin(), copies_.end(), [&](const Statement& s) {
      const auto own = [&](ViewId view) {
        const auto buffer = program_.views[view].buffer;
        return inside.at(buffer) == everywhere.at(buffer);
      };
      if (const auto* i = std::get_if<CopyAsync>(&s.op)) return own(i->to);
      if (const auto* i = std::get_if<CopyBulk>(&s.op)) return own(i->to);
      const auto signal = std::get<Expect>(s.op).signal;
      return inside_signals.at(signal) == all_signals.at(signal);
    });
  }

  void count_uses(const Body& body, std::map<BufferId, int>& buffers,
                  std::map<SignalId, int>& signals) const {
    const auto view = [&](ViewId id) { ++buffers[program_.views[id].buffer]; };
    for (const Statement& s : body) {
      std::visit(
          Match{[&](const For& i) { count_uses(i.body, buffers, signals); },
                [&](const If& i) { count_uses(i.body, buffers, signals); },
                [&](const Within& i) { count_uses(i.body, buffers, signals); },
                [&](const Produce& i) { count_uses(i.body, buffers, signals); },
                [&](const Alternate& i) { count_uses(i.body, buffers, signals); },
                [&](const Load& i) { view(i.from); }, [&](const Store& i) { view(i.to); },
                [&](const LoadMatrix& i) { view(i.from); },
                [&](const MmaShared& i) { view(i.from); },
                [&](const TensorMma& i) { view(i.from); }, nothing(InTensorMemory{}),
                [&](const TensorCommit& i) { ++signals[i.signal]; },
                [&](const LoadUnits& i) { view(i.from); }, [&](const CopyAsync& i) { view(i.to); },
                [&](const CopyOwn& i) { view(i.to); }, [&](const CopyElements& i) { view(i.to); },
                [&](const SplitDigits& i) { view(i.to); },
                [&](const CopyBulk& i) { view(i.to), ++signals[i.signal]; },
                [&](const CopyRows& i) { view(i.to), ++signals[i.signal]; },
                [&](const Expect& i) { ++signals[i.signal]; },
                [&](const Arrive& i) { ++signals[i.signal]; },
                [&](const Await& i) { ++signals[i.signal]; }, nothing(InRegisters{}),
                nothing(InTime{}),
                // None of them is of what a loop's copies bring.
                nothing(OnTables{}),
                nothing(Group<Reinterpret, SignalInit, Reduce, AtomicAdd, Ticket>{})},
          s.op);
    }
  }

  /// True when copies of another loop's making follow.
  static bool has_copies(const Body& body, std::size_t from) {
    return std::any_of(
        body.begin() + static_cast<std::ptrdiff_t>(from), body.end(), [](const Statement& s) {
          if (const auto* loop = std::get_if<For>(&s.op)) return has_copies(loop->body, 0);
          if (std::holds_alternative<Produce>(s.op)) return true;
          return std::holds_alternative<CopyAsync>(s.op) || std::holds_alternative<CopyOwn>(s.op) ||
                 std::holds_alternative<CopyBulk>(s.op) || std::holds_alternative<CopyRows>(s.op) ||
                 std::holds_alternative<Commit>(s.op) || std::holds_alternative<Wait>(s.op);
        });
  }

  Body pipelined(For loop) {
    widen_buffers();
    const auto trip = Affine::of(loop.variable);
    const bool bulk = std::any_of(copies_.begin(), copies_.end(), [](const Statement& s) {
      return std::holds_alternative<CopyBulk>(s.op);
    });
    Body out, body;
    if (!bulk) {
      for (int ahead = 0; ahead + 1 < stages_; ++ahead) {
        if (ahead < loop.trips) copy(out, loop, ahead);
        out.push_back({Commit{}});
      }
      body.push_back({Wait{stages_ - 2}});
      copy(body, loop, trip + Affine(stages_ - 1));
      body.push_back({Commit{}});
    } else {
      for (int ahead = 0; ahead + 1 < stages_ && ahead < loop.trips; ++ahead) {
        copy(out, loop, ahead);
      }
      for (std::size_t s = 0; s < rest_; ++s) {
        if (auto* await = std::get_if<Await>(&loop.body[s].op)) {
          body.push_back({Await{await->signal, ring(trip), parity(trip)}});
        }
      }
      copy(body, loop, trip + Affine(stages_ - 1));
    }
    for (std::size_t s = rest_; s < loop.body.size(); ++s) {
      body.push_back(moved(std::move(loop.body[s]), trip));
    }
    loop.body = std::move(body);
    out.push_back({std::move(loop)});
    return out;
  }

  Affine ring(const Affine& trip) const { return remainder(trip, stages_); }
  Affine parity(const Affine& trip) const { return remainder(divided(trip, stages_), 2); }

  /// Buffers that the copies write, and signals that they use, get one part per stage.
  void widen_buffers() {
    parts_.clear();
    std::set<SignalId> signals;
    for (const Statement& s : copies_) {
      if (const auto* i = std::get_if<CopyAsync>(&s.op)) widen(i->to);
      if (const auto* i = std::get_if<CopyBulk>(&s.op)) widen(i->to);
      if (const auto* i = std::get_if<Expect>(&s.op)) signals.insert(i->signal);
    }
    for (SignalId id : signals) program_.signals[id].count = stages_;
  }

  void widen(ViewId view) {
    const BufferId id = program_.views[view].buffer;
    if (parts_.contains(id)) return;
    Buffer& buffer = program_.buffers[id];
    // Parts begin at whole 128 bytes, as buffers do.
    const std::int64_t granule = 128 / bytes_of(buffer.scalar);
    const auto part = round_up(buffer.elements, granule);
    buffer.elements = part * stages_;
    parts_[id] = part;
  }

  /// The view of the part that `trip` uses; `view` itself when its buffer is none of the ring.
  ViewId part_of(ViewId view, const Affine& trip) {
    const View& whole = program_.views[view];
    const auto part = parts_.find(whole.buffer);
    if (part == parts_.end()) return view;
    View moved = whole;
    moved.offset = moved.offset + times(ring(trip), part->second);
    for (std::size_t id = 0; id < program_.views.size(); ++id) {
      const View& other = program_.views[id];
      if (other.buffer == moved.buffer && other.extents == moved.extents &&
          other.strides == moved.strides && other.offset == moved.offset) {
        return static_cast<ViewId>(id);
      }
    }
    program_.views.push_back(std::move(moved));
    return static_cast<ViewId>(program_.views.size() - 1);
  }

  /// The copies of trip `trip`, a number or the loop's variable plus a number.
  void copy(Body& out, const For& loop, const Affine& trip) {
    const auto now = [&](const Affine& affine) { return substituted(affine, loop.variable, trip); };
    const auto limit = [&](auto& i) {
      if (!trip.terms.empty()) i.guard = trip, i.below = loop.trips;
    };
    for (const Statement& s : copies_) {
      if (auto* i = std::get_if<CopyAsync>(&s.op)) {
        CopyAsync moved = *i;
        for (Affine& at : moved.at) at = now(at);
        moved.to = part_of(moved.to, trip);
        limit(moved);
        out.push_back({std::move(moved)});
      } else if (auto* i = std::get_if<CopyBulk>(&s.op)) {
        CopyBulk moved = *i;
        for (Affine& at : moved.at) at = now(at);
        moved.to = part_of(moved.to, trip);
        moved.index = ring(trip);
        limit(moved);
        out.push_back({std::move(moved)});
      } else {
        Expect moved = std::get<Expect>(s.op);
        moved.index = ring(trip);
        limit(moved);
        out.push_back({std::move(moved)});
      }
    }
  }

  /// A statement of the loop's body that reads the part of its trip.
  Statement moved(Statement statement, const Affine& trip) {
    if (auto* i = std::get_if<Load>(&statement.op)) i->from = part_of(i->from, trip);
    if (auto* i = std::get_if<LoadMatrix>(&statement.op)) i->from = part_of(i->from, trip);
    if (auto* i = std::get_if<LoadUnits>(&statement.op)) i->from = part_of(i->from, trip);
    if (auto* i = std::get_if<MmaShared>(&statement.op)) i->from = part_of(i->from, trip);
    if (auto* i = std::get_if<TensorMma>(&statement.op)) i->from = part_of(i->from, trip);
    if (auto* i = std::get_if<Store>(&statement.op)) i->to = part_of(i->to, trip);
    const auto inner = [&](Body& body) {
      for (Statement& s : body) s = moved(std::move(s), trip);
    };
    if (auto* i = std::get_if<For>(&statement.op)) inner(i->body);
    if (auto* i = std::get_if<If>(&statement.op)) inner(i->body);
    if (auto* i = std::get_if<Within>(&statement.op)) inner(i->body);
    return statement;
  }

  Program& program_;
  const int stages_;
  Body copies_;                             // of the loop at hand, Expects included
  std::size_t rest_ = 0;                    // where its body goes on after them
  std::map<BufferId, std::int64_t> parts_;  // elements of one part of a ring
};

}  // namespace

Program with_pipeline(Program program, int stages) {
  LADDER_REQUIRE(stages >= 1, "a pipeline of ", stages, " stages");
  if (stages > 1) Pipeline(program, stages).run();
  return program;
}

}  // namespace ladder
