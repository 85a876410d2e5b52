// SPDX-License-Identifier: Apache-2.0
//
// tDevices: what LADDER knows of a machine, as rows of data with their sources. Nothing here asks a
// driver; a schedule for a B200 can be made on a laptop.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expr/scalar.h"
#include "layout/layout.h"

namespace ladder {

/// A matrix instruction of one warp: d[m, n] = a[m, k] * b[n, k] + d.
struct MatrixInstruction {
  std::string_view name;
  int architecture;  ///< smallest compute capability, times ten
  Scalar operand, accumulator;
  int m, n, k;
  int accumulator_bits;  ///< significant bits that a sum keeps
  std::string_view source;

  /// Who holds what: A [m, k], B [n, k], accumulator [m, n], over the 32 lanes.
  Layout a() const;
  Layout b() const;
  Layout d() const;
};

/// The rows for `operand` that an architecture has, fastest first.
std::vector<const MatrixInstruction*> instructions(int architecture, Scalar operand);

/// The row by which tile programs multiply `operand`; null when there is none. The same for every
/// architecture that has it, so that a program says the same to the verifier, the interpreter and
/// each target.
const MatrixInstruction* tile_instruction(Scalar operand);

/// One level of the memory hierarchy.
struct Memory {
  std::string_view name;
  double capacity_bytes;    ///< of one instance: the device, one multiprocessor
  double bytes_per_second;  ///< sustained read, whole device; 0: not known
  int transaction_bytes;    ///< smallest transfer that wastes nothing
};

/// One machine.
struct Device {
  std::string_view name;
  std::string_view architecture;  ///< as compilers call it: "sm_90a"
  int capability;                 ///< compute capability times ten; 0: not NVIDIA
  int multiprocessors;
  Memory global, l2, shared;   ///< shared: of one multiprocessor
  int shared_per_block_bytes;  ///< most that one block may ask for
  int registers;               ///< 32-bit, of one multiprocessor
  int threads;                 ///< resident on one multiprocessor
  double f16_flops;            ///< dense, f32 accumulation
  int max_cluster;             ///< blocks that may share memory on any such device; 1: none
  std::string_view source;

  bool async_copy() const { return capability >= 80; }
  bool dependent_launch() const { return capability >= 90; }
};

/// All rows, by name.
std::span<const Device> devices();
/// The row called `name`. Throws InvalidArgument listing the names.
const Device& device(std::string_view name);

/// LADDER's hint for a compute core fed through ldmatrix, shared memory and global memory: the
/// granule that every level moves whole, and the shape in granules that every level accepts.
/// HintGranularity is the LCM of the granules; HintShape the LCM of the innermost extents and of
/// the element counts, both in that granule.
struct Hint {
  int granularity_bytes;
  std::vector<std::int64_t> shape;
  bool operator==(const Hint&) const = default;
};
Hint hint(const Device& device, const MatrixInstruction& instruction);

/// A table of everything known of `device`, one fact per line.
std::string to_string(const Device& device);

}  // namespace ladder
