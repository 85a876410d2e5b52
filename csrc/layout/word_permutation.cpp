// SPDX-License-Identifier: Apache-2.0
#include "layout/word_permutation.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

constexpr int kByteBit = 3;  // from this bit of the number on, whole bytes move

int cost_of(const ExchangeBits& step) {
  if (step.low >= kByteBit) return 1;
  return step.high >= kWordBits ? 2 : 4;
}

/// The cheapest exchanges within a word: shortest path through the at most 120 orders of five bits.
/// at[i]: where the bit that wants to be at at[i] is now.
std::vector<ExchangeBits> sorted_within_word(const std::vector<int>& wanted) {
  struct Way {
    int cost;
    std::vector<ExchangeBits> steps;
  };
  std::map<std::vector<int>, Way> reached = {{wanted, {0, {}}}};
  std::vector<std::vector<int>> frontier = {wanted};
  while (!frontier.empty()) {
    std::vector<std::vector<int>> next;
    for (const auto& state : frontier) {
      const Way way = reached.at(state);
      for (int low = 0; low < kWordBits; ++low) {
        for (int high = low + 1; high < kWordBits; ++high) {
          auto after = state;
          std::swap(after[low], after[high]);
          Way longer = way;
          longer.steps.push_back({low, high});
          longer.cost += cost_of(longer.steps.back());
          const auto known = reached.find(after);
          if (known != reached.end() && known->second.cost <= longer.cost) continue;
          reached[after] = std::move(longer);
          next.push_back(std::move(after));
        }
      }
    }
    frontier = std::move(next);
  }
  auto sorted = wanted;
  std::sort(sorted.begin(), sorted.end());
  return reached.at(sorted).steps;
}

void exchange(const ExchangeBits& step, std::uint32_t* words, int count) {
  const auto keep = clear_bits(step.low);
  const int low = 1 << step.low;
  if (step.high >= kWordBits) {
    const int other = 1 << (step.high - kWordBits);
    for (int i = 0; i < count; ++i) {
      if ((i & other) != 0) continue;
      const auto a = words[i], b = words[i | other];
      words[i] = (a & keep) | (b & keep) << low;
      words[i | other] = (a >> low & keep) | (b & ~keep);
    }
    return;
  }
  const auto up = ~keep & clear_bits(step.high);  // bits that move up
  const int by = (1 << step.high) - low;
  for (int i = 0; i < count; ++i) {
    const auto differ = (words[i] >> by ^ words[i]) & up;
    words[i] ^= differ ^ differ << by;
  }
}

}  // namespace

std::uint32_t clear_bits(int of) {
  std::uint32_t out = 0;
  for (int i = 0; i < 32; ++i) {
    if ((i >> of & 1) == 0) out |= 1u << i;
  }
  return out;
}

int WordPermutation::cost_per_word() const {
  int sum = 0;
  for (const auto& step : steps) sum += cost_of(step);
  return sum;
}

// A bit of the number that enters the words takes the place of one that leaves them. Every way to
// pair them is tried; the order within a word follows, and that of the words is free.
WordPermutation plan_words(const std::vector<int>& to) {
  const int bits = static_cast<int>(to.size());
  auto sorted = to;
  std::sort(sorted.begin(), sorted.end());
  LADDER_REQUIRE(bits >= kWordBits, bits, " bits do not number the bits of a word");
  for (int i = 0; i < bits; ++i) {
    LADDER_REQUIRE(sorted[i] == i, "bits of a number that are no permutation");
  }
  std::vector<int> leaving, entering;
  for (int i = 0; i < kWordBits; ++i) {
    if (to[i] >= kWordBits) leaving.push_back(i);
  }
  for (int i = kWordBits; i < bits; ++i) {
    if (to[i] < kWordBits) entering.push_back(i);
  }
  WordPermutation best;
  bool found = false;
  do {
    WordPermutation plan;
    auto at = to;
    for (std::size_t i = 0; i < leaving.size(); ++i) {
      plan.steps.push_back({leaving[i], entering[i]});
      std::swap(at[leaving[i]], at[entering[i]]);
    }
    for (const auto& step : sorted_within_word({at.begin(), at.begin() + kWordBits})) {
      plan.steps.push_back(step);
    }
    if (found && best.cost_per_word() <= plan.cost_per_word()) continue;
    plan.order.resize(std::size_t{1} << (bits - kWordBits));
    for (int from = 0; from < plan.words(); ++from) {
      int word = 0;
      for (int i = kWordBits; i < bits; ++i) {
        word |= (from >> (i - kWordBits) & 1) << (at[i] - kWordBits);
      }
      plan.order[word] = from;
    }
    best = std::move(plan);
    found = true;
  } while (std::next_permutation(entering.begin(), entering.end()));
  return best;
}

void permute(const WordPermutation& plan, std::uint32_t* words) {
  for (const auto& step : plan.steps) exchange(step, words, plan.words());
  const std::vector<std::uint32_t> before(words, words + plan.words());
  for (int i = 0; i < plan.words(); ++i) words[i] = before[plan.order[i]];
}

void permute_back(const WordPermutation& plan, std::uint32_t* words) {
  const std::vector<std::uint32_t> before(words, words + plan.words());
  for (int i = 0; i < plan.words(); ++i) words[plan.order[i]] = before[i];
  for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
    exchange(*step, words, plan.words());
  }
}

std::string to_string(const WordPermutation& plan) {
  std::ostringstream out;
  for (const auto& step : plan.steps) {
    out << "exchange " << step.low << " and " << step.high << '\n';
  }
  out << "words";
  for (int word : plan.order) out << ' ' << word;
  out << '\n';
  return out.str();
}

}  // namespace ladder
