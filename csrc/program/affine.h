// SPDX-License-Identifier: Apache-2.0
//
// Names of the parts of a program, and the integer expressions by which its instructions index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ladder {

using VariableId = int;
using BufferId = int;
using ViewId = int;
using RegisterId = int;
using SignalId = int;

// Variables that every program has. Blocks are numbered by `split`, fastest, and `tile`.
constexpr VariableId kSplit = 0;  ///< which part of K
constexpr VariableId kTile = 1;   ///< which rows
constexpr VariableId kRank = 2;   ///< the block's number in its cluster

struct Variable {
  std::string name;
  std::int64_t extent;  ///< values are [0, extent)
};

/// constant + sum of factor * ((variable + offset) / divisor % modulus); modulus 0 takes none.
struct Affine {
  struct Term {
    VariableId variable;
    std::int64_t factor, divisor, offset, modulus;
    std::int64_t at(std::int64_t value) const {
      const auto quotient = (value + offset) / divisor;
      return factor * (modulus == 0 ? quotient : quotient % modulus);
    }
    bool operator==(const Term&) const = default;
  };
  std::int64_t constant = 0;
  std::vector<Term> terms = {};

  Affine(std::int64_t value = 0) : constant(value) {}  // NOLINT: a number is an index
  static Affine of(VariableId variable, std::int64_t factor = 1, std::int64_t divisor = 1) {
    Affine out;
    out.terms.push_back({variable, factor, divisor, 0, 0});
    return out;
  }
  bool operator==(const Affine&) const = default;
};
Affine operator+(Affine a, const Affine& b);
Affine times(Affine affine, std::int64_t factor);
/// affine / divisor and affine mod modulus. Beside terms whose steps are multiples of the other
/// number: a number, or one variable's term plus a number, none of them negative, where the factor
/// and the other number divide one another. A term that has a modulus takes a quotient by what
/// divides it, and a remainder by what divides its period.
/// Throws InvalidArgument for anything else.
Affine divided(Affine affine, std::int64_t divisor);
Affine remainder(Affine affine, std::int64_t modulus);
/// affine / by, where the constant and every factor are multiples of `by`; throws InvalidArgument
/// where they are not.
Affine exact_quotient(Affine affine, std::int64_t by);
/// What it is where the variable has that value.
Affine fixed(Affine affine, VariableId variable, std::int64_t value);
/// True when every value of the affine form is a multiple of `by`.
bool multiple_of(const Affine& affine, std::int64_t by);

}  // namespace ladder
