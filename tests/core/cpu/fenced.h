// SPDX-License-Identifier: Apache-2.0
//
// Buffers that end where an unreadable page begins: one byte read too many stops the test, in any
// build and whatever instruction reads it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace ladder::testing {

class Fenced {
 public:
  explicit Fenced(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t readable = (bytes + page - 1) / page * page;
    length_ = readable + page;
    base_ = static_cast<std::uint8_t*>(
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(base_ + readable, page, PROT_NONE);
    data_ = base_ + readable - bytes;
  }
  Fenced(const void* from, std::size_t bytes) : Fenced(bytes) {
    if (bytes > 0) std::memcpy(data_, from, bytes);
  }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  ~Fenced() { munmap(base_, length_); }

  std::uint8_t* data() { return data_; }

 private:
  std::size_t length_;
  std::uint8_t *base_, *data_;
};

}  // namespace ladder::testing
