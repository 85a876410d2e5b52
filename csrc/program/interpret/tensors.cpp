// SPDX-License-Identifier: Apache-2.0
//
// Products in tensor memory. Lanes and columns are those of the instructions' shapes, not of the
// tiles' layouts: a tile that lies otherwise gives wrong numbers.
#include <utility>

#include "program/interpret/interpreter.h"

namespace ladder {
namespace {

constexpr int kWarps = 4, kWarpLanes = 32;  // of a warpgroup

}  // namespace

// Shape 16x128b, two of them side by side for 16-bit operands of 16 columns: register r of lane l
// goes to lane l / 4 + r % 2 * 8 of 16, column l % 4 + r / 2 * 4.
void Interpreter::tensor_store(Block& block, const TensorStore& i) {
  const auto slots = coordinates_[i.from].slots;
  const int registers = i.row->k / 4, per_register = 32 / i.row->operand_bits();
  for (int thread = 0; thread < program_.threads; ++thread) {
    const int warp = thread / kWarpLanes, lane = thread % kWarpLanes;
    const auto first =
        program_.tensor_column(i.to, value(block, i.place), warp / kWarps) + value(block, i.column);
    for (std::int64_t word = 0; word * per_register < slots; ++word) {
      std::uint32_t bits = 0;
      for (int e = 0; e < per_register; ++e) {
        bits |= get(block, i.from, thread * slots + word * per_register + e)
                << e * i.row->operand_bits();
      }
      const auto unit = word / registers, r = word % registers;
      refuse(block.tensors.store(warp % kWarps * kWarpLanes + unit * 16 + lane / 4 + r % 2 * 8,
                                 first + lane % 4 + r / 2 * 4, bits));
    }
  }
}

void Interpreter::tensor_mma(Block& block, const TensorMma& i) {
  const MatrixInstruction& row = *i.row;
  const auto tokens = program_.tensors[i.sums].columns;
  const Scalar operand = operand_scalar(row).value();
  const int per_column = 32 / row.operand_bits(), columns = row.k / per_column;
  const bool anew = value(block, i.step) == 0;
  for (std::int64_t p = 0; p < program_.tensors[i.sums].products; ++p) {
    TensorProduct product{
        {},
        program_.tensor_column(i.a, value(block, i.place), p) + value(block, i.column),
        program_.tensor_column(i.sums, 0, p),
        tokens,
        columns};
    const auto b = shared_operand(block, row.k, i.from, i.at, tokens, product.reads);
    for (int m = 0; m < row.m; ++m) {
      std::vector<double> a;
      for (int c = 0; c < columns; ++c) {
        std::uint32_t bits = 0;
        refuse(block.tensors.operand(m, product.a_column + c, bits));
        for (int e = 0; e < per_column; ++e) {
          const auto element = bits >> e * row.operand_bits();
          a.push_back(to_number(operand, element & ((1u << row.operand_bits()) - 1)));
        }
      }
      for (std::int64_t token = 0; token < tokens; ++token) {
        std::uint32_t bits = 0;
        refuse(block.tensors.sum(m, product.sum_column + token, anew, bits));
        double sum = anew ? 0 : to_number(row.accumulator, bits);
        for (int k = 0; k < row.k; ++k) sum += a[k] * b[token * row.k + k];
        block.tensors.add_up(m, product.sum_column + token, to_bits(row.accumulator, sum));
      }
    }
    block.tensor_products.push_back(std::move(product));
    ++block.begun_in_tensors;
  }
}

void Interpreter::end_tensor_products(Block& block, std::int64_t upto) {
  bool any = false;
  while (block.begun_in_tensors - static_cast<std::int64_t>(block.tensor_products.size()) < upto) {
    const TensorProduct& product = block.tensor_products.front();
    for (const auto& [at, size] : product.reads) block.shared.ended_for_all(at, size);
    for (std::int64_t lane = 0; lane < TensorMemory::kLanes; ++lane) {
      for (std::int64_t c = 0; c < product.a_columns; ++c) {
        block.tensors.ended(lane, product.a_column + c);
      }
      for (std::int64_t token = 0; token < product.tokens; ++token) {
        block.tensors.ended(lane, product.sum_column + token);
      }
    }
    block.tensor_products.erase(block.tensor_products.begin());
    any = true;
  }
  if (any) block.tensors.products_ended();
}

// Shape 16x256b: register r of lane l has lane l / 4 + r / 2 % 2 * 8 of 16, column l % 4 * 2 + r %
// 2 of each eight.
void Interpreter::tensor_load(Block& block, const TensorLoad& i) {
  const auto slots = coordinates_[i.to].slots, of_unit = slots / 2;
  for (int thread = 0; thread < program_.threads; ++thread) {
    const int warp = thread / kWarpLanes, lane = thread % kWarpLanes;
    const auto first = program_.tensor_column(i.from, 0, warp / kWarps) + value(block, i.column);
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const auto unit = slot / of_unit, r = slot % of_unit;
      std::uint32_t bits = 0;
      refuse(block.tensors.load(warp % kWarps * kWarpLanes + unit * 16 + lane / 4 + r / 2 % 2 * 8,
                                first + r / 4 * 8 + lane % 4 * 2 + r % 2, bits));
      set(block, i.to, thread * slots + slot, bits);
    }
  }
}

}  // namespace ladder
