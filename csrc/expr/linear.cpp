// SPDX-License-Identifier: Apache-2.0
#include "expr/linear.h"

#include <cmath>
#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

void check_codes(const Linear& expr) {
  LADDER_REQUIRE(1 <= expr.bits && expr.bits <= 8, "bits is ", expr.bits, ", not 1 to 8");
  if (expr.element == nullptr) {
    LADDER_REQUIRE(0 <= expr.zero && expr.zero <= 1 << (expr.bits + expr.shift), "zero is ",
                   expr.zero, ", not 0 to 2^", expr.bits + expr.shift);
    LADDER_REQUIRE(!expr.three || expr.bits == 2, "three values in ", expr.bits, " bits, not 2");
    LADDER_REQUIRE(expr.shift == 0 || expr.shift == 1, "shift is ", expr.shift, ", not 0 or 1");
    return;
  }
  const auto encoding = expr.element->encoding;
  LADDER_REQUIRE(encoding == Encoding::floating || encoding == Encoding::table, "element ",
                 expr.element->name, " is neither a floating format nor a table");
  LADDER_REQUIRE(expr.element->bits == expr.bits, "bits is ", expr.bits, ", and ",
                 expr.element->name, " has ", expr.element->bits);
  LADDER_REQUIRE(expr.zero == 0 && expr.shift == 0 && expr.exponent == 0, "element ",
                 expr.element->name, " has zero ", expr.zero, ", shift ", expr.shift, ", exponent ",
                 expr.exponent, ", which only integers have");
}

void check_metadata(const Linear& expr) {
  const Zero zero = expr.stored_zero;
  LADDER_REQUIRE(zero == Zero::none || zero == Zero::integer || zero == Zero::original ||
                     zero == Zero::rescale,
                 "stored_zero is ", static_cast<int>(zero),
                 ", not none, integer, original or rescale");
  LADDER_REQUIRE(zero == Zero::none || expr.element == nullptr,
                 "stored zero points need integers, and the element is ", expr.element->name);
  LADDER_REQUIRE(zero != Zero::integer || (expr.zero == 0 && expr.shift == 0),
                 "stored integer zero points beside a constant of ", expr.zero);
  if (!expr.scale) {
    LADDER_REQUIRE(zero == Zero::none || zero == Zero::integer,
                   "floating zero points have the format of scales, and there are none");
    return;
  }
  LADDER_REQUIRE(*expr.scale != Scalar::u32 && *expr.scale != Scalar::u8, "scale is ",
                 name_of(*expr.scale), ", not f16, bf16, f32, e8m0 or e4m3");
  LADDER_REQUIRE(zero == Zero::none || zero == Zero::integer || bits_of(*expr.scale) >= 16,
                 "floating zero points of ", name_of(*expr.scale), ", not f16, bf16 or f32");
}

}  // namespace

void check(const Linear& expr) {
  check_codes(expr);
  LADDER_REQUIRE(expr.activation == Scalar::f16 || expr.activation == Scalar::bf16,
                 "activation is ", name_of(expr.activation), ", not f16 or bf16");
  LADDER_REQUIRE(expr.max_m >= 1, "max_m is ", expr.max_m, ", not positive");
  LADDER_REQUIRE(expr.n >= 1, "n is ", expr.n, ", not positive");
  LADDER_REQUIRE(expr.k >= 1, "k is ", expr.k, ", not positive");
  LADDER_REQUIRE(expr.group >= 0, "group is ", expr.group, ", negative");
  if (expr.has_bytes_of_x()) {
    LADDER_REQUIRE(expr.rounded_x == Scalar::s8 || expr.rounded_x == Scalar::e4m3,
                   "x is rounded to ", name_of(*expr.rounded_x), ", not s8 or e4m3");
    LADDER_REQUIRE(expr.rounded_x == Scalar::e4m3 || expr.element == nullptr, "x of ",
                   name_of(*expr.rounded_x), " beside codes that are ", expr.element->name);
    LADDER_REQUIRE(!expr.gather, "x of 8 bits has its columns in their order");
    LADDER_REQUIRE(expr.k % kColumnsOfBytes == 0, "x of 8 bits has ", expr.k,
                   " columns, no multiple of ", kColumnsOfBytes);
  }
  LADDER_REQUIRE(!expr.wide_y || expr.has_bytes_of_x(), "y is f32, and x is ",
                 name_of(expr.activation), ", not of 8 bits");
  if (expr.experts) {
    LADDER_REQUIRE(expr.experts->items >= 1 && expr.experts->deviation >= 0, expr.experts->items,
                   " products of experts, more or less ", expr.experts->deviation);
    LADDER_REQUIRE(expr.experts->bytes > 0 && expr.experts->bytes % kPartBytes == 0,
                   "weights of experts lie ", expr.experts->bytes, " bytes apart, not lines of ",
                   kPartBytes);
  }
  check_metadata(expr);
}

std::string to_string(const Linear& expr) {
  std::ostringstream out, per_group;
  const auto type = name_of(expr.y_scalar());
  per_group << "[n";
  if (expr.groups() > 1) per_group << ", k/" << expr.group_size();
  per_group << "] ";
  if (expr.experts) {
    out << expr.experts->items << " +- " << expr.experts->deviation << " of experts: ";
  }
  out << "y[m<=" << expr.max_m << ", n=" << expr.n << "] " << type << " = ";
  if (expr.scale2) out << "s2 f32 * ";
  if (expr.has_bytes_of_x()) out << "t[m] f32 * ";
  out << "sum k=" << expr.k << ": x[m, " << (expr.gather ? "gather[k]" : "k") << "] "
      << name_of(expr.x_scalar()) << " * ";
  const bool rescale = expr.stored_zero == Zero::rescale;
  if (rescale) out << '(';
  if (expr.scale) out << 's' << per_group.str() << name_of(*expr.scale) << " * ";
  std::ostringstream code;
  if (expr.element != nullptr) {
    code << expr.element->name << "[n, k]";
  } else {
    if (expr.exponent != 0) code << "2^" << expr.exponent << " * ";
    code << '(' << (expr.shift != 0 ? "2 * u" : "u") << expr.bits << (expr.three ? " of three" : "")
         << "[n, k] - " << expr.zero << ')';
  }
  const bool subtracts = expr.stored_zero != Zero::none && !rescale;
  out << (subtracts ? "(" : "") << code.str();
  if (expr.stored_zero != Zero::none) {
    out << " - z" << per_group.str() << name_of(expr.zero_scalar()) << ')';
  }
  if (expr.bias) out << " + bias[n] " << type;
  return out.str();
}

double value_of(const Linear& expr, std::uint32_t code) {
  if (expr.element != nullptr) return decode(*expr.element, code);
  if (expr.three && code == 3) code = 1;
  return std::ldexp(static_cast<double>(code << expr.shift) - expr.zero, expr.exponent);
}

double least_bytes(const Linear& expr, std::int64_t m) {
  const double n = static_cast<double>(expr.n), k = static_cast<double>(expr.k);
  const double per_group = (expr.scale ? bytes_of(*expr.scale) : 0) +
                           (expr.stored_zero != Zero::none ? bytes_of(expr.zero_scalar()) : 0);
  const double of_product =
      n * k * expr.bits / 8 + n * static_cast<double>(expr.groups()) * per_group +
      static_cast<double>(m) * (n * bytes_of(expr.y_scalar()) + k * bytes_of(expr.x_scalar()));
  return of_product * static_cast<double>(expr.products());
}

Reference evaluate(const Linear& expr, const LinearData& data) {
  check(expr);
  const auto m = static_cast<std::int64_t>(data.x.size()) / expr.k;
  std::vector<double> x(data.x.size());
  for (std::int64_t i = 0; i < m * expr.k; ++i) {
    const auto row = i / expr.k * expr.k;
    x[i] = to_number(expr.x_scalar(), data.x[expr.gather ? row + data.gather[i - row] : i]) *
           (expr.has_bytes_of_x() ? data.x_scales[i / expr.k] : 1);
  }
  Reference out{std::vector<double>(m * expr.n), std::vector<double>(m * expr.n)};
  std::vector<double> weight(expr.k), magnitude(expr.k);
  for (std::int64_t n = 0; n < expr.n; ++n) {
    for (std::int64_t k = 0; k < expr.k; ++k) {
      const auto at = n * expr.groups() + k / expr.group_size();
      const double scale = expr.scale ? to_number(*expr.scale, data.scales[at]) : 1;
      const double zero = expr.stored_zero == Zero::none
                              ? 0
                              : to_number(expr.zero_scalar(), data.zeros[at]) *
                                    (expr.stored_zero == Zero::rescale ? 1 : scale);
      const double value = scale * value_of(expr, data.codes[n * expr.k + k]);
      weight[k] = value - zero;
      magnitude[k] = expr.stored_zero == Zero::integer ? std::fabs(weight[k])
                                                       : std::fabs(value) + std::fabs(zero);
    }
    const double bias = expr.bias ? to_number(expr.y_scalar(), data.bias[n]) : 0;
    const double scale2 = expr.scale2 ? data.scale2 : 1;
    for (std::int64_t i = 0; i < m; ++i) {
      double sum = 0, total = 0;
      for (std::int64_t k = 0; k < expr.k; ++k) {
        sum += x[i * expr.k + k] * weight[k];
        total += std::fabs(x[i * expr.k + k]) * magnitude[k];
      }
      out.y[i * expr.n + n] = sum * scale2 + bias;
      out.magnitude[i * expr.n + n] = total * std::fabs(scale2) + std::fabs(bias);
    }
  }
  return out;
}

}  // namespace ladder
