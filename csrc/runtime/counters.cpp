// SPDX-License-Identifier: Apache-2.0
#include "runtime/counters.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "runtime/device_row.h"
#include "runtime/gpus.h"

namespace ladder {
namespace {

struct Run {
  std::uint32_t* first = nullptr;
  std::int64_t count = 0;  ///< a power of two
};

/// Zeroed counters that no launch has. Runs that come back are zero again: their kernels ended.
class Pool {
 public:
  explicit Pool(int ordinal) : ordinal_(ordinal) {}

  Run take(std::int64_t count) {
    const auto wanted = std::max(
        kLeast, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count))));
    if (const Run run = free_run(wanted); run.first != nullptr) return run;
    const std::lock_guard growing(growing_);
    if (const Run run = free_run(wanted); run.first != nullptr) return run;
    if (rest_.count < wanted) {
      const auto chunk = std::max(kChunk, wanted);
      const auto bytes = static_cast<std::size_t>(chunk) * sizeof(std::uint32_t);
      rest_ = {static_cast<std::uint32_t*>(gpus().driver.zeroed_memory(bytes, ordinal_)), chunk};
    }
    const Run run{rest_.first, wanted};
    rest_ = {rest_.first + wanted, rest_.count - wanted};
    return run;
  }

  void give_back(Run run) {
    const std::lock_guard lock(mutex_);
    free_[run.count].push_back(run);
  }

 private:
  // 256 bytes: no line of a cache has counters of two launches.
  static constexpr std::int64_t kLeast = 64;
  static constexpr std::int64_t kChunk = std::int64_t{1} << 17;  // 512 KiB

  Run free_run(std::int64_t count) {
    const std::lock_guard lock(mutex_);
    const auto found = free_.find(count);
    if (found == free_.end() || found->second.empty()) return {};
    const Run run = found->second.back();
    found->second.pop_back();
    return run;
  }

  int ordinal_;
  std::mutex growing_;  // held while the driver allocates
  Run rest_;
  // Never held while the driver is called: its thread that lets graphs go waits for it.
  std::mutex mutex_;
  std::map<std::int64_t, std::vector<Run>> free_;
};

struct Counters {
  explicit Counters(int ordinal) : pool(ordinal) {}
  Pool pool;
  std::mutex mutex;  // of what follows
  std::unordered_map<std::uint64_t, Run> of_streams;
};

/// Never destroyed: the driver may let graphs go while the process ends.
Counters& counters_of(int ordinal) {
  static auto& all = *new std::array<std::unique_ptr<Counters>, kMaxDevices>([] {
    std::array<std::unique_ptr<Counters>, kMaxDevices> made;
    for (int i = 0; i < kMaxDevices; ++i) made[i] = std::make_unique<Counters>(i);
    return made;
  }());
  return *all.at(static_cast<std::size_t>(ordinal));
}

std::uint32_t* of_stream(int ordinal, std::int64_t count, std::uint64_t stream) {
  // On the path of every call: no lock for a stream for which this thread took lately.
  struct Recent {
    int ordinal;
    std::uint64_t stream;
    Run run;
  };
  thread_local std::array<Recent, 4> recents{};
  Recent& recent = recents[stream % recents.size()];
  if (recent.ordinal == ordinal && recent.stream == stream && recent.run.count >= count) [[likely]]
    return recent.run.first;
  Counters& counters = counters_of(ordinal);
  Run run;
  {
    const std::lock_guard lock(counters.mutex);
    run = counters.of_streams[stream];
  }
  if (run.count < count) {
    const Run longer = counters.pool.take(count);
    const std::lock_guard lock(counters.mutex);
    Run& kept = counters.of_streams[stream];
    // The shorter run may be in use: it stays with the stream, of no more use.
    if (kept.count < count) {
      kept = longer;
    } else {
      counters.pool.give_back(longer);  // another thread was faster
    }
    run = kept;
  }
  recent = {ordinal, stream, run};
  return run.first;
}

/// What a launch in a graph has.
struct Captured {
  Pool& pool;
  Run run;
};

void let_go(void* object) {
  const std::unique_ptr<Captured> captured(static_cast<Captured*>(object));
  captured->pool.give_back(captured->run);
}

std::uint32_t* of_graph(int ordinal, std::int64_t count, void* graph) {
  Pool& pool = counters_of(ordinal).pool;
  auto captured = std::make_unique<Captured>(Captured{pool, pool.take(count)});
  const Run run = captured->run;
  try {
    gpus().driver.keep_with(graph, ordinal, captured.get(), let_go);
  } catch (...) {
    pool.give_back(run);
    throw;
  }
  captured.release();
  return run.first;
}

}  // namespace

std::uint32_t* take_counters(int ordinal, std::int64_t count, void* stream) {
  LADDER_CHECK(count > 0, count, " counters");
  const Driver& driver = gpus().driver;
  if (const auto capture = driver.capture_of(stream, ordinal)) [[unlikely]]
    return of_graph(ordinal, count, capture->graph);
  return of_stream(ordinal, count, driver.stream_id(stream, ordinal));
}

}  // namespace ladder
