// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/emit/emitter.h"
#include "layout/weight_image.h"
#include "program/access.h"

namespace ladder::codegen {
namespace {

/// That a lane has of an operand of `row`.
std::int64_t words_of(const MatrixInstruction& row, const Layout& fragment) {
  return fragment.slot_count() * row.operand_bits() / 32;
}

}  // namespace

void Emitter::mma(const Mma& i) {
  if (!dialect_.multiplies_by(*i.row)) {
    fail<Unsupported>("kernels do not multiply by ", i.row->name);
  }
  const auto a = words_of(*i.row, i.row->a()), b = words_of(*i.row, i.row->b());
  const auto d = i.row->d().slot_count();
  const auto units = words(i.a) / a, columns = words(i.b) / b;
  const auto product = dialect_.product(*i.row, reg(i.a).scalar);
  if (alternates_) {
    for (const RegisterId id : {i.a, i.b}) {
      line("hold<", words(id), ">(", reg(id).name, ");");
    }
  }
  for (std::int64_t u = 0; u < units; ++u) {
    for (std::int64_t c = 0; c < columns; ++c) {
      line(product, "(", reg(i.acc).name, " + ", (u * columns + c) * d, ", ", reg(i.a).name, " + ",
           u * a, ", ", reg(i.b).name, " + ", c * b, ");");
    }
  }
  if (alternates_) line("hold_sums<", words(i.acc), ">(", reg(i.acc).name, ");");
}

void Emitter::products(const std::vector<Statement>& statements) {
  for (const Statement& statement : statements) {
    std::visit(
        [&](const auto& i) {
          if constexpr (requires { i.body; }) products(i.body);
        },
        statement.op);
    const auto* i = std::get_if<MmaShared>(&statement.op);
    if (i == nullptr) continue;
    if (dialect_.shared_product == nullptr || !dialect_.multiplies_by(*i->row)) {
      fail<Unsupported>("kernels do not multiply by ", i->row->name);
    }
    auto text = dialect_.shared_product(*i->row, reg(i->a).scalar, reg(i->acc).layout.shape[2],
                                        i->replaces);
    if (functions_.insert(text).second) out_ << text << '\n';
  }
}

void Emitter::mma_shared(const MmaShared& i) {
  const View& view = program_.views[i.from];
  const auto tokens = reg(i.acc).layout.shape[2];
  const auto a = words_of(*i.row, i.row->a());
  const auto d = i.row->d(static_cast<int>(tokens)).slot_count();
  // Steps of 16 columns begin within a row of the pattern, which counts from the panel's begin. In
  // pieces of 16 bytes, so that products of a k-tile differ by a number that is added.
  const auto of_piece = 16 / bytes_of(buffer_of(i.from).scalar);
  line("const u64 matrices = matrices_at(shared_address(", buffer_of(i.from).name, "), ",
       expr(exact_quotient(origin_of(view, i.at), of_piece)), ");");
  line("mma_begin();");
  for (std::int64_t u = 0; u < words(i.a) / a; ++u) {
    line(i.replaces ? "mma_first_" : "mma_shared_", name_of(reg(i.a).scalar), "<", tokens, ">(",
         reg(i.acc).name, " + ", u * d, ", ", reg(i.a).name, " + ", u * a, ", matrices);");
  }
  line("mma_commit();");
}

// The compiler knows of no product that is on its way: without a word it may read the sums of one
// before the wait.
void Emitter::mma_wait(const MmaWait& i) {
  line("mma_wait<", i.pending, ">();");
  for (const RegisterId sums : i.sums) {
    line("after_products<", words(sums), ">(", reg(sums).name, ");");
  }
}

void Emitter::reinterpret_bits(const Reinterpret& i) {
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    line(reg(i.to).name, "[", w, "] = ", reg(i.from).name, "[", w, "];");
  }
}

namespace {

/// Of the factor beside ones_e8m0: the smallest scale times it is still a number of f32.
constexpr int kLeastOfOnes = -22;

/// What number_in leaves out: its text is 2^-that times the number.
int kept_exponent(Scalar scalar) { return scalar == Scalar::e4m3 ? 8 : 0; }

}  // namespace

std::string Emitter::number_in(RegisterId id, std::int64_t slot) const {
  const Register& from = reg(id);
  const int per_word = 32 / bits_of(from.scalar);
  const auto word = from.name + "[" + std::to_string(slot / per_word) + "]";
  const std::string type(name_of(from.scalar));
  switch (per_word) {
    case 1: return word;
    case 2: return (slot % 2 != 0 ? "high_" : "low_") + type + "(" + word + ")";
    default: {
      if (from.scalar != Scalar::e4m3) {
        return "from_" + type + "(" + word + " >> " + std::to_string(slot % 4 * 8) + " & 0xffu)";
      }
      const auto selector = slot % 4 < 2 ? "0x1404u" : "0x3424u";
      return joined(slot % 2 != 0 ? "high" : "low", "_f16(halves_e4m3(", dialect_.byte_perm, "(",
                    word, ", 0u, ", selector, ")))");
    }
  }
}

std::int64_t Emitter::slot_of_row(RegisterId id, std::int64_t group, std::int64_t row) const {
  const Layout& layout = reg(id).layout;
  auto slot = group * (layout.slot_count() / layout.shape[0]);
  while (layout(0, slot)[1] != row) ++slot;
  return slot;
}

std::string Emitter::factor_of_row(RegisterId rows, const Affine& group, std::int64_t row,
                                   int exponent, std::set<std::int64_t>& declared) {
  const auto slot = slot_of_row(rows, constant(group), row);
  const auto name = "s" + std::to_string(slot);
  if (!declared.insert(slot).second) return name;
  if (reg(rows).scalar == Scalar::e8m0 && exponent >= kLeastOfOnes) {
    // Two operations and the product that the exponent takes anyway, for all codes.
    const int up = 23 - static_cast<int>(slot % 4) * 8;
    line("const float ", name, " = ones_e8m0(", reg(rows).name, "[", slot / 4, "]",
         up > 0 ? " << " : " >> ", std::abs(up), ") * ",
         literal(std::ldexp(1 + std::ldexp(1.0, -23), exponent - 1)), ";");
  } else {
    line("const float ", name, " = ", number_in(rows, slot), " * ",
         literal(std::ldexp(1.0, exponent + kept_exponent(reg(rows).scalar))), ";");
  }
  return name;
}

// A conversion takes four times as long as a product, so bytes become the last bits of 2^23 and
// more, from which a subtraction is exact.
void Emitter::times_second(const TimesSecond& i) {
  const Register &to = reg(i.to), &numbers = reg(i.numbers), &seconds = reg(i.seconds);
  const auto groups = to.layout.shape[0] / seconds.layout.shape[0];
  const bool is_signed = numbers.scalar == Scalar::s8;  // counted from -128
  line("{");
  std::set<std::int64_t> declared;
  for (std::int64_t s = 0; s < to.layout.slot_count(); ++s) {
    const auto at = to.layout(0, s);
    const auto of = slot_of_row(i.seconds, at[0] / groups, at[1]);
    if (declared.insert(of).second) {
      line("  const float d", of, " = ", number_in(i.seconds, of), ";");
    }
    const auto word = joined(numbers.name, "[", s / 4, "]", is_signed ? " ^ 0x80808080u" : "");
    line("  ", to.name, "[", s, "] = (as_float(", dialect_.byte_perm, "(", word,
         ", 0x4b000000u, 0x744", s % 4, "u)) - ", literal(is_signed ? 8388736.0 : 8388608.0),
         ") * d", of, ";");
  }
  line("}");
}

void Emitter::scale(const Scale& i) {
  std::set<std::int64_t> declared;
  for (std::int64_t s = 0; s < reg(i.acc).layout.slot_count(); ++s) {
    const auto row = reg(i.acc).layout(0, s)[1];
    const int exponent = i.exponent[row_parity(row)];
    const auto factor = i.scale < 0 ? literal(std::ldexp(1.0, exponent))
                                    : factor_of_row(i.scale, i.group, row, exponent, declared);
    const auto sum = joined(reg(i.acc).name, "[", s, "]");
    line(reg(i.to).name, "[", s, "] ", i.accumulate ? "+=" : "=", " ",
         i.biased ? joined("(as_float(", sum, ") - ", literal(kSumOfBias), ")")
         : reg(i.acc).scalar == Scalar::s32 ? "(float)" + sum
                                            : sum,
         " * ", factor, ";");
  }
}

void Emitter::offset(const Offset& i) {
  std::set<std::int64_t> declared;
  const auto sums = reg(i.sum).layout.slot_count();
  for (std::int64_t s = 0; s < reg(i.to).layout.slot_count(); ++s) {
    const auto row = reg(i.to).layout(0, s)[1];
    auto zero = factor_of_row(i.zero, i.group, row, i.exponent[row_parity(row)], declared);
    if (i.less != 0) zero = joined("(", zero, " - ", literal(i.less), ")");
    const bool whole = reg(i.to).scalar == Scalar::s32;
    line(reg(i.to).name, "[", s, "] += ", whole ? "(int)" : "", zero, " * ", reg(i.sum).name, "[",
         s % sums, "];");
  }
}

namespace {

/// An element of so many bits in every place of a word.
std::uint32_t repeated(std::uint32_t bits, int width) {
  for (int at = width; at < 32; at *= 2) bits |= bits << at;
  return bits;
}

}  // namespace

void Emitter::fill(const Fill& i) {
  const Register& to = reg(i.to);
  for (std::int64_t w = 0; w < words(i.to); ++w) {
    const bool f32 = to.scalar == Scalar::f32;
    const bool by_row = to.layout.shape.size() > 2;
    const auto row = by_row ? to.layout(0, w * 32 / bits_of(to))[1] : 0;
    const double value = i.value[row_parity(row)];
    const auto bits = to_bits(to.scalar, value);
    line(to.name, "[", w, "] = ", f32 ? literal(value) : hex(repeated(bits, bits_of(to))), ";");
  }
}

void Emitter::combine(RegisterId to, RegisterId from, const char* operation) {
  const auto slots = reg(from).layout.slot_count();
  for (std::int64_t s = 0; s < reg(to).layout.slot_count(); ++s) {
    line(reg(to).name, "[", s, "] ", operation, " ", number_in(from, s % slots), ";");
  }
}

}  // namespace ladder::codegen
