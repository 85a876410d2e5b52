// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "program/check.h"
#include "program/interpret/interpreter.h"

namespace ladder {
namespace {

float as_float(std::uint32_t bits) { return static_cast<float>(to_number(Scalar::f32, bits)); }
std::uint32_t as_bits(float number) { return to_bits(Scalar::f32, number); }

// As PTX has them: the number when the other is NaN, and -0 below +0.
float minimum(float a, float b) {
  if (a == 0 && b == 0) return std::signbit(a) ? a : b;
  return std::fmin(a, b);
}
float maximum(float a, float b) {
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return std::fmax(a, b);
}

float apply(UnaryOp op, float x) {
  switch (op) {
    case UnaryOp::negate: return -x;
    case UnaryOp::absolute: return std::fabs(x);
    case UnaryOp::reciprocal: return 1.0f / x;
    case UnaryOp::square_root: return std::sqrt(x);
    case UnaryOp::round_to_even: return std::nearbyint(x);
  }
  fail<InternalError>("an operation without a meaning");
}

float apply(BinaryOp op, float a, float b) {
  switch (op) {
    case BinaryOp::add: return a + b;
    case BinaryOp::subtract: return a - b;
    case BinaryOp::multiply: return a * b;
    case BinaryOp::divide: return a / b;
    case BinaryOp::minimum: return minimum(a, b);
    case BinaryOp::maximum: return maximum(a, b);
    default: fail<InternalError>(name_of(op), " of floats");
  }
}

std::uint32_t apply(BinaryOp op, std::uint32_t a, std::uint32_t b) {
  switch (op) {
    case BinaryOp::add: return a + b;
    case BinaryOp::subtract: return a - b;
    case BinaryOp::multiply: return a * b;
    case BinaryOp::minimum: return std::min(a, b);
    case BinaryOp::maximum: return std::max(a, b);
    case BinaryOp::bit_and: return a & b;
    case BinaryOp::bit_or: return a | b;
    case BinaryOp::bit_xor: return a ^ b;
    case BinaryOp::shift_left: return b < 32 ? a << b : 0;
    case BinaryOp::shift_right: return b < 32 ? a >> b : 0;
    default: fail<InternalError>(name_of(op), " of integers");
  }
}

float apply(ReduceOp op, float a, float b) {
  switch (op) {
    case ReduceOp::add: return a + b;
    case ReduceOp::minimum: return minimum(a, b);
    case ReduceOp::maximum: return maximum(a, b);
  }
  fail<InternalError>("an operation without a meaning");
}

/// Towards zero, into [0, largest], NaN as 0.
std::uint32_t to_integer(double number, std::uint32_t largest) {
  if (!(number > 0)) return 0;
  return number >= largest ? largest : static_cast<std::uint32_t>(number);
}

}  // namespace

void Interpreter::cast(Block& block, const Cast& i) {
  const Register &to = program_.registers[i.to], &from = program_.registers[i.from];
  const auto largest = to.width != 0 ? (1u << to.width) - 1 : ~0u;
  for_each(i.to, [&](int, std::int64_t index, const std::int64_t*) {
    const double exact = number(block, i.from, index);
    if (to.scalar == Scalar::u32) {
      set(block, i.to, index, to_integer(exact, largest));
    } else {
      set_number(block, i.to, index,
                 from.scalar == Scalar::u32 ? static_cast<float>(exact) : exact);
    }
  });
}

void Interpreter::gate(Block& block, const Gate& i) {
  const auto from = gate_slots(program_.registers[i.to].layout, program_.registers[i.from].layout);
  const auto slots = coordinates_[i.to].slots, of_thread = coordinates_[i.from].slots;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t*) {
    const auto [gate, up] = (*from)[index % slots];
    const auto number = [&](std::int64_t slot) {
      return as_float(get(block, i.from, thread * of_thread + slot));
    };
    set(block, i.to, index, as_bits(gated(i.gating, number(gate), number(up))));
  });
}

void Interpreter::activate(Block& block, const Activate& i) {
  for_each(i.to, [&](int, std::int64_t index, const std::int64_t*) {
    set(block, i.to, index, as_bits(activated(i.what, as_float(get(block, i.to, index)))));
  });
}

void Interpreter::to_codes(Block& block, const ToCodes& i) {
  const Scalar to = program_.registers[i.to].scalar;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t*) {
    const float inverse = 1.0f / as_float(get(block, i.scale, thread));  // of its only slot
    set(block, i.to, index, nearest_code(to, as_float(get(block, i.from, index)) * inverse));
  });
}

void Interpreter::unary(Block& block, const Unary& i) {
  for_each(i.to, [&](int, std::int64_t index, const std::int64_t*) {
    set(block, i.to, index, as_bits(apply(i.op, as_float(get(block, i.from, index)))));
  });
}

void Interpreter::binary(Block& block, const Binary& i) {
  const Register& to = program_.registers[i.to];
  const auto a_slots = slots_of(to.layout, program_.registers[i.a].layout);
  const auto b_slots = slots_of(to.layout, program_.registers[i.b].layout);
  const auto slots = coordinates_[i.to].slots;
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t*) {
    const auto a = get(block, i.a, thread * coordinates_[i.a].slots + (*a_slots)[index % slots]);
    const auto b = get(block, i.b, thread * coordinates_[i.b].slots + (*b_slots)[index % slots]);
    set(block, i.to, index,
        to.scalar == Scalar::u32 ? apply(i.op, a, b)
                                 : as_bits(apply(i.op, as_float(a), as_float(b))));
  });
}

void Interpreter::reduce(Block& block, const Reduce& i) {
  const Layout &to = program_.registers[i.to].layout, &from = program_.registers[i.from].layout;
  const auto along = threads_along(from, i.dim);
  const auto slots = to.slot_count(), from_slots = from.slot_count();
  const auto into = slots_of(from, to);  // which result each slot belongs to
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    std::vector<float> parts(program_.threads);
    for (int thread = 0; thread < program_.threads; ++thread) {
      bool first = true;
      for (std::int64_t s = 0; s < from_slots; ++s) {
        if ((*into)[s] != slot) continue;
        const float part = as_float(get(block, i.from, thread * from_slots + s));
        parts[thread] = first ? part : apply(i.op, parts[thread], part);
        first = false;
      }
    }
    for (const auto mask : along.lane_masks) {
      const auto before = parts;
      for (int thread = 0; thread < program_.threads; ++thread) {
        parts[thread] = apply(i.op, before[thread], before[thread ^ mask]);
      }
    }
    for (int thread = 0; thread < program_.threads; ++thread) {
      set(block, i.to, thread * slots + slot, as_bits(parts[thread]));
    }
  }
  if (along.warps.empty()) return;
  const auto base = program_.shared_offset(i.scratch);
  const auto place = [&](std::int64_t slot, std::int64_t thread) {
    return base + 4 * (slot * program_.threads + thread);
  };
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    for (int thread = 0; thread < program_.threads; ++thread) {
      const auto bits = get(block, i.to, thread * slots + slot);
      refuse(block.shared.write(place(slot, thread), 4, thread,
                                reinterpret_cast<const std::uint8_t*>(&bits)));
    }
  }
  block.shared.barrier();
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    for (int thread = 0; thread < program_.threads; ++thread) {
      float sum = 0;
      bool first = true;
      for (const auto peer : along.peers(thread)) {
        std::uint32_t bits = 0;
        refuse(block.shared.read(place(slot, peer), 4, thread,
                                 reinterpret_cast<std::uint8_t*>(&bits)));
        sum = first ? as_float(bits) : apply(i.op, sum, as_float(bits));
        first = false;
      }
      set(block, i.to, thread * slots + slot, as_bits(sum));
    }
  }
  block.shared.barrier();
}

}  // namespace ladder
