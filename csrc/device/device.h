// SPDX-License-Identifier: Apache-2.0
//
// tDevices: what LADDER knows of a machine, as rows of data with their sources. Nothing here asks a
// driver; a schedule for a B200 can be made on a laptop.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "device/costs.h"
#include "device/instructions.h"

namespace ladder {

/// One level of the memory hierarchy.
struct Memory {
  std::string_view name;
  double capacity_bytes;    ///< of one instance: the device, one multiprocessor
  double bytes_per_second;  ///< sustained read, whole device; 0: not known
  int transaction_bytes;    ///< smallest transfer that wastes nothing
  int banks = 0;            ///< accesses that one instance serves in a cycle; 0: not banked
  int bank_bytes = 0;       ///< of one such access
};

/// Where the numbers of a row come from; "measured" where no document states one.
struct Sources {
  std::string_view capacities;  ///< of global and l2; x86: of shared too
  std::string_view bandwidths;  ///< of global and l2, and fill_bytes
  std::string_view rates;       ///< multiprocessors, lanes and operations per second
  std::string_view limits;      ///< shared memory, registers, threads, cluster, warp
};

/// One machine. A multiprocessor is a compute unit of AMD and a core of x86.
struct Device {
  std::string_view name;
  std::string_view architecture;  ///< as compilers call it: "sm_90a"
  Family family = Family::nvidia;
  int capability;  ///< compute capability times ten; 0: not NVIDIA
  int generation;  ///< what instruction rows compare: the capability, the CDNA, the vector's bits
  int multiprocessors;
  int warp = 32;  ///< lanes that step together
  Memory global;
  Memory l2;                   ///< the last cache that all multiprocessors share
  Memory shared;               ///< of one multiprocessor; x86: its first-level data cache
  int shared_per_block_bytes;  ///< most that one block may ask for
  int registers;               ///< 32-bit, of one multiprocessor
  int threads;                 ///< resident on one multiprocessor
  int schedulers = 4;          ///< parts of a multiprocessor that issue for warps of their own
  int f32_lanes;          ///< f32 multiply-adds of one multiprocessor in a cycle, no matrix unit
  int f16_lanes = 0;      ///< f16 ones of its matrix units, f32 sums; 0: it has none
  double f32_flops;       ///< the same of the device, in operations per second
  double f16_flops;       ///< dense, f32 accumulation; x86: decoded to f32
  double bf16_flops = 0;  ///< dense, f32 accumulation; 0: no such instruction
  double f8_flops = 0;    ///< dense, f32 accumulation
  double i8_flops = 0;    ///< dense, int32 accumulation
  /// Of these rates, what matrix instructions of single warps reach; 0: not published. Others
  /// reach all, for all that the table knows.
  double warp_share = 1;
  /// The same for each of kMatrixOperands (device/calibration.h); 0: warp_share.
  std::array<double, 4> warp_shares = {};
  /// Of tensor memory, 128 lanes of 32 bits each, that a multiprocessor has; 0: none.
  int tensor_columns = 0;
  /// Schedules by instructions that nobody has run on such a device are proposed, too: set where a
  /// user asks for them (runtime/device_row.h), never in a row of the table.
  bool unproven = false;
  double fill_bytes = 0;  ///< that a multiprocessor takes from L2 in a cycle; 0: not published
  int max_cluster;        ///< blocks that may share memory on any such device; 1: none
  /// Of the multiprocessors, those that clusters of 1 to 8 blocks can be on at once, one block on
  /// each; 0: not known.
  std::array<double, 8> cluster_shares = {};
  Sources sources;
  Costs costs = kFittedCosts;
  /// What the driver calls a machine that it found, with the numbers that distinguish it from
  /// others of that name, the same at every start; empty: a row of the table.
  std::string_view found = {};

  bool async_copy() const { return copy_instruction(*this, "cp.async") != nullptr; }
  /// Threads copy from global to shared memory, 16 bytes each: asynchronously, or at once.
  bool copies_to_shared() const {
    return async_copy() || copy_instruction(*this, "ld.global+st.shared") != nullptr;
  }
  bool dependent_launch() const { return capability >= 90; }
  /// Threads can wait for an mbarrier.
  bool signals() const { return capability >= 90; }
  /// Has an instruction from two codes of float8_e4m3 to two f16.
  bool converts_e4m3() const { return family == Family::nvidia && capability >= 89; }
  bool bulk_copy() const { return copy_instruction(*this, "cp.async.bulk") != nullptr; }
  /// Cycles per second, from the f32 rate.
  double clock() const { return f32_flops / (2.0 * f32_lanes * multiprocessors); }
  /// Read rate of all instances of `shared` together; 0: not known.
  double shared_bytes_per_second() const {
    return double(shared.banks) * shared.bank_bytes * multiprocessors * clock();
  }
  /// The most that L2 gives all multiprocessors together; 0: not known.
  double fill_bytes_per_second() const { return fill_bytes * multiprocessors * clock(); }
};

/// Blocks along y of a grid, on every NVIDIA device: CUDA C++ Programming Guide, table of
/// capabilities. Tiles of rows lie along it.
constexpr std::int64_t kMostTilesOfRows = 65535;

/// All rows, by name.
std::span<const Device> devices();
/// The row called `name`. Throws InvalidArgument listing the names.
const Device& device(std::string_view name);

/// A table of everything known of `device`, one fact per line.
std::string to_string(const Device& device);

}  // namespace ladder
