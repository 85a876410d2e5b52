// SPDX-License-Identifier: Apache-2.0
//
// One token by products of integers (layout/digits.h): its digits, codes as bytes, the sum.
#include "layout/digits.h"

#include <set>
#include <string>

#include "base/joined.h"
#include "codegen/emit/emitter.h"
#include "codegen/emit/literal.h"

namespace ladder::codegen {

void Emitter::unpack_bytes(const UnpackBytes& i) {
  const Scalar to = reg(i.to).scalar;
  const bool has_sign = to == Scalar::s8, whole = has_fields_of_e4m3(to);
  const BytePlan& plan = plan_of(i, to);
  const Layout& a = reg(i.to).layout;
  const ByteUnits units = byte_units(a);
  std::set<std::int64_t> declared;
  for (std::int64_t word = 0; word < words(i.to); ++word) {
    const ByteWord at = byte_word(a, word, constant(i.step));
    auto value = pieces(i.from, units.first(at, constant(i.block), i.bits),
                        plan.registers[at.plan_step][at.r], i.three ? "three_values" : "");
    if (i.scales >= 0) {
      const auto scale = byte_scale(i, a(0, 4 * word)[1], declared);
      value = joined("((", value, ") * ", scale, " + less_", scale, ") ^ ", hex(kSignBits));
    } else if (whole && i.has_zero()) {
      const auto zeros = i.zeros >= 0 ? joined(reg(i.zeros).name, "[", at.unit * 2 + at.r % 2, "]")
                                      : hex(static_cast<std::uint32_t>(i.zero) * 0x01010101u);
      value = joined("whole_less_zeros(", value, ", ", zeros, ")");
    } else if (i.zeros >= 0) {
      value =
          joined("less_zeros(", value, ", ", reg(i.zeros).name, "[", at.unit * 2 + at.r % 2, "])");
    } else if (i.has_zero()) {
      // Added what no byte carries of, the sign comes out right.
      const auto added = (128u - static_cast<std::uint32_t>(i.zero)) * 0x01010101u;
      value = joined("((", value, ") + ", hex(added), ") ^ ", hex(kSignBits));
    } else if (has_sign && i.flips_sign()) {
      value = joined("(", value, ") ^ ", hex(kSignBits));
    }
    // Whole numbers have no -0. Only floats that fill a byte have NaN.
    if (to == Scalar::e4m3fnuz && i.mantissa_bits) {
      value = joined(i.bits == 8 ? "fnuz_bytes(" : "unsigned_zeros(", value, ")");
    }
    line(reg(i.to).name, "[", word, "] = ", value, ";");
  }
}

// scaled_bytes(): what is added is the same for all codes of a row and group.
std::string Emitter::byte_scale(const UnpackBytes& i, std::int64_t row,
                                std::set<std::int64_t>& declared) {
  const auto slot = slot_of_row(i.scales, constant(i.group), row);
  const auto name = joined("scale_", slot);
  if (!declared.insert(slot).second) return name;
  const auto zeros = static_cast<std::uint32_t>(i.zero) * 0x01010101u;
  line("const u32 ", name, " = ", reg(i.scales).name, "[", slot / 4, "] >> ", slot % 4 * 8,
       " & 0xffu;");
  line("const u32 less_", name, " = ", hex(kSignBits), " - ", name, " * ", hex(zeros), ";");
  return name;
}

// Each thread has the four columns of a register, so that digits are written by whole words. Where
// they share a unit, a first reading finds it; the second one finds x in the nearest cache.
void Emitter::split_digits(const SplitDigits& i) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const Buffer& source = buffer_of(i.from);
  const auto columns = to.extents[1];
  const bool ends = range_of(program_, i.at[1]).high + columns > from.extents[1];
  const std::string index = i.columns < 0 ? "column" : buffer_of(i.columns).name + "[column]";
  const auto for_each_four = [&](int unroll, const auto& inner) {
    line("#pragma unroll ", unroll);
    line("for (u32 piece = thread; piece < ", columns / 4, "u; piece += ", program_.threads,
         "u) {");
    line("  const u32 first = piece / 4u * 16u + piece % 4u * 2u + ", expr(i.at[1]), ";");
    line("  u32 v[4];");
    line("  for (u32 j = 0; j < 4u; ++j) {");
    line("    const u32 column = first + j / 2u + j % 2u * 8u;");
    line("    v[j] = ", ends ? "column < " + limit(from.extents[1]) + " ? " : std::string(),
         "load_element(", source.name, " + ", index, ")", ends ? " : 0u" : "", ";");
    line("  }");
    inner();
    line("}");
  };
  const bool shared_unit = source.scalar != Scalar::f16;
  if (shared_unit) {
    line("u32 largest_exponent = 0;");
    for_each_four(4, [&] { line("  largest_exponent = larger_bf16(largest_exponent, v);"); });
    line("largest_exponent = largest_of_block(largest_exponent);");
  } else {
    line("bool all_finite = true;");
  }
  const auto& target = buffer_of(i.to).name;
  for_each_four(4, [&] {
    line(shared_unit ? "  split_bf16(" : "  all_finite &= split_f16(", target, " + ",
         expr(to.offset), " + piece * 4u, ", to.strides[0], "u, v",
         shared_unit ? ", largest_exponent" : "", ");");
    for (std::int64_t row = digit_count(source.scalar); row < to.extents[0]; ++row) {
      line("  *(u32*)(", target, " + ", expr(to.offset), " + piece * 4u + ", row * to.strides[0],
           "u) = 0u;");
    }
  });
  const auto& unit = reg(i.unit).name;
  if (shared_unit) {
    line("barrier();");
    line(unit, "[0] = as_float(largest_exponent == 255u ? 0x7fffffffu : largest_exponent << 23);");
  } else {
    line(unit, "[0] = all_threads(all_finite) ? 1.0f : as_float(0x7fffffffu);");
  }
}

// Neighbouring slots of a thread are two digits of one row; its quad has the others.
void Emitter::join_digits(const JoinDigits& i) {
  const auto& to = reg(i.to).name;
  for (std::int64_t s = 0; s < reg(i.to).layout.slot_count(); s += 2) {
    line(to, "[", s, "] = join_digits<", digit_exponent(i.scalar), ">(", to, "[", s, "], ", to, "[",
         s + 1, "]) * ", reg(i.unit).name, "[0];");
    line("if (thread % 4 != 0) ", to, "[", s, "] = 0.0f;");
    line(to, "[", s + 1, "] = 0.0f;");
  }
}

}  // namespace ladder::codegen
