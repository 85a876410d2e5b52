// SPDX-License-Identifier: Apache-2.0
#include "layout/lookup_plan.h"

#include <set>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

constexpr int kLargestWeight = 255, kHalf = 16, kByte = 8;

/// The weights for fields of `bits` bits at bit `place` of each half; none when they are no bytes.
std::vector<std::uint32_t> weights_at(int bits, int place, bool joint, bool by_bytes) {
  if (by_bytes && place / kByte != (place + bits - 1) / kByte) return {};
  const int offset = by_bytes ? place % kByte : place;
  if (kLookupBytes >> offset << offset != kLookupBytes) return {};
  const std::uint32_t low = kLookupBytes >> offset, high = joint ? low << bits : low;
  if (high > kLargestWeight) return {};
  // Of halves, bytes 0 and 1; of bytes, those of the fields in the low and in the high half.
  const int first = by_bytes ? place / kByte * kByte : 0, second = by_bytes ? first + kHalf : kByte;
  if (joint) return {low << first | high << second};
  return {low << first, high << second};
}

using Shifts = std::set<std::pair<int, int>>;  // of a word

/// Operations to execute for the pieces, with those shifts done already.
int operations(const std::vector<UnpackPiece>& pieces, const Shifts& done) {
  int count = static_cast<int>(pieces.size());
  for (const auto& piece : pieces) {
    count += piece.shift != 0 && !done.contains({piece.word, piece.shift});
  }
  return count;
}

}  // namespace

std::vector<LookupPair> lookup_plan(const BitPlan& plan, bool joint) {
  const int bits = plan.bits;
  if (joint && 2 * bits > kByte) {
    fail<Unsupported>("no table of pairs of codes of ", bits, " bits");
  }
  std::vector<LookupPair> out;
  Shifts done;
  for (int pair = 0; pair < static_cast<int>(plan.pairs.size()); ++pair) {
    LookupPair best{};
    int least = 0;
    for (int place = 0; place + bits <= kHalf; ++place) {
      for (bool by_bytes : {true, false}) {
        auto weights = weights_at(bits, place, joint, by_bytes);
        if (weights.empty()) continue;
        auto pieces = move_bits(plan, pair, 0, bits, place);
        // A whole byte needs no mask: the others have no weight.
        const bool whole = by_bytes && bits == kByte && pieces.size() == 1;
        if (whole) pieces.front().mask = ~0u;
        const int count = operations(pieces, done) - whole;
        if (!best.weights.empty() && count >= least) continue;
        least = count;
        best = {std::move(pieces), by_bytes, std::move(weights)};
      }
    }
    LADDER_CHECK(!best.weights.empty(), "no place for pair ", pair, " of ", bits, " bits");
    for (const auto& piece : best.pieces) {
      if (piece.shift != 0) done.insert({piece.word, piece.shift});
    }
    out.push_back(std::move(best));
  }
  return out;
}

std::uint32_t sum_of_products(std::uint32_t word, std::uint32_t weights, bool by_bytes) {
  std::uint32_t sum = 0;
  const int width = by_bytes ? kByte : kHalf;
  for (int i = 0; i < 32 / width; ++i) {
    sum += (word >> (width * i) & ((1u << width) - 1)) * (weights >> (kByte * i) & kLargestWeight);
  }
  return sum;
}

}  // namespace ladder
