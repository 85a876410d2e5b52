// SPDX-License-Identifier: Apache-2.0
#include "program/check.h"

#include <bit>

#include "layout/weight_image.h"

namespace ladder {

void check_f32(const Program& program, RegisterId id, Faults& faults) {
  const Register& reg = program.registers[id];
  if (reg.scalar != Scalar::f32) add(faults, reg.name, " is ", type_name(reg), ", not f32");
}

void check_same(const Register& a, const Register& b, Faults& faults) {
  if (a.layout != b.layout) add(faults, a.name, " and ", b.name, " are laid out differently");
}

void check_repeats(const Register& to, const Register& from, Faults& faults) {
  if (to.layout.slot_count() % from.layout.slot_count() != 0) {
    add(faults, "tiles whose slots do not match");
  }
}

Faults check(const Program& program, const Reinterpret& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &from = program.registers[i.from];
  if (!can_view(from.layout, bits_of(from), to.layout, bits_of(to))) {
    add(faults, "a view that moves bits between threads");
  }
  return faults;
}

Faults check(const Program& program, const Fill& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  if (to.width != 0) add(faults, to.name, " is ", type_name(to));
  return faults;
}

Faults check(const Program& program, const Add& i) {
  Faults faults;
  check_repeats(program.registers[i.to], program.registers[i.from], faults);
  return faults;
}

Faults check(const Program& program, const Multiply& i) {
  Faults faults;
  check_repeats(program.registers[i.to], program.registers[i.from], faults);
  return faults;
}

Faults check(const Program& program, const Spread& i) {
  Faults faults;
  check_repeats(program.registers[i.to], program.registers[i.from], faults);
  return faults;
}

Faults check(const Program& program, const Cast& i) {
  Faults faults;
  check_same(program.registers[i.to], program.registers[i.from], faults);
  return faults;
}

Faults check(const Program& program, const Gate& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &from = program.registers[i.from];
  for (RegisterId id : {i.to, i.from}) check_f32(program, id, faults);
  if (!gate_slots(to.layout, from.layout)) {
    add(faults, "threads do not hold gate and up of ", from.name, " that ", to.name, " takes");
  }
  return faults;
}

Faults check(const Program& program, const Activate& i) {
  Faults faults;
  check_f32(program, i.to, faults);
  if (!takes_gate_alone(i.what)) add(faults, name_of(i.what), " takes a gate and up");
  return faults;
}

Faults check(const Program& program, const ToCodes& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &scale = program.registers[i.scale];
  check_same(to, program.registers[i.from], faults);
  for (RegisterId id : {i.from, i.scale}) check_f32(program, id, faults);
  if (to.width != 0 || (to.scalar != Scalar::s8 && to.scalar != Scalar::e4m3)) {
    add(faults, to.name, " is ", type_name(to), ", not s8 or e4m3");
  }
  if (scale.layout.slot_count() != 1 || scale.layout.element_count() != 1) {
    add(faults, scale.name, " is not one number");
  }
  return faults;
}

Faults check(const Program& program, const Unary& i) {
  Faults faults;
  check_same(program.registers[i.to], program.registers[i.from], faults);
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
