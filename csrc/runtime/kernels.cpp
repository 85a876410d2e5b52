// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernels.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/target.h"
#include "runtime/device_row.h"
#include "runtime/gpus.h"
#include "runtime/kernel_store.h"
#include "runtime/notices.h"

namespace ladder {
namespace {

std::mutex mutex;

// Of the user's cache; a kernel with its source is about 100 KB.
constexpr std::int64_t kCacheBytes = std::int64_t{1} << 30;

/// Folders in the order in which they are searched; the user's cache is last. Never empty. `mutex`
/// is held.
std::vector<KernelStore>& stores() {
  static std::vector<KernelStore> all = [] {
    const KernelStore cache(user_cache_folder(), {.capacity_bytes = kCacheBytes});
    if (const auto why = cache.objection(); !why.empty()) {
      notice(joined(cache.folder(), " ", why, ": kernels are compiled by every process anew"));
    }
    return std::vector<KernelStore>{cache};
  }();
  return all;
}

std::vector<KernelStore> snapshot() {
  const std::lock_guard lock(mutex);
  return stores();
}

/// Where new entries go: the first store that is this user's to write; the last where none is.
const KernelStore& keeper(const std::vector<KernelStore>& all) {
  for (const KernelStore& store : all) {
    if (store.writable()) return store;
  }
  return all.back();
}

KernelKey key_of(const std::string& source, const Device& device) {
  const Toolchain& toolchain = target_of(device.family).toolchain;
  const std::string flags = toolchain.flags(device.architecture);
  return {source, toolchain.version(flags), flags};
}

std::optional<MachineCode> found_in(const std::vector<KernelStore>& all, const KernelKey& key) {
  for (const KernelStore& store : all) {
    if (auto found = store.find(key)) return found;
  }
  return std::nullopt;
}

}  // namespace

void use_store(const std::string& folder, bool trust_kernels) {
  const std::lock_guard lock(mutex);
  auto& all = stores();
  const std::int64_t capacity_bytes = folder == user_cache_folder() ? kCacheBytes : 0;
  std::erase_if(all, [&](const KernelStore& store) { return store.folder() == folder; });
  all.insert(all.begin(), KernelStore(folder, {.trust_kernels = trust_kernels,
                                               .capacity_bytes = capacity_bytes}));
  if (const auto why = all.front().objection(); !why.empty()) {
    notice(joined(folder, " ", why, ": new kernels go to ", keeper(all).folder()));
  }
}

KernelStore::Cleaned clean_cache(const KernelStore::Cleaning& what) {
  KernelStore::Cleaning within = what;
  within.capacity_bytes = std::min(within.capacity_bytes, kCacheBytes);
  return KernelStore(user_cache_folder()).clean(within);
}

MachineCode binary_of(const std::string& source, const Device& device,
                      const std::function<void()>& verified) {
  const KernelKey key = key_of(source, device);
  const auto all = snapshot();
  if (auto found = found_in(all, key)) return *found;
  if (verified) verified();
  return keeper(all).find_or(
      key, [&] { return target_of(device.family).toolchain.compile(source, key.flags); });
}

void compile_missing(const std::vector<std::string>& sources, const Device& device,
                     Deadline deadline) {
  const auto all = snapshot();
  std::vector<std::string> missing;
  for (const std::string& source : sources) {
    if (!found_in(all, key_of(source, device))) missing.push_back(source);
  }
  compile_ahead(missing, device, keeper(all), deadline);
}

bool known_to_be_rejected(const std::string& source, const Device& device) {
  const auto found = found_in(snapshot(), key_of(source, device));
  return found && !rejection(*found).empty();
}

SharedKernel load_kernel(const std::string& source, const std::string& name, int ordinal,
                         unsigned shared_bytes, int least_registers,
                         const std::function<void()>& verified) {
  // Weights of many shapes share the kernels that pack and dequantise them.
  return loaded_once(digest_of(source), ordinal, [&] {
    const MachineCode binary = binary_of(source, device_row(ordinal), verified);
    if (const auto why_not = rejection(binary); !why_not.empty()) {
      fail<Unsupported>(name, ": ", why_not);
    }
    if (binary.registers > 0 && binary.registers < least_registers) {  // 0: not known
      fail<Unsupported>(name, ": threads begin with ", binary.registers, " registers, of ",
                        least_registers, " that its roles take over");
    }
    return SharedKernel(gpus().driver.load(binary.bytes, name, ordinal, shared_bytes));
  });
}

std::optional<StoredPlan> stored_plan(const std::string& problem) {
  for (const KernelStore& store : snapshot()) {
    if (auto plan = store.measured_plan(problem)) return plan;
  }
  return std::nullopt;
}

void keep_plan(const std::string& problem, const StoredPlan& plan) {
  const auto all = snapshot();
  keeper(all).keep_plan(problem, plan);
}

}  // namespace ladder
