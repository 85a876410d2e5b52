// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/emit/emitter.h"
#include "codegen/gated_product.h"
#include "program/check.h"

namespace ladder::codegen {

std::string Emitter::integer_of(RegisterId id, std::int64_t slot) const {
  const Register& from = reg(id);
  if (from.width == 0) return from.name + "[" + std::to_string(slot) + "]";
  const auto bit = slot * from.width, shift = bit % 32;
  const auto word = [&](std::int64_t w) { return from.name + "[" + std::to_string(w) + "]"; };
  auto text = word(bit / 32);
  if (shift != 0) text = "(" + text + " >> " + std::to_string(shift) + ")";
  if (shift + from.width > 32) {
    text = "(" + text + " | " + word(bit / 32 + 1) + " << " + std::to_string(32 - shift) + ")";
  }
  return "(" + text + " & " + std::to_string((1u << from.width) - 1) + "u)";
}

std::string Emitter::float_of(RegisterId id, std::int64_t slot) const {
  const Register& from = reg(id);
  const auto name = std::string(name_of(from.scalar));
  switch (from.scalar) {
    case Scalar::f32: return from.name + "[" + std::to_string(slot) + "]";
    case Scalar::u32: return "(float)" + integer_of(id, slot);
    default:
      return (slot % 2 ? "high_" : "low_") + name + "(" + from.name + "[" +
             std::to_string(slot / 2) + "])";
  }
}

void Emitter::cast(const Cast& i) {
  const Register& to = reg(i.to);
  const auto slots = to.layout.slot_count();
  if (to.scalar == Scalar::f32) {
    for (std::int64_t s = 0; s < slots; ++s) {
      line(to.name, "[", s, "] = ", float_of(i.from, s), ";");
    }
  } else if (bits_of(to.scalar) == 16) {
    for (std::int64_t w = 0; w < words(i.to); ++w) {
      line(to.name, "[", w, "] = pack_", name_of(to.scalar), "(", float_of(i.from, 2 * w), ", ",
           2 * w + 1 < slots ? float_of(i.from, 2 * w + 1) : "0.0f", ");");
    }
  } else {
    const auto largest = std::to_string(to.width != 0 ? (1u << to.width) - 1 : ~0u) + "u";
    std::int64_t begun = 0;  // words whose first bits are there
    for (std::int64_t s = 0; s < slots; ++s) {
      const bool integer = reg(i.from).scalar == Scalar::u32;
      line("{ u32 whole = ",
           integer ? integer_of(i.from, s) : "to_integer(" + float_of(i.from, s) + ")",
           "; if (whole > ", largest, ") whole = ", largest, ";");
      const auto bit = s * bits_of(to), shift = bit % 32;
      const auto put = [&](std::int64_t word, const std::string& text) {
        line("  ", to.name, "[", word, "] ", word < begun ? "|= " : "= ", text, ";");
        begun = std::max(begun, word + 1);
      };
      put(bit / 32, "whole << " + std::to_string(shift));
      if (shift + bits_of(to) > 32) put(bit / 32 + 1, "whole >> " + std::to_string(32 - shift));
      line("}");
    }
  }
}

void Emitter::gate(const Gate& i) {
  const Register &to = reg(i.to), &from = reg(i.from);
  const auto slots = gate_slots(to.layout, from.layout);
  LADDER_CHECK(slots, "tiles that do not match: ", to_string(program_, {i}));
  const bool limited = std::isfinite(i.gating.limit);
  const auto limit = literal(i.gating.limit);
  for (std::size_t s = 0; s < slots->size(); ++s) {
    const auto number = [&](std::int64_t slot) { return joined(from.name, "[", slot, "]"); };
    auto gate = number((*slots)[s].gate), up = number((*slots)[s].up);
    if (limited) {
      gate = joined("fminf(", gate, ", ", limit, ")");
      up = joined("fminf(fmaxf(", up, ", -", limit, "), ", limit, ")");
    }
    line("{ const float gate = ", gate, ", up = ", up, ";");
    if (i.gating.what == Gated::swiglu_oai) {
      line("  const float alpha = ", literal(i.gating.alpha), ";");
    }
    line("  ", to.name, "[", s, "] = ", gated_product(i.gating.what), "; }");
  }
}

void Emitter::activate(const Activate& i) {
  const Register& to = reg(i.to);
  for (std::int64_t s = 0; s < to.layout.slot_count(); ++s) {
    line("{ const float gate = ", to.name, "[", s, "], up = 1.0f;");
    line("  ", to.name, "[", s, "] = ", gated_product(i.what), "; }");
  }
}

void Emitter::to_codes(const ToCodes& i) {
  const Register &to = reg(i.to), &from = reg(i.from);
  const auto slots = to.layout.slot_count();
  line("const float inverse = 1.0f / ", reg(i.scale).name, "[0];");
  const auto product = [&](std::int64_t slot) {
    return slot < slots ? joined(from.name, "[", slot, "] * inverse") : "0.0f";
  };
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    std::string codes;
    for (std::int64_t s = 4 * w; s < std::min(4 * w + 4, slots); s += 2) {
      codes += joined(codes.empty() ? "" : " | ", "codes_", name_of(to.scalar), "(", product(s),
                      ", ", product(s + 1), ")", s % 4 != 0 ? " << 16" : "");
    }
    line(to.name, "[", w, "] = ", codes, ";");
  }
}

void Emitter::unary(const Unary& i) {
  for (std::int64_t s = 0; s < reg(i.to).layout.slot_count(); ++s) {
    line(reg(i.to).name, "[", s, "] = ", name_of(i.op), "_f32(", reg(i.from).name, "[", s, "]);");
  }
}

void Emitter::binary(const Binary& i) {
  const Register& to = reg(i.to);
  const auto a = slots_of(to.layout, reg(i.a).layout), b = slots_of(to.layout, reg(i.b).layout);
  LADDER_CHECK(a && b, "tiles that do not match: ", to_string(program_, {i}));
  for (std::size_t s = 0; s < a->size(); ++s) {
    line(to.name, "[", s, "] = ", name_of(i.op), "_", name_of(to.scalar), "(", reg(i.a).name, "[",
         (*a)[s], "], ", reg(i.b).name, "[", (*b)[s], "]);");
  }
}

void Emitter::reduce(const Reduce& i) {
  const Register &to = reg(i.to), &from = reg(i.from);
  const auto into = slots_of(from.layout, to.layout);
  const auto along = threads_along(from.layout, i.dim);
  const auto op = std::string(name_of(i.op)) + "_f32(";
  for (std::int64_t slot = 0; slot < to.layout.slot_count(); ++slot) {
    const auto sum = to.name + "[" + std::to_string(slot) + "]";
    bool first = true;
    for (std::size_t s = 0; s < into->size(); ++s) {
      if ((*into)[s] != slot) continue;
      const auto part = from.name + "[" + std::to_string(s) + "]";
      line(sum, " = ", first ? part : op + sum + ", " + part + ")", ";");
      first = false;
    }
    for (const auto mask : along.lane_masks) {
      line(sum, " = ", op, sum, ", shuffle_xor(", sum, ", ", mask, "u));");
    }
    if (!along.warps.empty()) {
      line(program_.buffers[i.scratch].name, "[", slot * program_.threads, " + thread] = ", sum,
           ";");
    }
  }
  if (along.warps.empty()) return;
  line("barrier();");
  std::string base = "thread";  // of the first peer
  for (const auto& digit : along.warps) {
    base += " - thread / " + std::to_string(digit.step) + " % " + std::to_string(digit.extent) +
            " * " + std::to_string(digit.step);
  }
  line("const u32 peer = ", base, ";");
  for (std::int64_t slot = 0; slot < to.layout.slot_count(); ++slot) {
    const auto sum = to.name + "[" + std::to_string(slot) + "]";
    bool first = true;
    for (const auto step : along.peers(0)) {
      const auto part = program_.buffers[i.scratch].name + "[" +
                        std::to_string(slot * program_.threads + step) + " + peer]";
      line(sum, " = ", first ? part : op + sum + ", " + part + ")", ";");
      first = false;
    }
  }
  line("barrier();");
}

}  // namespace ladder::codegen
