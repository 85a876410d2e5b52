// SPDX-License-Identifier: Apache-2.0
#include "program/interpret/tensor_memory.h"

namespace ladder {

std::string TensorMemory::store(std::int64_t lane, std::int64_t column, std::uint32_t bits) {
  Facts& facts = facts_[at(lane, column)];
  if (facts.products > 0) return "overwrites what a product still reads";
  if (facts.ended > ends_seen_) return "overwrites what a product read, without a fence since";
  if (facts.state == State::summed) return "overwrites sums";
  facts.state = State::storing;
  bits_[at(lane, column)] = bits;
  return {};
}

std::string TensorMemory::load(std::int64_t lane, std::int64_t column, std::uint32_t& bits) const {
  const Facts& facts = facts_[at(lane, column)];
  if (facts.state != State::summed) return "reads what no product summed";
  if (facts.products > 0) return "reads sums before their products have ended";
  if (facts.ended > ends_seen_) return "reads sums without a fence since their products";
  bits = bits_[at(lane, column)];
  return {};
}

std::string TensorMemory::operand(std::int64_t lane, std::int64_t column, std::uint32_t& bits) {
  Facts& facts = facts_[at(lane, column)];
  switch (facts.state) {
    case State::unwritten: return "multiplies what nobody stored";
    case State::storing: return "multiplies a store that was not waited for";
    case State::stored: return "multiplies what was stored, without a fence since";
    case State::summed: return "multiplies sums";
    case State::fenced: break;
  }
  if (facts.epoch > known_) return "multiplies what was stored, without a barrier and a fence";
  ++facts.products;
  bits = bits_[at(lane, column)];
  return {};
}

std::string TensorMemory::sum(std::int64_t lane, std::int64_t column, bool anew,
                              std::uint32_t& bits) {
  Facts& facts = facts_[at(lane, column)];
  if (!anew && facts.state != State::summed) return "adds to what no product summed";
  if (facts.state != State::unwritten && facts.state != State::summed) {
    return "sums where an operand is";
  }
  facts.state = State::summed;
  ++facts.products;
  bits = anew ? 0 : bits_[at(lane, column)];
  return {};
}

void TensorMemory::ended(std::int64_t lane, std::int64_t column) {
  Facts& facts = facts_[at(lane, column)];
  --facts.products;
  facts.ended = ends_ + 1;
}

void TensorMemory::wait() {
  for (Facts& facts : facts_) {
    if (facts.state == State::storing) facts.state = State::stored;
  }
}

void TensorMemory::fence_before(int epoch) {
  for (Facts& facts : facts_) {
    if (facts.state != State::stored) continue;
    facts.state = State::fenced;
    facts.epoch = epoch;
  }
}

}  // namespace ladder
