// SPDX-License-Identifier: Apache-2.0
#include "types/weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cpu/random_weight.h"

namespace ladder {
namespace {

using ::ladder::testing::Draw;
using ::ladder::testing::RandomWeight;
using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

// Below, at and above a word and 64 bits, for every width.
constexpr std::int64_t kRagged[] = {0, 1, 3, 7, 8, 9, 10, 11, 31, 32, 33, 63, 64, 65, 130};

std::vector<std::uint8_t> random_codes(std::int64_t count, int bits) {
  std::mt19937 random(static_cast<unsigned>(bits));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
  for (auto& code : codes) code = static_cast<std::uint8_t>(random() & ((1u << bits) - 1));
  return codes;
}

TEST(Packing, gives_every_code_back_for_every_width_and_ragged_k) {
  for (int bits = 1; bits <= 8; ++bits)
    for (const std::int64_t k : kRagged) {
      const std::int64_t n = 3;
      const auto codes = random_codes(n * k, bits);
      std::vector<std::uint32_t> words(static_cast<std::size_t>(n * row_words(k, bits)));
      pack_codes(codes.data(), n, k, bits, words.data());
      std::vector<std::uint8_t> back(codes.size());
      unpack_codes(words.data(), n, k, bits, back.data());
      ASSERT_EQ(back, codes) << bits << " bits, k " << k;
    }
}

TEST(Packing, is_a_little_endian_bit_stream_whose_padding_is_zero) {
  for (int bits = 1; bits <= 8; ++bits)
    for (const std::int64_t k : kRagged) {
      const auto codes = random_codes(k, bits);
      std::vector<std::uint32_t> words(static_cast<std::size_t>(row_words(k, bits)), ~0u);
      pack_codes(codes.data(), 1, k, bits, words.data());
      for (std::int64_t bit = 0; bit < static_cast<std::int64_t>(words.size()) * 32; ++bit) {
        const unsigned stored = words[static_cast<std::size_t>(bit / 32)] >> (bit % 32) & 1;
        const auto code = static_cast<std::size_t>(bit / bits);
        const unsigned wanted = bit < k * bits ? codes[code] >> (bit % bits) & 1u : 0u;
        ASSERT_EQ(stored, wanted) << bits << " bits, k " << k << ", bit " << bit;
      }
    }
}

TEST(Packing, has_the_words_that_can_be_worked_out_by_hand) {
  const std::uint8_t nibbles[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::uint32_t words[2];
  pack_codes(nibbles, 1, 9, 4, words);
  EXPECT_THAT(words, ElementsAre(0x87654321u, 0x9u));
  const std::uint8_t threes[] = {1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 7};
  pack_codes(threes, 1, 11, 3, words);
  // Code 10 straddles the words: its low two bits end the first.
  EXPECT_THAT(words,
              ElementsAre(0x11f58d1u + (1u << 24) + (2u << 27) + (3u << 30) - 0x1000000u, 0x1u));
}

TEST(Packing, a_code_that_does_not_fit_is_refused_with_its_place) {
  std::uint32_t words[4];
  const std::uint8_t codes[] = {1, 2, 3, 0, 9, 1};
  EXPECT_THAT([&] { pack_codes(codes, 2, 3, 3, words); },
              ThrowsMessage<InvalidArgument>("code 9 at row 1, column 1 does not fit 3 bits"));
  EXPECT_THAT([&] { pack_codes(codes, 1, 3, 9, words); },
              ThrowsMessage<InvalidArgument>("bits is 9, not 1 to 8"));
  EXPECT_THAT([&] { pack_codes(codes, 1, 3, 0, words); },
              ThrowsMessage<InvalidArgument>("bits is 0, not 1 to 8"));
  std::uint8_t out[3];
  EXPECT_THAT([&] { unpack_codes(words, 1, 3, 0, out); },
              ThrowsMessage<InvalidArgument>("bits is 0, not 1 to 8"));
}

/// Every kind of metadata once; elements are covered by the test after the next.
constexpr const char* kKinds[] = {
    "uint4",
    "uint4,zero=midpoint",
    "uint4,tensor,zero=integer",
    "uint4,group=16,scale=float16,zero=midpoint",
    "uint8,group=16,scale=float32,zero=integer",
    "uint3,group=16,scale=bfloat16,zero=quantized",
    "uint5,group=24,scale=float16,zero=original",
    "int4,group=16,scale=float32,zero=rescale",
    "int4,group=16,scale=float32,zero=original",
    "uint2,tensor,scale=float16,zero=integer",
    "uint7,tensor,scale=float16,zero=quantized",
    "float8_e4m3,block=4x16,scale=float32",
    "uint4,block=3x16,scale=float16,zero=quantized",
    "uint6,block=2x8,scale=float16,zero=integer",
    "float16",
    "bfloat16,scale=float32",
    "float32,group=8,scale=float16",
    "nvfp4",
    "mxint8",
    "uint4,group=8,scale=int6,zero=rescale,scale2=float16:16",
    "uint4,group=8,scale=uint3,zero=quantized,scale2=bfloat16:32",
};

void expect_values(const TType& type, Draw draw, bool shuffled, std::int64_t n, std::int64_t k) {
  const RandomWeight w(type, n, k, draw, shuffled, 5);
  std::vector<float> values(static_cast<std::size_t>(n * k));
  dequantize_rows(w.view(), 0, n, values.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double exact = w.values[i];
    // Three roundings of a product, and those of the terms that cancel in w * s - z.
    const double limit = draw == Draw::exact ? 0 : std::ldexp(std::abs(exact) + 40, -22);
    ASSERT_LE(std::abs(values[i] - exact), limit)
        << to_string(type) << ", n " << n << ", k " << k << ", element " << i << ": " << values[i]
        << " for " << exact << (shuffled ? ", g_idx" : "");
  }
}

TEST(Dequantize, follows_the_formula_for_every_kind_of_zero_block_and_scale) {
  for (const char* text : kKinds)
    for (const Draw draw : {Draw::exact, Draw::any})
      for (const bool shuffled : {false, true})
        expect_values(parse_ttype(text), draw, shuffled, 7, 41);  // the last group is shorter
}

TEST(Dequantize, follows_the_formula_for_every_element) {
  for (const Element* e : elements()) {
    if (e->encoding == Encoding::exponent) continue;
    const TType type = parse_ttype(std::string(e->name) + ",group=16,scale=float32");
    expect_values(type, Draw::exact, false, 3, 33);
    expect_values(type, Draw::exact, true, 3, 33);
  }
  for (const NamedTType& named : named_ttypes())
    expect_values(parse_ttype(named.name), Draw::exact, false, 3, 65);
}

TEST(Dequantize, of_some_rows_gives_those_rows) {
  for (const char* text : kKinds) {
    const RandomWeight w(parse_ttype(text), 7, 41, Draw::any, false, 9);
    std::vector<float> all(7 * 41), some(3 * 41);
    dequantize_rows(w.view(), 0, 7, all.data());
    dequantize_rows(w.view(), 2, 5, some.data());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 2 * 41)) << text;
  }
}

}  // namespace
}  // namespace ladder
