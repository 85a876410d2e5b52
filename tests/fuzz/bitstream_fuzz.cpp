// SPDX-License-Identifier: Apache-2.0
//
// Feeds arbitrary bytes to the code that meets files first: the bit stream, the reader of tType
// spellings, and decoding of whole weights. A property that does not hold traps.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "types/weight.h"

namespace {

using namespace ladder;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

/// Takes numbers and blocks off the front of the fuzzer's bytes; past the end everything is 0.
struct Input {
  const std::uint8_t* data;
  std::size_t left;

  std::uint8_t byte() {
    if (left == 0) return 0;
    --left;
    return *data++;
  }
  template <class T>
  std::vector<T> block(std::size_t count) {
    std::vector<T> values(count);
    const std::size_t bytes = std::min(left, count * sizeof(T));
    if (bytes > 0) std::memcpy(values.data(), data, bytes);
    data += bytes;
    left -= bytes;
    return values;
  }
};

/// Any words unpack to codes that fit; packing those gives the words back, but for the padding.
void round_trip_of_words(Input in) {
  const int bits = 1 + in.byte() % 8;
  const std::int64_t n = 1 + in.byte() % 5, k = 1 + in.byte() % 100, width = row_words(k, bits);
  auto words = in.block<std::uint32_t>(static_cast<std::size_t>(n * width));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * k));
  unpack_codes(words.data(), n, k, bits, codes.data());
  require(std::ranges::all_of(codes, [&](int code) { return code < 1 << bits; }));
  std::vector<std::uint32_t> again(words.size(), 0xdeadbeef);
  pack_codes(codes.data(), n, k, bits, again.data());
  const auto used = static_cast<int>(k * bits - (width - 1) * 32);
  const std::uint32_t mask = used == 32 ? ~0u : (1u << used) - 1;
  for (std::int64_t row = 0; row < n; ++row) words[(row + 1) * width - 1] &= mask;
  require(words == again);
}

/// Any bytes pack exactly when they all fit, and then unpack to themselves.
void round_trip_of_codes(Input in) {
  const int bits = in.byte() % 10;  // 0 and 9 are refused
  const std::int64_t n = 1 + in.byte() % 5, k = in.byte() % 100;
  const auto codes = in.block<std::uint8_t>(static_cast<std::size_t>(n * k));
  std::vector<std::uint32_t> words(static_cast<std::size_t>(n * row_words(k, bits)));
  std::vector<std::uint8_t> again(codes.size());
  const bool fit = bits >= 1 && bits <= 8 &&
                   std::ranges::all_of(codes, [&](int code) { return code < 1 << bits; });
  try {
    pack_codes(codes.data(), n, k, bits, words.data());
  } catch (const InvalidArgument&) {
    require(!fit);
    return;
  }
  require(fit);
  unpack_codes(words.data(), n, k, bits, again.data());
  require(codes == again);
}

/// A spelling is refused or means a type whose own spelling means the same; a weight of that type
/// decodes without a step outside its parts.
void any_spelling(Input in) {
  const auto text = in.block<char>(std::min<std::size_t>(in.left, 4 + in.byte() % 64));
  TType type;
  try {
    type = parse_ttype({text.data(), text.size()});
  } catch (const InvalidArgument&) {
    return;
  }
  require(parse_ttype(to_string(type)) == type);
  const std::int64_t n = 1 + in.byte() % 5, k = 1 + in.byte() % 100;
  const std::int64_t groups = type.groups(k), rows = type.block_rows(n);
  const auto blocks = static_cast<std::size_t>(rows * groups);
  const int bits = type.element->bits;
  const auto words = in.block<std::uint32_t>(static_cast<std::size_t>(n * row_words(k, bits)));
  const std::size_t scale_bytes = type.scale == nullptr ? 0 : (type.scale->bits + 7) / 8;
  const auto scales = in.block<std::uint8_t>(blocks * scale_bytes);
  std::size_t zero_bytes = blocks * scale_bytes;
  if (type.zero == Zero::integer) zero_bytes = blocks;
  if (type.zero == Zero::quantized)
    zero_bytes = static_cast<std::size_t>(rows * row_words(groups, bits)) * 4;
  const auto zeros = in.block<std::uint32_t>((zero_bytes + 3) / 4);
  auto g_idx = in.block<std::int32_t>(in.byte() % 2 == 0 ? 0 : static_cast<std::size_t>(k));
  for (std::int32_t& group : g_idx)
    group = static_cast<std::int32_t>(static_cast<std::uint32_t>(group) % groups);
  const std::vector<float> scale2(static_cast<std::size_t>(second_scales(type, n)), 0.5f);
  const WeightView weight{.type = &type,
                          .n = n,
                          .k = k,
                          .codes = words.data(),
                          .scales = scales.data(),
                          .zeros = zeros.data(),
                          .scale2 = scale2.empty() ? nullptr : scale2.data(),
                          .g_idx = g_idx.empty() ? nullptr : g_idx.data()};
  std::vector<float> values(static_cast<std::size_t>(n * k));
  dequantize_rows(weight, 0, n, values.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in{data, size};
  switch (in.byte() % 3) {
    case 0: round_trip_of_words(in); break;
    case 1: round_trip_of_codes(in); break;
    default: any_spelling(in); break;
  }
  return 0;
}
