// SPDX-License-Identifier: Apache-2.0
//
// Random weights in buffers of exactly the stored size, so that AddressSanitizer sees every read
// past an end, and their values in double, computed from decode() alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "types/ttype.h"
#include "types/weight.h"

namespace ladder::testing {

/// Which codes and scales are drawn.
enum class Draw {
  exact,  ///< values that are small multiples of 1/16, scales 1/2, 1 or 2: float32 sums are exact
  any,    ///< every finite code, scales and zeros with all their bits
};

struct RandomWeight {
  RandomWeight(const TType& type, std::int64_t n, std::int64_t k, Draw draw, bool shuffled_groups,
               unsigned seed);

  TType type;
  std::int64_t n, k;
  std::vector<std::uint32_t> codes;
  std::vector<std::uint8_t> scales, zeros, seconds;
  std::vector<std::int32_t> g_idx;
  std::vector<float> scale2;
  std::vector<double> values;  ///< [n, k]

  WeightView view() const;

 private:
  double draw_metadata(std::vector<std::uint8_t>& bytes, Draw draw, bool is_scale);
  std::mt19937 random_;
};

namespace detail {

/// Codes of `element` that may be drawn, with their values.
inline std::vector<std::pair<std::uint32_t, double>> drawable(const Element& element, Draw draw) {
  std::vector<std::pair<std::uint32_t, double>> codes;
  const auto consider = [&](std::uint32_t code) {
    const double value = decode(element, code);
    if (!std::isfinite(value)) return;
    const bool small = std::abs(value) <= 16 && value * 16 == std::nearbyint(value * 16);
    // A 16 or 32-bit format without a bound would leave nothing of the sums but its largest term.
    if (draw == Draw::exact ? small : element.bits <= 8 || std::abs(value) < 64)
      codes.emplace_back(code, value);
  };
  if (element.bits <= 16) {
    for (std::uint32_t code = 0; code < 1u << element.bits; ++code) consider(code);
  } else {
    for (double value = -16; value <= 16; value += draw == Draw::exact ? 0.0625 : 0.0437)
      consider(encode(element, value));
  }
  if (codes.empty()) codes.emplace_back(0, decode(element, 0));
  return codes;
}

inline void put(std::vector<std::uint32_t>& words, std::int64_t first_word, std::int64_t index,
                int bits, std::uint32_t code) {
  for (int bit = 0; bit < bits; ++bit) {
    const std::int64_t at = index * bits + bit;
    words[static_cast<std::size_t>(first_word + at / 32)] |= (code >> bit & 1u) << (at % 32);
  }
}

}  // namespace detail

/// The same type with integers as scales, and a second scale of each row.
inline TType with_integer_scales(TType type) {
  type.scale = &element("uint4"), type.scale2 = &element("float32"), type.scale2_of_rows = true;
  return type;
}

inline double RandomWeight::draw_metadata(std::vector<std::uint8_t>& bytes, Draw draw,
                                          bool is_scale) {
  double wanted;
  if (type.superblock > 0)
    wanted = (is_scale ? 1 : 0) + random_() % 3;
  else if (type.has_integer_scales())
    wanted = 1 + random_() % static_cast<unsigned>(max_value(*type.scale));
  else if (draw == Draw::exact)
    wanted = is_scale ? std::ldexp(1.0, static_cast<int>(random_() % 3) - 1)
                      : static_cast<double>(random_() % 4);
  else
    wanted = (0.5 + static_cast<double>(random_() % 1000) / 700) * (is_scale ? 0.25 : 3);
  const std::uint32_t code = encode(*type.scale, wanted);
  for (int byte = 0; byte < std::max(1, type.scale->bits / 8); ++byte)
    bytes.push_back(static_cast<std::uint8_t>(code >> (8 * byte)));
  return decode(*type.scale, code);
}

inline RandomWeight::RandomWeight(const TType& t, std::int64_t rows, std::int64_t columns,
                                  Draw draw, bool shuffled_groups, unsigned seed)
    : type(t), n(rows), k(columns), random_(seed) {
  const Element& element = *type.element;
  const std::int64_t groups = type.groups(k), block_rows = type.block_rows(n);
  std::vector<double> scale_values, zero_values;
  if (type.scale != nullptr)
    for (std::int64_t i = 0; i < block_rows * groups; ++i)
      scale_values.push_back(draw_metadata(scales, draw, true));
  const std::int64_t zero_words = row_words(groups, element.bits);
  std::vector<std::uint32_t> packed_zeros(static_cast<std::size_t>(block_rows * zero_words));
  for (std::int64_t row = 0; row < block_rows; ++row)
    for (std::int64_t group = 0; group < groups; ++group) {
      std::uint32_t zero = 0;
      switch (type.zero) {
        case Zero::none: break;
        case Zero::midpoint: zero_values.push_back(std::ldexp(1.0, element.bits - 1)); break;
        case Zero::integer:
          zero = random_() % ((1u << element.bits) + 1) % 256;
          zeros.push_back(static_cast<std::uint8_t>(zero));
          zero_values.push_back(zero);
          break;
        case Zero::quantized:
          zero = random_() % (1u << element.bits);
          detail::put(packed_zeros, row * zero_words, group, element.bits, zero);
          zero_values.push_back(zero);
          break;
        case Zero::original:
        case Zero::rescale: zero_values.push_back(draw_metadata(zeros, draw, false)); break;
      }
    }
  if (type.zero == Zero::quantized) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(packed_zeros.data());
    zeros.assign(bytes, bytes + packed_zeros.size() * 4);
  }
  // Of scales, then of zeros, of each superblock of a row.
  const std::int64_t kinds = type.scales_of_superblock();
  for (std::int64_t row = 0; row < n && kinds > 0; ++row)
    for (std::int64_t first = 0; first < groups; first += type.superblock / type.block.columns)
      for (std::int64_t kind = 0; kind < kinds; ++kind) {
        const double drawn = static_cast<double>(1 + random_() % 4) / 4 - 1.125;
        const std::uint32_t code =
            encode(*type.scale2, draw == Draw::exact ? drawn : 0.317 * drawn);
        for (int byte = 0; byte < type.scale2->bits / 8; ++byte)
          seconds.push_back(static_cast<std::uint8_t>(code >> (8 * byte)));
        const std::int64_t last = std::min(first + type.superblock / type.block.columns, groups);
        auto& multiplied = kind == 0 ? scale_values : zero_values;
        for (std::int64_t group = first; group < last; ++group)
          multiplied[static_cast<std::size_t>(row * groups + group)] *= decode(*type.scale2, code);
      }
  for (std::int64_t row = 0; row < second_scales(type, n); ++row) {
    scale2.push_back((draw == Draw::exact ? 0.5f : 0.7183f) * static_cast<float>(1 << row % 3));
  }
  const std::int64_t width = type.block.columns == 0 ? k : type.block.columns;
  if (shuffled_groups) {
    for (std::int64_t column = 0; column < k; ++column)
      g_idx.push_back(static_cast<std::int32_t>(column / width));
    std::shuffle(g_idx.begin(), g_idx.end(), random_);
  }
  const auto choices = detail::drawable(element, draw);
  const std::int64_t words = row_words(k, element.bits);
  codes.resize(static_cast<std::size_t>(n * words));
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t column = 0; column < k; ++column) {
      const auto [code, value] = choices[random_() % choices.size()];
      detail::put(codes, row * words, column, element.bits, code);
      const std::int64_t group =
          shuffled_groups ? g_idx[static_cast<std::size_t>(column)] : column / width;
      const std::int64_t block =
          (type.block.rows == 0 ? 0 : row / type.block.rows) * groups + group;
      const auto at = static_cast<std::size_t>(block);
      const double scale = scale_values.empty() ? 1 : scale_values[at];
      const double zero = zero_values.empty() ? 0 : zero_values[at];
      const double second = scale2.empty() ? 1 : scale2[type.scale2_of_rows ? row : 0];
      values.push_back(
          second * (type.zero == Zero::rescale ? scale * value - zero : scale * (value - zero)));
    }
}

inline WeightView RandomWeight::view() const {
  return {.type = &type,
          .n = n,
          .k = k,
          .codes = codes.data(),
          .scales = scales.empty() ? nullptr : scales.data(),
          .zeros = zeros.empty() ? nullptr : zeros.data(),
          .scale2 = scale2.empty() ? nullptr : scale2.data(),
          .g_idx = g_idx.empty() ? nullptr : g_idx.data(),
          .seconds = seconds.empty() ? nullptr : seconds.data()};
}

}  // namespace ladder::testing
