// SPDX-License-Identifier: Apache-2.0
//
// The bit stream: eight codes of b bits are b bytes, so whole groups of eight move with one load,
// eight shifts that the compiler knows, and one store.
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "types/weight.h"

namespace ladder {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the stream is little-endian, and loads here are the machine's");

/// Packs one row into bytes. Returns the bits of all codes or-ed together.
template <int kBits>
unsigned pack_row(const std::uint8_t* codes, std::int64_t k, std::uint8_t* bytes) {
  std::uint64_t seen = 0;
  std::int64_t column = 0;
  for (; column + 8 <= k; column += 8, bytes += kBits) {
    std::uint64_t eight, stream = 0;
    std::memcpy(&eight, codes + column, 8);
    seen |= eight;
    for (int i = 0; i < 8; ++i) stream |= (eight >> (8 * i) & 0xff) << (kBits * i);
    std::memcpy(bytes, &stream, kBits);
  }
  std::uint64_t stream = 0;
  const std::int64_t left = k - column;
  for (std::int64_t i = 0; i < left; ++i) {
    seen |= codes[column + i];
    stream |= static_cast<std::uint64_t>(codes[column + i]) << (kBits * i);
  }
  std::memcpy(bytes, &stream, static_cast<std::size_t>((left * kBits + 7) / 8));
  for (int half = 32; half >= 8; half /= 2) seen |= seen >> half;
  return static_cast<unsigned>(seen & 0xff);
}

template <int kBits>
void unpack_row(const std::uint8_t* bytes, std::int64_t k, std::uint8_t* codes) {
  constexpr std::uint64_t kMask = (1u << kBits) - 1;
  std::int64_t column = 0;
  for (; column + 8 <= k; column += 8, bytes += kBits) {
    std::uint64_t stream = 0, eight = 0;
    std::memcpy(&stream, bytes, kBits);
    for (int i = 0; i < 8; ++i) eight |= (stream >> (kBits * i) & kMask) << (8 * i);
    std::memcpy(codes + column, &eight, 8);
  }
  std::uint64_t stream = 0;
  const std::int64_t left = k - column;
  std::memcpy(&stream, bytes, static_cast<std::size_t>((left * kBits + 7) / 8));
  for (std::int64_t i = 0; i < left; ++i)
    codes[column + i] = static_cast<std::uint8_t>(stream >> (kBits * i) & kMask);
}

using PackRow = unsigned (*)(const std::uint8_t*, std::int64_t, std::uint8_t*);
using UnpackRow = void (*)(const std::uint8_t*, std::int64_t, std::uint8_t*);
constexpr std::array<PackRow, 9> kPackRow = {nullptr,     pack_row<1>, pack_row<2>,
                                             pack_row<3>, pack_row<4>, pack_row<5>,
                                             pack_row<6>, pack_row<7>, pack_row<8>};
constexpr std::array<UnpackRow, 9> kUnpackRow = {nullptr,       unpack_row<1>, unpack_row<2>,
                                                 unpack_row<3>, unpack_row<4>, unpack_row<5>,
                                                 unpack_row<6>, unpack_row<7>, unpack_row<8>};

void require_bits(int bits) {
  LADDER_REQUIRE(bits >= 1 && bits <= 8, "bits is ", bits, ", not 1 to 8");
}

}  // namespace

void pack_codes(const std::uint8_t* codes, std::int64_t n, std::int64_t k, int bits,
                std::uint32_t* words) {
  require_bits(bits);
  if (k == 0) return;  // the pointers may be null
  const std::int64_t width = row_words(k, bits);
  const unsigned limit = 1u << bits;
  for (std::int64_t row = 0; row < n; ++row) {
    words[(row + 1) * width - 1] = 0;  // the padding
    const std::uint8_t* from = codes + row * k;
    const unsigned seen = kPackRow[static_cast<std::size_t>(bits)](
        from, k, reinterpret_cast<std::uint8_t*>(words + row * width));
    if (seen >= limit) [[unlikely]]
      for (std::int64_t column = 0; column < k; ++column)
        LADDER_REQUIRE(from[column] < limit, "code ", int{from[column]}, " at row ", row,
                       ", column ", column, " does not fit ", bits, " bits");
  }
}

void unpack_codes(const std::uint32_t* words, std::int64_t n, std::int64_t k, int bits,
                  std::uint8_t* codes) {
  require_bits(bits);
  if (k == 0) return;  // the pointers may be null
  const std::int64_t width = row_words(k, bits);
  for (std::int64_t row = 0; row < n; ++row)
    kUnpackRow[static_cast<std::size_t>(bits)](
        reinterpret_cast<const std::uint8_t*>(words + row * width), k, codes + row * k);
}

}  // namespace ladder
