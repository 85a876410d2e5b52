// SPDX-License-Identifier: Apache-2.0
#include "program/interpret/signals.h"

#include "layout/weight_image.h"

namespace ladder {

Signals::Signals(const Program& program)
    : signals_(program.signals),
      threads_(program.threads),
      producers_(program.roles ? program.roles->producers : 0) {
  for (const Signal& signal : signals_) mbarriers_.emplace_back(signal.count);
}

std::string Signals::init(SignalId signal, const SharedMemory& shared) {
  for (Mbarrier& mbarrier : mbarriers_[signal]) {
    if (mbarrier.initialised) return "initialises a signal in use";
    mbarrier.initialised = true;
    mbarrier.initialised_at = shared.now();
  }
  return {};
}

std::string Signals::use(const Mbarrier& mbarrier, const SharedMemory& shared) const {
  if (!mbarrier.initialised) return "uses a signal before its signal_init";
  if (!mbarrier.known_to_all && !shared.synchronised(mbarrier.initialised_at)) {
    return "uses a signal that was initialised without a barrier since";
  }
  return {};
}

std::string Signals::arrival(Mbarrier& mbarrier, SignalId signal, int count) {
  if (mbarrier.arrived + count > signals_[signal].arrivals) {
    return "arrives at a phase that has its " + std::to_string(signals_[signal].arrivals) +
           " arrivals and was not awaited";
  }
  mbarrier.arrived += count;
  return {};
}

std::string Signals::expect(SignalId signal, std::int64_t index, std::int64_t bytes,
                            const SharedMemory& shared) {
  Mbarrier& mbarrier = mbarriers_[signal][index];
  if (auto why = use(mbarrier, shared); !why.empty()) return why;
  if (auto why = arrival(mbarrier, signal, 1); !why.empty()) return why;
  mbarrier.expected += bytes;
  return {};
}

std::string Signals::arrive(SignalId signal, std::int64_t index, Arrival by, SharedMemory& shared) {
  Mbarrier& mbarrier = mbarriers_[signal][index];
  if (auto why = use(mbarrier, shared); !why.empty()) return why;
  const int arriving = shared.by_producers() ? producers_ : threads_;
  if (auto why = arrival(mbarrier, signal, arriving); !why.empty()) return why;
  if (by == Arrival::copies) {
    for (const auto& [at, size] : shared.hand_over()) mbarrier.bytes.push_back({at, size});
  } else {
    mbarrier.threads_arrived_at = shared.arrive();
  }
  return {};
}

std::string Signals::commit(SignalId signal, std::int64_t index, std::int64_t products,
                            const SharedMemory& shared) {
  Mbarrier& mbarrier = mbarriers_[signal][index];
  if (auto why = use(mbarrier, shared); !why.empty()) return why;
  if (auto why = arrival(mbarrier, signal, 1); !why.empty()) return why;
  mbarrier.products = products;
  return {};
}

void Signals::meet() {
  for (auto& mbarriers : mbarriers_) {
    for (Mbarrier& mbarrier : mbarriers) mbarrier.known_to_all = mbarrier.initialised;
  }
}

std::string Signals::known_to_peers(SignalId signal, std::int64_t index) const {
  const Mbarrier& mbarrier = mbarriers_[signal][index];
  if (!mbarrier.initialised) return "copies on a peer's signal before its signal_init";
  if (!mbarrier.known_to_all) {
    return "copies on a peer's signal that was initialised without a cluster barrier since";
  }
  return {};
}

std::string Signals::copied(SignalId signal, std::int64_t index, std::int64_t at, int size,
                            bool ahead) {
  Mbarrier& mbarrier = mbarriers_[signal][index];
  mbarrier.copied += size;
  if (mbarrier.copied > mbarrier.expected && !ahead) {
    return "copies more than the " + std::to_string(mbarrier.expected) +
           " bytes that the phase expects";
  }
  mbarrier.bytes.push_back({at, size});
  return {};
}

std::string Signals::await(SignalId signal, std::int64_t index, std::int64_t parity,
                           SharedMemory& shared, std::int64_t& products) {
  Mbarrier& mbarrier = mbarriers_[signal][index];
  if (auto why = use(mbarrier, shared); !why.empty()) return why;
  // The hardware asks whether the phase of that parity has ended; the one before has.
  if (mbarrier.phase % 2 != parity) return {};
  if (mbarrier.arrived < signals_[signal].arrivals || mbarrier.copied != mbarrier.expected) {
    return "waits forever: " + std::to_string(mbarrier.arrived) + " of " +
           std::to_string(signals_[signal].arrivals) + " arrivals, " +
           std::to_string(mbarrier.copied) + " of " + std::to_string(mbarrier.expected) + " bytes";
  }
  for (const Bytes& bytes : mbarrier.bytes) shared.finish(bytes.at, bytes.size);
  if (mbarrier.threads_arrived_at >= 0) shared.synchronise(mbarrier.threads_arrived_at);
  products = mbarrier.products;
  mbarrier = {
      true, mbarrier.known_to_all, mbarrier.initialised_at, mbarrier.phase + 1, 0, -1, 0, 0, 0, {}};
  return {};
}

}  // namespace ladder
