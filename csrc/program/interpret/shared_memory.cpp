// SPDX-License-Identifier: Apache-2.0
#include "program/interpret/shared_memory.h"

#include <algorithm>

namespace ladder {

std::string SharedMemory::may_write(const Facts& facts, int thread) const {
  if (facts.state == State::pending) return "overwrites a copy in flight";
  if (facts.products > 0) return "overwrites what a product still reads";
  if (facts.reader != kNobody && !synchronised(facts.read_epoch) && facts.reader != thread) {
    return "overwrites what another thread read, without a barrier";
  }
  if (facts.state == State::written && !synchronised(facts.epoch) && facts.writer != thread) {
    return "overwrites what another thread wrote, without a barrier";
  }
  return {};
}

std::string SharedMemory::write(std::int64_t at, int size, int thread, const std::uint8_t* from) {
  for (int i = 0; i < size; ++i) {
    Facts& facts = facts_[at + i];
    if (auto why = may_write(facts, thread); !why.empty()) return why;
    facts = {State::written, thread, epoch_, cluster_epoch_, kNobody, 0};
    bytes_[at + i] = from[i];
  }
  return {};
}

void SharedMemory::note_read(Facts& facts, int thread) {
  const bool first = facts.reader == kNobody || synchronised(facts.read_epoch);
  facts.reader = first || facts.reader == thread ? thread : kSeveral;
  facts.read_epoch = epoch_;
}

std::string SharedMemory::read(std::int64_t at, int size, int thread, std::uint8_t* to) {
  for (int i = 0; i < size; ++i) {
    Facts& facts = facts_[at + i];
    if (facts.state == State::unwritten) return "reads what nobody wrote";
    if (facts.state == State::pending) return "reads a copy that was not waited for";
    if (facts.writer != thread && !synchronised(facts.epoch)) {
      return "reads what another thread wrote, without a barrier";
    }
    note_read(facts, thread);
    to[i] = bytes_[at + i];
  }
  return {};
}

std::string SharedMemory::read_remote(std::int64_t at, int size, std::uint8_t* to) {
  for (int i = 0; i < size; ++i) {
    Facts& facts = facts_[at + i];
    if (facts.state != State::written) return "reads what its peer has not written";
    if (facts.cluster_epoch == cluster_epoch_) {
      return "reads what its peer wrote, without a cluster barrier";
    }
    note_read(facts, kSeveral);
    to[i] = bytes_[at + i];
  }
  return {};
}

void SharedMemory::matrix_fence() {
  for (Facts& facts : facts_) {
    if (facts.state == State::written && facts.fence_epoch == kUnfenced) {
      facts.fence_epoch = synchronised(facts.epoch) ? synchronised_[role_] : epoch_;
    }
  }
}

std::string SharedMemory::read_by_matrix(std::int64_t at, int size, std::uint8_t* to) {
  for (int i = 0; i < size; ++i) {
    Facts& facts = facts_[at + i];
    if (facts.state == State::unwritten) return "reads what nobody wrote";
    if (facts.state == State::pending) return "reads a copy that was not waited for";
    if (facts.fence_epoch == kUnfenced) return "reads what no fence has shown to products";
    if (!synchronised(facts.fence_epoch)) return "reads what was written, without a barrier";
    note_read(facts, kSeveral);
    ++facts.products;
    to[i] = bytes_[at + i];
  }
  return {};
}

void SharedMemory::ended(std::int64_t at, int size) {
  for (int i = 0; i < size; ++i) {
    --facts_[at + i].products;
    note_read(facts_[at + i], kSeveral);
  }
}

void SharedMemory::ended_for_all(std::int64_t at, int size) {
  for (int i = 0; i < size; ++i) {
    Facts& facts = facts_[at + i];
    if (--facts.products == 0) facts.read_epoch = known();
  }
}

std::string SharedMemory::write_async(std::int64_t at, int size, int thread,
                                      const std::uint8_t* from) {
  for (int i = 0; i < size; ++i) {
    Facts& facts = facts_[at + i];
    if (auto why = may_write(facts, thread); !why.empty()) return why;
    facts = {State::pending, thread, epoch_, cluster_epoch_, kNobody, 0};
    bytes_[at + i] = from[i];
  }
  open_.push_back({at, size});
  return {};
}

void SharedMemory::commit() {
  groups_.push_back(std::move(open_));
  open_.clear();
}

void SharedMemory::wait(int pending) {
  while (static_cast<int>(groups_.size()) > pending) {
    for (const Copy& copy : groups_.front()) {
      for (int i = 0; i < copy.size; ++i) {
        Facts& facts = facts_[copy.at + i];
        facts.state = State::written;
        facts.epoch = epoch_;
        facts.cluster_epoch = cluster_epoch_;
      }
    }
    groups_.erase(groups_.begin());
  }
}

std::string SharedMemory::write_bulk(std::int64_t at, int size, const std::uint8_t* from) {
  for (int i = 0; i < size; ++i) {
    Facts& facts = facts_[at + i];
    if (auto why = may_write(facts, kEngine); !why.empty()) return why;
    if (facts.state == State::written && facts.writer != kEngine) {
      // The engine is not ordered after the threads' writes by a barrier alone.
      return "overwrites what threads wrote, by a bulk copy";
    }
    facts = {State::pending, kEngine, epoch_, cluster_epoch_, kNobody, 0};
    bytes_[at + i] = from[i];
  }
  signalled_in_flight_ += size;
  return {};
}

void SharedMemory::finish(std::int64_t at, int size) {
  for (int i = 0; i < size; ++i) {
    facts_[at + i].state = State::written;
    facts_[at + i].epoch = synchronised_[role_];
    facts_[at + i].cluster_epoch = cluster_epoch_;
  }
  signalled_in_flight_ -= size;
}

std::vector<std::pair<std::int64_t, int>> SharedMemory::hand_over() {
  std::vector<std::pair<std::int64_t, int>> out;
  for (const Copy& copy : open_) {
    out.emplace_back(copy.at, copy.size);
    signalled_in_flight_ += copy.size;
  }
  open_.clear();
  return out;
}

void SharedMemory::barrier() {
  synchronised_[0] = epoch_;
  if (!apart_) synchronised_[1] = epoch_;
  ++epoch_;
}

void SharedMemory::cluster_barrier() {
  barrier();
  ++cluster_epoch_;
}

bool SharedMemory::copies_in_flight() const {
  return signalled_in_flight_ != 0 || !open_.empty() ||
         std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& group) { return !group.empty(); });
}

}  // namespace ladder
