// SPDX-License-Identifier: Apache-2.0
#include "types/weight.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace ladder {
namespace {

constexpr std::size_t kSmallTable = 64;

/// Code `index` of a little-endian stream of `bits`-bit codes, bits <= 32.
std::uint32_t code_at(const std::uint32_t* words, std::int64_t index, int bits) {
  const std::int64_t bit = index * bits;
  const std::int64_t word = bit / 32;
  const int shift = static_cast<int>(bit % 32);
  std::uint64_t window = words[word];
  if (shift + bits > 32) window |= static_cast<std::uint64_t>(words[word + 1]) << 32;
  return static_cast<std::uint32_t>(window >> shift) &
         static_cast<std::uint32_t>((1ull << bits) - 1);
}

/// Metadata `index` stored as `format`: one code per 1, 2 or 4 bytes.
float stored_value(const Element& format, const void* data, std::int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (format.bits == 32) {
    float value;
    std::memcpy(&value, bytes + index * 4, 4);
    return value;
  }
  std::uint16_t code = 0;
  if (format.bits == 16)
    std::memcpy(&code, bytes + index * 2, 2);
  else
    code = bytes[index];
  // The byte is the integer, whatever its format has room for.
  if (format.encoding == Encoding::unsigned_integer) return code;
  return static_cast<float>(decode(format, code));
}

/// Values of one row of codes. `codes` is room for k bytes; `table` is empty for float32, the only
/// format of more than 16 bits.
void decode_row(const std::uint32_t* words, std::int64_t k, int bits,
                const std::vector<float>& table, std::vector<std::uint8_t>& codes, float* values) {
  if (bits <= 8) {
    unpack_codes(words, 1, k, bits, codes.data());
    for (std::int64_t column = 0; column < k; ++column) values[column] = table[codes[column]];
    return;
  }
  for (std::int64_t column = 0; column < k; ++column) {
    const std::uint32_t code = code_at(words, column, bits);
    values[column] = table.empty() ? std::bit_cast<float>(code) : table[code];
  }
}

float weight_value(Zero kind, float code, float scale, float zero) {
  return kind == Zero::rescale ? code * scale - zero : (code - zero) * scale;
}

/// Zero point of block (row, group), as a number to subtract before or after scaling.
float zero_value(const WeightView& w, std::int64_t block_row, std::int64_t group,
                 std::int64_t groups) {
  const std::int64_t index = block_row * groups + group;
  const int bits = w.type->element->bits;
  switch (w.type->zero) {
    case Zero::none: return 0;
    case Zero::midpoint: return static_cast<float>(1 << (bits - 1));
    case Zero::integer: return static_cast<const std::uint8_t*>(w.zeros)[index];
    case Zero::quantized:
      return static_cast<float>(
          code_at(static_cast<const std::uint32_t*>(w.zeros) + block_row * row_words(groups, bits),
                  group, bits));
    case Zero::original:
    case Zero::rescale: return stored_value(*w.type->scale, w.zeros, index);
  }
  fail<InternalError>("zero kind without a meaning");
}

/// The second scale of the superblock of (row, group): of scales, or with `of_zeros` of zeros.
float second_value(const WeightView& w, std::int64_t row, std::int64_t group, bool of_zeros) {
  const TType& type = *w.type;
  const std::int64_t each = type.scales_of_superblock();
  const std::int64_t at =
      row * type.superblocks(w.k) + group * type.block.columns / type.superblock;
  return stored_value(*type.scale2, w.seconds, at * each + (of_zeros ? 1 : 0));
}

}  // namespace

void dequantize_rows(const WeightView& w, std::int64_t row_begin, std::int64_t row_end,
                     float* out) {
  const TType& type = *w.type;
  const Element& element = *type.element;
  const std::vector<float> table =
      element.bits <= 16 ? decode_table(element) : std::vector<float>{};
  const std::int64_t groups = type.groups(w.k);
  const std::int64_t columns = type.block.columns == 0 ? w.k : type.block.columns;
  // A table of the group's own saves two operations a weight when groups are longer than it.
  const bool small = w.g_idx == nullptr && !table.empty() && table.size() <= kSmallTable &&
                     columns >= 2 * static_cast<std::int64_t>(table.size());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(w.k));
  std::vector<float> scales(static_cast<std::size_t>(groups), 1.0f);
  std::vector<float> zeros(static_cast<std::size_t>(groups), 0.0f);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const std::int64_t block_row = type.block.rows == 0 ? 0 : row / type.block.rows;
    for (std::int64_t group = 0; group < groups; ++group) {
      if (type.scale != nullptr)
        scales[group] = stored_value(*type.scale, w.scales, block_row * groups + group);
      zeros[group] = zero_value(w, block_row, group, groups);
      if (type.superblock == 0) continue;
      scales[group] *= second_value(w, row, group, false);
      if (type.zero == Zero::rescale) zeros[group] *= second_value(w, row, group, true);
    }
    const std::uint32_t* words = w.codes + row * row_words(w.k, element.bits);
    float* values = out + (row - row_begin) * w.k;
    if (small) {
      unpack_codes(words, 1, w.k, element.bits, codes.data());
      for (std::int64_t group = 0; group < groups; ++group) {
        float scaled[kSmallTable];
        for (std::size_t code = 0; code < table.size(); ++code)
          scaled[code] = weight_value(type.zero, table[code], scales[group], zeros[group]);
        const std::int64_t end = std::min(w.k, (group + 1) * columns);
        for (std::int64_t column = group * columns; column < end; ++column)
          values[column] = scaled[codes[column]];
      }
    } else {
      decode_row(words, w.k, element.bits, table, codes, values);
      for (std::int64_t group = 0; w.g_idx == nullptr && group < groups; ++group) {
        const std::int64_t end = std::min(w.k, (group + 1) * columns);
        for (std::int64_t column = group * columns; column < end; ++column)
          values[column] = weight_value(type.zero, values[column], scales[group], zeros[group]);
      }
    }
    for (std::int64_t column = 0; w.g_idx != nullptr && column < w.k; ++column) {
      const auto group = static_cast<std::size_t>(w.g_idx[column]);
      values[column] = weight_value(type.zero, values[column], scales[group], zeros[group]);
    }
    if (w.scale2 == nullptr) continue;
    const float second = w.scale2[type.scale2_of_rows ? row : 0];
    for (std::int64_t column = 0; column < w.k; ++column) values[column] *= second;
  }
}

}  // namespace ladder
