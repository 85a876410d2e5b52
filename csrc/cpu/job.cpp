// SPDX-License-Identifier: Apache-2.0
#include "cpu/job.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/integers.h"
#include "cpu/tables.h"
#include "types/scalar.h"

namespace ladder::cpu {
namespace {

/// Vector kernels load whole vectors of scales; this many floats past the last are readable.
constexpr std::int64_t kSlack = 16;

/// f32, f16 or bf16: what `element` is stored as, where it has more than 8 bits.
std::optional<Scalar> float_of(const Element& element) {
  return element.encoding == Encoding::floating && element.bits > 8 ? scalar_of(element)
                                                                    : std::nullopt;
}

Storage storage_of(const Element& element) {
  if (element.bits <= 8) return Storage::codes;
  const auto dtype = float_of(element);
  if (dtype == Scalar::f32) return Storage::float32;
  if (dtype == Scalar::f16) return Storage::float16;
  if (dtype == Scalar::bf16) return Storage::bfloat16;
  fail<Unsupported>("no CPU kernel for ", element.name, " of ", element.bits, " bits");
}

Grouping grouping_of(const WeightView& view, std::int64_t columns, const Kernels& kernels) {
  if (view.g_idx != nullptr) return Grouping::columns;
  if (columns >= view.k || columns % kernels.block == 0) return Grouping::blocks;
  // Wide formats keep their natural order, where a lane is not 8 neighbouring columns.
  if (view.type->element->bits <= 8 && columns % 8 == 0 && kernels.block % columns == 0)
    return Grouping::lanes;
  return Grouping::columns;
}

/// Codes of an integer format, one to a byte, as numbers. Loops without branches, of which
/// compilers make vectors.
void widen_integers(const std::uint8_t* __restrict from, std::int64_t count, const Element& format,
                    float* __restrict to) {
  if (format.encoding == Encoding::signed_integer) {
    const int above = 32 - format.bits;
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<float>(static_cast<std::int32_t>(from[i]) << above >> above);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
  }
}

void multiply(float* numbers, std::int64_t count, float factor) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) numbers[i + j] *= factor;
  }
  for (; i < count; ++i) numbers[i] *= factor;
}

/// Of the products of numbers of so many bits each.
int product_bits(int some, int others) {
  return some == 1 ? others : others == 1 ? some : std::min(some + others, 24);
}

/// Significant bits of a value, which are rounded to 24.
int value_bits(const Job& job, const TType& type) {
  constexpr int kFloat16 = 11, kBfloat16 = 8, kFloat32 = 24;
  if (job.storage != Storage::codes || job.float_zeros) return kFloat32;
  // Codes and zeros lie in [-2^(b - 1), 2^b].
  const int codes = job.integer_zeros ? job.bits + 1 : job.tables->significant;
  if (type.scale == nullptr) return codes;
  const auto of_float = [&](const Element& element) {
    const auto dtype = float_of(element);
    return dtype == Scalar::f16 ? kFloat16 : dtype == Scalar::bf16 ? kBfloat16 : kFloat32;
  };
  if (type.scale->bits > 8) return product_bits(codes, of_float(*type.scale));
  const int scale = tables_of(*type.scale, 0).significant;
  return product_bits(codes,
                      type.superblock == 0 ? scale : product_bits(scale, of_float(*type.scale2)));
}

}  // namespace

Weight read_weight(const WeightView& view, const Kernels& kernels) {
  const TType& type = *view.type;
  const Element& element = *type.element;
  Weight weight{.view = &view, .kernels = &kernels, .groups = type.groups(view.k)};
  Job& job = weight.job;
  job.storage = storage_of(element);
  job.bits = element.bits;
  job.k = view.k;
  job.padded_k = round_up(view.k, kernels.block);
  job.row_bytes = row_words(view.k, element.bits) * 4;
  const std::int64_t columns = type.block.columns == 0 ? view.k : type.block.columns;
  job.grouping = grouping_of(view, columns, kernels);
  job.group_columns = columns >= view.k ? job.padded_k : columns;
  job.integer_zeros = type.zero == Zero::integer || type.zero == Zero::quantized;
  job.float_zeros = type.zero == Zero::original || type.zero == Zero::rescale;
  job.offsets = type.zero == Zero::rescale;
  if (job.storage == Storage::codes)
    job.tables = &tables_of(element, type.zero == Zero::midpoint ? 1 << (element.bits - 1) : 0);
  job.value_bits = value_bits(job, type);
  if (job.grouping == Grouping::columns) {
    // Padding reads group 0; it is multiplied by zeros in x.
    weight.group_of.assign(static_cast<std::size_t>(job.padded_k), 0);
    for (std::int64_t column = 0; column < view.k; ++column)
      weight.group_of[static_cast<std::size_t>(kernels.position(job, column))] =
          view.g_idx != nullptr ? view.g_idx[column] : static_cast<std::int32_t>(column / columns);
  }
  if (type.scale != nullptr) {
    if (type.scale->bits <= 8) {
      // Integers are what their bytes say.
      const bool whole = type.scale->encoding == Encoding::unsigned_integer;
      weight.scale_tables = &tables_of(whole ? ladder::element("uint8") : *type.scale, 0);
      if (type.superblock > 0) weight.second_dtype = *float_of(*type.scale2);
    } else {
      const auto dtype = float_of(*type.scale);
      if (!dtype) fail<Unsupported>("no CPU kernel for scales in ", type.scale->name);
      weight.scale_dtype = *dtype;
    }
  }
  return weight;
}

Scales::Scales(const Weight& weight)
    : weight_(weight),
      stride_(weight.group_of.empty() ? weight.groups : weight.job.padded_k),
      buffer_(kParts * kChunk * stride_ + kSlack),
      packed_(weight.group_of.empty() ? 0 : kChunk * weight.groups) {
  // Parts that the type does not have keep these values.
  std::fill_n(part(kScale), kChunk * stride_, 1.0f);
  std::fill_n(part(kZero), 2 * kChunk * stride_ + kSlack, 0.0f);
}

void Scales::read_floats(const void* data, std::int64_t block_row, std::int64_t count, float* to) {
  const Kernels& kernels = *weight_.kernels;
  const std::int64_t first = block_row * weight_.groups;
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  if (weight_.scale_tables != nullptr) {
    kernels.look_up(*weight_.scale_tables, bytes + first, count * weight_.groups, to);
  } else {
    const int size = weight_.scale_dtype == Scalar::f32 ? 4 : 2;
    kernels.widen(bytes + first * size, weight_.scale_dtype, count * weight_.groups, to);
  }
}

void Scales::read_superblocks(const void* stored, bool of_zeros, std::int64_t row,
                              std::int64_t count, float* to) {
  const WeightView& view = *weight_.view;
  const TType& type = *view.type;
  const std::int64_t each = type.scales_of_superblock(), blocks = type.superblocks(view.k);
  const std::int64_t groups = type.superblock / type.block.columns;
  const std::int64_t size = weight_.second_dtype == Scalar::f32 ? 4 : 2;
  widen_integers(static_cast<const std::uint8_t*>(stored) + row * weight_.groups,
                 count * weight_.groups, *type.scale, to);
  const auto* from = static_cast<const std::uint8_t*>(view.seconds) + row * blocks * each * size;
  constexpr std::int64_t kPiece = 64;  // superblocks
  float seconds[2 * kPiece];
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t first = 0; first < blocks; first += kPiece) {
      const std::int64_t some = std::min(kPiece, blocks - first);
      weight_.kernels->widen(from + (r * blocks + first) * each * size, weight_.second_dtype,
                             some * each, seconds);
      for (std::int64_t b = 0; b < some; ++b) {
        const std::int64_t here = std::min(groups, weight_.groups - (first + b) * groups);
        multiply(to, here, seconds[b * each + (of_zeros ? 1 : 0)]);
        to += here;
      }
    }
  }
}

void Scales::read_zeros(std::int64_t block_row, std::int64_t count, float* to) {
  const WeightView& view = *weight_.view;
  const std::int64_t groups = weight_.groups;
  static const Tables& bytes = tables_of(ladder::element("uint8"), 0);
  if (view.type->zero == Zero::integer) {
    weight_.kernels->look_up(bytes,
                             static_cast<const std::uint8_t*>(view.zeros) + block_row * groups,
                             count * groups, to);
    return;
  }
  const int bits = view.type->element->bits;
  const std::int64_t words = row_words(groups, bits);
  if (bits == 4) {  // the width of most zeros; one at a time took a seventh of a product's time
    for (std::int64_t row = 0; row < count; ++row) {
      const auto* from =
          static_cast<const std::uint8_t*>(view.zeros) + (block_row + row) * words * 4;
      for (std::int64_t group = 0; group < groups; group += 64) {
        std::uint8_t codes[64];
        const std::int64_t some = std::min<std::int64_t>(64, groups - group);
        for (std::int64_t i = 0; i < (some + 1) / 2; ++i) {
          codes[2 * i] = from[group / 2 + i] & 15;
          codes[2 * i + 1] = from[group / 2 + i] >> 4;
        }
        weight_.kernels->look_up(bytes, codes, some, to + row * groups + group);
      }
    }
    return;
  }
  const std::uint32_t mask = (1u << bits) - 1;
  for (std::int64_t row = 0; row < count; ++row) {
    const std::uint32_t* from =
        static_cast<const std::uint32_t*>(view.zeros) + (block_row + row) * words;
    std::uint64_t window = 0;
    int held = 0;
    for (std::int64_t group = 0; group < groups; ++group, held -= bits, window >>= bits) {
      if (held < bits) {
        window |= static_cast<std::uint64_t>(*from++) << held;
        held += 32;
      }
      to[row * groups + group] = static_cast<float>(static_cast<std::uint32_t>(window) & mask);
    }
  }
}

void Scales::read(std::int64_t begin, std::int64_t count) {
  begin_ = begin;
  end_ = begin + count;
  const WeightView& view = *weight_.view;
  const TType& type = *view.type;
  const std::int64_t rows = type.block.rows == 0 ? view.n : type.block.rows;
  const auto read_stored = [&](const void* data, bool of_zeros, std::int64_t row, std::int64_t some,
                               float* to) {
    if (type.superblock > 0) {
      read_superblocks(data, of_zeros, row, some, to);
    } else {
      read_floats(data, row, some, to);
    }
  };
  // Rows of one block are the same: read once, copied for the rest. Rows of their own are
  // neighbours in memory: read all at once.
  const auto each_block = [&](auto&& read, Part p) {
    float* to = weight_.group_of.empty() ? part(p) : packed_.data();
    if (rows == 1) {
      read(begin, count, to);
    } else {
      for (std::int64_t row = 0; row < count; ++row) {
        const std::int64_t block_row = (begin + row) / rows;
        float* mine = to + row * weight_.groups;
        if (row > 0 && (begin + row - 1) / rows == block_row)
          std::copy_n(mine - weight_.groups, weight_.groups, mine);
        else
          read(block_row, 1, mine);
      }
    }
    if (weight_.group_of.empty()) return;
    for (std::int64_t row = 0; row < count; ++row)
      weight_.kernels->gather(packed_.data() + row * weight_.groups, weight_.groups,
                              weight_.group_of.data(), stride_, part(p) + row * stride_);
  };
  if (type.scale != nullptr)
    each_block([&](auto... to) { read_stored(view.scales, false, to...); }, kScale);
  switch (type.zero) {
    case Zero::none:
    case Zero::midpoint: break;
    case Zero::integer:
    case Zero::quantized: each_block([&](auto... to) { read_zeros(to...); }, kZero); break;
    case Zero::original:
      each_block([&](auto... to) { read_floats(view.zeros, to...); }, kZero);
      break;
    case Zero::rescale:
      each_block([&](auto... to) { read_stored(view.zeros, true, to...); }, kOffset);
      break;
  }
}

Rows Scales::rows(std::int64_t row) const {
  Rows rows;
  const float* base = const_cast<Scales*>(this)->buffer_.data();
  const auto* codes = reinterpret_cast<const std::uint8_t*>(weight_.view->codes);
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t mine = std::min(row + r, end_ - 1);
    const float* scale = base + (mine - begin_) * stride_;
    rows.codes[r] = codes + mine * weight_.job.row_bytes;
    rows.scales[r] = {scale, scale + kChunk * stride_, scale + 2 * kChunk * stride_};
  }
  return rows;
}

}  // namespace ladder::cpu
