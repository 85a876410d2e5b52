// SPDX-License-Identifier: Apache-2.0
#include "program/affine.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

/// True for a number alone; else the one term of `affine` can be divided with it.
bool only_number(const Affine& affine, const char* what, std::int64_t by) {
  LADDER_REQUIRE(by > 0, "a ", what, " by ", by, ", which is not positive");
  LADDER_REQUIRE(affine.constant >= 0, "a ", what, " of an index from ", affine.constant,
                 " on, which is negative");
  if (affine.terms.empty()) return true;
  LADDER_REQUIRE(affine.terms.size() == 1, "a ", what, " of a sum of ", affine.terms.size(),
                 " variables");
  LADDER_REQUIRE(affine.terms.front().factor >= 0, "a ", what, " of steps of ",
                 affine.terms.front().factor);
  return false;
}

/// Where there are several terms, takes those out of `affine` whose steps are multiples of `by`.
Affine multiples_of(Affine& affine, std::int64_t by) {
  Affine out;
  if (affine.terms.size() < 2 || by <= 0) return out;
  const auto rest = std::ranges::stable_partition(
      affine.terms, [&](const Affine::Term& term) { return term.factor % by != 0; });
  out.terms.assign(rest.begin(), rest.end());
  affine.terms.erase(rest.begin(), rest.end());
  return out;
}

}  // namespace

Affine operator+(Affine a, const Affine& b) {
  a.constant += b.constant;
  a.terms.insert(a.terms.end(), b.terms.begin(), b.terms.end());
  return a;
}

Affine times(Affine affine, std::int64_t factor) {
  affine.constant *= factor;
  for (auto& term : affine.terms) term.factor *= factor;
  return affine;
}

// (factor q + constant) / divisor. Where steps are shorter than the divisor, the constant joins the
// variable, which cannot go into a modulus: q % modulus + 1 passes its end.
Affine divided(Affine affine, std::int64_t divisor) {
  if (Affine whole = multiples_of(affine, divisor); !whole.terms.empty()) {
    return exact_quotient(std::move(whole), divisor) + divided(std::move(affine), divisor);
  }
  if (only_number(affine, "quotient", divisor)) return affine.constant / divisor;
  auto& term = affine.terms.front();
  if (term.factor % divisor == 0) {
    term.factor /= divisor;
    affine.constant /= divisor;
    return affine;
  }
  LADDER_REQUIRE(divisor % term.factor == 0, "no quotient by ", divisor, " of steps of ",
                 term.factor);
  const auto steps = divisor / term.factor, ahead = affine.constant / term.factor;
  if (term.modulus != 0) {
    LADDER_REQUIRE(term.modulus % steps == 0 && ahead == 0, "no quotient by ", divisor,
                   " of an index modulo ", term.factor * term.modulus, " plus ", affine.constant);
    term.modulus /= steps;
  }
  term.offset += ahead * term.divisor;
  term.divisor *= steps;
  term.factor = 1;
  affine.constant = 0;
  return affine;
}

// factor q + constant mod modulus, where factor divides modulus: what constant has beyond whole
// steps stays as it is.
Affine remainder(Affine affine, std::int64_t modulus) {
  multiples_of(affine, modulus);
  if (only_number(affine, "remainder", modulus)) return affine.constant % modulus;
  auto& term = affine.terms.front();
  if (term.factor % modulus == 0) return affine.constant % modulus;
  LADDER_REQUIRE(modulus % term.factor == 0, "no remainder by ", modulus, " of steps of ",
                 term.factor);
  LADDER_REQUIRE(term.factor * term.modulus % modulus == 0, "no remainder by ", modulus,
                 " of an index modulo ", term.factor * term.modulus);
  term.offset += affine.constant / term.factor * term.divisor;
  term.modulus = modulus / term.factor;
  affine.constant %= term.factor;
  return affine;
}

Affine exact_quotient(Affine affine, std::int64_t by) {
  LADDER_REQUIRE(multiple_of(affine, by), "no exact quotient by ", by);
  affine.constant /= by;
  for (auto& term : affine.terms) term.factor /= by;
  return affine;
}

Affine fixed(Affine affine, VariableId variable, std::int64_t value) {
  std::erase_if(affine.terms, [&](const Affine::Term& term) {
    if (term.variable != variable) return false;
    affine.constant += term.at(value);
    return true;
  });
  return affine;
}

bool multiple_of(const Affine& affine, std::int64_t by) {
  return affine.constant % by == 0 &&
         std::all_of(affine.terms.begin(), affine.terms.end(),
                     [&](const Affine::Term& term) { return term.factor % by == 0; });
}

}  // namespace ladder
