// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

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

const Interpreter::Fragments& Interpreter::fragments_of(const MatrixInstruction& row) {
  const auto found = fragments_.find(&row);
  if (found != fragments_.end()) return found->second;
  return fragments_
      .emplace(&row, Fragments{row.lanes(), coordinates_of(row.a()), coordinates_of(row.b()),
                               coordinates_of(row.d())})
      .first->second;
}

// As the hardware does: by lanes and registers of the instruction, whatever the tiles claim.
void Interpreter::mma(Block& block, const Mma& i) {
  const MatrixInstruction& row = *i.row;
  const auto& [lanes, a_at, b_at, d_at] = fragments_of(row);
  const auto a_slots = coordinates_[i.a].slots, b_slots = coordinates_[i.b].slots;
  const auto d_slots = coordinates_[i.acc].slots;
  const auto units = a_slots / a_at.slots, columns = b_slots / b_at.slots;
  for (int first = 0; first < program_.threads; first += lanes) {
    for (std::int64_t u = 0; u < units; ++u) {
      const auto a = operand_of(block, i.a, first, a_slots, u * a_at.slots, row, a_at, row.m);
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto b = operand_of(block, i.b, first, b_slots, c * b_at.slots, row, b_at, row.n);
        for (int lane = 0; lane < lanes; ++lane) {
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

// The sums are there at once: what may not be used before MmaWait is refused until then.
void Interpreter::mma_shared(Block& block, const MmaShared& i) {
  const MatrixInstruction& row = *i.row;
  const View& view = program_.views[i.from];
  const Scalar scalar = program_.buffers[view.buffer].scalar;
  const int size = bytes_of(scalar);
  const auto tokens = program_.registers[i.acc].layout.shape[2];
  const auto origin = values(block, i.at);
  Product product{i.acc, i.a, {}};
  std::vector<double> b(tokens * row.k);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t k = 0; k < row.k; ++k) {
      const std::int64_t offset[] = {0, token, 0, k};
      const auto at = element(block, view, origin, offset);
      if (!at) fault("reads outside ", program_.buffers[view.buffer].name);
      const auto byte = byte_of(view, *at);
      std::uint32_t bits = 0;
      refuse(block.shared.read_by_matrix(byte, size, reinterpret_cast<std::uint8_t*>(&bits)));
      product.reads.emplace_back(byte, size);
      b[token * row.k + k] = to_number(scalar, bits);
    }
  }
  // Sums of products that are on their way may be added to.
  const int begun = std::exchange(block.summed[i.acc], 0);
  block.awaited[i.acc] = true;
  const auto a_at = coordinates_of(row.a()), d_at = coordinates_of(row.d(static_cast<int>(tokens)));
  const auto a_slots = coordinates_[i.a].slots, d_slots = coordinates_[i.acc].slots;
  for (int first = 0; first < program_.threads; first += row.lanes()) {
    for (std::int64_t u = 0; u < a_slots / a_at.slots; ++u) {
      const auto a = operand_of(block, i.a, first, a_slots, u * a_at.slots, row, a_at, row.m);
      for (int lane = 0; lane < row.lanes(); ++lane) {
        for (std::int64_t s = 0; s < d_at.slots; ++s) {
          const auto* at = d_at.at(lane, s);
          const auto index = (first + lane) * d_slots + u * d_at.slots + s;
          double sum = number(block, i.acc, index);
          for (int k = 0; k < row.k; ++k) sum += a[at[0] * row.k + k] * b[at[1] * row.k + k];
          set_number(block, i.acc, index, sum);
        }
      }
    }
  }
  block.summed[i.acc] = begun + 1;
  block.awaited[i.acc] = false;
  ++block.multiplied[i.a];
  block.products.push_back(std::move(product));
}

void Interpreter::end_products(Block& block, int pending) {
  while (static_cast<int>(block.products.size()) > pending) {
    const Product& product = block.products.front();
    --block.summed[product.acc];
    --block.multiplied[product.a];
    for (const auto& [at, size] : product.reads) block.shared.ended(at, size);
    block.products.erase(block.products.begin());
  }
}

std::vector<double> Interpreter::operand_of(const Block& block, RegisterId id, int first,
                                            std::int64_t slots, std::int64_t slot,
                                            const MatrixInstruction& row, const Coordinates& at,
                                            int extent) const {
  std::vector<double> out(extent * row.k);
  const Scalar scalar = program_.registers[id].scalar;
  const double least = row.subnormals ? 0 : std::ldexp(1.0, 2 - (1 << (exponent_bits(scalar) - 1)));
  for (int lane = 0; lane < row.lanes(); ++lane) {
    for (std::int64_t s = 0; s < at.slots; ++s) {
      const auto* c = at.at(lane, s);
      const double value = number(block, id, (first + lane) * slots + slot + s);
      out[c[0] * row.k + c[1]] = std::fabs(value) < least ? 0 : value;
    }
  }
  return out;
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
  const auto group = value(block, i.group);
  for_each(i.acc, [&](int thread, std::int64_t index, const std::int64_t* at) {
    double s = 1;
    if (i.scale >= 0) {
      const auto slot = slot_of_row(i.scale, thread, group, at[1]);
      s = number(block, i.scale, thread * coordinates_[i.scale].slots + slot);
    }
    const auto factor = static_cast<float>(std::ldexp(s, i.exponent[row_parity(at[1])]));
    const float product = static_cast<float>(number(block, i.acc, index)) * factor;
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
