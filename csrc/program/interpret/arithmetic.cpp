// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "layout/weight_image.h"
#include "program/interpret/interpreter.h"

namespace ladder {

std::uint32_t Interpreter::get(const Block& block, RegisterId id, std::int64_t index) const {
  const Tile& tile = block.registers[id];
  if (block.summed[id] > 0)
    fault("reads ", program_.registers[id].name, " before its products end");
  if (!block.awaited[id]) fault("reads ", program_.registers[id].name, ", which no wait names");
  if (!tile.set[index]) fault("reads ", program_.registers[id].name, " before it is set");
  return tile.bits[index];
}

void Interpreter::set(Block& block, RegisterId id, std::int64_t index, std::uint32_t bits) const {
  if (block.summed[id] > 0 || block.multiplied[id] > 0) {
    fault("overwrites ", program_.registers[id].name, " before its products end");
  }
  block.registers[id].bits[index] = bits;
  block.registers[id].set[index] = true;
}

double Interpreter::number(const Block& block, RegisterId id, std::int64_t index) const {
  return to_number(program_.registers[id].scalar, get(block, id, index));
}

void Interpreter::set_number(Block& block, RegisterId id, std::int64_t index, double number) const {
  set(block, id, index, to_bits(program_.registers[id].scalar, number));
}

void Interpreter::fill(Block& block, const Fill& i) {
  for_each(i.to, [&](int, std::int64_t index, const std::int64_t* at) {
    const bool by_row = coordinates_[i.to].rank > 2;
    set_number(block, i.to, index, i.value[by_row ? row_parity(at[1]) : 0]);
  });
}

// Slot by slot when the widths are equal; else bit by bit, as the words of a thread hold them.
void Interpreter::reinterpret_bits(Block& block, const Reinterpret& i) {
  const int to_width = bits_of(program_.registers[i.to]);
  const int from_width = bits_of(program_.registers[i.from]);
  const auto to_slots = coordinates_[i.to].slots, from_slots = coordinates_[i.from].slots;
  if (to_width == from_width) {
    Tile& to = block.registers[i.to];
    const Tile& from = block.registers[i.from];
    const auto [first, end] = threads_;
    std::copy(from.bits.begin() + first * from_slots, from.bits.begin() + end * from_slots,
              to.bits.begin() + first * to_slots);
    std::copy(from.set.begin() + first * from_slots, from.set.begin() + end * from_slots,
              to.set.begin() + first * to_slots);
    return;
  }
  for (const int thread : running()) {
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
  const auto group = value(block, i.group);
  for_each(i.acc, [&](int thread, std::int64_t index, const std::int64_t* at) {
    double s = 1;
    if (i.scale >= 0) {
      const auto slot = slot_of_row(i.scale, thread, group, at[1]);
      s = number(block, i.scale, thread * coordinates_[i.scale].slots + slot);
    }
    const auto factor = static_cast<float>(std::ldexp(s, i.exponent[row_parity(at[1])]));
    const auto sum = static_cast<float>(number(block, i.acc, index) - (i.biased ? kSumBias : 0));
    if (i.biased && !(std::fabs(sum) < 0x1p22f)) fault("a sum leaves its bias");
    const float product = sum * factor;
    const float before = i.accumulate ? static_cast<float>(number(block, i.to, index)) : 0.0f;
    set_number(block, i.to, index, before + product);
  });
}

void Interpreter::spread(Block& block, const Spread& i) {
  const auto slots = coordinates_[i.to].slots, others = coordinates_[i.from].slots;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t*) {
    set(block, i.to, index, get(block, i.from, thread * others + index % slots % others));
  });
}

void Interpreter::combine(Block& block, RegisterId to, RegisterId from, bool multiply) {
  const auto slots = coordinates_[to].slots, others = coordinates_[from].slots;
  const bool whole = program_.registers[to].scalar == Scalar::s32;
  for_each(to, [&](int thread, std::int64_t index, const std::int64_t*) {
    if (whole) {
      const auto a = number(block, to, index);
      const auto b = number(block, from, thread * others + index % slots % others);
      set_number(block, to, index, multiply ? a * b : a + b);
      return;
    }
    const auto a = static_cast<float>(number(block, to, index));
    const auto b =
        static_cast<float>(number(block, from, thread * others + index % slots % others));
    set_number(block, to, index, multiply ? a * b : a + b);
  });
}

}  // namespace ladder
