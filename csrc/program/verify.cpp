// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/joined.h"
#include "program/check.h"
#include "program/program.h"

namespace ladder {
namespace {

class Verifier {
 public:
  explicit Verifier(const Program& program) : program_(program) {}

  void run(std::int64_t max_shared_bytes) {
    if (program_.shared_bytes() > max_shared_bytes) {
      fault(joined(program_.shared_bytes(), " bytes of shared memory, of ", max_shared_bytes));
    }
    for (const Register& reg : program_.registers) check_register(reg);
    for (const View& view : program_.views) check_view(view);
    if (program_.items) check_items(*program_.items);
    if (program_.first_token) check_first_token(*program_.first_token);
    if (program_.tail) check_tail(*program_.tail);
    if (program_.roles) {
      check_roles(*program_.roles);
      check_meetings();
    }
    constexpr std::int64_t kMostColumns = 512;  // of a multiprocessor: PTX ISA
    if (const auto columns = program_.tensor_columns(); columns > kMostColumns) {
      fault(joined(columns, " columns of tensor memory, of ", kMostColumns));
    }
    body(program_.body);
    if (alternates_ && faults_.str().empty()) {
      for (const std::string& text : check_phases(program_)) fault(text);
    }
    if (!faults_.str().empty()) {
      fail<InternalError>("program ", program_.name, " is not well formed:", faults_.str());
    }
  }

 private:
  void fault(const std::string& text) { faults_ << "\n  " << text; }

  void check_register(const Register& reg) {
    if (reg.width < 0 || reg.width > 31 || (reg.width != 0 && reg.scalar != Scalar::u32)) {
      fault(joined(reg.name, " has elements of ", reg.width, " bits of ", name_of(reg.scalar)));
    }
    if (reg.layout.thread_count() != program_.threads) {
      fault(joined(reg.name, " is spread over ", reg.layout.thread_count(), " threads of ",
                   program_.threads));
    }
  }

  void check_view(const View& view) {
    const Buffer& buffer = program_.buffers[view.buffer];
    if (view.extents.size() != view.strides.size()) {
      fault(joined("a view of ", buffer.name, " has ", view.extents.size(), " extents and ",
                   view.strides.size(), " strides"));
      return;
    }
    if (view.windows) check_windows(view);
    if (view.is_swizzled && buffer.alignment % kSwizzleAlignment != 0) {
      fault(joined(buffer.name, " is swizzled at multiples of ", buffer.alignment, " bytes"));
    }
    if (buffer.level != Level::shared) return;
    std::int64_t last = 0;
    for (std::size_t d = 0; d < view.extents.size(); ++d) {
      if (view.extents[d] != kTokens) last += (view.extents[d] - 1) * view.strides[d];
    }
    const auto offset = range_of(program_, view.offset);
    if (offset.low < 0 || offset.high + last >= buffer.elements) {
      fault(joined("a view of ", buffer.name, " reaches element ", offset.high + last, " of ",
                   buffer.elements));
    }
  }

  /// Rows of all items are counted, so that there are such.
  void check_windows(const View& view) {
    const Buffer& buffer = program_.buffers[view.buffer];
    const std::vector<std::int64_t> extents{kTokens, view.windows->columns()};
    if (buffer.level != Level::global || view.extents != extents || view.offset != Affine(0) ||
        !program_.items || program_.items->table >= 0 || program_.items->weights != 1) {
      fault(joined(buffer.name, " is no images of which items of one weight have windows"));
    }
  }

  /// The blocks of a cluster end together, and so do all that add to the same sums.
  void check_first_token(const Affine& first) {
    const bool by_tile = std::ranges::all_of(
        first.terms, [](const Affine::Term& term) { return term.variable == kTile; });
    if (!by_tile || program_.tiles_in_cluster) {
      fault("blocks of a cluster, or splits of a tile, begin at different tokens");
    }
    if (range_of(program_, first).low < 0) fault("a block begins before the first token");
  }

  void check_tail(const Tail& tail) {
    const auto splits = program_.variables[kSplit].extent, tiles = program_.variables[kTile].extent;
    if (splits < 2 || tail.first < 0 || tail.first >= tiles) {
      fault(joined("a tail of ", splits, " blocks for each tile from ", tail.first, " on, of ",
                   tiles));
    }
    const auto is = [&](VariableId id, std::int64_t extent) {
      return id > kRank && program_.variables[id].extent == extent;
    };
    if (!is(tail.is_tail, 2) || !is(tail.tile, tiles - tail.first)) {
      fault("no variables say which blocks are in the tail, and in which of its tiles");
    }
    if (program_.cluster > 1 || program_.items) fault("a tail of clusters or items");
  }

  /// Accesses count on the alignment of buffers, and of rows where views have tokens.
  void check_items(const Items& items) {
    if (items.table >= 0) {
      const Buffer& table = program_.buffers[items.table];
      if (table.level != Level::global || table.scalar != Scalar::u32 || !table.constant) {
        fault(joined(table.name, " is no table of items"));
      }
    } else if (items.weights < 1 || items.rows < 1) {
      fault(joined("items of ", items.rows, " rows of ", items.weights, " weights"));
    }
    const auto tiles = program_.variables[kTile].extent;
    if (items.together < 1 || tiles % items.together != 0 ||
        (items.together > 1 && program_.tiles_in_cluster)) {
      fault(joined(items.together, " items together, of ", tiles, " blocks"));
    }
    for (const auto& [id, by, elements] : items.shifts) {
      const Buffer& buffer = program_.buffers[id];
      if (buffer.level != Level::global || elements <= 0) {
        fault(joined(buffer.name, " of an item begins ", elements, " elements further"));
      }
      if (by != Items::By::row) {
        if (elements * bytes_of(buffer.scalar) % kItemAlignment != 0) {
          fault(joined(buffer.name, " of an item begins at no multiple of ", kItemAlignment,
                       " bytes"));
        }
        continue;
      }
      for (const View& view : program_.views) {
        if (view.buffer != id) continue;
        for (std::size_t d = 0; d < view.extents.size(); ++d) {
          if (view.extents[d] == kTokens && view.strides[d] != elements) {
            fault(joined("rows of ", buffer.name, " are ", elements, " elements apart, and ",
                         view.strides[d], " in a view"));
          }
        }
      }
    }
  }

  /// Registers are divided by warpgroups, in portions of 8.
  void check_roles(const Roles& roles) {
    constexpr int kWarpgroup = 128, kPortion = 8, kFewest = 24, kMost = 256;
    if (roles.producers <= 0 || roles.producers % kWarpgroup != 0 ||
        program_.threads % kWarpgroup != 0) {
      fault(joined(program_.threads, " consumers and ", roles.producers,
                   " producers are no warpgroups"));
    }
    for (const int count : {roles.producer_registers, roles.consumer_registers}) {
      if (count % kPortion != 0 || count < kFewest || count > kMost) {
        fault(
            joined(count, " registers of a role, not ", kFewest, " to ", kMost, " by ", kPortion));
      }
    }
    if (roles.producer_registers > roles.consumer_registers) {
      fault(joined("producers give no registers back: they have ", roles.producer_registers,
                   ", consumers ", roles.consumer_registers));
    }
  }

  /// What meets all threads that have not ended would wait for producers, which wait for consumers:
  /// not before the last of what producers do.
  void check_meetings() {
    std::size_t last = program_.body.size();
    while (last > 0 && !has_producers(program_.body[last - 1])) --last;
    for (auto s = common_statements(program_); s < last; ++s) check_meeting(program_.body[s]);
  }

  void check_meeting(const Statement& s) {
    const bool meets = std::visit(
        Match{answer(Group<Ticket, ClusterBarrier, Reduce, SplitDigits, JoinDigits>{}, true),
              [](const auto&) { return false; }},
        s.op);
    if (meets) fault(joined("consumers would wait for producers, in: ", to_string(program_, s)));
    std::visit(
        [&](const auto& i) {
          if constexpr (requires { i.body; }) {
            for (const Statement& inner : i.body) check_meeting(inner);
          }
        },
        s.op);
  }

  void check_alone(const Statement& s) {
    const auto* barrier = std::get_if<Barrier>(&s.op);
    if ((barrier != nullptr && barrier->half != Half::both) ||
        std::holds_alternative<Priority>(s.op)) {
      fault(joined("no halves that alternate, in: ", to_string(program_, s)));
    }
  }

  /// Producers have loops only in common with consumers: `produces` where they may have a part.
  void body(const std::vector<Statement>& statements, bool produces = true) {
    for (const Statement& statement : statements) {
      const Faults faults =
          std::visit([&](const auto& i) { return check(program_, i); }, statement.op);
      for (const std::string& text : faults) {
        fault(joined(text, ", in: ", to_string(program_, statement)));
      }
      if (const auto* loop = std::get_if<For>(&statement.op)) body(loop->body, produces);
      if (const auto* branch = std::get_if<If>(&statement.op)) body(branch->body, false);
      if (const auto* part = std::get_if<Within>(&statement.op)) body(part->body, false);
      if (const auto* part = std::get_if<Alternate>(&statement.op)) {
        if (std::exchange(alternates_, true)) fault("halves alternate twice");
        const bool outer = std::exchange(alternating_, true);
        body(part->body, false);
        alternating_ = outer;
      }
      if (!alternating_) check_alone(statement);
      if (const auto* part = std::get_if<Produce>(&statement.op)) {
        if (!produces) fault("producers take part in something else than loops");
        body(part->body, false);
      }
    }
  }

  const Program& program_;
  std::ostringstream faults_;
  bool alternates_ = false, alternating_ = false;  // somewhere, and here
};

}  // namespace

void verify(const Program& program, std::int64_t max_shared_bytes) {
  Verifier(program).run(max_shared_bytes);
}

}  // namespace ladder
