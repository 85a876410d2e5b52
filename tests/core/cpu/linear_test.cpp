// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/fenced.h"
#include "cpu/isa.h"
#include "cpu/product.h"
#include "cpu/random_weight.h"

namespace ladder::cpu {
namespace {

using ::ladder::testing::Draw;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

bool is_legal(const TType& type) {
  try {
    check(type);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// Tables of a user's own, of every width: with all 24 bits of a float32, with those of a bfloat16,
/// and those whose upper half is the lower with the other sign. Two values of each are small; the
/// third have no zero.
bool register_tables() {
  for (int bits = 2; bits <= 8; ++bits)
    for (const char* kind : {"long", "short", "signed"}) {
      const int count = 1 << bits;
      std::vector<double> values;
      for (int i = 0; i < count; ++i) {
        const int sign = kind[1] == 'i' && i >= count / 2 ? -1 : 1;
        const int at = sign < 0 ? i - count / 2 : i;
        const double whole = at < 2 ? at + (kind[1] == 'i' ? 0.5 : 0)
                                    : (at * 37 % 128 + 130.0) / 32 * (1 + at / 128);
        const double rest = at < 2 || kind[0] == 's' ? 0 : (at * 12345 % 4096 + 1) * 0x1p-20;
        values.push_back(sign * (kind[1] != 'i' && at % 3 == 2 ? -1 : 1) * (whole + rest));
      }
      register_table(std::string(kind) + "_table" + std::to_string(bits), bits, values);
    }
  return true;
}
const bool kRegistered = register_tables();

/// Every element with every zero kind that it can have.
std::vector<TType> types(Block block, const char* scale) {
  std::vector<TType> all;
  for (const Element* e : elements())
    for (const Zero zero : {Zero::none, Zero::midpoint, Zero::integer, Zero::quantized,
                            Zero::original, Zero::rescale}) {
      const TType type{.element = e, .block = block, .scale = &element(scale), .zero = zero};
      if (is_legal(type)) all.push_back(type);
      const TType whole = testing::with_integer_scales(type);
      if (e->bits <= 4 && is_legal(whole)) all.push_back(whole);
    }
  return all;
}

struct Shape {
  std::int64_t n, k;
  Block block;
  bool g_idx = false;
};

// One column, one below and above a vector and a block of columns; groups that are a fraction of
// a block, a whole one, two, neither; a shorter last group; tensor, channel and 2-D blocks; rows
// and columns above the tiles and pieces of AMX, of 64, 32 and 16 rows and 256 columns.
const Shape kShapes[] = {
    {1, 1, {1, 0}},     {3, 15, {1, 8}},     {1, 17, {1, 0}},         {5, 127, {1, 32}},
    {2, 128, {1, 128}}, {4, 129, {1, 128}},  {3, 200, {1, 64}},       {2, 260, {1, 16}},
    {6, 300, {1, 256}}, {3, 144, {1, 24}},   {19, 136, {1, 8}},       {5, 130, {0, 0}},
    {7, 264, {3, 128}}, {6, 96, {4, 32}},    {4, 160, {1, 32}, true}, {2, 140, {1, 128}, true},
    {70, 264, {1, 32}}, {40, 390, {1, 128}},
};

// Each of the driver's ways is taken: 1, a few, some tokens; below, at and above the tokens that
// kernels multiply together (2, 3, 4, 6, 8, 16); panels of two vectors of 8, of three, and both,
// with lanes to fill and without.
constexpr std::int64_t kTokens[] = {1, 2, 3, 4, 5, 7, 11, 16, 17, 24, 30, 33, 40, 53};

/// Every instruction set of this build; isas_test.cpp says at the end which the machine lacks.
class EveryIsa : public OnIsa {};

TEST_P(EveryIsa, is_exact_on_integers_for_every_type_zero_and_shape) {
  unsigned seed = 0;
  for (const Shape& shape : kShapes)
    for (const TType& type : types(shape.block, "float16")) {
      ++seed;
      const RandomWeight w(type, shape.n, shape.k, Draw::exact, shape.g_idx, seed);
      const Scalar dtype = kDtypes[seed % 3];
      const std::int64_t m = kTokens[seed / 3 % std::size(kTokens)];
      ASSERT_NO_FATAL_FAILURE(expect_exact(
          w, GetParam(), {.dtype = dtype, .m = m, .bias = seed % 2 == 0, .residual = seed % 5 < 2},
          seed));
    }
}

TEST_P(EveryIsa, gives_the_very_value_of_every_code_for_a_one_hot_activation) {
  unsigned seed = 0;
  for (const std::int64_t m : {1, 4, 7})
    for (const TType& type : types({1, m == 4 ? 128 : 32}, "float32")) {
      const RandomWeight w(type, 8, 200, Draw::any, false, ++seed);
      const bool pairs = m == 7;  // of bfloat16, where the machine multiplies such
      const Case c{.dtype = pairs ? Scalar::bf16 : Scalar::f32, .m = m};
      const Product p = product(w, GetParam(), c, [&](std::int64_t t, std::int64_t i) {
        return i == (t * 41 + seed) % w.k ? 1.0 : 0.0;
      });
      for (std::int64_t t = 0; t < m; ++t)
        for (std::int64_t r = 0; r < w.n; ++r) {
          const double value = w.values[static_cast<std::size_t>(r * w.k + (t * 41 + seed) % w.k)];
          // Rounded at most where dequantize_rows rounds: the difference to the zero, the product;
          // a product below the normal numbers, to a multiple of the smallest of all. bfloat16
          // output rounds once more, and products of pairs are zero below the normal numbers.
          const double bound = pairs ? std::max(0x1p-8 * std::abs(value), 0x1p-126)
                                     : std::max(0x1p-23 * std::abs(value), 0x1p-149);
          ASSERT_LE(std::abs(p.y.get(t, r) - value), bound)
              << label(w, GetParam(), c) << " at " << t << ", " << r;
        }
    }
}

TEST_P(EveryIsa, keeps_the_derived_bound_on_real_numbers) {
  unsigned seed = 0;
  for (const char* scale : {"float16", "bfloat16", "float32", "e8m0", "float8_e4m3"})
    for (const Shape& shape : {kShapes[3], kShapes[8], kShapes[12], kShapes[14]})
      for (const TType& type : types(shape.block, scale)) {
        if (++seed % 3 != 0) continue;
        const RandomWeight w(type, shape.n, shape.k, Draw::any, shape.g_idx, seed);
        const std::int64_t m = kTokens[seed / 9 % std::size(kTokens)];
        ASSERT_NO_FATAL_FAILURE(
            expect_within_bound(w, GetParam(), {.dtype = kDtypes[seed / 3 % 3], .m = m}, seed));
      }
}

/// The same product with an unreadable page behind each buffer.
void expect_nothing_past_an_end(const RandomWeight& w, Isa isa, Case c) {
  Product p = product(w, isa, c, [](std::int64_t t, std::int64_t i) { return (t + i) % 3; });
  using ::ladder::testing::Fenced;
  const auto fence = [](const auto& v) { return Fenced(v.data(), v.size() * sizeof(v[0])); };
  Fenced codes = fence(w.codes), scales = fence(w.scales), zeros = fence(w.zeros);
  Fenced g_idx = fence(w.g_idx);
  const auto size = static_cast<std::size_t>(p.x.size);
  Fenced x(p.x.bytes.get(), static_cast<std::size_t>(c.m * w.k) * size);
  Fenced bias(p.bias.bytes.get(), static_cast<std::size_t>(w.n) * size);
  Fenced residual(p.residual.bytes.get(), static_cast<std::size_t>(c.m * w.n) * size);
  Fenced y(static_cast<std::size_t>(c.m * w.n) * size);
  WeightView view = w.view();
  view.codes = reinterpret_cast<const std::uint32_t*>(codes.data());
  if (view.scales != nullptr) view.scales = scales.data();
  if (view.zeros != nullptr) view.zeros = zeros.data();
  if (view.g_idx != nullptr) view.g_idx = reinterpret_cast<const std::int32_t*>(g_idx.data());
  linear(
      view, {x.data(), c.dtype, c.m, w.k, w.k},
      {.bias = c.bias ? bias.data() : nullptr, .residual = c.residual ? residual.data() : nullptr},
      {y.data(), c.dtype, c.m, w.n, w.n}, isa, serial, {});
  ASSERT_EQ(std::memcmp(y.data(), p.y.bytes.get(), static_cast<std::size_t>(c.m * w.n) * size), 0)
      << label(w, isa, c);
}

TEST_P(EveryIsa, reads_and_writes_nothing_past_an_end) {
  unsigned seed = 0;
  for (const char* scale : {"float16", "float8_e4m3"})
    for (const Shape& shape : kShapes)
      for (const TType& type : types(shape.block, scale)) {
        // Widths, groupings and dtypes all meet; not every name of the same width needs to.
        if (++seed % 7 != 0) continue;
        const RandomWeight w(type, shape.n, shape.k, Draw::exact, shape.g_idx, seed);
        const Scalar dtype = kDtypes[seed / 7 % 3];
        const std::int64_t m = kTokens[seed / 21 % std::size(kTokens)];
        ASSERT_NO_FATAL_FAILURE(expect_nothing_past_an_end(
            w, GetParam(), {.dtype = dtype, .m = m, .bias = true, .residual = seed % 2 == 0}));
      }
}

// Groups below, at and above the steps of a row and the pieces of a sum; rows of less than a step,
// of whole steps and of some columns more; rows that are no multiple of those multiplied at once.
TEST_P(EveryIsa, multiplies_one_token_by_tables_in_groups_of_every_size) {
  unsigned seed = 0;
  for (const int bits : {5, 6, 7, 8})
    for (const char* kind : {"long_table", "short_table", "signed_table"})
      for (const std::int64_t columns : {8, 16, 24, 32, 64, 128, 192, 256, 0})
        for (const std::int64_t k : {1, 31, 64, 253, 585}) {
          const TType type{.element = &element(kind + std::to_string(bits)),
                           .block = {1, columns},
                           .scale = &element("float16")};
          const Case c{.dtype = kDtypes[++seed % 3], .bias = seed % 2 == 0};
          const RandomWeight exact(type, 6, k, Draw::exact, false, seed);
          ASSERT_NO_FATAL_FAILURE(expect_exact(exact, GetParam(), c, seed));
          const RandomWeight any(type, 6, k, Draw::any, false, seed);
          ASSERT_NO_FATAL_FAILURE(expect_within_bound(any, GetParam(), c, seed));
          ASSERT_NO_FATAL_FAILURE(expect_nothing_past_an_end(any, GetParam(), c));
        }
}

TEST_P(EveryIsa, reads_the_named_block_types) {
  for (const NamedTType& named : named_ttypes())
    for (const std::int64_t m : {1, 4, 6}) {
      const RandomWeight exact(ttype(named.name), 9, 336, Draw::exact, false, 5);
      ASSERT_NO_FATAL_FAILURE(expect_exact(exact, GetParam(), {.m = m, .bias = true}, 5));
      const RandomWeight any(ttype(named.name), 9, 336, Draw::any, false, 6);
      ASSERT_NO_FATAL_FAILURE(expect_within_bound(any, GetParam(), {.m = m}, 6));
    }
}

// More columns than a piece of a row and more tokens than a tile of each of the kernels have;
// groups that end within a piece, with it, and past it.
TEST_P(EveryIsa, adds_up_the_pieces_of_long_rows) {
  for (const std::int64_t k : {512, 1300, 2100})
    for (const std::int64_t columns : {16, 64, 128, 768, 1024, 0})
      for (const std::int64_t m : {24, 35, 57}) {
        const TType type{
            .element = &element("int3"), .block = {1, columns}, .scale = &element("float16")};
        const RandomWeight w(type, 19, k, Draw::exact, false, static_cast<unsigned>(k + columns));
        for (const Scalar dtype : {Scalar::f32, Scalar::bf16})
          ASSERT_NO_FATAL_FAILURE(expect_exact(w, GetParam(), {.dtype = dtype, .m = m}, 9));
      }
}

// More tokens of long rows than any kernel multiplies before it decodes the rows again, and a last
// pass of fewer.
TEST_P(EveryIsa, adds_no_tokens_of_one_pass_to_those_of_another) {
  const RandomWeight w(ttype("uint4,group=32,scale=float16,zero=quantized"), 5, 8300, Draw::exact,
                       false, 7);
  ASSERT_NO_FATAL_FAILURE(expect_exact(w, GetParam(), {.m = 505, .bias = true}, 7));
}

TEST_P(EveryIsa, gives_large_products_to_the_library_where_it_is_quicker) {
  const RandomWeight w(ttype("uint4,group=32,scale=float16,zero=quantized"), 13, 70, Draw::exact,
                       false, 3);
  int calls = 0;
  const Gemm counted = [&](auto... arguments) {
    ++calls;
    plain_gemm(arguments...);
  };
  for (const Scalar dtype : {Scalar::f32, Scalar::f16, Scalar::bf16})
    ASSERT_NO_FATAL_FAILURE(
        expect_exact(w, GetParam(), {.dtype = dtype, .m = 1100, .bias = true}, 3, counted));
  EXPECT_EQ(calls > 0, kernels_of(GetParam()).many <= 1100);
  ASSERT_NO_FATAL_FAILURE(
      expect_exact(w, GetParam(), {.m = 1100, .bias = true, .residual = true}, 3));
}

TEST_P(EveryIsa, splits_rows_over_threads_without_changing_a_bit) {
  for (const char* type :
       {"uint3,group=32,scale=float16,zero=integer", "nf4,group=64,scale=float16",
        "float6_e3m2,group=128,scale=bfloat16", "int8,scale=float32"}) {
    const RandomWeight w(ttype(type), 37, 161, Draw::any, false, 4);
    for (const std::int64_t m : {1, 3, 20, 72}) {
      const auto x = [](std::int64_t t, std::int64_t i) { return std::sin(double(t * 7 + i)); };
      Product whole = product(w, GetParam(), {.m = m}, x);
      for (const std::int64_t threads : {2, 3, 7}) {
        Numbers y(m, w.n, Scalar::f32);
        linear(w.view(), whole.x.matrix(), {}, y.matrix(), GetParam(), on_threads(threads), {});
        EXPECT_EQ(
            std::memcmp(y.bytes.get(), whole.y.bytes.get(), static_cast<std::size_t>(m * w.n * 4)),
            0)
            << label(w, GetParam(), {.m = m}) << " on " << threads << " threads";
      }
    }
  }
}

TEST_P(EveryIsa, gathers_what_it_is_asked_for_and_no_more) {
  for (const std::int64_t size : {3, 20, 40})
    for (const std::int64_t count : {1, 7, 15, 16, 17, 33}) {
      std::vector<float> values(static_cast<std::size_t>(size));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
      std::vector<std::int32_t> index(static_cast<std::size_t>(count) + 16, 1 << 30);
      for (std::int64_t i = 0; i < count; ++i)
        index[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(7 * i % size);
      std::vector<float> to(index.size(), -1.0f);
      kernels_of(GetParam()).gather(values.data(), size, index.data(), count, to.data());
      for (std::size_t i = 0; i < to.size(); ++i)
        ASSERT_EQ(to[i], i < static_cast<std::size_t>(count)
                             ? values[static_cast<std::size_t>(index[i])]
                             : -1.0f)
            << size << " values, " << count << " asked for, at " << i;
    }
}

TEST_P(EveryIsa, accepts_no_tokens_and_no_columns) {
  const RandomWeight w(ttype("uint4,scale=float16"), 3, 20, Draw::exact, false, 1);
  Numbers x(0, 20, Scalar::f32), y(0, 3, Scalar::f32);
  linear(w.view(), x.matrix(), {}, y.matrix(), GetParam(), serial, {});
  const RandomWeight empty(ttype("uint4,scale=float16"), 3, 0, Draw::exact, false, 1);
  ASSERT_NO_FATAL_FAILURE(expect_exact(empty, GetParam(), {.m = 2, .bias = true}, 1));
}

TEST_P(EveryIsa, passes_infinities_and_nans_on) {
  TType type = ttype("float8_e5m2");
  RandomWeight w(type, 4, 9, Draw::exact, false, 2);
  auto* codes = reinterpret_cast<std::uint8_t*>(w.codes.data());
  codes[0] = 0x7c;       // infinity in row 0
  codes[12 + 1] = 0x7f;  // NaN in row 1
  Product p = product(w, GetParam(), {.m = 5}, [](auto, auto) { return 1.0; });
  EXPECT_EQ(p.y.get(4, 0), INFINITY);
  EXPECT_TRUE(std::isnan(p.y.get(0, 1)));
  EXPECT_TRUE(std::isfinite(p.y.get(4, 2)));
}

TEST_P(EveryIsa, finds_every_nan_in_a_row_and_leaves_its_neighbours) {
  for (const Element* e : elements())
    for (int code = 0; e->bits <= 8 && e->encoding == Encoding::floating && code < 1 << e->bits;
         ++code) {
      if (!std::isnan(decode(*e, static_cast<std::uint32_t>(code)))) continue;
      for (const std::int64_t k : {7, 64, 140})
        for (const std::int64_t m : {1, 2, 5}) {
          RandomWeight w({.element = e}, 6, k, Draw::exact, false, 3);
          const std::int64_t words = row_words(k, e->bits);
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(k));
          unpack_codes(w.codes.data() + 4 * words, 1, k, e->bits, codes.data());
          codes[static_cast<std::size_t>((code + m) % k)] = static_cast<std::uint8_t>(code);
          pack_codes(codes.data(), 1, k, e->bits, w.codes.data() + 4 * words);
          Product p = product(w, GetParam(), {.m = m}, [](auto, auto) { return 0.0; });
          for (std::int64_t t = 0; t < m; ++t)
            for (std::int64_t r = 0; r < w.n; ++r)
              ASSERT_EQ(std::isnan(p.y.get(t, r)), r == 4) << e->name << " code " << code;
        }
    }
}

/// Less those that differ in products with x of 8 bits only.
INSTANTIATE_TEST_SUITE_P(Cpu, EveryIsa, ::testing::ValuesIn(isas_that_differ([](Isa isa) {
                           return &kernels_of(isa);
                         })),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(CpuLinear, refuses_shapes_that_do_not_fit_with_both_numbers) {
  const RandomWeight w(ttype("uint4,scale=float16"), 3, 20, Draw::exact, false, 1);
  Numbers x(2, 21, Scalar::f32), y(2, 3, Scalar::f32);
  EXPECT_THAT([&] { linear(w.view(), x.matrix(), {}, y.matrix(), Isa::generic, serial, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("x has 21 columns, the weight 20")));
}

}  // namespace
}  // namespace ladder::cpu
