// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, found with dlopen when first asked for: what a machine is, and kernels on it.
// Every function here throws Unsupported when the machine has no driver and ToolchainError with the
// driver's words when it refuses.
//
// None of them disturbs a stream capture of another thread: what the driver forbids beside a
// capture is called in the relaxed mode of this thread, and nothing goes to the legacy stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace ladder::cuda {

/// What the driver says of a device.
struct Properties {
  std::string name;  ///< "NVIDIA H200"
  int capability;    ///< compute capability times ten
  int multiprocessors;
  double clock;                   ///< cycles per second; 0 where it is not told
  double memory_bytes, l2_bytes;  ///< of the device
  double bytes_per_second;        ///< memory clock times bus width; 0 where it is not told
  int shared_bytes;               ///< of one multiprocessor
  int shared_per_block_bytes;     ///< most that one block may ask for
  int registers, threads;         ///< of one multiprocessor
  /// Blocks of the largest cluster that fits when each fills a multiprocessor, up to kMostCluster;
  /// 1: there are no clusters; 0: not told.
  int max_cluster;
};

/// Blocks of a cluster that every device with clusters has, some slices of one excepted: CUDA C++
/// Programming Guide, thread block clusters.
constexpr int kMostCluster = 8;

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

/// A function of a cubin, loaded into the primary context of a device until this is destroyed. By
/// then it must have ended everywhere, and no graph may hold it.
class Kernel {
 public:
  Kernel(const std::string& cubin, const std::string& name, int ordinal, unsigned shared_bytes);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Starts it on `stream` (a cudaStream_t of that device). `arguments` point at the values of its
  /// parameters, in order. About 2 us of host time.
  /// False, and nothing started, when the device has not the resources, whoever asks: the cluster
  /// fits nowhere, or a block does not.
  [[nodiscard]] bool launch(const Launch& launch, void* stream, void** arguments) const;

  /// Clusters of a kernel that has them that can be resident at once; 0: it would never start.
  int resident_clusters(const Launch& launch) const;

 private:
  void* context_;
  void* module_ = nullptr;
  void* function_ = nullptr;
};

/// The graph that a stream records.
struct Capture {
  std::uint64_t id;  ///< of no other capture of the process
  void* graph;
};
/// Nothing when `stream`, of device `ordinal`, runs what it is given.
std::optional<Capture> capture_of(void* stream, int ordinal);
inline bool capturing(void* stream, int ordinal) { return capture_of(stream, ordinal).has_value(); }

/// Calls `let_go(object)` when `graph` and all that was instantiated of it are destroyed and have
/// ended, from a thread of the driver: `let_go` must neither call the driver nor wait for who does.
/// When this throws, `let_go` was not called and will not be.
void keep_with(void* graph, int ordinal, void* object, void (*let_go)(void*));

/// A number that no other stream of the process has or had: handles of destroyed ones come again.
std::uint64_t stream_id(void* stream, int ordinal);

/// Where a stream was when it was last recorded.
class Event {
 public:
  explicit Event(int ordinal);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&&) = delete;

  void record(void* stream);
  /// Whether all has ended that `stream` had been given by then.
  bool passed() const;

 private:
  int ordinal_;
  void* event_ = nullptr;
};

/// Zeroed memory of a device, for the life of the process: zero for every stream from now on.
void* zeroed_memory(std::size_t bytes, int ordinal);

}  // namespace ladder::cuda
