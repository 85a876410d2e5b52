// SPDX-License-Identifier: Apache-2.0
//
// Memory of the first GPU of this machine, which ladder itself leaves to torch. For tests that run
// kernels of C++ values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ladder::testing {

/// There is a CUDA driver and a GPU.
bool has_gpu();

/// Bytes on the GPU, and as many behind them as show that a kernel wrote beside them.
class GpuMemory {
 public:
  explicit GpuMemory(const std::vector<std::uint8_t>& bytes);
  ~GpuMemory();
  GpuMemory(GpuMemory&& other) noexcept;
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  GpuMemory& operator=(GpuMemory&&) = delete;

  /// As a kernel takes it.
  void* address() const;
  void set(const std::vector<std::uint8_t>& bytes);
  /// When all that was started has ended. Throws ToolchainError where a kernel failed.
  std::vector<std::uint8_t> get() const;
  bool is_written_beside() const;

 private:
  std::uint64_t address_;
  std::size_t bytes_;
};

}  // namespace ladder::testing
