// SPDX-License-Identifier: Apache-2.0
//
// Permutations of the bits of a few 32-bit words that permute the bits of a bit's *number*: bits 0
// to 4 of the number say which bit of its word, the others which word. Transposing a bit matrix is
// one, and so is most of what happens between a row of codes and their image.
//
// Such a permutation is a few steps, each of which exchanges two bits of the number for all words
// at once, so 32 bits move per instruction, not one field. Every step undoes itself: the steps
// backwards are the inverse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ladder {

constexpr int kWordBits = 5;  ///< bits that number the bits of a word

/// Exchanges bits `low` < kWordBits and `high` > low of every bit's number. A `high` of kWordBits
/// or more exchanges between pairs of words, else within each word.
struct ExchangeBits {
  int low, high;
  bool operator==(const ExchangeBits&) const = default;
};

/// Bits of a word whose number has bit `of` clear.
std::uint32_t clear_bits(int of);

/// First the steps in order; then word i of the result is word order[i].
struct WordPermutation {
  std::vector<ExchangeBits> steps;
  std::vector<int> order;

  int words() const { return static_cast<int>(order.size()); }
  /// Instructions for each word: 1 where bytes move whole (a byte permutation), else 2 between
  /// words and 4 within one.
  int cost_per_word() const;
};

/// The cheapest steps after which bit i of a number is bit to[i], for 2^(to.size() - kWordBits)
/// words. Throws InvalidArgument when `to` is no permutation.
WordPermutation plan_words(const std::vector<int>& to);

/// Executes the plan on plan.words() words in place, as every kernel does.
void permute(const WordPermutation& plan, std::uint32_t* words);
/// The inverse.
void permute_back(const WordPermutation& plan, std::uint32_t* words);

/// One line per step: "exchange 2 and 5"; then the order of the words.
std::string to_string(const WordPermutation& plan);

}  // namespace ladder
