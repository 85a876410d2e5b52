// SPDX-License-Identifier: Apache-2.0
#include "layout/bit_plan.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

/// Shifts to execute of those that `counts`: pieces of a word share them.
template <class Counts>
int distinct_shifts(const std::vector<UnpackPair>& pairs, const Counts& counts) {
  std::vector<std::pair<int, int>> shifts;
  for (const auto& pair : pairs) {
    for (const auto& piece : pair.pieces) {
      const std::pair found{piece.word, piece.shift};
      if (counts(piece.shift) && std::ranges::find(shifts, found) == shifts.end()) {
        shifts.push_back(found);
      }
    }
  }
  return static_cast<int>(shifts.size());
}

/// Right shifts that bring each whole field of a half into the window: a field that does not fit
/// where it is starts a new shift, which later fields share while they fit.
std::vector<int> field_shifts(int bits, int operand_bits, int window) {
  std::vector<int> shifts;
  int shift = 0;
  for (int at = 0; at + bits <= operand_bits; at += bits) {
    if (at - shift + bits > window) shift = at;
    shifts.push_back(shift);
  }
  return shifts;
}

/// The window for which the fields are placed: as wide as gives the fewest shifts, but where fields
/// come in pairs of one offset. Where b divides 16 the byte pairs them evenly; single bits in bytes
/// the half-byte.
int placing_window(int bits, int operand_bits) {
  if (operand_bits == 8) return bits == 1 ? 4 : kByteWindow;
  return operand_bits % bits == 0 ? kBfloat16Window : kFloat16Window;
}

/// Offsets at which assembled pairs join the whole fields so that every offset has an even number
/// of pairs.
std::vector<int> leftover_offsets(int bits, int operand_bits, const std::vector<int>& shifts) {
  std::map<int, int> count;
  for (std::size_t f = 0; f < shifts.size(); ++f) {
    count[static_cast<int>(f) * bits - shifts[f]] += bits;  // one per word, and there are b words
  }
  std::vector<int> offsets;
  for (auto [at, n] : count) {
    if (n % 2 != 0) offsets.push_back(at);
  }
  const auto leftovers = operand_bits - static_cast<int>(shifts.size()) * bits;
  LADDER_CHECK(static_cast<int>(offsets.size()) <= leftovers, offsets.size(), " odd offsets for ",
               leftovers, " assembled pairs");
  offsets.resize(leftovers, 0);
  return offsets;
}

struct Field {
  int offset;  // under the placing window
  std::vector<BitPlace> places;
};

/// All fields of a unit in storage order: whole ones word by word, then assembled ones.
std::vector<Field> fields_of(int bits, int operand_bits) {
  const auto shifts = field_shifts(bits, operand_bits, placing_window(bits, operand_bits));
  std::vector<Field> fields;
  std::vector<BitPlace> leftover;
  for (int word = 0; word < bits; ++word) {
    for (std::size_t f = 0; f < shifts.size(); ++f) {
      const int at = static_cast<int>(f) * bits;
      Field field{at - shifts[f], {}};
      for (int i = 0; i < bits; ++i) field.places.push_back({word, at + i});
      fields.push_back(std::move(field));
    }
    for (int bit = operand_bits / bits * bits; bit < operand_bits; ++bit) {
      leftover.push_back({word, bit});
    }
  }
  auto at = leftover.begin();
  for (int offset : leftover_offsets(bits, operand_bits, shifts)) {
    fields.push_back({offset, std::vector<BitPlace>(at, at + bits)});
    at += bits;
  }
  LADDER_CHECK(at == leftover.end() && static_cast<int>(fields.size()) == operand_bits,
               fields.size(), " fields of ", bits, " bits");
  return fields;
}

BitPlan make_bit_plan(int bits, int operand_bits) {
  auto fields = fields_of(bits, operand_bits);
  std::vector<bool> taken(fields.size());
  BitPlan plan{bits, operand_bits, {}, {}};
  plan.pairs.resize(operand_bits);
  plan.offsets.resize(operand_bits);
  // A cell is one k-step and one row parity: pairs 4s + parity and 4s + parity + 2.
  for (int cell = 0; cell < operand_bits / 2; ++cell) {
    const int pair = cell / 2 * 4 + cell % 2;
    const auto first = std::find(taken.begin(), taken.end(), false) - taken.begin();
    auto second = first + 1;
    while (taken[second] || fields[second].offset != fields[first].offset) ++second;
    taken[first] = taken[second] = true;
    plan.pairs[pair] = fields[first].places;
    plan.pairs[pair + 2] = fields[second].places;
    plan.offsets[pair] = plan.offsets[pair + 2] = fields[first].offset;
  }
  return plan;
}

/// `half` in each half, or byte, of a word.
std::uint32_t in_every_half(std::uint32_t half, int operand_bits) {
  for (int at = operand_bits; at < 32; at *= 2) half |= half << at;
  return half;
}

template <std::size_t Count>
std::array<std::uint32_t, Count> unpack_register(const UnpackPlan& plan, const std::uint32_t* words,
                                                 int pair) {
  LADDER_REQUIRE(plan.operand_bits * static_cast<int>(Count) == 32, "a plan for operands of ",
                 plan.operand_bits, " bits has no ", Count, " codes in a register");
  const UnpackPair& from = plan.pairs.at(pair);
  const auto all = read_pieces(from.pieces, words) >> from.offset;
  std::array<std::uint32_t, Count> out;
  for (std::size_t i = 0; i < Count; ++i) {
    out[i] = all >> (plan.operand_bits * static_cast<int>(i)) & ((1u << plan.bits) - 1);
  }
  return out;
}

UnpackPlan read_at(const BitPlan& plan, int window, std::array<int, 2> offsets) {
  UnpackPlan out{plan.bits, window, plan.operand_bits, {}};
  for (int pair = 0; pair < plan.operand_bits; ++pair) {
    const int offset = offsets[pair % 2];
    out.pairs.push_back({move_bits(plan, pair, 0, plan.bits, offset), offset});
  }
  return out;
}

// The sums of a lane are by parity of eight rows, so sums over all steps need one offset for each
// of the two. Few enough to try all: the fewest operations, then the fewest shifts to the right,
// which share their pipe with the masks.
UnpackPlan read_rows(const BitPlan& plan, int window, int lowest) {
  LADDER_REQUIRE(plan.operand_bits == 16, "operands of ", plan.operand_bits, " bits by rows");
  std::optional<UnpackPlan> best;
  std::pair<int, int> least;
  for (int even = lowest; even + plan.bits <= window; ++even) {
    for (int odd = lowest; odd + plan.bits <= window; ++odd) {
      auto candidate = read_at(plan, window, {even, odd});
      const int shifts = candidate.shift_count();
      const std::pair cost{candidate.mask_count() + shifts, candidate.right_shift_count()};
      if (best && cost >= least) continue;
      least = cost;
      best = std::move(candidate);
    }
  }
  if (!best) {
    fail<Unsupported>(plan.bits, " bits do not fit a window of ", window, " from bit ", lowest);
  }
  return *best;
}

}  // namespace

const BitPlan& bit_plan(int bits, int operand_bits) {
  if (bits < 1 || bits > 8) fail<Unsupported>("no weight image for codes of ", bits, " bits");
  if (operand_bits != 16 && operand_bits != 8) {
    fail<Unsupported>("no weight image for operands of ", operand_bits, " bits");
  }
  static const auto plans = [] {
    std::array<std::array<BitPlan, 8>, 2> all;
    for (int b = 1; b <= 8; ++b) {
      all[0][b - 1] = make_bit_plan(b, 16);
      all[1][b - 1] = make_bit_plan(b, 8);
    }
    return all;
  }();
  return plans[operand_bits == 8][bits - 1];
}

UnpackPlan unpack_plan(const BitPlan& plan, int window, Align align, int lowest) {
  const int bits = plan.bits, operand_bits = plan.operand_bits;
  if (bits > window) fail<Unsupported>(bits, " bits do not fit a window of ", window);
  LADDER_REQUIRE(window <= operand_bits, "a window of ", window, " bits in operands of ",
                 operand_bits);
  if (align == Align::rows) return read_rows(plan, window, lowest);
  const auto shifts =
      field_shifts(bits, operand_bits, std::min(window, placing_window(bits, operand_bits)));
  UnpackPlan out{bits, window, operand_bits, {}};
  for (int pair = 0; pair < operand_bits; ++pair) {
    const auto& places = plan.pairs[pair];
    const auto field = static_cast<std::size_t>(places.front().bit / bits);
    UnpackPair to;
    if (align == Align::top) {
      to.offset = window - bits;
    } else if (field < shifts.size()) {
      to.offset = places.front().bit - shifts[field];
    } else {  // assembled
      to.offset = plan.offsets[pair] + bits <= window ? plan.offsets[pair] : 0;
    }
    to.pieces = move_bits(plan, pair, 0, bits, to.offset);
    out.pairs.push_back(std::move(to));
  }
  return out;
}

const UnpackPlan& unpack_plan(int bits, int window) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<int, int>, UnpackPlan>;
  const std::lock_guard lock(mutex);
  const auto found = all.find({bits, window});
  if (found != all.end()) return found->second;
  return all.emplace(std::pair{bits, window}, unpack_plan(bit_plan(bits), window)).first->second;
}

std::vector<UnpackPiece> move_bits(const BitPlan& plan, int pair, int from, int count, int place) {
  const auto& places = plan.pairs.at(pair);
  std::vector<UnpackPiece> pieces;
  // Runs of bits that one shift moves make one piece.
  for (int i = 0; i < count; ++i) {
    const BitPlace at = places.at(from + i);
    const int shift = at.bit - (place + i);
    if (pieces.empty() || pieces.back().word != at.word || pieces.back().shift != shift) {
      pieces.push_back({at.word, shift, 0});
    }
    pieces.back().mask |= in_every_half(1u << (place + i), plan.operand_bits);
  }
  return pieces;
}

std::uint32_t read_pieces(const std::vector<UnpackPiece>& pieces, const std::uint32_t* words) {
  std::uint32_t both = 0;
  for (const auto& piece : pieces) {
    const auto word = words[piece.word];
    both |= (piece.shift >= 0 ? word >> piece.shift : word << -piece.shift) & piece.mask;
  }
  return both;
}

int UnpackPlan::shift_count() const {
  return distinct_shifts(pairs, [](int shift) { return shift != 0; });
}

int UnpackPlan::right_shift_count() const {
  return distinct_shifts(pairs, [](int shift) { return shift > 0; });
}

int UnpackPlan::mask_count() const {
  int n = 0;
  for (const auto& pair : pairs) n += static_cast<int>(pair.pieces.size());
  return n;
}

std::array<std::uint32_t, 2> unpack_pair(const UnpackPlan& plan, const std::uint32_t* words,
                                         int pair) {
  return unpack_register<2>(plan, words, pair);
}

std::array<std::uint32_t, 4> unpack_quad(const UnpackPlan& plan, const std::uint32_t* words,
                                         int quad) {
  return unpack_register<4>(plan, words, quad);
}

std::string to_string(const UnpackPlan& plan) {
  std::ostringstream out;
  for (std::size_t p = 0; p < plan.pairs.size(); ++p) {
    out << (plan.operand_bits == 8 ? "quad " : "pair ") << p << ':';
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
