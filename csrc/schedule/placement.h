// SPDX-License-Identifier: Apache-2.0
//
// Where weights turn from codes into operands: each place moves and computes differently, and which
// is cheapest depends on how many tokens share a weight.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace ladder {

enum class ConvertPlace {
  once,                 ///< by a kernel of its own, into a workspace in global memory
  global_to_shared,     ///< on the way to shared memory, through registers
  shared_to_registers,  ///< after the load that fills the operand's registers
};

/// "once in global memory", "from global to shared memory", "from shared memory to registers".
std::string_view name_of(ConvertPlace place);

/// The most tokens for which there are kernels that convert as they multiply. Above 256 they were
/// timed for uint4 and mxfp4 on Hopper (benchmarks/results/sweep.md).
constexpr std::int64_t kMostTokens = 8192;

/// Why no kernel converts the weights of `m` tokens at `place`; empty where one does.
std::string no_kernel(ConvertPlace place, std::int64_t m);

/// A matmul of [m, k] by weights [n, k] in thread block tiles.
struct ConvertWork {
  std::int64_t m, n, k;
  std::int64_t block_m, block_n;
  std::int64_t warps_m;    ///< warps of a block that share columns, and convert them each
  int weight_bits;         ///< of a code
  int operand_bits;        ///< of an operand
  double instructions;     ///< that convert one weight
  double operations_rate;  ///< of the matrix instruction, operations per second; 0: not known
  double dense_rate = 0;   ///< of a library that multiplies converted weights; 0: the same
};

/// What a place costs one call. Seconds that are 0 are not known.
struct ConvertCost {
  ConvertPlace place;
  double global_bytes;     ///< of weights, in the matmul
  double shared_bytes;     ///< of weights, stored and loaded
  double conversions;      ///< of single weights, in the matmul
  double workspace_bytes;  ///< extra memory
  double global_seconds;   ///< weights, activations and outputs, once each
  double shared_seconds;
  double arithmetic_seconds;  ///< matrix instructions and conversions: they add up, as measured
  double before_seconds;      ///< the kernel of its own
  double seconds;             ///< the largest of the three, and what comes before
};

/// All places, cheapest first; of equally cheap ones the one nearer to the core.
/// Throws InvalidArgument for sizes below 1.
std::vector<ConvertCost> convert_costs(const Device& device, const ConvertWork& work);

/// "from shared memory to registers: 8.4 MB global, ..., 4.1 us".
std::string to_string(const ConvertCost& cost);

/// Instructions that turn a code of `bits` bits into an operand with `window` linear bits, from the
/// unpack plan that kernels use: masks, shifts and one packed multiply-add for two weights.
double instructions_per_weight(int bits, int window);

}  // namespace ladder
