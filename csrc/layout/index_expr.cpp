// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "layout/index_map.h"

namespace ladder {
namespace {

/// True when nothing of the coordinate lies above the digit.
bool is_top(const IndexDigit& d) { return d.divisor * d.extent >= d.whole; }

/// Joins `outer` to `inner` where both are one digit; or adds the factors of the same digit.
bool join(const IndexDigit& outer, IndexDigit& inner) {
  if (outer.input != inner.input) return false;
  if (outer.divisor == inner.divisor && outer.extent == inner.extent) {
    inner.factor += outer.factor;
    return true;
  }
  if (outer.divisor != inner.divisor * inner.extent ||
      outer.factor != inner.factor * inner.extent) {
    return false;
  }
  inner.extent = std::min(inner.extent * outer.extent, ceil_div(inner.whole, inner.divisor));
  return true;
}

bool before(const IndexDigit& a, const IndexDigit& b) {
  if (a.factor != b.factor) return a.factor > b.factor;
  return a.input != b.input ? a.input < b.input : a.divisor > b.divisor;
}

IndexExpr canonical(IndexExpr expr) {
  auto& digits = expr.digits;
  for (bool joined = true; joined;) {
    joined = false;
    std::erase_if(digits, [](const IndexDigit& d) { return d.extent == 1 || d.factor == 0; });
    for (std::size_t i = 0; i < digits.size() && !joined; ++i) {
      for (std::size_t j = 0; j < digits.size() && !joined; ++j) {
        if (i == j || !join(digits[i], digits[j])) continue;
        digits.erase(digits.begin() + static_cast<std::ptrdiff_t>(i));
        joined = true;
      }
    }
  }
  std::sort(digits.begin(), digits.end(), before);
  return expr;
}

struct Division {
  IndexExpr quotient, remainder;
};

/// Every digit goes to the quotient, to the remainder, or part to each; then the remainder must not
/// carry.
Division divide(const IndexExpr& a, std::int64_t by) {
  LADDER_REQUIRE(by > 0, "division by ", by);
  Division out{{}, {}};
  const auto refuse = [&](const char* why) {
    fail<Unsupported>(to_string(IndexMap{{}, {a}}), " divided by ", by, ": ", why);
  };
  if (a.constant < 0) refuse("a negative part");
  out.quotient.constant = a.constant / by;
  out.remainder.constant = a.constant % by;
  for (const IndexDigit& d : a.digits) {
    if (d.factor < 0) refuse("a negative part");
    if (d.factor % by == 0) {
      out.quotient.digits.push_back({d.input, d.divisor, d.extent, d.factor / by, d.whole});
      continue;
    }
    const auto low = ceil_div(by, d.factor);  // values of the digit below `by`
    if (d.extent <= low) {
      out.remainder.digits.push_back(d);
      continue;
    }
    if (by % d.factor != 0 || (d.extent % low != 0 && !is_top(d))) {
      refuse("a digit that does not split");
    }
    out.remainder.digits.push_back({d.input, d.divisor, low, d.factor, d.whole});
    out.quotient.digits.push_back({d.input, d.divisor * low, ceil_div(d.extent, low), 1, d.whole});
  }
  if (out.remainder.high() >= by) refuse("a carry");
  return {canonical(std::move(out.quotient)), canonical(std::move(out.remainder))};
}

}  // namespace

IndexExpr IndexExpr::of(int input, std::int64_t extent) {
  LADDER_REQUIRE(extent >= 1, "extent ", extent, " is not positive");
  IndexExpr out;
  out.digits.push_back({input, 1, extent, 1, extent});
  return canonical(std::move(out));
}

std::int64_t IndexExpr::operator()(const std::vector<std::int64_t>& x) const {
  auto sum = constant;
  for (const IndexDigit& d : digits) sum += d.factor * (x.at(d.input) / d.divisor % d.extent);
  return sum;
}

std::int64_t IndexExpr::low() const {
  auto sum = constant;
  for (const IndexDigit& d : digits) sum += std::min<std::int64_t>(0, d.factor * (d.extent - 1));
  return sum;
}

std::int64_t IndexExpr::high() const {
  auto sum = constant;
  for (const IndexDigit& d : digits) sum += std::max<std::int64_t>(0, d.factor * (d.extent - 1));
  return sum;
}

IndexExpr operator+(const IndexExpr& a, const IndexExpr& b) {
  IndexExpr out = a;
  out.constant += b.constant;
  out.digits.insert(out.digits.end(), b.digits.begin(), b.digits.end());
  return canonical(std::move(out));
}

IndexExpr operator*(const IndexExpr& a, std::int64_t factor) {
  IndexExpr out = a;
  out.constant *= factor;
  for (IndexDigit& d : out.digits) d.factor *= factor;
  return canonical(std::move(out));
}

IndexExpr operator/(const IndexExpr& a, std::int64_t by) { return divide(a, by).quotient; }
IndexExpr operator%(const IndexExpr& a, std::int64_t by) { return divide(a, by).remainder; }

}  // namespace ladder
