// SPDX-License-Identifier: Apache-2.0
#include "layout/digits.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

/// The pieces of both pairs of a register, those of one shift of a word in one.
std::vector<UnpackPiece> register_pieces(const BitPlan& plan, int pair, int offset) {
  std::vector<UnpackPiece> out;
  for (int high = 0; high < 2; ++high) {
    for (const auto& piece : move_bits(plan, pair + 2 * high, 0, plan.bits, offset + 8 * high)) {
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
  return out;
}

BytePlan read_at(const BitPlan& plan, std::array<int, 2> offset) {
  BytePlan out{{}, offset, 0, 0};
  std::set<std::pair<int, int>> shifts;
  for (int step = 0; step < kByteStepsPerBlock; ++step) {
    for (int r = 0; r < 4; ++r) {
      auto& pieces = out.registers[step][r];
      pieces = register_pieces(plan, 4 * (2 * step + r / 2) + r % 2, offset[r % 2]);
      out.mask_count += static_cast<int>(pieces.size());
      for (const auto& piece : pieces) {
        if (piece.shift != 0) shifts.insert({piece.word, piece.shift});
      }
    }
  }
  out.shift_count = static_cast<int>(shifts.size());
  return out;
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

const BytePlan& byte_plan(int bits) {
  if (bits < 1 || bits > 8) fail<Unsupported>("no bytes for codes of ", bits, " bits");
  static const auto plans = [] {
    std::array<BytePlan, 9> all;
    for (int b = 1; b <= 8; ++b) all[b] = make(b);
    return all;
  }();
  return plans[bits];
}

}  // namespace ladder
