// SPDX-License-Identifier: Apache-2.0
#include "program/check.h"

#include <bit>
#include <sstream>

#include "layout/weight_image.h"

namespace ladder {
namespace {

constexpr std::int64_t kBulkGranule = 16;          // bytes, of addresses and sizes
constexpr std::int64_t kMaxTransaction = 1 << 20;  // bytes that an mbarrier can count

template <class... Parts>
void add(Faults& faults, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  faults.push_back(text.str());
}

const Buffer& buffer_of(const Program& program, ViewId view) {
  return program.buffers[program.views[view].buffer];
}

void check_index(const Program& program, SignalId id, const Affine& index, Faults& faults) {
  const Signal& signal = program.signals[id];
  const auto range = range_of(program, index);
  if (range.low < 0 || range.high >= signal.count) {
    add(faults, "mbarrier ", range.high, " of ", signal.count, " of ", signal.name);
  }
}

/// Reduce's and Unary's tiles are f32.
void check_f32(const Program& program, RegisterId id, Faults& faults) {
  const Register& reg = program.registers[id];
  if (reg.scalar != Scalar::f32) add(faults, reg.name, " is ", type_name(reg), ", not f32");
}

}  // namespace

Faults check(const Program& program, const Cast& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &from = program.registers[i.from];
  if (to.layout != from.layout) {
    add(faults, to.name, " and ", from.name, " are laid out differently");
  }
  return faults;
}

Faults check(const Program& program, const Unary& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &from = program.registers[i.from];
  if (to.layout != from.layout) {
    add(faults, to.name, " and ", from.name, " are laid out differently");
  }
  for (RegisterId id : {i.to, i.from}) check_f32(program, id, faults);
  return faults;
}

Faults check(const Program& program, const Binary& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  const bool bits = i.op >= BinaryOp::bit_and;
  for (RegisterId id : {i.a, i.b}) {
    const Register& from = program.registers[id];
    if (!slots_of(to.layout, from.layout)) {
      add(faults, "threads do not hold the elements of ", from.name, " that ", to.name, " takes");
    }
    if (from.scalar != to.scalar || from.width != to.width) {
      add(faults, to.name, " is ", type_name(to), " and ", from.name, " is ", type_name(from));
    }
  }
  const bool integer = to.scalar == Scalar::u32 && to.width == 0;
  if (!(integer || (to.scalar == Scalar::f32 && !bits))) {
    add(faults, name_of(i.op), " does not take ", type_name(to));
  }
  if (integer && i.op == BinaryOp::divide) add(faults, "divide does not take u32");
  return faults;
}

Faults check(const Program& program, const Reduce& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &from = program.registers[i.from];
  for (RegisterId id : {i.to, i.from}) check_f32(program, id, faults);
  if (i.dim < 0 || i.dim >= static_cast<int>(from.layout.shape.size())) {
    add(faults, "dimension ", i.dim, " of a tile of ", from.layout.shape.size());
    return faults;
  }
  if (to.layout != reduced(from.layout, i.dim)) {
    add(faults, to.name, " is not laid out as ", from.name, " without dimension ", i.dim);
  }
  const auto along = threads_along(from.layout, i.dim);
  if (!along.powers_of_two) add(faults, "lanes along dimension ", i.dim, " are no power of two");
  if (along.warps.empty()) return faults;
  const auto wanted = program.threads * to.layout.slot_count();
  if (i.scratch < 0) {
    add(faults, "a sum over warps without scratch memory");
  } else if (const Buffer& scratch = program.buffers[i.scratch]; scratch.level != Level::shared ||
                                                                 scratch.scalar != Scalar::f32 ||
                                                                 scratch.elements < wanted) {
    add(faults, scratch.name, " is not ", wanted, " shared f32");
  }
  return faults;
}

Faults check(const Program& program, const AtomicAdd& i) {
  Faults faults;
  check_f32(program, i.from, faults);
  const Buffer& buffer = buffer_of(program, i.to);
  if (buffer.level != Level::global) add(faults, buffer.name, " is not in global memory");
  if (!is_bijective(program.registers[i.from].layout)) {
    add(faults, "elements that several threads would add");
  }
  return faults;
}

Faults check(const Program& program, const SignalInit& i) {
  Faults faults;
  const Signal& signal = program.signals[i.signal];
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
  const View &to = program.views[i.to], &from = program.views[i.from];
  const Scalar scalar = buffer_of(program, i.to).scalar;
  if (buffer_of(program, i.to).level != Level::shared ||
      buffer_of(program, i.from).level != Level::global) {
    add(faults, "copies go from global to shared memory");
  }
  if (scalar != buffer_of(program, i.from).scalar) {
    add(faults, "the two sides differ in their scalar");
  }
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

Along threads_along(const Layout& layout, int dim) {
  Along out;
  auto inner = layout.thread_count();
  for (const Digit& digit : layout.threads) {
    inner /= digit.extent;
    if (digit.dim != dim || digit.stride == 0) continue;
    auto extent = static_cast<std::uint64_t>(digit.extent);
    const auto step = static_cast<std::uint64_t>(inner);
    if (inner * digit.extent > kLanes) {
      const auto first = std::max<std::int64_t>(inner, kLanes);
      out.warps.push_back({first, inner * digit.extent / first});
      extent = step < kLanes ? kLanes / step : 1;
    }
    out.powers_of_two =
        out.powers_of_two && std::has_single_bit(step) && std::has_single_bit(extent) &&
        (inner >= kLanes || inner * digit.extent <= kLanes || inner * digit.extent % kLanes == 0);
    std::vector<std::int64_t> masks;
    for (std::uint64_t mask = step; mask < step * extent; mask *= 2) {
      masks.push_back(static_cast<std::int64_t>(mask));
    }
    out.lane_masks.insert(out.lane_masks.begin(), masks.begin(), masks.end());
  }
  return out;
}

std::vector<std::int64_t> Along::peers(std::int64_t thread) const {
  std::vector<std::int64_t> out{thread};
  for (const Warps& digit : warps) {
    std::vector<std::int64_t> next;
    for (std::int64_t peer : out) {
      const auto base = peer - peer / digit.step % digit.extent * digit.step;
      for (std::int64_t v = 0; v < digit.extent; ++v) next.push_back(base + v * digit.step);
    }
    out = std::move(next);
  }
  return out;
}

}  // namespace ladder
