// SPDX-License-Identifier: Apache-2.0
#include "runtime/notices.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "base/joined.h"

namespace ladder {
namespace {

std::mutex mutex;
std::vector<std::string> lines;  // all of this process; the first `taken` have been logged
std::size_t taken = 0;
std::atomic<bool> pending = false;
std::map<int, std::string> failures;

}  // namespace

void notice(const std::string& line) {
  const std::lock_guard lock(mutex);
  if (std::find(lines.begin(), lines.end(), line) != lines.end()) return;
  lines.push_back(line);
  pending.store(true, std::memory_order_release);
}

bool notices_pending() { return pending.load(std::memory_order_acquire); }

std::string take_notices() {
  const std::lock_guard lock(mutex);
  std::string text;
  for (; taken < lines.size(); ++taken) text += lines[taken] + "\n";
  pending.store(false, std::memory_order_release);
  return text;
}

std::string no_kernels_on(int ordinal, const std::string& why) {
  return joined("cuda:", ordinal, " has no kernels, weights go through torch: ", first_line(why));
}

void report_failure(int ordinal, const std::string& why) {
  {
    const std::lock_guard lock(mutex);
    if (!failures.emplace(ordinal, first_line(why)).second) return;
  }
  notice(no_kernels_on(ordinal, why));
}

std::string device_failure(int ordinal) {
  const std::lock_guard lock(mutex);
  const auto known = failures.find(ordinal);
  return known == failures.end() ? std::string() : known->second;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace ladder
