// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan_file.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "base/joined.h"
#include "runtime/checked_json.h"
#include "runtime/file_lock.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kName = "plans.json";
constexpr int kFormat = 1;

// More than anything ladder writes; what is larger was put there by somebody.
constexpr std::size_t kMostBytes = 16 << 20;

constexpr auto kPatience = 10s;

/// The object called `name`, or an empty one.
json copied(const json& file, const char* name) {
  const json* found = object_at(file, name);
  return found == nullptr ? json::object() : *found;
}

/// What a file was when it was read. ctime: whoever writes into it changes that.
using Seen = std::tuple<dev_t, ino_t, off_t, time_t, long>;

Seen seen(const struct stat& file) {
#if defined(__APPLE__)
  const timespec& changed = file.st_ctimespec;
#else
  const timespec& changed = file.st_ctim;
#endif
  return {file.st_dev, file.st_ino, file.st_size, changed.tv_sec, changed.tv_nsec};
}

/// The file as parsed, once for each change of it: a model asks for a plan of every layer.
std::shared_ptr<const json> contents(const Folder& folder) {
  static std::mutex mutex;
  // Never destroyed: threads that compile may ask to the end.
  static auto& read = *new std::map<Seen, std::shared_ptr<const json>>;
  constexpr std::size_t kMostFiles = 8;
  const auto about = folder.about_target(kName);
  if (!about) return std::make_shared<const json>();
  // Before it is read: what changes in between is then read again.
  const Seen now = seen(*about);
  const std::lock_guard lock(mutex);
  if (const auto found = read.find(now); found != read.end()) return found->second;
  if (read.size() >= kMostFiles) read.clear();
  return read[now] =
             std::make_shared<const json>(parsed_json(folder.read(kName, kMostBytes), kFormat));
}

}  // namespace

std::optional<StoredPlan> read_plan(const Folder& folder, const std::string& problem) {
  const auto file = contents(folder);
  const auto plans = file->find("plans");
  if (plans == file->end() || !plans->is_object()) return std::nullopt;
  auto schedule = text_at(*plans, problem);
  if (!schedule) return std::nullopt;
  const auto measured = file->find("measured");
  const bool said = measured != file->end() && measured->is_object();
  return StoredPlan{*std::move(schedule), said ? number_at(*measured, problem) : 0};
}

void write_plan(const Folder& folder, const Folder& read, const std::string& problem,
                const StoredPlan& plan) {
  const FileLock lock(folder, "plans.lock", kPatience);
  if (lock.state() == FileLock::State::busy) return;
  if (lock.held()) {
    for (const std::string& name : folder.names()) {
      if (name.starts_with(kName) && name.ends_with(".staged")) folder.remove(name);
    }
  }
  std::error_code why;
  auto text = folder.read(kName, kMostBytes, why);
  // A hub's cache: what others measured is not lost with the link.
  if (why == std::errc::too_many_symbolic_link_levels) text = read.read(kName, kMostBytes);
  const bool absent = why == std::errc::no_such_file_or_directory;
  // A file that cannot be read now has plans of others all the same: too many open files, say.
  if (why && !absent && why != std::errc::file_too_large && why != std::errc::invalid_argument &&
      why != std::errc::too_many_symbolic_link_levels) {
    return;
  }
  const std::string staged = joined(kName, ".", random_hex(8), ".staged");
  try {
    const json before = parsed_json(text, kFormat);
    // Something else, or of another ladder: not ours to lose.
    if (!absent && before.is_null()) folder.rename(kName, joined(kName, ".unreadable"));
    json after{{"format", kFormat}};
    after["plans"] = copied(before, "plans");
    after["plans"][problem] = plan.schedule;
    after["measured"] = copied(before, "measured");
    after["measured"].erase(problem);
    if (plan.measured > 0) after["measured"][problem] = plan.measured;
    const std::string out = written(after) + "\n";
    if (out.size() > kMostBytes) return;
    folder.write_new(staged, out, 0644);
    folder.rename(staged, kName);
    folder.sync();
  } catch (const fs::filesystem_error&) {
    folder.remove(staged);  // the plan is in use all the same
  }
}

}  // namespace ladder
