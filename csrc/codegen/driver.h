// SPDX-License-Identifier: Apache-2.0
//
// What ladder asks of the driver of a target's devices, as a table of functions. Drivers are
// libraries found with dlopen when first asked for: each function throws Unsupported where there is
// none, and ToolchainError with the driver's words where it refuses.
//
// None of them disturbs a stream capture of another thread: what a driver forbids beside a
// capture is called in the relaxed mode of this thread, and nothing goes to the legacy stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ladder {

/// What the driver says of a device.
struct Properties {
  std::string name;  ///< "NVIDIA H200"
  /// As compilers call it, with the features that decide machine code: "sm_90a",
  /// "gfx942:sramecc+:xnack-".
  std::string architecture;
  int capability;  ///< compute capability times ten; 0: not NVIDIA
  int multiprocessors;
  double clock;                   ///< cycles per second; 0 where it is not told
  double memory_bytes, l2_bytes;  ///< of the device; 0 where it is not told
  double bytes_per_second;        ///< memory clock times bus width; 0 where it is not told
  int shared_bytes;               ///< of one multiprocessor
  int shared_per_block_bytes;     ///< most that one block may ask for
  int registers, threads;         ///< of one multiprocessor
  /// Blocks of the largest cluster that fits when each fills a multiprocessor, up to kMostCluster;
  /// 1: there are no clusters; 0: not told.
  int max_cluster;
  std::string driver = {};  ///< its version, "13.0"; empty where it is not told
};

/// How a kernel is started.
struct Launch {
  unsigned grid[3];
  unsigned threads;       ///< of a block
  unsigned shared_bytes;  ///< dynamic
  bool dependent;         ///< may start before the preceding kernel ends
};

/// A function of machine code, loaded on a device until this is destroyed. By then it must have
/// ended everywhere, and no graph may hold it.
class Kernel {
 public:
  Kernel() = default;
  virtual ~Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Starts it on `stream`, of that device. `arguments` point at the values of its parameters, in
  /// order. About 2 us of host time.
  /// False, and nothing started, when the device has not the resources, whoever asks: the cluster
  /// fits nowhere, or a block does not.
  [[nodiscard]] virtual bool launch(const Launch& launch, void* stream, void** arguments) const = 0;

  /// Clusters of a kernel that has them that can be resident at once; 0: it would never start.
  virtual int resident_clusters(const Launch& launch) const = 0;
};

/// The graph that a stream records.
struct Capture {
  std::uint64_t id;  ///< of no other capture of the process
  void* graph;       ///< null where the driver does not tell: keep_with() then keeps for ever
};

/// Where a stream was when it was last recorded.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  virtual void record(void* stream) = 0;
  /// Whether all has ended that `stream` had been given by then.
  virtual bool passed() const = 0;
};

/// The driver of a target. Devices have ordinals from 0, streams are the driver's own handles.
struct Driver {
  std::string_view name;  ///< "CUDA driver"
  /// Whether its library can be loaded and has devices' functions.
  bool (*present)();
  Properties (*properties)(int ordinal);
  /// The kernel `name` of `code` on device `ordinal`. Blocks may ask for up to `shared_bytes`.
  std::unique_ptr<const Kernel> (*load)(const std::string& code, const std::string& name,
                                        int ordinal, unsigned shared_bytes);
  /// Nothing when `stream`, of device `ordinal`, runs what it is given.
  std::optional<Capture> (*capture_of)(void* stream, int ordinal);
  /// Calls `let_go(object)` when `graph` and all that was instantiated of it are destroyed and have
  /// ended, from a thread of the driver: `let_go` must neither call the driver nor wait for who
  /// does. Where the driver cannot do so, never. When this throws, `let_go` was not called and will
  /// not be.
  void (*keep_with)(void* graph, int ordinal, void* object, void (*let_go)(void*));
  /// A number that no other stream of the process has or had: handles of destroyed ones come again.
  std::uint64_t (*stream_id)(void* stream, int ordinal);
  std::unique_ptr<Event> (*event)(int ordinal);
  /// Zeroed memory of a device, for the life of the process: zero for every stream from now on.
  void* (*zeroed_memory)(std::size_t bytes, int ordinal);

  bool capturing(void* stream, int ordinal) const {
    return capture_of(stream, ordinal).has_value();
  }
};

}  // namespace ladder
