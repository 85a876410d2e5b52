// SPDX-License-Identifier: Apache-2.0
#include "cpu/tables.h"

#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu/floats.h"

namespace ladder::cpu {
namespace {

/// Sets step, and of the integers linear, where values are at equal distances.
void find_steps(const Element& element, Tables& t) {
  for (const std::int32_t flip : {0, 1 << (element.bits - 1)}) {
    const float first = t.values[flip], step = t.values[1 ^ flip] - first;
    int exponent;
    // A sum of 2^23 steps and a value is exact in the kernels.
    if (!(std::frexp(step, &exponent) == 0.5f && std::abs(exponent) < 64)) continue;
    bool equal = true;
    for (std::int32_t code = 0; code < 1 << element.bits; ++code)
      equal = equal && t.values[code] == static_cast<float>(code ^ flip) * step + first;
    if (!equal || std::abs(first) > 256 * step) continue;
    t.step = step;
    t.linear = step == 1;
    t.flip = flip;
    t.first = first;
  }
}

/// The code's bits at those of a float16, with so many exponent bits.
std::uint16_t half_of(int code, int bits, int exponent_bits) {
  const int magnitude = code & ((1 << (bits - 1)) - 1), mantissa_bits = bits - 1 - exponent_bits;
  return static_cast<std::uint16_t>(code >> (bits - 1) << 15 | magnitude << (10 - mantissa_bits));
}

/// Whether `same` holds for every code but NaNs that one mask and one code find; then sets these.
template <class Same>
bool but_for_nans(const Element& element, Tables& t, Same same) {
  std::vector<int> nans;
  for (int code = 0; code < 1 << element.bits; ++code)
    if (!same(code)) {
      if (element.bits < 8 || !std::isnan(t.values[code])) return false;
      nans.push_back(code);
    }
  if (nans.size() > 2 || (nans.size() == 2 && nans[1] - nans[0] != 128)) return false;
  t.nan_mask = 0;
  if (nans.empty()) return true;
  t.nan_mask = nans.size() == 2 ? 0x7f : 0xff;
  t.nan_code = static_cast<std::uint8_t>(nans[0]);
  return true;
}

/// Sets half_exponent, half_factor, mirrored_by_sign, split and the NaNs that these leave out.
void find_signs(const Element& element, Tables& t) {
  const int bits = element.bits, sign = 1 << (bits - 1);
  const auto mirrored = [&](int code) {
    return code < sign || std::bit_cast<std::uint32_t>(t.values[code]) ==
                              (std::bit_cast<std::uint32_t>(t.values[code - sign]) ^ 0x80000000u);
  };
  t.mirrored_by_sign = but_for_nans(element, t, mirrored);
  t.split = t.mirrored_by_sign && t.bfloat16_exact && bits >= 6;
  for (int code = 16; code < sign; ++code) {
    const int l = code % 16;
    const auto upper =
        static_cast<std::uint8_t>(t.planes[3][code - l] + t.planes[3][16 + l] - t.planes[3][16]);
    t.split = t.split && t.planes[3][code] == upper && t.planes[2][code] == t.planes[2][16 + l];
  }
  if (bits < 5) return;
  for (int exponent_bits = 1; exponent_bits <= 5 && exponent_bits < bits; ++exponent_bits) {
    const auto half = [&](int code) { return from_float16(half_of(code, bits, exponent_bits)); };
    const float factor = t.values[1] / half(1);
    int exponent;
    if (!(std::frexp(factor, &exponent) == 0.5f && std::abs(exponent) < 32)) continue;
    const auto same = [&](int code) {
      const float value = half(code) * factor;
      return value == t.values[code] || (std::isnan(value) && std::isnan(t.values[code]));
    };
    if (!but_for_nans(element, t, same)) continue;
    t.half_exponent = exponent_bits;
    t.half_factor = factor;
    return;
  }
}

std::unique_ptr<Tables> build(const Element& element, int zero) {
  LADDER_CHECK(element.bits <= 8, "no table for ", element.name);
  const std::vector<float> values = decode_table(element);
  auto tables = std::make_unique<Tables>();
  tables->bfloat16_exact = true;
  tables->significant = 1;
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
    // Below the normal numbers these are more than there are.
    const int significant = 24 - std::countr_zero((bits & 0x7fffff) | 0x800000);
    if (std::isfinite(value) && value != 0)
      tables->significant = std::max(tables->significant, significant);
  }
  tables->mirrored = true;
  for (int code = 0; code < 128; ++code)
    tables->mirrored = tables->mirrored && tables->low[code + 128] == tables->low[code] &&
                       tables->high[code] < 0x8000 &&
                       tables->high[code + 128] == (tables->high[code] | 0x8000);
  find_steps(element, *tables);
  find_signs(element, *tables);
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
