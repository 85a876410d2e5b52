// SPDX-License-Identifier: Apache-2.0
#include "runtime/trial.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "runtime/gpus.h"

namespace ladder {
namespace {

/// A kernel that somebody had, and what must have passed before it may go.
struct Loser {
  SharedKernel kernel;
  std::map<std::uint64_t, std::unique_ptr<Event>> events = {};

  bool busy() const {
    return !std::ranges::all_of(events, [](const auto& each) { return each.second->passed(); });
  }
};

/// The driver's thread that lets graphs go comes here, so nothing under the mutex calls the driver.
struct Losers {
  std::mutex mutex;
  std::vector<Loser> all;

  void add(Loser loser) {
    const std::lock_guard lock(mutex);
    all.push_back(std::move(loser));
  }
};

Losers& losers() {
  static auto& all = *new Losers;  // graphs may go while the process ends
  return all;
}

void let_go(void* object) {
  const std::unique_ptr<SharedKernel> held(static_cast<SharedKernel*>(object));
  losers().add({std::move(*held)});
}

}  // namespace

bool Trial::launch(const Launch& launch, void* stream, void** arguments) {
  const std::lock_guard lock(mutex_);
  if (kernel_ == nullptr) return false;
  const Driver& driver = gpus().driver;
  if (const auto capture = driver.capture_of(stream, ordinal_)) {
    if (capture->id != capture_) {
      auto held = std::make_unique<SharedKernel>(kernel_);
      driver.keep_with(capture->graph, ordinal_, held.get(), let_go);
      held.release();
      capture_ = capture->id;
    }
    return kernel_->launch(launch, stream, arguments);
  }
  std::unique_ptr<Event>& event = events_[driver.stream_id(stream, ordinal_)];
  if (event == nullptr) event = driver.event(ordinal_);
  if (!kernel_->launch(launch, stream, arguments)) return false;
  event->record(stream);
  return true;
}

void Trial::lose() {
  const std::lock_guard lock(mutex_);
  if (kernel_ == nullptr) return;
  losers().add({std::exchange(kernel_, nullptr), std::exchange(events_, {})});
}

void unload_losers() {
  std::vector<Loser> idle;
  {
    const std::lock_guard lock(losers().mutex);
    idle.swap(losers().all);
  }
  for (Loser& loser : idle) {
    if (loser.busy()) losers().add(std::move(loser));
  }
  // The others go here, outside the mutex.
}

}  // namespace ladder
