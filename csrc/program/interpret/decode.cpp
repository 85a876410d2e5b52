// SPDX-License-Identifier: Apache-2.0
//
// Codes to operands, by the shifts, masks and look-ups that kernels execute.
#include <array>
#include <cmath>
#include <vector>

#include "layout/bit_plan.h"
#include "layout/field_plan.h"
#include "layout/in_place.h"
#include "layout/lookup_plan.h"
#include "layout/weight_image.h"
#include "program/interpret/interpreter.h"

namespace ladder {

template <class Op, class Decode>
void Interpreter::for_each_pair(Block& block, const Op& i, int bits, const Decode& decode) {
  const auto slots = program_.registers[i.from].layout.slot_count();
  const auto of_operand = coordinates_[i.to].slots;
  const auto of = operand_words(program_.registers[i.to].layout);
  const auto at = value(block, i.block), step = value(block, i.step);
  for (const int thread : running()) {
    for (std::size_t n = 0; n < of.words.size(); ++n) {
      const OperandWord& word = of.words[n];
      std::array<std::uint32_t, 8> words;
      for (int w = 0; w < bits; ++w) {
        words[w] = get(block, i.from, thread * slots + of.first(word, at, bits) + w);
      }
      const auto slot = static_cast<std::int64_t>(2 * n);
      const std::uint32_t both =
          decode(thread, word, slot, static_cast<int>(of.pair(word, step)), words.data());
      for (int half = 0; half < 2; ++half) {
        set(block, i.to, thread * of_operand + slot + half, both >> (16 * half) & 0xffff);
      }
    }
  }
}

template <class Op>
double Interpreter::scale_of(const Block& block, const Op& i, int thread, std::int64_t group,
                             std::int64_t slot) const {
  const auto row = coordinates_[i.to].at(thread, slot)[1];
  const auto of_row = slot_of_row(i.scales, thread, group, row);
  return number(block, i.scales, thread * coordinates_[i.scales].slots + of_row);
}

void Interpreter::unpack(Block& block, const Unpack& i) {
  const Scalar operand = program_.registers[i.to].scalar;
  const auto plan = plan_of(i, operand);
  const auto joined = joined_of(i, operand);
  const auto group = value(block, i.group);
  const auto decode = [&](int thread, const OperandWord& word, std::int64_t slot, int pair,
                          const std::uint32_t* from) {
    std::array<std::uint32_t, 8> words;
    for (int w = 0; w < i.bits; ++w) words[w] = i.three ? three_values(from[w]) : from[w];
    const auto codes = read_pieces(plan.pairs[pair].pieces, words.data()) | joined;
    if (i.in_place) return codes;
    const int offset = plan.pairs[pair].offset;
    double factor = factor_of(i, operand, offset);
    double zero =
        i.zeros < 0 ? constant_of(i, operand, offset)
                    : number(block, i.zeros, thread * coordinates_[i.zeros].slots + word.row() * 2);
    if (i.scales >= 0) {
      const double scale = scale_of(block, i, thread, group, slot);
      // As the kernel does, each in the operand's format.
      factor = to_number(operand, to_bits(operand, factor * scale));
      zero = to_number(operand, to_bits(operand, zero * scale));
    }
    std::uint32_t both = 0;
    for (int half = 0; half < 2; ++half) {
      const auto code = to_number(operand, codes >> (16 * half) & 0xffff);
      both |= to_bits(operand, code * factor + zero) << (16 * half);
    }
    return both;
  };
  for_each_pair(block, i, i.bits, decode);
}

void Interpreter::unpack_float(Block& block, const UnpackFloat& i) {
  const Scalar operand = program_.registers[i.to].scalar;
  const FloatFields& f = i.fields;
  const FieldPlan& plan = field_plan(f.bits, f.place);
  const int carry = f.carry();
  const auto group = value(block, i.group);
  const auto decode = [&](int thread, const OperandWord&, std::int64_t slot, int pair,
                          const std::uint32_t* words) {
    auto both = read_fields(plan, words, pair);
    const auto magnitude = both & 0x7fff7fffu, sign = both & 0x80008000u;
    if (f.halved) {
      both = halved_f16(magnitude & 0xffff) | halved_f16(magnitude >> 16) << 16 | sign;
    }
    if (f.special != 0) {
      const auto carried = (magnitude + f.special * 0x10001u) & 0x10001u << carry;
      both |= carried * ((1u << (15 - carry)) - 1);
    }
    if (f.factor == 1 && i.scales < 0) return both;
    const double factor =
        i.scales < 0 ? f.factor : f.factor * scale_of(block, i, thread, group, slot);
    const auto scaled = [&](std::uint32_t bits) {
      return to_bits(operand, to_number(operand, bits) * factor);
    };
    return scaled(both & 0xffff) | scaled(both >> 16) << 16;
  };
  for_each_pair(block, i, f.bits, decode);
}

void Interpreter::scale_operand(Block& block, const ScaleOperand& i) {
  const auto group = value(block, i.group);
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* at) {
    const auto slot = slot_of_row(i.scales, thread, group, at[1]);
    const auto scale = number(block, i.scales, thread * coordinates_[i.scales].slots + slot);
    set_number(block, i.to, index, std::ldexp(number(block, i.to, index), i.exponent) * scale);
  });
}

void Interpreter::lookup(Block& block, const Lookup& i) {
  const bool joint = i.bits <= kLargestPairTable;
  const auto plan = lookup_plan(bit_plan(i.bits), joint);
  const auto table = program_.shared_offset(program_.views[i.table].buffer);
  const auto decode = [&](int thread, const OperandWord&, std::int64_t, int p,
                          const std::uint32_t* words) {
    const LookupPair& pair = plan[p];
    const auto codes = read_pieces(pair.pieces, words);
    const auto entry = [&](std::uint32_t weights) {
      std::uint32_t bits = 0;
      const auto at = sum_of_products(codes, weights, pair.by_bytes) + thread % kLanes * 4;
      const auto why =
          block.shared.read(table + at, 4, thread, reinterpret_cast<std::uint8_t*>(&bits));
      if (!why.empty()) fault(why);
      return bits;
    };
    if (joint) return entry(pair.weights[0]);
    return (entry(pair.weights[0]) & 0xffff) | entry(pair.weights[1]) << 16;
  };
  for_each_pair(block, i, i.bits, decode);
}

void Interpreter::fill_table(Block& block, const FillTable& i) {
  const auto table = program_.shared_offset(program_.views[i.to].buffer);
  for (std::int64_t piece = 0; piece < table_entries(i.bits) * kLanes / 4; ++piece) {
    const auto entry = piece / (kLanes / 4);
    const auto codes = (std::int64_t{1} << i.bits) - 1;
    const std::uint32_t both =
        i.bits <= kLargestPairTable
            ? i.values[entry & codes] | std::uint32_t{i.values[entry >> i.bits]} << 16
            : i.values[entry];
    for (int copy = 0; copy < 4; ++copy) {
      const auto why = block.shared.write(table + (piece * 4 + copy) * 4, 4,
                                          static_cast<int>(piece % program_.threads),
                                          reinterpret_cast<const std::uint8_t*>(&both));
      if (!why.empty()) fault(why);
    }
  }
}

void Interpreter::fill_words(Block& block, const FillWords& i) {
  const auto table = program_.shared_offset(program_.views[i.to].buffer);
  for (std::size_t at = 0; at < i.values.size(); ++at) {
    refuse(block.shared.write(table + static_cast<std::int64_t>(at) * 4, 4,
                              static_cast<int>(at % program_.threads),
                              reinterpret_cast<const std::uint8_t*>(&i.values[at])));
  }
}

void Interpreter::largest_scale(Block& block, const LargestScale& i) {
  const auto first = value(block, i.first), slots = coordinates_[i.scales].slots;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* at) {
    std::uint32_t largest = 0;
    for (int g = 0; g < i.count; ++g) {
      const auto slot = slot_of_row(i.scales, thread, first + g, at[1]);
      largest = std::max(largest, get(block, i.scales, thread * slots + slot));
    }
    set(block, i.to, index, largest);
  });
}

void Interpreter::times_second(Block& block, const TimesSecond& i) {
  const auto of_superblock =
      program_.registers[i.to].layout.shape[0] / program_.registers[i.seconds].layout.shape[0];
  const auto slots = coordinates_[i.seconds].slots;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* at) {
    const auto slot = slot_of_row(i.seconds, thread, at[0] / of_superblock, at[1]);
    const double second = number(block, i.seconds, thread * slots + slot);
    set_number(block, i.to, index, number(block, i.numbers, index) * second);
  });
}

void Interpreter::lookup_relative(Block& block, const LookupRelative& i) {
  const auto table = program_.shared_offset(program_.views[i.table].buffer);
  const auto group = value(block, i.group);
  const BytePlan& plan = relative_plan();
  const Layout& a = program_.registers[i.to].layout;
  const auto slots = program_.registers[i.from].layout.slot_count();
  const auto of_thread = a.slot_count();
  const ByteUnits units = byte_units(a);
  const auto scale_of = [&](RegisterId id, int thread, std::int64_t of, std::int64_t row) {
    return get(block, id, thread * coordinates_[id].slots + slot_of_row(id, thread, of, row));
  };
  std::uint32_t words[kRelativeBits];
  for (std::int64_t word = 0; word < of_thread / 4; ++word) {
    const ByteWord at = byte_word(a, word, value(block, i.step));
    const auto first = units.first(at, value(block, i.block), kRelativeBits);
    for (int thread = 0; thread < program_.threads; ++thread) {
      const auto row = coordinates_[i.to].at(thread, 4 * word)[1];
      const auto below =
          scale_of(i.largest, thread, 0, row) - scale_of(i.scales, thread, group, row);
      const auto entry = std::min<std::uint32_t>(below, kRelativeEntries - 1);
      std::uint8_t bytes[8];
      for (int half = 0; half < 2; ++half) {
        refuse(block.shared.read(table + (entry * 2 + half) * 4, 4, thread, bytes + 4 * half));
      }
      for (int w = 0; w < kRelativeBits; ++w) {
        words[w] = get(block, i.from, thread * slots + first + w);
      }
      const auto codes = read_pieces(plan.registers[at.plan_step][at.r], words);
      for (int b = 0; b < 4; ++b) {
        const auto code = codes >> (8 * b) & 0xf;
        set(block, i.to, thread * of_thread + word * 4 + b, bytes[code & 7] | (code & 8) << 4);
      }
    }
  }
}

void Interpreter::zero_operand(Block& block, const ZeroOperand& i) {
  const Scalar operand = program_.registers[i.to].scalar;
  const Coordinates& zeros = coordinates_[i.from];
  const auto group = value(block, i.group);
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* at) {
    const auto slot = slot_of_row(i.from, thread, group, at[1]);
    const double zero = number(block, i.from, thread * zeros.slots + slot);
    const double sign = operand == Scalar::u8 ? 1 : -1;
    set(block, i.to, index, to_bits(operand, sign * std::ldexp(zero, i.exponent)));
  });
}

void Interpreter::offset(Block& block, const Offset& i) {
  const Coordinates& zeros = coordinates_[i.zero];
  const auto group = value(block, i.group);
  const auto sums = coordinates_[i.sum].slots, slots = coordinates_[i.to].slots;
  const bool whole = program_.registers[i.to].scalar == Scalar::s32;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* at) {
    const auto slot = slot_of_row(i.zero, thread, group, at[1]);
    const auto zero =
        static_cast<float>(std::ldexp(number(block, i.zero, thread * zeros.slots + slot),
                                      i.exponent[row_parity(at[1])])) -
        static_cast<float>(i.less);
    const double sum = number(block, i.sum, thread * sums + index % slots % sums);
    const double before = number(block, i.to, index);
    set_number(
        block, i.to, index,
        whole ? before + zero * sum : static_cast<float>(before) + zero * static_cast<float>(sum));
  });
}

std::int64_t Interpreter::slot_of_row(RegisterId id, int thread, std::int64_t group,
                                      std::int64_t row) const {
  const Coordinates& at = coordinates_[id];
  for (std::int64_t slot = 0; slot < at.slots; ++slot) {
    const auto* c = at.at(thread, slot);
    if (c[0] == group && c[1] == row) return slot;
  }
  fault("thread ", thread, " has no row ", row, " of ", program_.registers[id].name);
}

}  // namespace ladder
