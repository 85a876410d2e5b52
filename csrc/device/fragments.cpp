// SPDX-License-Identifier: Apache-2.0
//
// The documented lane formulas of fragments, in the layout algebra; tests/core/device compares the
// two for every lane and register.
#include "base/error.h"
#include "device/instructions.h"
#include "types/element.h"

namespace ladder {
namespace {

/// Neighbouring elements of K in a 32-bit register.
int per_register(const MatrixInstruction& row) { return 32 / row.operand_bits(); }

/// 8 x 4 lanes of one register each; registers step over rows by 8, then along k.
Layout warp_operand(const MatrixInstruction& row, int rows) {
  const int v = per_register(row);
  return column_local({rows / 8, row.k / (4 * v)}) * spatial({8, 4}) * local({1, v});
}

/// A row, or column, of each lane; of its columns no more than 16 bytes side by side, which f8f6f4
/// has twice.
Layout wave_operand(const MatrixInstruction& row, int rows) {
  const int columns = row.k * rows / 64, most = 128 / row.operand_bits();
  const Layout lanes = column_spatial({rows, 64 / rows});
  if (columns <= most) return lanes * local({1, columns});
  return local({1, columns / most}) * lanes * local({1, most});
}

/// Four lanes have the rows of a product, or one lane has all that there is of it.
Layout copied_operand(const MatrixInstruction& row) {
  return spatial({row.copies, row.m, 1}) * local({1, 1, row.k});
}

/// Lanes 16 to 31 as lanes 0 to 15.
Layout wmma_twice_operand(const MatrixInstruction& row, int rows) {
  return replicated(2, 2) * spatial({rows, 1}) * local({1, row.k});
}

/// Half of the columns of a row in each half of the lanes, in runs of four of 16 bits or eight of
/// 8, as far as there are so many.
Layout wmma_operand(const MatrixInstruction& row, int rows) {
  const int run = row.operand_bits() == 16 ? 4 : 8;
  return local({1, row.k / (2 * run)}) * column_spatial({rows, 2}) * local({1, run});
}

/// Lanes 16 h + 4 q + r: quad pair q has the rows 4 h + r of its own product.
Layout quad_pair_operand(const MatrixInstruction& row) {
  return {{row.copies, 8, 4}, {{1, 2, 4}, {0, 4, 1}, {1, 4, 1}}, {{2, 4, 1}}};
}

/// The same lanes of one product: quad pair q has rows 8 (q % 2) + 4 h + r of A, and 8 (q / 2) +
/// 4 h + r of B, all of their columns.
Layout quad_pairs_operand(const MatrixInstruction& row, bool of_a) {
  const Digit half{0, 2, 8}, both{0, 2, 0};
  return {
      {16, row.k}, {{0, 2, 4}, of_a ? both : half, of_a ? half : both, {0, 4, 1}}, {{1, row.k, 1}}};
}

}  // namespace

int MatrixInstruction::operand_bits() const { return element(operand).bits; }

// Those of a(), b() and d(), said without a layout: schedules are judged by it by the thousand.
int MatrixInstruction::lanes() const {
  switch (fragment) {
    case Fragment::quad_pair:
    case Fragment::quad_pairs:
    case Fragment::warp:
    case Fragment::wmma:
    case Fragment::wmma_twice: return 32;
    case Fragment::warpgroup:
    case Fragment::tensor_memory: return 128;
    case Fragment::wave:
    case Fragment::wave_blocks:
    case Fragment::wave_lanes: return 64;
    case Fragment::vector: return 1;
  }
  fail<InternalError>("fragment of ", name);
}

Layout MatrixInstruction::a() const {
  switch (fragment) {
    case Fragment::quad_pair: return quad_pair_operand(*this);
    case Fragment::quad_pairs: return quad_pairs_operand(*this, true);
    case Fragment::warp: return warp_operand(*this, m);
    case Fragment::warpgroup: return spatial({4, 1}) * warp_operand(*this, 16);
    case Fragment::tensor_memory: return spatial({4, 1}) * local({2, 1}) * warp_operand(*this, 16);
    case Fragment::wave: return wave_operand(*this, m);
    case Fragment::wave_blocks:
    case Fragment::wave_lanes: return copied_operand(*this);
    case Fragment::wmma: return wmma_operand(*this, m);
    case Fragment::wmma_twice: return wmma_twice_operand(*this, m);
    case Fragment::vector: return local({m, k});
  }
  fail<InternalError>("fragment of ", name);
}

Layout MatrixInstruction::b() const {
  switch (fragment) {
    case Fragment::quad_pair: return quad_pair_operand(*this);
    case Fragment::quad_pairs: return quad_pairs_operand(*this, false);
    case Fragment::warp: {
      const int v = per_register(*this);
      return local({n / 8, k / (4 * v)}) * spatial({8, 4}) * local({1, v});
    }
    case Fragment::warpgroup:
    case Fragment::tensor_memory: fail<Unsupported>(name, " reads B from shared memory");
    case Fragment::wave: return wave_operand(*this, n);
    case Fragment::wave_blocks:
    case Fragment::wave_lanes: return copied_operand(*this);
    case Fragment::wmma: return wmma_operand(*this, n);
    case Fragment::wmma_twice: return wmma_twice_operand(*this, n);
    case Fragment::vector: return local({n, k});
  }
  fail<InternalError>("fragment of ", name);
}

Layout MatrixInstruction::d(int columns) const {
  switch (fragment) {
    case Fragment::quad_pair:
      // Bit 0 of the lane is a row, bit 1 two columns; bits 0, 1 and 2 of the slot are a column,
      // two rows and four columns.
      return {{copies, 8, 8},
              {{1, 2, 4}, {0, 4, 1}, {2, 2, 2}, {1, 2, 1}},
              {{2, 2, 4}, {1, 2, 2}, {2, 2, 1}}};
    case Fragment::quad_pairs:
      return {{16, 16},
              {{0, 2, 4}, {1, 2, 8}, {0, 2, 8}, {1, 2, 2}, {0, 2, 1}},
              {{1, 2, 4}, {0, 2, 2}, {1, 2, 1}}};
    case Fragment::warp: return local({m / 8, n / 8}) * spatial({8, 4}) * local({1, 2});
    case Fragment::warpgroup:
      return spatial({4, 1}) * column_local({2, columns / 8}) * spatial({8, 4}) * local({1, 2});
    case Fragment::tensor_memory:
      return spatial({4, 1}) * local({2, 1}) * column_local({2, columns / 8}) * spatial({8, 4}) *
             local({1, 2});
    case Fragment::wave: {
      const int rows = 64 / n;  // of lanes
      return local({m / (4 * rows), 1}) * spatial({rows, n}) * local({4, 1});
    }
    case Fragment::wave_blocks:
    case Fragment::wave_lanes: return spatial({copies, 1, n}) * local({1, m, 1});
    case Fragment::wmma: return spatial({2, n}) * local({m / 2, 1});
    case Fragment::wmma_twice: return local({m / 2, 1}) * spatial({2, n});
    case Fragment::vector: return local({m, n});
  }
  fail<InternalError>("fragment of ", name);
}

}  // namespace ladder
