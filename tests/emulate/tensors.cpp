// SPDX-License-Identifier: Apache-2.0
//
// Tensor memory: PTX ISA, tcgen05. Stores and products end later, products and commits in their
// order.
#include <bit>
#include <cstring>
#include <vector>

#include "instructions.h"
#include "machine_state.h"
#include "types/scalar.h"

namespace ladder::emulate {
namespace {

constexpr unsigned kColumns = 512, kLanes = 128;

/// The block's cell there, of the columns that it has asked for.
std::size_t cell(const Block& block, unsigned lane, unsigned column) {
  const unsigned first = kColumns - block.tensor_columns;
  if (lane >= kLanes || column < first || column >= kColumns) {
    wrong("tensor memory has 128 lanes and columns " + std::to_string(first) +
          " to 511; accessed " + std::to_string(lane) + ", " + std::to_string(column));
  }
  return lane * kColumns + column;
}

void behind_fence() {
  if (!machine->now->behind_fence) wrong("tensor memory without a fence behind the last meeting");
}

/// The first lane of 16 that `address` names, which the warp has access to.
unsigned first_lane(std::uint32_t address) {
  const unsigned lane = address >> 16, own = machine->now->thread / 32 % 4 * 32;
  if (lane != own && lane != own + 16) {
    wrong("lanes from " + std::to_string(lane) + " on, of a warp that has " + std::to_string(own) +
          " and the next 31");
  }
  return lane;
}

}  // namespace

void tensor_alloc(std::uint32_t to, unsigned columns) {
  warp_max(0);
  if (machine->now->thread % 32 != 0) return;
  Block& block = machine->block();
  if (columns < 32 || columns > kColumns || !std::has_single_bit(columns)) {
    wrong(std::to_string(columns) + " columns of tensor memory");
  }
  if (block.tensor_columns != 0) wrong("tensor memory is asked for twice");
  block.tensor_columns = columns;
  block.tensors.assign(kLanes * kColumns, 0xffffffff);
  block.tensor_states.assign(kLanes * kColumns, Cell::seen);
  const std::uint32_t address = kColumns - columns;
  std::memcpy(machine->at(own(to), 4), &address, 4);
}

void tensor_free(std::uint32_t address, unsigned columns) {
  warp_max(0);
  if (machine->now->thread % 32 != 0) return;
  Block& block = machine->block();
  if (block.tensor_columns != columns || address != kColumns - columns) {
    wrong("other tensor memory is given back than was asked for");
  }
  block.tensor_columns = 0;
}

void tensor_fence(bool after) {
  Fiber& self = *machine->now;
  if (after) {
    self.behind_fence = true;
    return;
  }
  for (const std::size_t at : self.unfenced) machine->block().tensor_states[at] = Cell::seen;
  self.unfenced.clear();
}

void Machine::end_stores(Fiber& fiber) {
  Block& block = blocks[fiber.rank];
  for (const auto& [at, bits] : fiber.stores) {
    block.tensors[at] = bits;
    block.tensor_states[at] = Cell::ended;
    fiber.unfenced.push_back(at);
  }
  fiber.stores.clear();
}

// 16x128b, twice: lane l of the warp has row l / 4, and 8 more in odd registers, of column l % 4,
// and 4 more in the last two.
void tensor_store(std::uint32_t to, const std::uint32_t* words) {
  behind_fence();
  Fiber& self = *machine->now;
  const unsigned lane = self.thread % 32, first = first_lane(to);
  for (unsigned r = 0; r < 4; ++r) {
    const auto at =
        cell(machine->block(), first + lane / 4 + r % 2 * 8, (to & 0xffff) + lane % 4 + r / 2 * 4);
    machine->block().tensor_states[at] = Cell::storing;
    self.stores.emplace_back(at, words[r]);
  }
  warp_max(0);
  if (machine->copies == Machine::Copies::early) {
    for (const auto& [at, bits] : self.stores) machine->block().tensors[at] = bits;
  }
}

void tensor_wait() {
  machine->end_stores(*machine->now);
  warp_max(0);
}

void tensor_product(std::uint32_t sums, std::uint32_t a, std::uint64_t b, std::uint32_t how,
                    bool added) {
  behind_fence();
  machine->tensor_work.push_back({machine->now->rank, false, sums, a, b, how, added, 0});
  if (machine->copies == Machine::Copies::early) machine->end_tensor_work();
}

void tensor_commit(std::uint32_t signal) {
  machine->tensor_work.push_back({machine->now->rank, true, 0, 0, 0, 0, false, own(signal)});
  if (machine->copies == Machine::Copies::early) machine->end_tensor_work();
}

void Machine::end_tensor_work() {
  const TensorWork work = tensor_work.front();
  tensor_work.erase(tensor_work.begin());
  if (work.commit) {
    Signal& s = signal(work.signal);
    if (s.missing-- == 0) fault("a signal has more arrivals than it was made for");
    settle(s);
    return;
  }
  Block& block = blocks[work.rank];
  // Instruction descriptor of kind::f16: sums of f32, both operands alike and along K.
  const unsigned type = work.how >> 7 & 7, tokens = (work.how >> 17 & 63) * 8;
  const std::uint32_t right = 1u << 4 | type << 7 | type << 10 | tokens / 8 << 17 | 8u << 24;
  if (work.how != right || type > 1 || tokens % 16 != 0 || tokens == 0 || tokens > 256) {
    fault("a product as nobody has it: " + std::to_string(work.how));
    return;
  }
  // Shared memory descriptor: version 1, rows of 128 bytes swizzled, eight of them 1024 bytes.
  if ((work.b >> 46 & 7) != 1 || work.b >> 61 != 2 || (work.b >> 32 & 0x3fff) != 1024 / 16) {
    fault("matrices that are not rows of 128 bytes, swizzled");
    return;
  }
  const Scalar scalar = type == 0 ? Scalar::f16 : Scalar::bf16;
  const auto numbers = [&](std::uint32_t word, double* to) {
    to[0] = to_number(scalar, word & 0xffff), to[1] = to_number(scalar, word >> 16);
  };
  std::vector<double> columns(tokens * 16);
  for (unsigned token = 0; token < tokens; ++token) {
    for (std::uint32_t piece = 0; piece < 2; ++piece) {
      const auto begin = static_cast<std::uint32_t>(work.b & 0x3fff) << 4;
      const std::uint32_t byte = begin + token * 128 + piece * 16;
      const std::uint32_t placed = byte ^ (byte >> 3 & 0x70);
      if (block.unfenced[placed / 16] >= 0) fault("a product reads what no fence shows");
      std::uint32_t words[4];
      std::memcpy(words, at(placed | work.rank << kRankShift, 16), 16);
      for (int i = 0; i < 4; ++i) numbers(words[i], &columns[token * 16 + piece * 8 + 2 * i]);
    }
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    double row[16];
    for (unsigned c = 0; c < 8; ++c) {
      const auto from = lane * kColumns + (work.a & 0xffff) + c;
      if (block.tensor_states[from] != Cell::seen) fault("a product reads what no fence shows");
      numbers(block.tensors[from], row + 2 * c);
    }
    for (unsigned token = 0; token < tokens; ++token) {
      auto& bits = block.tensors[lane * kColumns + (work.sums & 0xffff) + token];
      double sum = work.added ? std::bit_cast<float>(bits) : 0;
      for (int k = 0; k < 16; ++k) sum += row[k] * columns[token * 16 + k];
      bits = std::bit_cast<std::uint32_t>(static_cast<float>(sum));
    }
  }
}

// 16x256b: lane l has row l / 4, and 8 more in the second two of four registers, of columns
// 2 (l % 4) and the next, of each eight.
void tensor_load(float* to, int registers, std::uint32_t from) {
  behind_fence();
  const unsigned lane = machine->now->thread % 32, first = first_lane(from);
  for (int r = 0; r < registers; ++r) {
    const auto at = cell(machine->block(), first + lane / 4 + r / 2 % 2 * 8,
                         (from & 0xffff) + static_cast<unsigned>(r / 4 * 8 + r % 2) + lane % 4 * 2);
    to[r] = std::bit_cast<float>(machine->block().tensors[at]);
  }
  warp_max(0);
}

}  // namespace ladder::emulate
