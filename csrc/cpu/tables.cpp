// SPDX-License-Identifier: Apache-2.0
#include "cpu/tables.h"

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/error.h"

namespace ladder::cpu {
namespace {

std::unique_ptr<Tables> build(const Element& element, int zero) {
  LADDER_CHECK(element.bits <= 8, "no table for ", element.name);
  const std::vector<float> values = decode_table(element);
  auto tables = std::make_unique<Tables>();
  tables->bfloat16_exact = true;
  for (int code = 0; code < 256; ++code) {
    const float value =
        values[static_cast<std::size_t>(code) % values.size()] - static_cast<float>(zero);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    tables->values[code] = value;
    tables->high[code] = static_cast<std::uint16_t>(bits >> 16);
    tables->low[code] = static_cast<std::uint16_t>(bits);
    for (int plane = 0; plane < 4; ++plane)
      tables->planes[plane][code] = static_cast<std::uint8_t>(bits >> (8 * plane));
    tables->bfloat16_exact = tables->bfloat16_exact && tables->low[code] == 0;
  }
  tables->mirrored = true;
  for (int code = 0; code < 128; ++code)
    tables->mirrored = tables->mirrored && tables->low[code + 128] == tables->low[code] &&
                       tables->high[code] < 0x8000 &&
                       tables->high[code + 128] == (tables->high[code] | 0x8000);
  for (const int flip : {0, 1 << (element.bits - 1)}) {
    bool linear = true;
    for (int code = 0; code < 1 << element.bits; ++code)
      linear =
          linear && tables->values[code] == static_cast<float>(code ^ flip) + tables->values[flip];
    if (linear) {
      tables->linear = true;
      tables->flip = flip;
      tables->first = tables->values[flip];
    }
  }
  return tables;
}

}  // namespace

const Tables& tables_of(const Element& element, int zero) {
  static std::shared_mutex mutex;
  static std::map<std::pair<const Element*, int>, std::unique_ptr<Tables>> known;
  const std::pair key{&element, zero};
  {
    const std::shared_lock lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return *found->second;
  }
  auto tables = build(element, zero);
  const std::unique_lock lock(mutex);
  return *known.try_emplace(key, std::move(tables)).first->second;
}

}  // namespace ladder::cpu
