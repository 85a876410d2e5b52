// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, found with dlopen when first asked for: what a machine is, and kernels on it.
// Every function here throws Unsupported when the machine has no driver and ToolchainError with the
// driver's words when it refuses.
#pragma once

#include <cstddef>
#include <string>

namespace ladder::cuda {

/// What the driver says of a device.
struct Properties {
  std::string name;  ///< "NVIDIA H200"
  int capability;    ///< compute capability times ten
  int multiprocessors;
  double memory_bytes, l2_bytes;  ///< of the device
  double bytes_per_second;        ///< memory clock times bus width; 0 where it is not told
  int shared_bytes;               ///< of one multiprocessor
  int shared_per_block_bytes;     ///< most that one block may ask for
  int registers, threads;         ///< of one multiprocessor
};

/// True when libcuda.so.1 can be loaded.
bool driver_present();
Properties properties(int ordinal);

/// How a kernel is started.
struct Launch {
  unsigned grid[3];
  unsigned threads;       ///< of a block
  unsigned shared_bytes;  ///< dynamic
  bool dependent;         ///< may start before the preceding kernel ends
};

/// A function of a cubin, loaded into the primary context of a device for the life of the process.
class Kernel {
 public:
  Kernel(const std::string& cubin, const std::string& name, int ordinal, unsigned shared_bytes);

  /// Starts it on `stream` (a cudaStream_t of that device). `arguments` point at the values of its
  /// parameters, in order. About 2 us of host time.
  void launch(const Launch& launch, void* stream, void** arguments) const;

 private:
  void* context_;
  void* function_;
};

/// Whether `stream`, of device `ordinal`, records a graph instead of running.
bool capturing(void* stream, int ordinal);

/// Zeroed memory of a device, for the life of the process. Must not be asked for during a capture.
void* zeroed_memory(std::size_t bytes, int ordinal);

}  // namespace ladder::cuda
