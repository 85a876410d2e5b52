// SPDX-License-Identifier: Apache-2.0
//
// What one process compiled or chose, kept for the next. A store is a folder:
//
//     plans.json                 {"format": 1, "plans": {"<expression> on <device>": "<schedule>"}}
//     kernels/<digest>/source.cu, kernel.cubin, about.json
//
// Plans are text and may come from anywhere: what they say is checked again before it is used. A
// kernel is native code: it is loaded only from folders that this user owns and can write, or where
// the caller said to trust them. An entry that is torn, altered or foreign is compiled again, never
// reported. Entries appear whole: written beside their place, synced, renamed. Two processes that
// want the same kernel compile it once: a lock per digest.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cuda/toolchain.h"
#include "runtime/kernel_key.h"

namespace ladder {

class Store {
 public:
  struct Options {
    bool trust_kernels = false;
    long user = -1;  ///< who must own kernels; -1: the effective user of this process
  };

  explicit Store(std::string folder) : Store(std::move(folder), Options()) {}
  Store(std::string folder, Options options);

  const std::string& folder() const { return folder_; }
  /// Whether entries can be added: this user owns the folder and may write to it, or can make it.
  bool writable() const;

  /// The entry of `key`, or nothing when there is none that is whole and trusted.
  std::optional<cuda::Binary> find(const KernelKey& key) const;
  /// The entry of `key`; where there is none, what `compile` returns, which is then kept.
  cuda::Binary find_or(const KernelKey& key, const std::function<cuda::Binary()>& compile) const;

  /// The stored schedule of `problem`, or nothing.
  std::optional<std::string> plan(const std::string& problem) const;
  void keep_plan(const std::string& problem, const std::string& schedule) const;

 private:
  bool trusted(const std::string& path) const;
  void keep(const KernelKey& key, const cuda::Binary& binary) const;

  std::string folder_;
  Options options_;
};

/// LADDER_CACHE, else the user's cache folder: where a process keeps what no model folder holds.
std::string user_cache_folder();

}  // namespace ladder
