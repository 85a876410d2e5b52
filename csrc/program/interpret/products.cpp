// SPDX-License-Identifier: Apache-2.0
//
// Matrix products, as the hardware forms them: by lanes and registers of the instruction, whatever
// the tiles claim.
#include <cmath>
#include <utility>

#include "program/interpret/interpreter.h"

namespace ladder {

const Interpreter::Fragments& Interpreter::fragments_of(const MatrixInstruction& row,
                                                        std::int64_t columns) {
  const auto found = fragments_.find({&row, columns});
  if (found != fragments_.end()) return found->second;
  Fragments fragments{row,
                      row.lanes(),
                      coordinates_of(row.a()),
                      {},
                      coordinates_of(row.d(static_cast<int>(columns)))};
  if (row.b_in_registers()) fragments.b = coordinates_of(row.b());
  return fragments_.emplace(std::pair{&row, columns}, std::move(fragments)).first->second;
}

void Interpreter::mma(Block& block, const Mma& i) {
  const MatrixInstruction& row = *i.row;
  const Fragments& of = fragments_of(row, row.n);
  const auto a_slots = coordinates_[i.a].slots, b_slots = coordinates_[i.b].slots;
  const auto units = a_slots / of.a.slots, columns = b_slots / of.b.slots;
  for (int first = threads_.first; first < threads_.second; first += of.lanes) {
    for (std::int64_t u = 0; u < units; ++u) {
      const auto a = operand_of(block, i.a, first, u * of.a.slots, of, of.a, row.m);
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto b = operand_of(block, i.b, first, c * of.b.slots, of, of.b, row.n);
        add_product(block, i.acc, first, (u * columns + c) * of.d.slots, of, a, b);
      }
    }
  }
}

// The sums are there at once: what may not be used before MmaWait is refused until then.
void Interpreter::mma_shared(Block& block, const MmaShared& i) {
  const MatrixInstruction& row = *i.row;
  const auto tokens = program_.registers[i.acc].layout.shape[2];
  const Fragments& of = fragments_of(row, tokens);
  Product product{i.acc, i.a, {}};
  const auto b = shared_operand(block, row.k, i.from, i.at, tokens, product.reads);
  // Sums of products that are on their way may be added to.
  const int begun = std::exchange(block.summed[i.acc], 0);
  if (i.replaces && begun > 0) fault("sums that are on their way are lost");
  block.awaited[i.acc] = true;
  if (i.replaces) fill(block, Fill{i.acc, {0, 0}});
  const auto units = coordinates_[i.a].slots / of.a.slots;
  for (int first = 0; first < program_.threads; first += of.lanes) {
    for (std::int64_t u = 0; u < units; ++u) {
      const auto a = operand_of(block, i.a, first, u * of.a.slots, of, of.a, row.m);
      add_product(block, i.acc, first, u * of.d.slots, of, a, b);
    }
  }
  block.summed[i.acc] = begun + 1;
  block.awaited[i.acc] = false;
  ++block.multiplied[i.a];
  block.products.push_back(std::move(product));
}

void Interpreter::end_products(Block& block, int pending) {
  while (static_cast<int>(block.products.size()) > pending) {
    const Product& product = block.products.front();
    --block.summed[product.acc];
    --block.multiplied[product.a];
    for (const auto& [at, size] : product.reads) block.shared.ended(at, size);
    block.products.erase(block.products.begin());
  }
}

std::vector<double> Interpreter::operand_of(const Block& block, RegisterId id, int first,
                                            std::int64_t slot, const Fragments& of,
                                            const Coordinates& at, int extent) const {
  const MatrixInstruction& row = of.row;
  std::vector<double> out(static_cast<std::size_t>(row.copies) * extent * row.k);
  const auto slots = coordinates_[id].slots;
  const Scalar scalar = program_.registers[id].scalar;
  const double least = row.subnormals ? 0 : std::ldexp(1.0, 2 - (1 << (exponent_bits(scalar) - 1)));
  for (int lane = 0; lane < of.lanes; ++lane) {
    for (std::int64_t s = 0; s < at.slots; ++s) {
      const auto* c = at.at(lane, s);
      const double value = number(block, id, (first + lane) * slots + slot + s);
      const auto of_row = row.copies == 1 ? c[0] : c[0] * extent + c[1];
      out[of_row * row.k + c[row.copies == 1 ? 1 : 2]] = std::fabs(value) < least ? 0 : value;
    }
  }
  return out;
}

std::vector<double> Interpreter::shared_operand(
    Block& block, int depth, ViewId from, const std::vector<Affine>& at, std::int64_t tokens,
    std::vector<std::pair<std::int64_t, int>>& reads) const {
  const View& view = program_.views[from];
  const Buffer& buffer = program_.buffers[view.buffer];
  const int size = bytes_of(buffer.scalar);
  const auto origin = values(block, at);
  std::vector<double> out(tokens * depth);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::int64_t offset[] = {0, token, 0, k};
      const auto where = element(block, view, origin, offset);
      if (!where) fault("reads outside ", buffer.name);
      const auto byte = byte_of(view, *where);
      std::uint32_t bits = 0;
      refuse(block.shared.read_by_matrix(byte, size, reinterpret_cast<std::uint8_t*>(&bits)));
      reads.emplace_back(byte, size);
      out[token * depth + k] = to_number(buffer.scalar, bits);
    }
  }
  return out;
}

void Interpreter::add_product(Block& block, RegisterId acc, int first, std::int64_t slot,
                              const Fragments& of, const std::vector<double>& a,
                              const std::vector<double>& b) const {
  const int depth = of.row.k;
  const bool one = of.row.copies == 1;
  const auto slots = coordinates_[acc].slots;
  for (int lane = 0; lane < of.lanes; ++lane) {
    for (std::int64_t s = 0; s < of.d.slots; ++s) {
      const auto* c = of.d.at(lane, s);
      const auto index = (first + lane) * slots + slot + s;
      const auto row = one ? c[0] : c[0] * of.row.m + c[1];
      const auto token = one ? c[1] : c[0] * of.row.n + c[2];
      double sum = number(block, acc, index);
      for (int k = 0; k < depth; ++k) sum += a[row * depth + k] * b[token * depth + k];
      set_number(block, acc, index, sum);
    }
  }
}

}  // namespace ladder
