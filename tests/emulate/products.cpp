// SPDX-License-Identifier: Apache-2.0
//
// Products of warpgroups, which end later.
#include <cstring>
#include <vector>

#include "instructions.h"
#include "machine_state.h"

namespace ladder::emulate {
namespace {

struct Begun {
  void* d;
  const std::uint32_t* a;
  std::uint64_t b;
  int tokens;
  Operands of;
};

/// That of the thread that runs.
Warpgroup& warpgroup() { return machine->block().warpgroups[machine->now->thread / 128]; }

}  // namespace

void product_begins(void* d, const std::uint32_t* a, std::uint64_t b, int tokens, Operands of) {
  Begun here{d, a, b, tokens, of};
  with_warpgroup(&here, [](void* const* lanes) {
    const Fiber& self = *machine->now;
    const auto& first = *static_cast<const Begun*>(lanes[0]);
    if (!warpgroup().fenced) fault("a product without a fence of its registers");
    Product product{self.rank, self.thread / 128, {},       {},
                    first.b,   first.tokens,      first.of, warpgroup().committed};
    for (int i = 0; i < 128; ++i) {
      const auto& lane = *static_cast<const Begun*>(lanes[i]);
      if (lane.b != first.b) wrong("lanes of a warpgroup name different matrices");
      product.d[i] = lane.d, product.a[i] = lane.a;
    }
    machine->products.push_back(product);
    if (machine->copies == Machine::Copies::early) {
      while (!machine->products.empty()) machine->end_product(0);
    }
  });
}

void products_fence() {
  with_warpgroup(nullptr, [](void* const*) { warpgroup().fenced = true; });
}

void products_commit() {
  with_warpgroup(nullptr, [](void* const*) {
    ++warpgroup().committed;
    warpgroup().fenced = false;
  });
}

void products_wait(int pending) {
  int here = pending;
  with_warpgroup(&here, [](void* const* lanes) {
    const unsigned number = machine->now->thread / 128, rank = machine->now->rank;
    const int last = warpgroup().committed - *static_cast<int*>(lanes[0]);
    auto& products = machine->products;
    for (std::size_t i = 0; i < products.size();) {
      const bool over =
          products[i].rank == rank && products[i].warpgroup == number && products[i].group < last;
      over ? machine->end_product(i) : void(++i);
    }
  });
}

void Machine::end_product(std::size_t i) {
  const Product product = products[i];
  products.erase(products.begin() + static_cast<std::ptrdiff_t>(i));
  const std::uint32_t begin = (product.b & 0x3fff) << 4;
  if ((product.b >> 62) != 1 || (product.b >> 32 & 0x3fff) != 1024 / 16) {
    fault("matrices that are not rows of 128 bytes, swizzled");
    return;
  }
  std::vector<std::uint32_t> b;
  for (int token = 0; token < product.tokens; ++token) {
    for (std::uint32_t piece = 0; piece < 2; ++piece) {
      const std::uint32_t byte = begin + static_cast<std::uint32_t>(token) * 128 + piece * 16;
      const std::uint32_t placed = byte ^ (byte >> 3 & 0x70);
      if (blocks[product.rank].unfenced[placed / 16] >= 0)
        fault("a product reads what no fence shows");
      std::uint32_t words[4];
      std::memcpy(words, at(placed | product.rank << kRankShift, 16), 16);
      b.insert(b.end(), words, words + 4);
    }
  }
  multiply_warpgroup(product.d, product.a, b.data(), product.tokens, product.of);
}

}  // namespace ladder::emulate
