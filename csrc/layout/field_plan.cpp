// SPDX-License-Identifier: Apache-2.0
#include "layout/field_plan.h"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

constexpr int kSign = 15, kFewest = 2, kMost = 8;
constexpr std::uint32_t kBothHalves = 0x10001u;
constexpr int kOperation = 2, kLeftShift = 1;

/// Where whole codes begin in a half, highest first: the first of a set is moved in place, the
/// others are shifted to the left from there.
using Sharers = std::vector<int>;

int cost_of(int shift) { return shift > 0 ? kOperation : shift < 0 ? kLeftShift : 0; }

/// Bits of a half that signs take in what `sharers` share; nothing where they meet a magnitude.
std::optional<std::uint32_t> signs_of(const Sharers& sharers, int bits, int place) {
  std::uint32_t signs = 0, magnitudes = 0;
  for (const int at : sharers) {
    const int left = sharers.front() - at;
    if (left > place) return std::nullopt;
    signs |= 1u << (kSign - left);
    magnitudes |= ((1u << (bits - 1)) - 1) << (place - left);
  }
  if ((signs & magnitudes) != 0) return std::nullopt;
  return signs;
}

/// Of the codes of one word, sets that share: all ways, and the cheapest.
struct Search {
  int bits, place;
  std::vector<Sharers> sets = {}, best = {};
  int least = 0;

  int cost() const {
    std::set<int> shifts;  // of the word
    int total = 0;
    for (const Sharers& set : sets) {
      const int magnitude = set.front() - place, sign = set.front() + bits - 1 - kSign;
      shifts.insert({magnitude, sign});
      total += kOperation * static_cast<int>(1 + set.size()) +
               kLeftShift * static_cast<int>(set.size() - 1);
    }
    for (const int shift : shifts) total += cost_of(shift);
    return total;
  }

  void place_codes(int at) {
    if (at < 0) {
      if (const int total = cost(); best.empty() || total < least) best = sets, least = total;
      return;
    }
    for (std::size_t i = 0; i < sets.size(); ++i) {
      sets[i].push_back(at);
      if (signs_of(sets[i], bits, place)) place_codes(at - bits);
      sets[i].pop_back();
    }
    sets.push_back({at});
    place_codes(at - bits);
    sets.pop_back();
  }
};

FieldPlan make(int bits, int place) {
  const BitPlan& codes = bit_plan(bits);
  FieldPlan plan{bits, place, 0, {}, {}};
  plan.mask = ((((1u << (bits - 1)) - 1) << place) | 1u << kSign) * kBothHalves;
  Search search{bits, place};
  // Where both distances are one, a pair is one piece: there is nothing to share.
  if (place + bits - 1 != kSign) search.place_codes((kSign + 1) / bits * bits - bits);
  std::map<std::pair<int, int>, FieldPair> shares;  // by word and lowest bit
  for (int word = 0; word < bits; ++word) {
    for (const Sharers& set : search.best) {
      if (set.size() == 1) continue;
      for (const int at : set) {
        shares[{word, at}] = {static_cast<int>(plan.moved.size()), set.front() - at, {}, {}};
      }
      plan.moved.push_back({word, set.front() - place, set.front() + bits - 1 - kSign,
                            *signs_of(set, bits, place) * kBothHalves});
    }
  }
  for (int pair = 0; pair < kPairsPerUnit; ++pair) {
    const auto& places = codes.pairs[pair];
    const auto share = shares.find({places.front().word, places.front().bit});
    const bool whole =
        places.back() == BitPlace{places.front().word, places.front().bit + bits - 1};
    if (share != shares.end() && whole) {
      plan.pairs.push_back(share->second);
    } else {
      plan.pairs.push_back({-1, 0, move_bits(codes, pair, 0, bits - 1, place),
                            move_bits(codes, pair, bits - 1, 1, kSign)});
    }
  }
  return plan;
}

/// Distinct shifts by word, right ones positive.
std::set<std::pair<int, int>> word_shifts(const FieldPlan& plan) {
  std::set<std::pair<int, int>> shifts;
  for (const MovedFields& moved : plan.moved) {
    shifts.insert({moved.word, moved.magnitude});
    shifts.insert({moved.word, moved.sign});
  }
  for (const FieldPair& pair : plan.pairs) {
    for (const auto& piece : pair.magnitude) shifts.insert({piece.word, piece.shift});
    for (const auto& piece : pair.sign) shifts.insert({piece.word, piece.shift});
  }
  return shifts;
}

std::uint32_t shifted(std::uint32_t word, int right) {
  return right >= 0 ? word >> right : word << -right;
}

}  // namespace

const FieldPlan& field_plan(int bits, int place) {
  LADDER_REQUIRE(bits >= kFewest && bits <= kMost && place >= 0 && place + bits - 1 <= kSign,
                 "no fields of ", bits, " bits at bit ", place);
  static const auto plans = [] {
    std::map<std::pair<int, int>, FieldPlan> all;
    for (int b = kFewest; b <= kMost; ++b) {
      for (int at = 0; at + b - 1 <= kSign; ++at) all.emplace(std::pair{b, at}, make(b, at));
    }
    return all;
  }();
  return plans.at({bits, place});
}

int FieldPlan::mask_count() const {
  auto count = static_cast<int>(moved.size());
  for (const FieldPair& pair : pairs) {
    // One distance, one mask.
    const bool one = place + bits - 1 == kSign && pair.magnitude.size() == 1;
    count += pair.moved >= 0 ? 1 : static_cast<int>(pair.magnitude.size() + (one ? 0 : 1));
  }
  return count;
}

int FieldPlan::right_shift_count() const {
  int count = 0;
  for (const auto& [word, shift] : word_shifts(*this)) count += shift > 0;
  return count;
}

int FieldPlan::left_shift_count() const {
  int count = 0;
  for (const auto& [word, shift] : word_shifts(*this)) count += shift < 0;
  for (const FieldPair& pair : pairs) count += pair.left > 0;
  return count;
}

std::uint32_t read_fields(const FieldPlan& plan, const std::uint32_t* words, int pair) {
  const FieldPair& from = plan.pairs.at(pair);
  if (from.moved < 0) return read_pieces(from.magnitude, words) | read_pieces(from.sign, words);
  const MovedFields& of = plan.moved[from.moved];
  const auto word = words[of.word];
  return select_bits(shifted(word, of.magnitude), shifted(word, of.sign), of.signs) << from.left &
         plan.mask;
}

}  // namespace ladder
