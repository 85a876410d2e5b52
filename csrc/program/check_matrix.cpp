// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "device/device.h"
#include "layout/digits.h"
#include "layout/weight_image.h"
#include "program/check.h"

namespace ladder {
namespace {

/// Each lane's rows and columns of `to` are those that the image has in the lane whose words it
/// holds, [blocks along N, blocks along K, chunks, lanes of the image, words]. `first`: of a slot
/// of `to`, the first of its words.
template <class First>
bool holds_its_words(const Register& to, const Register& from, const First& first) {
  if (to.layout.shape.size() != 3 || from.layout.shape.size() != 5) return false;
  const int neighbours = 32 / bits_of(to.scalar);  // columns of a word, of bytes in their own order
  for (std::int64_t thread = 0; thread < to.layout.thread_count(); ++thread) {
    for (std::int64_t slot = 0; slot < to.layout.slot_count(); ++slot) {
      const auto at = to.layout(thread, slot);
      const auto word = first(slot);
      if (word >= from.layout.slot_count()) return false;
      const auto lane = from.layout(thread, word)[3];
      if (at[1] % 8 * 4 + at[2] % (4 * neighbours) / neighbours != lane) return false;
      if (at[2] % neighbours != slot % neighbours) return false;
    }
  }
  return true;
}

/// Of Unpack, UnpackFloat and Lookup: one k-step of a block becomes an A operand.
template <class Op>
void check_decoding(const Program& program, const Op& i, int bits, Faults& faults) {
  const Register& to = program.registers[i.to];
  const auto* mma = tile_instruction(to.scalar);
  const bool of_rows = to.layout.shape.size() == 3;
  const auto of = of_rows ? operand_words(to.layout) : OperandWords{};
  if (!missing(mma, to.scalar, faults)) {
    Faults plain;
    check_operand("A operand", to, mma->a(), plain);
    const auto first = [&](std::int64_t slot) { return of.first(of.words[slot / 2], 0, bits); };
    if (!plain.empty() && !(to.layout.slot_count() % 2 == 0 && of_rows &&
                            holds_its_words(to, program.registers[i.from], first))) {
      faults.insert(faults.end(), plain.begin(), plain.end());
    }
  }
  const auto slots = to.layout.slot_count();
  const bool whole = of.units >= 1 && kUnits % of.units == 0 &&
                     slots == 8 * of.units * of.lanes * of.steps && 4 % of.steps == 0;
  if (!whole) {
    add(faults, to.name, " has ", slots, " slots, not one k-step of a block");
    return;
  }
  const auto blocks = range_of(program, i.block), steps = range_of(program, i.step);
  if (of.first({}, blocks.high + 1, bits) > program.registers[i.from].layout.slot_count()) {
    add(faults, "block ", blocks.high, " is not among the words loaded");
  }
  if (const auto all = 4 / of.steps; steps.high >= all) {
    add(faults, "step ", steps.high, " of a block of ", all);
  }
}

/// A word of each of the rows that a lane holds, in the order of its slots.
void check_zero_operand(const Register& tile, Scalar operand, Faults& faults) {
  if (tile.scalar != operand) add(faults, "zero points of ", name_of(tile.scalar));
  const auto copies = 32 / bits_of(operand);  // of a row, in a word
  const auto slots = tile.layout.slot_count(), units = slots / (2 * copies);
  bool rows = tile.layout.shape.size() == 3 && slots % (2 * copies) == 0 && units > 0 &&
              kUnits % units == 0;
  for (std::int64_t slot = 0; rows && slot < slots; ++slot) {
    const auto first = tile.layout(0, 0), at = tile.layout(0, slot);
    rows = at[1] - first[1] == slot / copies * 8 && at[2] == slot % copies;
  }
  if (!rows) add(faults, tile.name, " is not laid out as the rows of an A operand");
}

void check_table(const Program& program, ViewId id, int bits, Faults& faults) {
  const View& view = program.views[id];
  const Buffer& buffer = buffer_of(program, id);
  const std::vector<std::int64_t> extents{table_entries(bits), kLanes};
  if (buffer.level != Level::shared || buffer.scalar != Scalar::u32 || view.extents != extents ||
      view.strides != std::vector<std::int64_t>{kLanes, 1}) {
    add(faults, buffer.name, " is not a table of ", bits, " bits");
  }
}

/// Of UnpackBytes and LookupRelative: one k-step of a block becomes an A operand.
template <class Op>
void check_bytes(const Program& program, const Op& i, int bits, Faults& faults) {
  const Register& to = program.registers[i.to];
  Faults plain;
  check_operand("A operand", to, tile_instruction(Scalar::u8)->a(), plain);
  const bool of_rows = to.layout.shape.size() == 3;
  const auto [units, lanes] = of_rows ? byte_units(to.layout) : ByteUnits{};
  const auto first = [&, all = ByteUnits{units, lanes}](std::int64_t slot) {
    return all.first(byte_word(to.layout, slot / 4, 0), 0, bits);
  };
  if (!plain.empty() &&
      (units < 1 || lanes < 1 || !holds_its_words(to, program.registers[i.from], first))) {
    faults.insert(faults.end(), plain.begin(), plain.end());
    return;
  }
  const auto columns = to.layout.shape[2], slots = to.layout.slot_count();
  if (units < 1 || kUnits % units != 0 || slots != units * lanes * columns / 2) {
    add(faults, to.name, " is not one k-step of a block");
    return;
  }
  const auto blocks = range_of(program, i.block), steps = range_of(program, i.step);
  if ((blocks.high + 1) * units * lanes * bits > program.registers[i.from].layout.slot_count()) {
    add(faults, "block ", blocks.high, " is not among the words loaded");
  }
  if (const auto all = kBlock / columns; steps.high >= all) {
    add(faults, "step ", steps.high, " of a block of ", all);
  }
}

/// Of FillWords and LookupRelative.
void check_words(const Program& program, ViewId id, Faults& faults) {
  const View& view = program.views[id];
  const Buffer& buffer = buffer_of(program, id);
  if (buffer.level != Level::shared || buffer.scalar != Scalar::u32 ||
      view.extents != std::vector<std::int64_t>{kRelativeEntries, 2} ||
      view.strides != std::vector<std::int64_t>{2, 1}) {
    add(faults, buffer.name, " is not a table of relative operands");
  }
}

void check_group(const Program& program, RegisterId tile, const Affine& at, const char* what,
                 Faults& faults) {
  const auto groups = program.registers[tile].layout.shape[0];
  if (const auto group = range_of(program, at); group.high >= groups) {
    add(faults, "group ", group.high, " of ", groups, " with ", what);
  }
}

}  // namespace

Faults check(const Program& program, const LoadMatrix& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  check_access(program, to, i.from, i.at, faults);
  if (!missing(i.row, to.scalar, faults)) check_operand("B operand", to, i.row->b(), faults);
  return faults;
}

Faults check(const Program& program, const Unpack& i) {
  Faults faults;
  check_decoding(program, i, i.bits, faults);
  if (i.zeros >= 0) {
    check_zero_operand(program.registers[i.zeros], program.registers[i.to].scalar, faults);
  }
  if (i.ones) {
    const Scalar operand = program.registers[i.to].scalar;
    // The largest of all pairs: that of one at an offset is a part of it by a power of two.
    const auto constant = constant_of(i, operand, 0);
    if (i.in_place || i.zeros >= 0 || i.bits > mantissa_bits(operand)) {
      add(faults, "codes of ", i.bits, " bits beside ones, in place or with zero points");
    } else if (to_number(operand, to_bits(operand, constant)) != constant) {
      add(faults, constant, " is no ", name_of(operand));
    }
  }
  if (i.scales >= 0) {
    const Scalar scale = program.registers[i.scales].scalar;
    if (!i.ones || scale != Scalar::u8) {
      add(faults, "codes times scales of ", name_of(scale), i.ones ? "" : ", not read from ones");
    }
    check_group(program, i.scales, i.group, "scales", faults);
  }
  return faults;
}

Faults check(const Program& program, const ScaleOperand& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  const Scalar scale = program.registers[i.scales].scalar;
  if (to.scalar != Scalar::f16 && to.scalar != Scalar::bf16) {
    add(faults, "operands of ", name_of(to.scalar), " times scales");
  }
  const bool of_range = scale == Scalar::e8m0 && to.scalar == Scalar::bf16;
  if (scale != to.scalar && scale != Scalar::e4m3 && scale != Scalar::u8 && !of_range) {
    add(faults, "operands of ", name_of(to.scalar), " times scales of ", name_of(scale));
  }
  check_group(program, i.scales, i.group, "scales", faults);
  return faults;
}

namespace {

/// Integers in e4m3: no more than 16 from their zero point. Of stored ones nothing is known here.
void check_wholes(const UnpackBytes& i, Faults& faults) {
  if (i.shift < 0 || i.shift > 1 || i.bits + i.shift > kMostWholeBits) {
    add(faults, "codes of ", i.bits, " bits times 2^", i.shift, " in e4m3");
    return;
  }
  const int most = (((1 << i.bits) - 1) << i.shift) - i.zero;
  if (i.zero < 0 || i.zero > kMostWhole || most > kMostWhole) {
    add(faults, "codes of ", i.bits, " bits times 2^", i.shift, " less ", i.zero, " in e4m3");
  }
}

}  // namespace

Faults check(const Program& program, const UnpackBytes& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  const bool floats = has_fields_of_e4m3(to.scalar);
  if (to.scalar != Scalar::u8 && to.scalar != Scalar::s8 && !floats) {
    add(faults, "bytes of ", name_of(to.scalar));
  }
  const bool whole = floats && !i.mantissa_bits;
  if (i.mantissa_bits.has_value() && !floats) {
    add(faults, "floats in bytes of ", name_of(to.scalar));
  }
  if (whole) check_wholes(i, faults);
  if (i.shift != 0 && !whole) add(faults, "bytes of ", name_of(to.scalar), " times 2^", i.shift);
  if (i.scales >= 0) {
    const Scalar scale = program.registers[i.scales].scalar;
    if (to.scalar != Scalar::s8 || i.zeros >= 0 || i.below_sign || i.bits > kMostScaledBits) {
      add(faults, "codes of ", i.bits, " bits times scales in bytes of ", name_of(to.scalar));
    }
    if (scale != Scalar::u8) add(faults, "bytes times scales of ", name_of(scale));
    check_group(program, i.scales, i.group, "scales", faults);
  } else if (i.has_zero() && !whole) {
    const int most = 1 << kMostOffsetBits;
    if (to.scalar != Scalar::s8) add(faults, "a zero point in bytes of ", name_of(to.scalar));
    if (i.bits > kMostOffsetBits) add(faults, "a zero point of ", i.bits, " bits");
    if (i.zero < 0 || i.zero > most) add(faults, "a zero point of ", i.zero, ", not 0 to ", most);
  }
  if (i.zeros >= 0) check_zero_operand(program.registers[i.zeros], Scalar::u8, faults);
  check_bytes(program, i, i.bits, faults);
  return faults;
}

/// The instruction knows one format and no scales, and makes its values.
void check_converted(const Program& program, const UnpackFloat& i, Faults& faults) {
  const Element& e4m3 = element_of(Scalar::e4m3);
  const Scalar to = program.registers[i.to].scalar;
  const int place = mantissa_bits(to) - e4m3.mantissa_bits;
  const FloatFields values{
      e4m3.bits,   place,
      1u << place, std::ldexp(1.0, (1 << (exponent_bits(to) - 1)) - 1 - e4m3.bias),
      false,       true};
  if (i.fields != values || i.scales >= 0) {
    add(faults, "a conversion from e4m3 to ", name_of(to), " that gives no values of e4m3");
  }
}

Faults check(const Program& program, const UnpackFloat& i) {
  Faults faults;
  check_decoding(program, i, i.fields.bits, faults);
  if (i.fields.converted) check_converted(program, i, faults);
  if (i.scales < 0) return faults;
  const Scalar scale = program.registers[i.scales].scalar;
  const bool powers = scale == Scalar::e8m0 && program.registers[i.to].scalar == Scalar::bf16;
  if (scale != Scalar::e4m3 && !powers) add(faults, "operands times scales of ", name_of(scale));
  if (powers && i.fields.factor == 1) add(faults, "scales of e8m0 that join no factor");
  check_group(program, i.scales, i.group, "scales", faults);
  return faults;
}

Faults check(const Program& program, const Lookup& i) {
  Faults faults;
  check_decoding(program, i, i.bits, faults);
  check_table(program, i.table, i.bits, faults);
  return faults;
}

Faults check(const Program& program, const FillTable& i) {
  Faults faults;
  check_table(program, i.to, i.bits, faults);
  if (i.values.size() != std::size_t{1} << i.bits) {
    add(faults, i.values.size(), " values of ", i.bits, " bits");
  }
  return faults;
}

Faults check(const Program& program, const FillWords& i) {
  Faults faults;
  check_words(program, i.to, faults);
  if (static_cast<std::int64_t>(i.values.size()) != kRelativeEntries * 2) {
    add(faults, i.values.size(), " words of ", kRelativeEntries, " entries");
  }
  return faults;
}

Faults check(const Program& program, const LargestScale& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &scales = program.registers[i.scales];
  for (const Register* each : {&to, &scales}) {
    if (each->scalar != Scalar::e8m0) add(faults, "relative scales of ", name_of(each->scalar));
  }
  if (i.count < 1) add(faults, "the largest of ", i.count, " scales");
  check_group(program, i.scales, i.first + Affine(i.count - 1), "scales", faults);
  if (to.layout.shape[0] != 1 || to.layout.shape[1] != scales.layout.shape[1]) {
    add(faults, to.name, " has other rows than ", scales.name);
  }
  return faults;
}

Faults check(const Program& program, const TimesSecond& i) {
  Faults faults;
  const Register &to = program.registers[i.to], &numbers = program.registers[i.numbers],
                 &seconds = program.registers[i.seconds];
  check_f32(program, i.to, faults);
  if (numbers.scalar != Scalar::u8 && numbers.scalar != Scalar::s8) {
    add(faults, "integers of superblocks of ", name_of(numbers.scalar));
  }
  if (bits_of(seconds.scalar) < 16) add(faults, "second scales of ", name_of(seconds.scalar));
  if (to.layout != numbers.layout) add(faults, to.name, " has not the layout of ", numbers.name);
  const auto &all = to.layout.shape, &of_seconds = seconds.layout.shape;
  if (of_seconds[1] != all[1] || all[0] % of_seconds[0] != 0 ||
      to.layout.slot_count() / all[0] != seconds.layout.slot_count() / of_seconds[0]) {
    add(faults, seconds.name, " has other rows or groups than ", to.name);
  }
  return faults;
}

Faults check(const Program& program, const LookupRelative& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  if (to.scalar != Scalar::e4m3) add(faults, "relative bytes of ", name_of(to.scalar));
  check_words(program, i.table, faults);
  check_group(program, i.scales, i.group, "scales", faults);
  for (const RegisterId id : {i.scales, i.largest}) {
    const Scalar scale = program.registers[id].scalar;
    if (scale != Scalar::e8m0) add(faults, "relative scales of ", name_of(scale));
  }
  check_bytes(program, i, kRelativeBits, faults);
  return faults;
}

Faults check(const Program& program, const ZeroOperand& i) {
  Faults faults;
  const Scalar from = program.registers[i.from].scalar;
  check_zero_operand(program.registers[i.to], program.registers[i.to].scalar, faults);
  if (from != Scalar::u8) add(faults, "zero points of ", name_of(from), ", not u8");
  check_group(program, i.from, i.group, "zero points", faults);
  return faults;
}

Faults check(const Program& program, const Offset& i) {
  Faults faults;
  check_repeats(program.registers[i.to], program.registers[i.sum], faults);
  check_group(program, i.zero, i.group, "zero points", faults);
  return faults;
}

Faults check(const Program& program, const Scale& i) {
  Faults faults;
  check_same(program.registers[i.to], program.registers[i.acc], faults);
  if (i.scale >= 0) check_group(program, i.scale, i.group, "scales", faults);
  const Scalar sums = program.registers[i.acc].scalar;
  if (i.biased && sums != Scalar::s32) add(faults, "a bias of sums of ", name_of(sums));
  return faults;
}

Faults check(const Program& program, const JoinDigits& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  check_f32(program, i.to, faults);
  check_f32(program, i.unit, faults);
  check_operand("accumulator", to, tile_instruction(Scalar::f16)->d(), faults);
  if (to.layout.shape.back() != 8) add(faults, "digits of ", to.layout.shape.back(), " columns");
  return faults;
}

}  // namespace ladder
