// SPDX-License-Identifier: Apache-2.0
#include "program/operands.h"

#include <algorithm>
#include <cmath>

#include "layout/in_place.h"
#include "layout/weight_image.h"

namespace ladder {

std::optional<std::vector<GateSlots>> gate_slots(const Layout& to, const Layout& from) {
  const bool fits = to.shape.size() == 3 && from.shape.size() == 3 &&
                    from.shape[0] == to.shape[0] && from.shape[1] == 2 * to.shape[1] &&
                    from.shape[2] == to.shape[2] && from.thread_count() == to.thread_count();
  if (!fits) return std::nullopt;
  // The slot that has the row `below` that of the gate, of each thread.
  const auto slot_of = [&](std::int64_t slot, std::int64_t below) -> std::optional<std::int64_t> {
    std::optional<std::int64_t> found;
    for (std::int64_t thread = 0; thread < to.thread_count(); ++thread) {
      auto at = to(thread, slot);
      at[1] = at[1] / kGateRows * 2 * kGateRows + at[1] % kGateRows + below;
      std::int64_t other = found.value_or(0);
      const auto last = found ? other + 1 : from.slot_count();
      while (other < last && from(thread, other) != at) ++other;
      if (other == last) return std::nullopt;
      found = other;
    }
    return found;
  };
  std::vector<GateSlots> out;
  for (std::int64_t slot = 0; slot < to.slot_count(); ++slot) {
    const auto gate = slot_of(slot, 0), up = slot_of(slot, kGateRows);
    if (!gate || !up) return std::nullopt;
    out.push_back({*gate, *up});
  }
  return out;
}

// All lanes have the same slots of a unit, so those of the first.
OperandWords operand_words(const Layout& a) {
  OperandWords out;
  const auto origin = a(0, 0);
  for (std::int64_t slot = 0; slot + 1 < a.slot_count(); slot += 2) {
    const auto at = a(0, slot);
    const auto row = at[1] - origin[1], column = at[2] - origin[2];
    const OperandWord word{row / 16, column % 8 / 2, column / 16,
                           row_parity(row) + column / 8 % 2 * 2};
    out.units = std::max(out.units, word.unit + 1);
    out.lanes = std::max(out.lanes, word.lane + 1);
    out.steps = std::max(out.steps, word.step + 1);
    out.words.push_back(word);
  }
  return out;
}

UnpackPlan plan_of(const Unpack& i, Scalar operand) {
  if (i.in_place) return in_place(i.bits, operand).plan;
  return unpack_plan(i.bits, i.ones ? mantissa_bits(operand) : linear_window(operand));
}

namespace {

// Of the unit in which the last bit of a mantissa is 1.
double first_of_ones(Scalar operand) { return std::ldexp(1.0, mantissa_bits(operand)); }

}  // namespace

std::uint32_t joined_of(const Unpack& i, Scalar operand) {
  if (i.in_place) return in_place(i.bits, operand).joined * 0x10001u;
  return i.ones ? to_bits(operand, first_of_ones(operand)) * 0x10001u : 0;
}

double factor_of(const Unpack& i, Scalar operand, int offset) {
  const int unit = i.ones ? 0 : linear_exponent(operand);
  return std::ldexp(1.0, i.exponent + i.shift - unit - offset);
}

double ones_of(const Unpack& i, Scalar operand, int offset) {
  return i.ones ? first_of_ones(operand) * factor_of(i, operand, offset) : 0;
}

double constant_of(const Unpack& i, Scalar operand, int offset) {
  return -(std::ldexp(i.zero, i.exponent) + ones_of(i, operand, offset));
}

static_assert(kMostScaledBits <= kMostWholeBits);

const BytePlan& plan_of(const UnpackBytes& i, Scalar to) {
  switch (to) {
    case Scalar::e4m3:
    case Scalar::e4m3fnuz:
      return i.mantissa_bits ? float_byte_plan(i.bits, *i.mantissa_bits)
                             : whole_byte_plan(i.bits, i.shift);
    case Scalar::s8:
      if (i.scales >= 0) return whole_byte_plan(i.bits, 0);
      return i.flips_sign() ? signed_byte_plan(i.bits) : offset_byte_plan(i.bits);
    default: return byte_plan(i.bits);
  }
}

const BytePlan& relative_plan() { return whole_byte_plan(kRelativeBits, 0); }

ByteUnits byte_units(const Layout& a) {
  const auto columns = a.shape[2], slots = a.slot_count(), row = a(0, 0)[1];
  if (columns < 16 || kBlock % columns != 0) return {};
  std::int64_t of_row = 0;  // slots, of one lane of the image a quarter of the columns
  for (std::int64_t slot = 0; slot < slots; ++slot) of_row += a(0, slot)[1] == row ? 1 : 0;
  return {slots / (2 * of_row), 4 * of_row / columns};
}

ByteWord byte_word(const Layout& a, std::int64_t word, std::int64_t step) {
  const auto columns = a.shape[2];
  const auto of_unit = columns / 8 * byte_units(a).lanes;  // words of a lane
  const auto at = a(0, 4 * word);
  const auto column = step * columns + at[2];
  return {word / of_unit, column / kByteStep, row_parity(at[1]) + column % kByteStep / 16 * 2,
          column % 16 / 4};
}

}  // namespace ladder
