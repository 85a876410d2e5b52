// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "codegen/cuda/emit/emitter.h"
#include "layout/bit_plan.h"
#include "layout/weight_image.h"

namespace ladder::cuda {
namespace {

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08xu", value);
  return text;
}

/// An exact literal.
std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%af", value);
  return text;
}

}  // namespace

void Emitter::unpack(const Unpack& i) {
  const Scalar operand = reg(i.to).scalar;
  const auto plan = unpack_plan(i.bits, linear_window(operand));
  const auto first = constant(i.block) * 4 * i.bits, step = constant(i.step);
  const auto both = [&](double value) { return hex(to_bits(operand, value) * 0x10001u); };
  const auto zero = both(-std::ldexp(i.zero, i.exponent));
  for (int unit = 0; unit < kUnits; ++unit) {
    for (int r = 0; r < 4; ++r) {
      const UnpackPair& pair = plan.pairs[4 * step + r];
      std::ostringstream code;
      for (const auto& piece : pair.pieces) {
        const auto word =
            reg(i.from).name + "[" + std::to_string(first + unit * i.bits + piece.word) + "]";
        code << (code.tellp() > 0 ? " | " : "") << '(';
        if (piece.shift == 0) code << word;
        if (piece.shift > 0) code << '(' << word << " >> " << piece.shift << ')';
        if (piece.shift < 0) code << '(' << word << " << " << -piece.shift << ')';
        code << " & " << hex(piece.mask) << ')';
      }
      const auto to = reg(i.to).name + "[" + std::to_string(unit * 4 + r) + "]";
      if (i.in_place) {
        line(to, " = ", code.str(), ";");
      } else {
        const double factor = std::ldexp(1.0, i.exponent - linear_exponent(operand) - pair.offset);
        line(to, " = fma_", name_of(operand), "(", code.str(), ", ", both(factor), ", ", zero,
             ");");
      }
    }
  }
}

void Emitter::mma(const Mma& i) {
  const auto units = words(i.a) / 4, columns = words(i.b) / 2;
  for (std::int64_t u = 0; u < units; ++u) {
    for (std::int64_t c = 0; c < columns; ++c) {
      line("mma_", name_of(reg(i.a).scalar), "(", reg(i.acc).name, " + ", (u * columns + c) * 4,
           ", ", reg(i.a).name, " + ", u * 4, ", ", reg(i.b).name, " + ", c * 2, ");");
    }
  }
}

void Emitter::reinterpret_bits(const Reinterpret& i) {
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    line(reg(i.to).name, "[", w, "] = ", reg(i.from).name, "[", w, "];");
  }
}

void Emitter::scale(const Scale& i) {
  const Register& scales = reg(i.scale);
  const auto group = constant(i.group);
  const auto per_group = scales.layout.slot_count() / scales.layout.shape[0];
  std::int64_t declared = -1;
  for (std::int64_t s = 0; s < reg(i.acc).layout.slot_count(); ++s) {
    const auto row = reg(i.acc).layout(0, s)[1];
    auto slot = group * per_group;
    while (scales.layout(0, slot)[1] != row) ++slot;
    const auto factor = "s" + std::to_string(slot);
    if (slot > declared) {
      line("const float ", factor, " = ", slot % 2 ? "high_" : "low_", name_of(scales.scalar), "(",
           scales.name, "[", slot / 2, "]) * ", number(std::ldexp(1.0, i.exponent[row / 8 % 2])),
           ";");
      declared = slot;
    }
    line(reg(i.to).name, "[", s, "] ", i.accumulate ? "+=" : "=", " ", reg(i.acc).name, "[", s,
         "] * ", factor, ";");
  }
}

void Emitter::fill(const Fill& i) {
  const Register& to = reg(i.to);
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    const bool f32 = to.scalar == Scalar::f32;
    const bool by_row = to.layout.shape.size() > 2;
    const auto row = by_row ? to.layout(0, bits_of(to) == 32 ? w : 2 * w)[1] : 0;
    const double value = i.value[row / 8 % 2];
    const auto bits = to_bits(to.scalar, value);
    line(to.name, "[", w,
         "] = ", f32 ? number(value) : hex(bits_of(to) == 32 ? bits : bits * 0x10001u), ";");
  }
}

void Emitter::add(const Add& i) {
  const auto from = reg(i.from).layout.slot_count();
  for (std::int64_t s = 0; s < reg(i.to).layout.slot_count(); ++s) {
    line(reg(i.to).name, "[", s, "] += ", reg(i.from).name, "[", s % from, "];");
  }
}

}  // namespace ladder::cuda
