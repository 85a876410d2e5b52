// SPDX-License-Identifier: Apache-2.0
#include "layout/bit_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

constexpr int kHalfBits = 16;

/// Right shifts that bring each whole field of a half into the window: a field that does not fit
/// where it is starts a new shift, which later fields share while they fit.
std::vector<int> field_shifts(int bits, int window) {
  std::vector<int> shifts;
  int shift = 0;
  for (int at = 0; at + bits <= kHalfBits; at += bits) {
    if (at - shift + bits > window) shift = at;
    shifts.push_back(shift);
  }
  return shifts;
}

/// The window for which the fields are placed. Where b divides 16 the byte pairs them evenly.
int placing_window(int bits) { return kHalfBits % bits == 0 ? kBfloat16Window : kFloat16Window; }

/// Offset at which assembled pairs join the whole fields so that every offset has an even number
/// of pairs; 0 when there is no odd one.
int leftover_offset(int bits, const std::vector<int>& shifts) {
  std::map<int, int> count;
  for (std::size_t f = 0; f < shifts.size(); ++f) {
    count[static_cast<int>(f) * bits - shifts[f]] += bits;  // one per word, and there are b words
  }
  int offset = 0;
  for (auto [at, n] : count) {
    if (n % 2 != 0) offset = at;
  }
  return offset;
}

struct Field {
  int offset;  // under the placing window
  std::vector<BitPlace> places;
};

/// All sixteen fields of a unit in storage order: whole ones word by word, then assembled ones.
std::vector<Field> fields_of(int bits) {
  const auto shifts = field_shifts(bits, placing_window(bits));
  std::vector<Field> fields;
  std::vector<BitPlace> leftover;
  for (int word = 0; word < bits; ++word) {
    for (std::size_t f = 0; f < shifts.size(); ++f) {
      const int at = static_cast<int>(f) * bits;
      Field field{at - shifts[f], {}};
      for (int i = 0; i < bits; ++i) field.places.push_back({word, at + i});
      fields.push_back(std::move(field));
    }
    for (int bit = kHalfBits / bits * bits; bit < kHalfBits; ++bit) leftover.push_back({word, bit});
  }
  for (auto at = leftover.begin(); at != leftover.end(); at += bits) {
    fields.push_back({leftover_offset(bits, shifts), std::vector<BitPlace>(at, at + bits)});
  }
  LADDER_CHECK(fields.size() == kPairsPerUnit, fields.size(), " fields of ", bits, " bits");
  return fields;
}

BitPlan make_bit_plan(int bits) {
  auto fields = fields_of(bits);
  std::vector<bool> taken(fields.size());
  BitPlan plan{bits, {}};
  // A cell is one k-step and one row parity: pairs 4s + parity and 4s + parity + 2.
  for (int cell = 0; cell < kPairsPerUnit / 2; ++cell) {
    const int pair = cell / 2 * 4 + cell % 2;
    const auto first = std::find(taken.begin(), taken.end(), false) - taken.begin();
    auto second = first + 1;
    while (taken[second] || fields[second].offset != fields[first].offset) ++second;
    taken[first] = taken[second] = true;
    plan.pairs[pair] = fields[first].places;
    plan.pairs[pair + 2] = fields[second].places;
  }
  return plan;
}

std::uint32_t both_halves(std::uint32_t half) { return half | half << kHalfBits; }

}  // namespace

const BitPlan& bit_plan(int bits) {
  if (bits < 1 || bits > 8) fail<Unsupported>("no weight image for codes of ", bits, " bits");
  static const auto plans = [] {
    std::array<BitPlan, 8> all;
    for (int b = 1; b <= 8; ++b) all[b - 1] = make_bit_plan(b);
    return all;
  }();
  return plans[bits - 1];
}

UnpackPlan unpack_plan(int bits, int window) {
  if (bits > window) fail<Unsupported>(bits, " bits do not fit a window of ", window);
  const BitPlan& plan = bit_plan(bits);
  const auto shifts = field_shifts(bits, std::min(window, placing_window(bits)));
  const int wanted = leftover_offset(bits, field_shifts(bits, placing_window(bits)));
  const int assembled = wanted + bits <= window ? wanted : 0;
  UnpackPlan out{bits, window, {}};
  for (int pair = 0; pair < kPairsPerUnit; ++pair) {
    const auto& places = plan.pairs[pair];
    const bool whole = places.front().bit / bits < static_cast<int>(shifts.size());
    UnpackPair& to = out.pairs[pair];
    to.offset = whole ? places.front().bit - shifts[places.front().bit / bits] : assembled;
    // Runs of bits that one shift moves make one piece.
    for (int i = 0; i < bits; ++i) {
      const int word = places[i].word;
      const int shift = places[i].bit - (to.offset + i);
      if (to.pieces.empty() || to.pieces.back().word != word || to.pieces.back().shift != shift) {
        to.pieces.push_back({word, shift, 0});
      }
      to.pieces.back().mask |= both_halves(1u << (to.offset + i));
    }
  }
  return out;
}

int UnpackPlan::shift_count() const {
  std::set<std::pair<int, int>> shifts;
  for (const auto& pair : pairs) {
    for (const auto& piece : pair.pieces) {
      if (piece.shift != 0) shifts.insert({piece.word, piece.shift});
    }
  }
  return static_cast<int>(shifts.size());
}

int UnpackPlan::mask_count() const {
  int n = 0;
  for (const auto& pair : pairs) n += static_cast<int>(pair.pieces.size());
  return n;
}

std::array<std::uint32_t, 2> unpack_pair(const UnpackPlan& plan, const std::uint32_t* words,
                                         int pair) {
  const UnpackPair& from = plan.pairs.at(pair);
  std::uint32_t both = 0;
  for (const auto& piece : from.pieces) {
    const auto word = words[piece.word];
    both |= (piece.shift >= 0 ? word >> piece.shift : word << -piece.shift) & piece.mask;
  }
  return {(both & 0xffff) >> from.offset, both >> kHalfBits >> from.offset};
}

std::string to_string(const UnpackPlan& plan) {
  std::ostringstream out;
  for (int p = 0; p < kPairsPerUnit; ++p) {
    out << "pair " << p << ':';
    for (std::size_t i = 0; i < plan.pairs[p].pieces.size(); ++i) {
      const auto& piece = plan.pairs[p].pieces[i];
      out << (i ? " | " : " ");
      if (piece.shift != 0) out << "(";
      out << 'w' << piece.word;
      if (piece.shift > 0) out << " >> " << piece.shift << ")";
      if (piece.shift < 0) out << " << " << -piece.shift << ")";
      out << " & 0x" << std::hex << piece.mask << std::dec;
    }
    out << " at " << plan.pairs[p].offset << '\n';
  }
  return out.str();
}

}  // namespace ladder
