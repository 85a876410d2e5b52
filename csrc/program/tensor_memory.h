// SPDX-License-Identifier: Apache-2.0
//
// Tensor memory (tcgen05): beside its registers a multiprocessor has 128 lanes by some columns of
// 32 bits, in which the matrix unit finds A and keeps its sums. Row i of a product is lane i. A
// block has its columns from its first statement to its last. A k-step of 16-bit operands:
//
//     await freed[p] parity ..       the products that read place p before have ended
//     tensor_fence after             and what follows is behind them
//     operands[p] = tensor_store a   asynchronous
//     tensor_wait                    this thread's stores have ended
//     tensor_fence before            and are in front of
//     barrier                        what other threads do behind it
//     tensor_fence after
//     sums += tensor_mma operands[p], x[...]   started by one thread
//     tensor_commit freed[p]         one arrival, when all products so far have ended
//
// A warp has access to 32 lanes: those of its number modulo 4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/instructions.h"
#include "program/affine.h"
#include "program/operands.h"

namespace ladder {

using TensorId = int;

/// Columns of tensor memory: at each of `places`, for each of `products` (128 rows by one
/// warpgroup), `columns`.
struct Tensor {
  std::string name;
  std::int64_t places, products, columns;

  std::int64_t size() const { return places * products * columns; }
};

/// to[place][warpgroup] = from from `column` on: A of one k-step by `row`, two operands a column.
struct TensorStore {
  const MatrixInstruction* row;
  RegisterId from;
  TensorId to;
  Affine place, column;
};
/// The TensorStores of each thread have ended.
struct TensorWait {};
/// Orders what a thread does in tensor memory with what it does to meet others: in front of a
/// Barrier, or `after` a Barrier or an Await.
struct TensorFence {
  bool after;
};
/// sums[product][m, n] (+)= sum_k a[place][product][m, k] * from[at + (n, 0, k)] by `row`, for each
/// product: A from `column` on, B as MmaShared has it. Begins here; ends before a TensorCommit that
/// follows arrives. Sums begin at zero where `step` is 0, else they are added to.
struct TensorMma {
  const MatrixInstruction* row;
  TensorId sums, a;
  Affine place, column;
  ViewId from;
  std::vector<Affine> at;
  Affine step;
};
/// One arrival when all TensorMma so far have ended.
struct TensorCommit {
  SignalId signal;
  Affine index;
};
/// to = from[0][warpgroup] from `column` on: sums of `row`, a column of each token.
struct TensorLoad {
  const MatrixInstruction* row;
  RegisterId to;
  TensorId from;
  Affine column;
};

}  // namespace ladder
