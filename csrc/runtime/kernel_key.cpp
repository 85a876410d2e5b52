// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace ladder {

std::string digest_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

std::int64_t number_of(std::string_view bytes) {
  return static_cast<std::int64_t>(XXH3_64bits(bytes.data(), bytes.size()) >> 1);
}

std::string KernelKey::digest() const {
  // Lengths keep the end of one part from passing for the start of the next.
  std::string all;
  for (const std::string* part : {&compiler, &flags, &source}) {
    all += std::to_string(part->size()) + ":" + *part;
  }
  return digest_of(all);
}

}  // namespace ladder
