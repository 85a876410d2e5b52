// SPDX-License-Identifier: Apache-2.0
#include "layout/digits.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

/// Bits of a code and where they lie in a byte.
struct Field {
  int from, count, place;
};

/// The pieces of both pairs of a register, those of one shift of a word in one.
std::vector<UnpackPiece> register_pieces(const BitPlan& plan, int pair,
                                         const std::vector<Field>& fields) {
  std::vector<UnpackPiece> out;
  for (int high = 0; high < 2; ++high) {
    for (const auto& [from, count, place] : fields) {
      for (const auto& piece : move_bits(plan, pair + 2 * high, from, count, place + 8 * high)) {
        const auto same = std::ranges::find_if(out, [&](const UnpackPiece& other) {
          return other.word == piece.word && other.shift == piece.shift;
        });
        if (same != out.end()) {
          same->mask |= piece.mask;
        } else {
          out.push_back(piece);
        }
      }
    }
  }
  return out;
}

/// Fields by parity of eight rows, of which those of integers begin at `offset`.
BytePlan read_fields(const BitPlan& plan, const std::array<std::vector<Field>, 2>& fields,
                     std::array<int, 2> offset) {
  BytePlan out{{}, offset, 0, 0};
  std::set<std::pair<int, int>> shifts;
  for (int step = 0; step < kByteStepsPerBlock; ++step) {
    for (int r = 0; r < 4; ++r) {
      auto& pieces = out.registers[step][r];
      pieces = register_pieces(plan, 4 * (2 * step + r / 2) + r % 2, fields[r % 2]);
      out.mask_count += static_cast<int>(pieces.size());
      for (const auto& piece : pieces) {
        if (piece.shift != 0) shifts.insert({piece.word, piece.shift});
      }
    }
  }
  out.shift_count = static_cast<int>(shifts.size());
  return out;
}

BytePlan read_at(const BitPlan& plan, std::array<int, 2> offset) {
  return read_fields(plan, {{{{0, plan.bits, offset[0]}}, {{0, plan.bits, offset[1]}}}}, offset);
}

// The fewest operations, then the highest offsets: shifts to the left are not the masks' pipe's.
BytePlan make(int bits) {
  std::optional<BytePlan> best;
  const auto cost = [](const BytePlan& plan) { return plan.mask_count + plan.shift_count; };
  for (int even = 0; even + bits <= kByteWindow; ++even) {
    for (int odd = 0; odd + bits <= kByteWindow; ++odd) {
      auto candidate = read_at(bit_plan(bits), {even, odd});
      if (!best || cost(candidate) <= cost(*best)) best = std::move(candidate);
    }
  }
  return *best;
}

}  // namespace

double digit_unit(Scalar scalar, double largest) {
  if (scalar == Scalar::f16) return 1;
  // Subnormals share the exponent of the smallest normal number.
  return std::ldexp(1.0, largest == 0 ? -126 : std::max(std::ilogb(largest), -126));
}

std::array<int, kMostDigits> digits_of(Scalar scalar, std::uint32_t bits, double unit) {
  auto rest = static_cast<std::int64_t>(
      std::ldexp(to_number(scalar, bits), -digit_exponent(scalar)) / unit);
  std::array<int, kMostDigits> digits{};
  for (int p = 0; p < digit_count(scalar); ++p) {
    digits[p] = static_cast<int>((rest + 128) & 255) - 128;
    rest = (rest - digits[p]) >> kDigitBits;
  }
  LADDER_CHECK(rest == 0, bits, " has more digits than ", digit_count(scalar));
  return digits;
}

namespace {

/// By bits: 1 to 8.
using BytePlans = std::array<BytePlan, 9>;

BytePlans plans_of(BytePlan (*make)(int bits)) {
  BytePlans all;
  for (int b = 1; b <= 8; ++b) all[b] = make(b);
  return all;
}

const BytePlan& plan_of(const BytePlans& plans, int bits) {
  if (bits < 1 || bits > 8) fail<Unsupported>("no bytes for codes of ", bits, " bits");
  return plans[bits];
}

}  // namespace

const BytePlan& byte_plan(int bits) {
  static const BytePlans plans = plans_of(&make);
  return plan_of(plans, bits);
}

const BytePlan& signed_byte_plan(int bits) {
  static const BytePlans plans = plans_of([](int b) {
    const int highest = kDigitBits - b;
    return read_at(bit_plan(b), {highest, highest});
  });
  return plan_of(plans, bits);
}

const BytePlan& offset_byte_plan(int bits) {
  static const BytePlans plans = plans_of([](int b) {
    const int highest = std::max(kMostOffsetBits - b, 0);
    return read_at(bit_plan(b), {highest, highest});
  });
  LADDER_CHECK(bits <= kMostOffsetBits, bits, " bits leave no room for a sign");
  return plan_of(plans, bits);
}

const BytePlan& whole_byte_plan(int bits, int shift) {
  static const std::array<BytePlans, 2> plans = {plans_of([](int b) {
                                                   return read_at(bit_plan(b), {0, 0});
                                                 }),
                                                 plans_of([](int b) {
                                                   const int place = std::min(1, kDigitBits - b);
                                                   return read_at(bit_plan(b), {place, place});
                                                 })};
  LADDER_CHECK((shift == 0 || shift == 1) && bits + shift <= kMostWholeBits, bits, " bits times 2^",
               shift, " are wider than ", kMostWholeBits);
  return plan_of(plans[static_cast<std::size_t>(shift)], bits);
}

const BytePlan& float_byte_plan(int bits, int mantissa_bits) {
  const int place = kByteMantissa - mantissa_bits;
  LADDER_CHECK(2 <= bits && bits <= 8 && 0 <= place && place + bits <= kDigitBits, bits,
               " bits with ", mantissa_bits, " of a mantissa are no bytes");
  static const auto plans = [] {
    std::map<std::pair<int, int>, BytePlan> all;
    for (int b = 2; b <= 8; ++b) {
      for (int m = 0; m <= std::min(b - 1, kByteMantissa); ++m) {
        const std::vector<Field> fields = {{0, b - 1, kByteMantissa - m}, {b - 1, 1, 7}};
        if (kByteMantissa - m + b > kDigitBits) continue;
        all.emplace(std::pair{b, m}, read_fields(bit_plan(b), {fields, fields}, {}));
      }
    }
    return all;
  }();
  return plans.at({bits, mantissa_bits});
}

}  // namespace ladder
