// SPDX-License-Identifier: Apache-2.0
//
// What one process compiled or chose, kept for the next. A store is a folder:
//
//     plans.json                 runtime/plan_file.h
//     kernels/<digest>/source.cu, kernel.cubin, about.json
//
// Plans are text and may come from anywhere: what they say is checked again before it is used. A
// kernel is native code, and who owns its file says nothing of who wrote it: a downloaded file is
// owned by whoever downloaded it. So about.json has a message authentication code of the whole
// entry and of what it is an entry of, made with a key that only this user has (user_key.h), and a
// kernel is loaded only if the code is right, or where the caller said to trust the folder. An
// entry that is torn, altered or foreign is compiled again, never reported. Folders that others can
// write and symbolic links are neither read for kernels nor written.
//
// Entries appear whole: written beside their place, synced, renamed. Two processes that want the
// same kernel compile it once: a lock per digest. Nothing here throws for what the disk refuses.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "codegen/toolchain.h"
#include "runtime/folder.h"
#include "runtime/kernel_key.h"
#include "runtime/plan_file.h"

namespace ladder {

class KernelStore {
 public:
  struct Options {
    bool trust_kernels = false;   ///< load kernels whoever wrote them, through links too
    long user = -1;               ///< who must own folders; -1: the effective user of this process
    std::string key_folder = {};  ///< of user_key; empty: user_cache_folder()
    /// Above it, kernels that were not used for the longest time are removed; 0: no limit. Looked
    /// at when a kernel is kept, at most once in `looks_seconds`.
    std::int64_t capacity_bytes = 0;
    std::int64_t looks_seconds = 3600;
  };
  struct Cleaning {
    std::int64_t capacity_bytes = std::numeric_limits<std::int64_t>::max();
    std::int64_t unused_seconds = std::numeric_limits<std::int64_t>::max();
    /// What was used in these last seconds stays, whatever capacity_bytes says.
    std::int64_t in_use_seconds = 600;
    bool plans = false;  ///< remove them all
  };
  struct Cleaned {
    std::int64_t removed_kernels = 0, removed_bytes = 0, kept_kernels = 0, kept_bytes = 0;
  };

  explicit KernelStore(std::string folder) : KernelStore(std::move(folder), Options()) {}
  KernelStore(std::string folder, Options options);

  const std::string& folder() const { return folder_; }
  const std::string& key_folder() const { return options_.key_folder; }
  /// Why entries cannot be added: the folder is not this user's, others can write it, it is a link,
  /// or cannot be written or made. Empty: they can.
  std::string objection() const;
  bool writable() const { return objection().empty(); }

  /// The entry of `key`, or nothing when there is none that is whole and this user's.
  std::optional<MachineCode> find(const KernelKey& key) const;
  /// The entry of `key`; where there is none, what `compile` returns, which is then kept.
  MachineCode find_or(const KernelKey& key, const std::function<MachineCode()>& compile) const;

  /// The stored schedule of `problem`, or nothing; with how many it was measured beside.
  std::optional<std::string> plan(const std::string& problem) const;
  std::optional<StoredPlan> measured_plan(const std::string& problem) const;
  /// Adds to what other processes keep at the same time.
  void keep_plan(const std::string& problem, const StoredPlan& plan) const;

  /// Removes kernels, those not used for the longest time first, and what processes left that died.
  /// What another process is about to compile stays. Does nothing in a folder that is not this
  /// user's.
  Cleaned clean(const Cleaning& what) const;

 private:
  bool owned(const Folder& folder) const;
  /// A folder in `inside`, if it is there and owned.
  std::optional<Folder> owned(const std::optional<Folder>& inside, const std::string& name) const;
  std::optional<Folder> open() const;
  void keep(const Folder& kernels, const KernelKey& key, const MachineCode& binary) const;
  void look_at_size(const Folder& kernels) const;

  std::string folder_;
  Options options_;
};

/// LADDER_CACHE, else the user's cache folder: where a process keeps what no model folder holds.
/// Links on the way are resolved: the environment is the user's own. Without one, a folder of this
/// user in the one for temporary files.
std::string user_cache_folder();

}  // namespace ladder
