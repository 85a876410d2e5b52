// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "layout/weight_image.h"
#include "program/check.h"

namespace ladder {
namespace {

constexpr std::int64_t kBulkGranule = 16;          // bytes, of addresses and sizes
constexpr std::int64_t kMaxTransaction = 1 << 20;  // bytes that an mbarrier can count

void check_sides(const Buffer& to, const Buffer& from, Faults& faults) {
  if (to.level != Level::shared || from.level != Level::global) {
    add(faults, "copies go from global to shared memory");
  }
  if (to.scalar != from.scalar) add(faults, "the two sides differ in their scalar");
}

}  // namespace

void check_index(const Program& program, SignalId id, const Affine& index, Faults& faults) {
  const Signal& signal = program.signals[id];
  const auto range = range_of(program, index);
  if (range.low < 0 || range.high >= signal.count) {
    add(faults, "mbarrier ", range.high, " of ", signal.count, " of ", signal.name);
  }
}

Faults check(const Program& program, const For& i) {
  Faults faults;
  if (const auto extent = program.variables[i.variable].extent; i.trips != extent) {
    add(faults, i.trips, " trips of a variable of ", extent);
  }
  if (i.tail_trips < 0 || i.tail_trips > i.trips) {
    add(faults, i.tail_trips, " trips in the tail, of ", i.trips);
  }
  if (i.tail_trips > 0 && (!program.tail || i.unroll == 0)) {
    add(faults, i.tail_trips, " trips of a tail that ", program.tail ? "is written out" : "is not");
  }
  return faults;
}

Faults check(const Program& program, const Within& i) {
  Faults faults;
  check_access(program, program.registers[i.tile], i.view, i.at, faults);
  const auto allowed = [&](const auto& self, const std::vector<Statement>& body) -> bool {
    return std::ranges::all_of(body, [&](const Statement& s) {
      if (const auto* loop = std::get_if<For>(&s.op)) return self(self, loop->body);
      return std::holds_alternative<Load>(s.op) || std::holds_alternative<Store>(s.op) ||
             std::holds_alternative<Add>(s.op) || std::holds_alternative<Multiply>(s.op) ||
             std::holds_alternative<Gate>(s.op) || std::holds_alternative<Activate>(s.op) ||
             std::holds_alternative<ToCodes>(s.op) || std::holds_alternative<Cast>(s.op);
    });
  };
  if (!allowed(allowed, i.body)) add(faults, "what all threads must take part in");
  return faults;
}

Faults check(const Program& program, const Produce& i) {
  Faults faults;
  if (!program.roles) add(faults, "no producers");
  for (const Statement& s : i.body) {
    if (!std::holds_alternative<CopyAsync>(s.op) && !std::holds_alternative<Arrive>(s.op) &&
        !std::holds_alternative<Await>(s.op)) {
      add(faults, "what producers do not do: ", to_string(program, s));
    }
  }
  return faults;
}

Faults check(const Program& program, const Ticket& i) {
  Faults faults;
  if (const auto extent = program.variables[i.result].extent; i.expected != extent) {
    add(faults, i.expected, " blocks and a variable of ", extent);
  }
  return faults;
}

Faults check(const Program& program, const ClusterBarrier&) {
  Faults faults;
  if (program.cluster == 1) add(faults, "no cluster");
  return faults;
}

Faults check(const Program& program, const SignalInit& i) {
  Faults faults;
  const Signal& signal = program.signals[i.signal];
  if (program.roles && signal.arrivals == program.roles->producers) return faults;
  if (signal.arrivals != 1 && signal.arrivals != program.threads &&
      signal.arrivals != program.threads + 1) {
    add(faults, signal.arrivals, " arrivals, not 1, ", program.threads, " or ",
        program.threads + 1);
  }
  return faults;
}

Faults check(const Program& program, const Expect& i) {
  Faults faults;
  check_index(program, i.signal, i.index, faults);
  if (i.bytes < 1 || i.bytes >= kMaxTransaction) {
    add(faults, i.bytes, " bytes, not 1 to ", kMaxTransaction - 1);
  }
  return faults;
}

Faults check(const Program& program, const Arrive& i) {
  Faults faults;
  check_index(program, i.signal, i.index, faults);
  return faults;
}

Faults check(const Program& program, const Await& i) {
  Faults faults;
  check_index(program, i.signal, i.index, faults);
  const auto parity = range_of(program, i.parity);
  if (parity.low < 0 || parity.high > 1) add(faults, "parity ", parity.high);
  return faults;
}

Faults check(const Program& program, const CopyBulk& i) {
  Faults faults;
  check_index(program, i.signal, i.index, faults);
  check_sides(buffer_of(program, i.to), buffer_of(program, i.from), faults);
  const View &to = program.views[i.to], &from = program.views[i.from];
  const Scalar scalar = buffer_of(program, i.to).scalar;
  const auto rank = to.extents.size();
  if (rank == 0 || from.extents.size() != rank || i.at.size() != rank) {
    add(faults, "a tile of rank ", rank, " at ", i.at.size(), " coordinates of a view of rank ",
        from.extents.size());
    return faults;
  }
  const auto granule = kBulkGranule / bytes_of(scalar);
  bool aligned = multiple_of(to.offset, granule) && multiple_of(from.offset, granule) &&
                 to.strides.back() == 1 && from.strides.back() == 1;
  for (std::size_t d = 0; d < rank; ++d) {
    if (to.extents[d] == kTokens || from.extents[d] == kTokens) {
      add(faults, "an extent that the call decides");
      continue;
    }
    const auto at = range_of(program, i.at[d]);
    // A guard keeps the last trips from starting what would lie outside.
    if (i.guard == Affine(0) && (at.low < 0 || at.high + to.extents[d] > from.extents[d])) {
      add(faults, "dimension ", d, " reaches ", at.high + to.extents[d], " of ", from.extents[d]);
    }
    aligned = aligned && multiple_of(times(i.at[d], from.strides[d]), granule) &&
              (d + 1 == rank || (to.strides[d] % granule == 0 && from.strides[d] % granule == 0));
  }
  if (!aligned || to.extents.back() % granule != 0) {
    add(faults, "rows that are not whole pieces of ", kBulkGranule, " bytes");
  }
  return faults;
}

Faults check(const Program& program, const CopyRows& i) {
  Faults faults;
  check_index(program, i.signal, i.index, faults);
  check_sides(buffer_of(program, i.to), buffer_of(program, i.from), faults);
  const View &to = program.views[i.to], &from = program.views[i.from];
  const Scalar scalar = buffer_of(program, i.to).scalar;
  if (to.extents.size() != 2 || from.extents.size() != 2 || from.extents[0] != kTokens) {
    add(faults, "sides that are not rows of the tokens");
    return faults;
  }
  const auto end = range_of(program, i.at).high + to.extents[1];
  if (end > from.extents[1]) add(faults, "columns reach ", end, " of ", from.extents[1]);
  const auto granule = kBulkGranule / bytes_of(scalar);
  if (!multiple_of(to.offset, granule) || !multiple_of(from.offset, granule) ||
      !multiple_of(i.at, granule) || to.strides[0] % granule != 0 ||
      from.strides[0] % granule != 0 || to.strides[1] != 1 || from.strides[1] != 1 ||
      to.extents[1] % granule != 0) {
    add(faults, "rows that are not whole pieces of ", kBulkGranule, " bytes");
  }
  if (to.extents[0] * to.extents[1] * bytes_of(scalar) >= kMaxTransaction) {
    add(faults, "rows of more than ", kMaxTransaction - 1, " bytes together");
  }
  if (program.signals[i.signal].arrivals != 1) add(faults, "a signal of other arrivals");
  if (i.multicast && program.cluster == 1) add(faults, "no cluster");
  return faults;
}

BulkRows bulk_rows(const Program& program, const CopyBulk& i) {
  const View &to = program.views[i.to], &from = program.views[i.from];
  BulkRows rows{to.extents, 1};
  while (!rows.outer.empty()) {
    const auto d = rows.outer.size() - 1;
    if (to.strides[d] != rows.elements || from.strides[d] != rows.elements) break;
    rows.elements *= rows.outer.back();
    rows.outer.pop_back();
  }
  return rows;
}

}  // namespace ladder
