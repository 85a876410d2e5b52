// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace ladder::emulate {

/// A copy of `bytes` that ends, to 16 bytes, where a page begins that nobody may touch.
class Guarded {
 public:
  explicit Guarded(const std::vector<std::uint8_t>& bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto room = (bytes.size() + 15) / 16 * 16, pages = (room + page - 1) / page * page;
    size_ = pages + page;
    base_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(static_cast<char*>(base_) + pages, page, PROT_NONE);
    data_ = static_cast<char*>(base_) + pages - room;
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
  }
  Guarded(Guarded&& other) noexcept
      : base_(std::exchange(other.base_, MAP_FAILED)), data_(other.data_), size_(other.size_) {}
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (base_ != MAP_FAILED) munmap(base_, size_);
  }
  void* data() const { return data_; }

 private:
  void* base_;
  void* data_;
  std::size_t size_;
};

}  // namespace ladder::emulate
