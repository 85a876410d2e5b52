// SPDX-License-Identifier: Apache-2.0
#include "runtime/gpus.h"

#include <atomic>

namespace ladder {
namespace {

std::atomic<const Target*> said = nullptr;

const Target& first_present() {
  for (const Target& target : targets()) {
    if (target.driver.present()) return target;
  }
  return targets().front();
}

}  // namespace

void use_gpus_of(const Target& target) { said.store(&target, std::memory_order_release); }

const Target& gpus() {
  if (const Target* target = said.load(std::memory_order_acquire)) [[likely]]
    return *target;
  static const Target& found = first_present();
  return found;
}

}  // namespace ladder
