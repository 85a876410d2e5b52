// SPDX-License-Identifier: Apache-2.0
#include "runtime/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace ladder {

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < count;) {
      try {
        body(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        thrown = std::current_exception();
        return;
      }
    }
  };
  const std::size_t most = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  threads.reserve(std::min(count, most));  // a vector that grows might throw beside running threads
  try {
    while (threads.size() + 1 < std::min(count, most)) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads on this machine: those that run do all.
  } catch (const std::bad_alloc&) {
    // Nor memory for one more.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace ladder
