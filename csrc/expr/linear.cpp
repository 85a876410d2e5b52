// SPDX-License-Identifier: Apache-2.0
#include "expr/linear.h"

#include <cmath>
#include <sstream>

#include "base/error.h"

namespace ladder {

void check(const Linear& expr) {
  LADDER_REQUIRE(1 <= expr.bits && expr.bits <= 8, "bits is ", expr.bits, ", not 1 to 8");
  LADDER_REQUIRE(0 <= expr.zero && expr.zero <= 1 << expr.bits, "zero is ", expr.zero,
                 ", not 0 to 2^", expr.bits);
  LADDER_REQUIRE(expr.activation == Scalar::f16 || expr.activation == Scalar::bf16,
                 "activation is ", name_of(expr.activation), ", not f16 or bf16");
  LADDER_REQUIRE(expr.max_m >= 1, "max_m is ", expr.max_m, ", not positive");
  LADDER_REQUIRE(expr.n >= 1, "n is ", expr.n, ", not positive");
  LADDER_REQUIRE(expr.k >= 1, "k is ", expr.k, ", not positive");
  LADDER_REQUIRE(expr.group >= 0, "group is ", expr.group, ", negative");
}

std::string to_string(const Linear& expr) {
  std::ostringstream out;
  const auto type = name_of(expr.activation);
  out << "y[m<=" << expr.max_m << ", n=" << expr.n << "] " << type << " = sum k=" << expr.k
      << ": x[m, k] " << type << " * s[n";
  if (expr.groups() > 1) out << ", k/" << expr.group_size();
  out << "] " << type << " * (u" << expr.bits << "[n, k] - " << expr.zero << ")";
  return out.str();
}

double least_bytes(const Linear& expr, std::int64_t m) {
  const double n = static_cast<double>(expr.n), k = static_cast<double>(expr.k);
  const double scalar = bytes_of(expr.activation);
  return n * k * expr.bits / 8 + n * static_cast<double>(expr.groups()) * scalar +
         static_cast<double>(m) * (n + k) * scalar;
}

Reference evaluate(const Linear& expr, const std::vector<std::uint16_t>& x,
                   const std::vector<std::uint8_t>& codes,
                   const std::vector<std::uint16_t>& scales) {
  check(expr);
  const auto m = static_cast<std::int64_t>(x.size()) / expr.k;
  std::vector<double> values(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) values[i] = to_number(expr.activation, x[i]);
  Reference out{std::vector<double>(m * expr.n), std::vector<double>(m * expr.n)};
  std::vector<double> row(expr.k);
  for (std::int64_t n = 0; n < expr.n; ++n) {
    for (std::int64_t k = 0; k < expr.k; ++k) {
      const auto scale = scales[n * expr.groups() + k / expr.group_size()];
      row[k] = to_number(expr.activation, scale) * (codes[n * expr.k + k] - expr.zero);
    }
    for (std::int64_t i = 0; i < m; ++i) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < expr.k; ++k) {
        sum += values[i * expr.k + k] * row[k];
        magnitude += std::fabs(values[i * expr.k + k] * row[k]);
      }
      out.y[i * expr.n + n] = sum;
      out.magnitude[i * expr.n + n] = magnitude;
    }
  }
  return out;
}

}  // namespace ladder
