// SPDX-License-Identifier: Apache-2.0
//
// Candidates of a measurement: kernels that may lose, and then go. A module must not be unloaded
// while its kernel runs or a graph has it, and who launches through torch does not say when that
// is over, so a trial keeps account of its launches. Other kernels stay for the life of the process
// and pay nothing for it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/modules.h"

namespace ladder {

class Trial {
 public:
  Trial(SharedKernel kernel, int ordinal) : ordinal_(ordinal), kernel_(std::move(kernel)) {}

  /// As Kernel::launch; false also when it has lost.
  [[nodiscard]] bool launch(const Launch& launch, void* stream, void** arguments);

  /// It has lost: no launch starts from now on. Its module is left to unload_losers().
  void lose();

 private:
  int ordinal_;
  std::mutex mutex_;
  SharedKernel kernel_;                                     // null once it has lost
  std::uint64_t capture_ = 0;                               // the last one that has it
  std::map<std::uint64_t, std::unique_ptr<Event>> events_;  // behind the last launch on each stream
};

/// Unloads what has lost, has ended everywhere and is in no graph. Waits for nothing: what is still
/// busy is left to the next time.
void unload_losers();

}  // namespace ladder
