// SPDX-License-Identifier: Apache-2.0
#include "runtime/modules.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace ladder {
namespace {

struct Place {
  std::mutex loading;
  std::weak_ptr<const Kernel> kernel;
};

std::shared_ptr<Place> place_of(const std::string& digest, int ordinal) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<std::string, int>, std::shared_ptr<Place>>;
  const std::lock_guard lock(mutex);
  auto& place = all[{digest, ordinal}];
  if (place == nullptr) place = std::make_shared<Place>();
  return place;
}

}  // namespace

SharedKernel loaded_once(const std::string& digest, int ordinal,
                         const std::function<SharedKernel()>& load) {
  const auto place = place_of(digest, ordinal);
  // Others load other kernels meanwhile.
  const std::lock_guard lock(place->loading);
  if (auto kernel = place->kernel.lock()) return kernel;
  auto kernel = load();
  place->kernel = kernel;
  return kernel;
}

bool is_loaded(const std::string& digest, int ordinal) {
  const auto place = place_of(digest, ordinal);
  const std::lock_guard lock(place->loading);
  return !place->kernel.expired();
}

void keep_loaded(const SharedKernel& kernel) {
  static std::mutex mutex;
  static auto& all = *new std::set<SharedKernel>;
  const std::lock_guard lock(mutex);
  all.insert(kernel);
}

}  // namespace ladder
