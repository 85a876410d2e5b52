// SPDX-License-Identifier: Apache-2.0
//
// From codes to operands: shifts, masks and look-ups. The compiler finds the shifts that pairs
// share. Addresses of look-ups are sums of products (layout/lookup_plan.h), which run beside the
// masks: shifts and masks for them took 4 more operations a pair.
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/emit/emitter.h"
#include "layout/bit_plan.h"
#include "layout/field_plan.h"
#include "layout/in_place.h"
#include "layout/lookup_plan.h"
#include "layout/weight_image.h"

namespace ladder::codegen {

namespace {

/// The number in both halves of a word.
std::string both(Scalar scalar, double value) { return hex(to_bits(scalar, value) * 0x10001u); }

/// Plus -0, which keeps the sign of a zero.
std::string product(Scalar scalar, const std::string& a, const std::string& b) {
  return joined("fma_", name_of(scalar), "(", a, ", ", b, ", 0x80008000u)");
}

/// Of the two rows of a unit in the halves of `word`.
std::string low_or_high(const std::string& word, std::int64_t row) {
  return joined(row % 2 == 0 ? "low_twice(" : "high_twice(", word, ")");
}

}  // namespace

std::string Emitter::shifted(RegisterId from, std::int64_t first, const UnpackPiece& piece,
                             const std::string& through) const {
  auto word = reg(from).name + "[" + std::to_string(first + piece.word) + "]";
  if (!through.empty()) word = through + "(" + word + ")";
  if (piece.shift > 0) return "(" + word + " >> " + std::to_string(piece.shift) + ")";
  if (piece.shift < 0) return "(" + word + " << " + std::to_string(-piece.shift) + ")";
  return word;
}

std::string Emitter::pieces(RegisterId from, std::int64_t first,
                            const std::vector<UnpackPiece>& pieces, const std::string& through,
                            std::uint32_t joined) const {
  std::string code = joined != 0 ? hex(joined) : "";
  for (const auto& piece : pieces) {
    const auto word = shifted(from, first, piece, through);
    if (joined != 0) {
      code = "and_or(" + word + ", " + hex(piece.mask) + ", " + code + ")";
    } else {
      const auto mask = piece.mask != ~0u ? " & " + hex(piece.mask) : "";
      code += (code.empty() ? "(" : " | (") + word + mask + ")";
    }
  }
  return code;
}

template <class Op, class Decode>
void Emitter::for_each_pair(const Op& i, int bits, const Decode& decode) {
  const auto of = operand_words(reg(i.to).layout);
  const auto block = constant(i.block), step = constant(i.step);
  for (std::size_t w = 0; w < of.words.size(); ++w) {
    const OperandWord& word = of.words[w];
    decode(joined(reg(i.to).name, "[", w, "]"), static_cast<int>(of.pair(word, step)),
           of.first(word, block, bits), static_cast<int>(word.row()));
  }
}

void Emitter::unpack(const Unpack& i) {
  const Scalar operand = reg(i.to).scalar;
  const auto plan = plan_of(i, operand);
  const auto ones = joined_of(i, operand);
  if (i.scales >= 0) {
    line("{");
    scaled_constants(i, plan);
  }
  for_each_pair(i, i.bits, [&](const std::string& to, int p, std::int64_t first, int row) {
    const UnpackPair& pair = plan.pairs[p];
    const auto code = pieces(i.from, first, pair.pieces, i.three ? "three_values" : "", ones);
    if (i.in_place) {
      line(to, " = ", code, ";");
      return;
    }
    if (i.scales >= 0) {
      const auto of_row = [&](const char* what) {
        return low_or_high(joined(what, pair.offset, "_", row / 2), row);
      };
      line("  ", to, " = fma_", name_of(operand), "(", code, ", ", of_row("factors"), ", ",
           of_row("constants"), ");");
      return;
    }
    const auto zero = i.zeros < 0 ? both(operand, constant_of(i, operand, pair.offset))
                                  : reg(i.zeros).name + "[" + std::to_string(row) + "]";
    line(to, " = fma_", name_of(operand), "(", code, ", ",
         both(operand, factor_of(i, operand, pair.offset)), ", ", zero, ");");
  });
  if (i.scales >= 0) line("}");
}

// What codes at each offset are multiplied by and what is added, of a unit's two rows, times their
// scales: the same in all steps of a group.
void Emitter::scaled_constants(const Unpack& i, const UnpackPlan& plan) {
  const Scalar operand = reg(i.to).scalar;
  scales_of_units(i.to, i.scales, i.group, 1);
  std::set<int> offsets;
  for (const UnpackPair& pair : plan.pairs) offsets.insert(pair.offset);
  const auto units = operand_words(reg(i.to).layout).units;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const auto scales = joined("scales", unit);
    for (const int offset : offsets) {
      const double factor = factor_of(i, operand, offset);
      line("const u32 factors", offset, "_", unit, " = ",
           factor == 1 ? scales : product(operand, scales, both(operand, factor)), ";");
      line("const u32 constants", offset, "_", unit, " = ",
           product(operand, scales, both(operand, constant_of(i, operand, offset))), ";");
    }
  }
}

std::string Emitter::fields(RegisterId from, std::int64_t first, const FieldPlan& plan,
                            const FieldPair& pair) const {
  if (pair.moved < 0) {
    return pieces(from, first, pair.magnitude) + " | " + pieces(from, first, pair.sign);
  }
  const MovedFields& moved = plan.moved[pair.moved];
  auto both = "select_bits(" + shifted(from, first, {moved.word, moved.magnitude, 0}, "") + ", " +
              shifted(from, first, {moved.word, moved.sign, 0}, "") + ", " + hex(moved.signs) + ")";
  if (pair.left > 0) both = "(" + both + " << " + std::to_string(pair.left) + ")";
  return "(" + both + " & " + hex(plan.mask) + ")";
}

void Emitter::unpack_float(const UnpackFloat& i) {
  const Scalar operand = reg(i.to).scalar;
  const FloatFields& f = i.fields;
  if (f.converted) return convert_float(i);
  const FieldPlan& plan = field_plan(f.bits, f.place);
  const bool powers = i.scales >= 0 && reg(i.scales).scalar == Scalar::e8m0;
  if (powers) {
    powers_of_units(i);
  } else if (i.scales >= 0) {
    scales_of_units(i.to, i.scales, i.group, f.factor);
  }
  for_each_pair(i, f.bits, [&](const std::string& to, int pair, std::int64_t first, int row) {
    std::string value = fields(i.from, first, plan, plan.pairs[pair]);
    if (f.halved || f.special != 0) {
      const std::string magnitude = "both & 0x7fff7fffu";
      line("{ const u32 both = ", value, f.sets_several() ? "" : ", m = " + magnitude, ";");
      // The bits above the magnitude, all of them where it is no number.
      const auto above = (0x8000u - (1u << f.carry())) * 0x10001u;
      if (f.halved) {
        value = "halved_f16(m) | both & 0x80008000u";
      } else if (f.sets_several()) {
        const auto least = ((1u << f.carry()) - f.special) * 0x10001u;
        value = joined("both | halves_at_least(both, ", hex(least), ") & ", hex(above));
      } else {
        value = joined("both | (m + ", hex(f.special * 0x10001u), " & ", hex(above), ")");
      }
    }
    if (f.factor != 1 || i.scales >= 0) {
      value = product(operand, value, i.scales >= 0 ? scale_of_unit(row) : both(operand, f.factor));
    }
    line("  ", to, " = ", value, ";", f.halved || f.special != 0 ? " }" : "");
  });
  if (powers) large_powers_of_units(i);
}

void Emitter::convert_float(const UnpackFloat& i) {
  const BitPlan& plan = bit_plan(i.fields.bits);
  for_each_pair(i, i.fields.bits, [&](const std::string& to, int pair, std::int64_t first, int) {
    // Codes of 8 bits are the low or the high bytes of both halves of a word.
    const BitPlace& lowest = plan.pairs[static_cast<std::size_t>(pair)][0];
    const auto halves =
        joined("low_e4m3(", dialect_.byte_perm, "(", reg(i.from).name, "[", first + lowest.word,
               "], 0u, ", lowest.bit == 0 ? "0x20u" : "0x31u", "))");
    const bool bf16 = reg(i.to).scalar == Scalar::bf16;
    line("  ", to, " = ", bf16 ? "bf16_of_f16(" : "", halves, bf16 ? ");" : ";");
  });
}

/// Calls visit(unit, word, byte) with the word of `i.scales`, in e8m0, that holds the code of the
/// unit's first row in that byte, and of the second in the next.
template <class Visit>
void Emitter::for_each_unit(const UnpackFloat& i, const Visit& visit) {
  const Register& to = reg(i.to);
  const auto units = operand_words(to.layout).units, slots = to.layout.slot_count() / units;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const auto row = to.layout(0, unit * slots)[1];
    const auto slot = slot_of_row(i.scales, constant(i.group), row);
    const auto next = slot_of_row(i.scales, constant(i.group), row + 8);
    LADDER_CHECK(slot % 2 == 0 && next == slot + 1, "rows ", row, " and ", row + 8,
                 " do not have scales side by side");
    visit(unit, joined(reg(i.scales).name, "[", slot / 4, "]"), slot % 4);
  }
}

// The scales of a unit's two rows, in the halves of one register, of bf16 times the factor.
void Emitter::scales_of_units(RegisterId of, RegisterId scales, const Affine& group,
                              double factor) {
  const Register& to = reg(of);
  const auto per_word = 32 / bits_of(reg(scales));
  const auto units = operand_words(to.layout).units, slots = to.layout.slot_count() / units;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const auto row = to.layout(0, unit * slots)[1], next = row + 8;
    const auto slot = slot_of_row(scales, constant(group), row);
    LADDER_CHECK(slot % 2 == 0 && slot_of_row(scales, constant(group), next) == slot + 1, "rows ",
                 row, " and ", next, " do not have scales side by side");
    const auto word = reg(scales).name + "[" + std::to_string(slot / per_word) + "]";
    const Scalar scalar = reg(scales).scalar;
    const auto halves = scalar == Scalar::e8m0 || scalar == Scalar::u8
                            ? joined("pack_", name_of(to.scalar), "(", number_in(scales, slot),
                                     ", ", number_in(scales, slot + 1), ")")
                        : scalar == Scalar::e4m3
                            ? joined(slot % 4 == 0 ? "low" : "high", "_e4m3(", word, ")")
                            : word;
    const bool times = to.scalar == Scalar::bf16;
    if (times && scalar == Scalar::e4m3) {
      line("const u32 scales", unit, " = scaled_bf16(", halves, ", ", literal(factor), ");");
    } else if (times && factor != 1) {
      line("const u32 scales", unit, " = ", product(to.scalar, halves, both(to.scalar, factor)),
           ";");
    } else {
      line("const u32 scales", unit, " = ", halves, ";");
    }
  }
}

namespace {

/// Of a unit's rows, whose codes of e8m0 are bytes `at` and at + 1 of a word: the selector that
/// puts them in the low bytes of its halves.
std::string in_halves(std::int64_t at) {
  return hex(0x4040u + static_cast<std::uint32_t>(at) * 0x101u + 0x100u);
}

}  // namespace

// Of the seven low bits of their codes: the exponent of bf16 ends where the top bit would carry out
// of it.
void Emitter::powers_of_units(const UnpackFloat& i) {
  const auto exponent = static_cast<std::uint32_t>(std::ilogb(i.fields.factor));
  const auto first = (exponent << mantissa_bits(Scalar::bf16)) * 0x10001u;
  for_each_unit(i, [&](std::int64_t unit, const std::string& word, std::int64_t at) {
    line("const u32 scales", unit, " = (", dialect_.byte_perm, "(", word, " & 0x7f7f7f7fu, 0u, ",
         in_halves(at), ") << ", mantissa_bits(Scalar::bf16), ") + ", hex(first), ";");
  });
}

// Scales of 2 and more, which are rare, have the rest of their code in two products more.
void Emitter::large_powers_of_units(const UnpackFloat& i) {
  std::vector<std::string> words_of_codes;
  for_each_unit(i, [&](std::int64_t, const std::string& word, std::int64_t) {
    if (words_of_codes.empty() || words_of_codes.back() != word) words_of_codes.push_back(word);
  });
  std::string any;
  for (const auto& word : words_of_codes) any += (any.empty() ? "" : " | ") + word;
  line("if (((", any, ") & 0x80808080u) != 0) {");
  for_each_unit(i, [&](std::int64_t unit, const std::string& word, std::int64_t at) {
    line("  const u32 scales", unit, " = roots_above(", dialect_.byte_perm, "(", word, ", 0u, ",
         in_halves(at), "));");
  });
  const auto of = operand_words(reg(i.to).layout);
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    const auto to = joined(reg(i.to).name, "[", w, "]");
    const auto root = scale_of_unit(of.words[w].row());
    const auto once = product(Scalar::bf16, to, root);
    line("  ", to, " = ", product(Scalar::bf16, once, root), ";");
  }
  line("}");
}

std::string Emitter::scale_of_unit(std::int64_t row) {
  return low_or_high(joined("scales", row / 2), row);
}

void Emitter::scale_operand(const ScaleOperand& i) {
  const Scalar operand = reg(i.to).scalar;
  const double factor = std::ldexp(1.0, i.exponent);
  line("{");
  scales_of_units(i.to, i.scales, i.group, factor);
  const auto of = operand_words(reg(i.to).layout);
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    const auto to = joined(reg(i.to).name, "[", w, "]");
    const auto row = of.words[w].row();
    const bool first = operand == Scalar::f16 && i.exponent != 0;
    const auto value = first ? product(operand, to, both(operand, factor)) : to;
    line("  ", to, " = ", product(operand, value, scale_of_unit(row)), ";");
  }
  line("}");
}

void Emitter::lookup(const Lookup& i) {
  const bool joint = i.bits <= kLargestPairTable;
  const auto plan = lookup_plan(bit_plan(i.bits), joint);
  line("const u32 copy = shared_address(", buffer_of(i.table).name, ") + thread % ", kLanes,
       " * 4;");
  for_each_pair(i, i.bits, [&](const std::string& to, int p, std::int64_t first, int) {
    const LookupPair& pair = plan[p];
    const auto entry = [&](std::uint32_t weights) {
      return std::string("table_entry(dot_") + (pair.by_bytes ? "bytes" : "halves") + "(c, " +
             hex(weights) + ", copy))";
    };
    line("{ const u32 c = ", pieces(i.from, first, pair.pieces), ";");
    if (joint) {
      line("  ", to, " = ", entry(pair.weights[0]), "; }");
    } else {
      line("  ", to, " = low_halves(", entry(pair.weights[0]), ", ", entry(pair.weights[1]),
           "); }");
    }
  });
}

std::string Emitter::scale_code(RegisterId scales, std::int64_t slot) const {
  const auto at = slot % 4 * 8;
  return joined("(", reg(scales).name, "[", slot / 4, "] >> ", at, " & 0xffu)");
}

void Emitter::largest_scale(const LargestScale& i) {
  const Register& to = reg(i.to);
  const auto slots = to.layout.slot_count(), first = constant(i.first);
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    std::string word;
    for (std::int64_t slot = 4 * w; slot < std::min(4 * w + 4, slots); ++slot) {
      const auto row = to.layout(0, slot)[1];
      auto largest = scale_code(i.scales, slot_of_row(i.scales, first, row));
      for (int g = 1; g < i.count; ++g) {
        largest = joined("max(", largest, ", ",
                         scale_code(i.scales, slot_of_row(i.scales, first + g, row)), ")");
      }
      word += joined(word.empty() ? "" : " | ", largest, " << ", slot % 4 * 8);
    }
    line(to.name, "[", w, "] = ", word, ";");
  }
}

// The two words of each row's magnitudes, then four codes at a time.
void Emitter::lookup_relative(const LookupRelative& i) {
  const Register& to = reg(i.to);
  const Layout& a = to.layout;
  const ByteUnits units = byte_units(a);
  line("{");
  for (std::int64_t unit = 0; unit < units.units; ++unit) {
    for (int parity = 0; parity < 2; ++parity) {
      const auto row = a(0, unit * (a.slot_count() / units.units))[1] + 8 * parity;
      line("  const RelativeEntry of", 2 * unit + parity, " = relative_entry(",
           buffer_of(i.table).name, ", ", scale_code(i.largest, slot_of_row(i.largest, 0, row)),
           ", ", scale_code(i.scales, slot_of_row(i.scales, constant(i.group), row)), ");");
    }
  }
  const BytePlan& plan = relative_plan();
  for (std::int64_t word = 0; word < words(i.to); ++word) {
    const ByteWord at = byte_word(a, word, constant(i.step));
    const auto& pieces = plan.registers[at.plan_step][at.r];
    LADDER_CHECK(pieces.size() == 1 && (pieces[0].shift == 0 || pieces[0].shift == 4), "codes of ",
                 kRelativeBits, " bits in ", pieces.size(), " pieces");
    line("  ", to.name, "[", word, "] = relative_", pieces[0].shift == 0 ? "low" : "high", "(of",
         2 * at.unit + at.r % 2, ", ", reg(i.from).name, "[",
         units.first(at, constant(i.block), kRelativeBits) + pieces[0].word, "]);");
  }
  line("}");
}

void Emitter::table_values(const std::vector<Statement>& statements) {
  for (const Statement& statement : statements) {
    if (const auto* fill = std::get_if<FillTable>(&statement.op)) {
      array_of("u16", fill->to, fill->values);
    } else if (const auto* of_words = std::get_if<FillWords>(&statement.op)) {
      array_of("u32", of_words->to, of_words->values);
    }
  }
}

template <class Value>
void Emitter::array_of(std::string_view type, ViewId of, const std::vector<Value>& values) {
  out_ << dialect_.constants << ' ' << type << ' ' << buffer_of(of).name << "_values[] = {";
  for (std::size_t v = 0; v < values.size(); ++v) {
    out_ << (v == 0 ? "" : v % 16 == 0 ? ",\n    " : ", ") << hex(values[v]);
  }
  out_ << "};\n";
}

void Emitter::fill_words(const FillWords& i) {
  const auto& table = buffer_of(i.to).name;
  line("for (u32 at = thread; at < ", i.values.size(), "u; at += ", program_.threads, "u) {");
  line("  ", table, "[at] = ", table, "_values[at];");
  line("}");
}

void Emitter::fill_table(const FillTable& i) {
  const auto& table = buffer_of(i.to).name;
  const auto pieces = table_entries(i.bits) * kLanes / 4;
  line("for (u32 piece = thread; piece < ", pieces, "u; piece += ", program_.threads, "u) {");
  line("  const u32 entry = piece / ", kLanes / 4, "u;");
  if (i.bits <= kLargestPairTable) {
    line("  const u32 v = ", table, "_values[entry & ", (1u << i.bits) - 1, "u] | (u32)", table,
         "_values[entry >> ", i.bits, "] << 16;");
  } else {
    line("  const u32 v = ", table, "_values[entry];");
  }
  line("  ((Words4*)", table, ")[piece] = {{v, v, v, v}};");
  line("}");
}

void Emitter::zero_operand(const ZeroOperand& i) {
  const Register &to = reg(i.to), &from = reg(i.from);
  if (to.scalar == Scalar::u8) {
    for (std::int64_t w = 0; w < words(i.to); ++w) {
      const auto slot = slot_of_row(i.from, constant(i.group), to.layout(0, 4 * w)[1]);
      line(to.name, "[", w, "] = ", dialect_.byte_perm, "(", from.name, "[", slot / 4, "], 0u, ",
           hex(static_cast<std::uint32_t>(slot % 4) * 0x1111u), ") << ", i.exponent, ";");
    }
    return;
  }
  const auto factor = both(to.scalar, -std::ldexp(1.0, i.exponent - linear_exponent(to.scalar)));
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    const auto slot = slot_of_row(i.from, constant(i.group), to.layout(0, 2 * w)[1]);
    // The byte in both halves is the number times the weight of the format's lowest bit.
    line(to.name, "[", w, "] = fma_", name_of(to.scalar), "(", dialect_.byte_perm, "(", from.name,
         "[", slot / 4, "], 0u, ", hex(0x4040u | static_cast<std::uint32_t>(slot % 4) * 0x101u),
         "), ", factor, ", 0x80008000u);");
  }
}

}  // namespace ladder::codegen
