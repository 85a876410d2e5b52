// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "layout/bit_plan.h"
#include "layout/weight_image.h"
#include "program/interpret/interpreter.h"

namespace ladder {

std::uint32_t Interpreter::get(const Block& block, RegisterId id, std::int64_t index) const {
  const Tile& tile = block.registers[id];
  if (!tile.set[index]) fault("reads ", program_.registers[id].name, " before it is set");
  return tile.bits[index];
}

void Interpreter::set(Block& block, RegisterId id, std::int64_t index, std::uint32_t bits) {
  block.registers[id].bits[index] = bits;
  block.registers[id].set[index] = true;
}

double Interpreter::number(const Block& block, RegisterId id, std::int64_t index) const {
  return to_number(program_.registers[id].scalar, get(block, id, index));
}

void Interpreter::set_number(Block& block, RegisterId id, std::int64_t index, double number) const {
  set(block, id, index, to_bits(program_.registers[id].scalar, number));
}

void Interpreter::unpack(Block& block, const Unpack& i) {
  const Scalar operand = program_.registers[i.to].scalar;
  const auto plan = unpack_plan(i.bits, linear_window(operand));
  const auto slots = program_.registers[i.from].layout.slot_count();
  const auto first = value(block, i.block) * 4 * i.bits;
  const auto step = value(block, i.step);
  for (int thread = 0; thread < program_.threads; ++thread) {
    for (int unit = 0; unit < kUnits; ++unit) {
      for (int r = 0; r < 4; ++r) {
        const UnpackPair& pair = plan.pairs[4 * step + r];
        std::uint32_t both = 0;
        for (const auto& piece : pair.pieces) {
          const auto word = get(block, i.from, thread * slots + first + unit * i.bits + piece.word);
          both |= (piece.shift >= 0 ? word >> piece.shift : word << -piece.shift) & piece.mask;
        }
        for (int half = 0; half < 2; ++half) {
          std::uint32_t bits = both >> (16 * half) & 0xffff;
          if (!i.in_place) {
            const double factor =
                std::ldexp(1.0, i.exponent - linear_exponent(operand) - pair.offset);
            bits = to_bits(operand,
                           to_number(operand, bits) * factor - std::ldexp(i.zero, i.exponent));
          }
          set(block, i.to, thread * 8 * kUnits + unit * 8 + r * 2 + half, bits);
        }
      }
    }
  }
}

const Interpreter::Fragments& Interpreter::fragments_of(Scalar operand) {
  const auto found = fragments_.find(operand);
  if (found != fragments_.end()) return found->second;
  const auto& row = *tile_instruction(operand);
  return fragments_
      .emplace(operand, Fragments{row, coordinates_of(row.a()), coordinates_of(row.b()),
                                  coordinates_of(row.d())})
      .first->second;
}

// As the hardware does: by lanes and registers of the instruction, whatever the tiles claim.
void Interpreter::mma(Block& block, const Mma& i) {
  const auto& [row, a_at, b_at, d_at] = fragments_of(program_.registers[i.a].scalar);
  const auto a_slots = coordinates_[i.a].slots, b_slots = coordinates_[i.b].slots;
  const auto d_slots = coordinates_[i.acc].slots;
  const auto units = a_slots / a_at.slots, columns = b_slots / b_at.slots;
  for (int first = 0; first < program_.threads; first += kLanes) {
    for (std::int64_t u = 0; u < units; ++u) {
      const auto a = operand_of(block, i.a, first, a_slots, u * a_at.slots, a_at, row.m, row.k);
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto b = operand_of(block, i.b, first, b_slots, c * b_at.slots, b_at, row.n, row.k);
        for (int lane = 0; lane < kLanes; ++lane) {
          for (std::int64_t s = 0; s < d_at.slots; ++s) {
            const auto* at = d_at.at(lane, s);
            const auto index = (first + lane) * d_slots + (u * columns + c) * d_at.slots + s;
            double sum = number(block, i.acc, index);
            for (int k = 0; k < row.k; ++k) sum += a[at[0] * row.k + k] * b[at[1] * row.k + k];
            set_number(block, i.acc, index, sum);
          }
        }
      }
    }
  }
}

std::vector<double> Interpreter::operand_of(const Block& block, RegisterId id, int first,
                                            std::int64_t slots, std::int64_t slot,
                                            const Coordinates& at, int extent, int k) const {
  std::vector<double> out(extent * k);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (std::int64_t s = 0; s < at.slots; ++s) {
      const auto* c = at.at(lane, s);
      out[c[0] * k + c[1]] = number(block, id, (first + lane) * slots + slot + s);
    }
  }
  return out;
}

void Interpreter::fill(Block& block, const Fill& i) {
  for_each(i.to, [&](int, std::int64_t index, const std::int64_t* at) {
    const bool by_row = coordinates_[i.to].rank > 2;
    set_number(block, i.to, index, i.value[by_row ? at[1] / 8 % 2 : 0]);
  });
}

// Slot by slot when the widths are equal; else bit by bit, as the words of a thread hold them.
void Interpreter::reinterpret_bits(Block& block, const Reinterpret& i) {
  const int to_width = bits_of(program_.registers[i.to]);
  const int from_width = bits_of(program_.registers[i.from]);
  if (to_width == from_width) {
    block.registers[i.to] = block.registers[i.from];
    return;
  }
  const auto to_slots = coordinates_[i.to].slots, from_slots = coordinates_[i.from].slots;
  for (int thread = 0; thread < program_.threads; ++thread) {
    for (std::int64_t slot = 0; slot < to_slots; ++slot) {
      std::uint32_t bits = 0;
      for (int b = 0; b < to_width; ++b) {
        const auto at = slot * to_width + b;
        const auto from = get(block, i.from, thread * from_slots + at / from_width);
        bits |= (from >> at % from_width & 1u) << b;
      }
      set(block, i.to, thread * to_slots + slot, bits);
    }
  }
}

// Each step in f32, as the device takes it: the scale, the product, the sum.
void Interpreter::scale(Block& block, const Scale& i) {
  const Coordinates& scales = coordinates_[i.scale];
  const auto per_group = scales.slots / program_.registers[i.scale].layout.shape[0];
  const auto group = value(block, i.group);
  for_each(i.acc, [&](int thread, std::int64_t index, const std::int64_t* at) {
    auto slot = group * per_group;
    while (slot < scales.slots && scales.at(thread, slot)[1] != at[1]) ++slot;
    if (slot == scales.slots) fault("thread ", thread, " has no scale of row ", at[1]);
    const auto s = static_cast<float>(std::ldexp(
        number(block, i.scale, thread * scales.slots + slot), i.exponent[at[1] / 8 % 2]));
    const float product = static_cast<float>(number(block, i.acc, index)) * s;
    const float before = i.accumulate ? static_cast<float>(number(block, i.to, index)) : 0.0f;
    set_number(block, i.to, index, before + product);
  });
}

void Interpreter::add(Block& block, const Add& i) {
  const auto slots = coordinates_[i.to].slots, from = coordinates_[i.from].slots;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t*) {
    const auto other = thread * from + index % slots % from;
    set_number(block, i.to, index,
               static_cast<float>(number(block, i.to, index)) +
                   static_cast<float>(number(block, i.from, other)));
  });
}

}  // namespace ladder
