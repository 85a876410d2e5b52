// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu/fenced.h"
#include "cpu/int8/codes.h"
#include "cpu/int8/linear.h"
#include "cpu/isa.h"
#include "cpu/product.h"
#include "cpu/random_weight.h"

namespace ladder::cpu::int8 {
namespace {

using ::ladder::testing::Draw;
using ::ladder::testing::Fenced;

class EveryIsaInt8 : public OnIsa {};

bool is_taken(const TType& type, std::int64_t k) {
  try {
    check(type);
    check_type(type, k);
    return codes_of(*type.element).exact;
  } catch (const InvalidArgument&) {  // no such type
    return false;
  } catch (const Unsupported&) {  // not with x of 8 bits
    return false;
  }
}

/// Every element whose values are whole multiples of a power of two, with every kind of zeros.
std::vector<TType> types(Block block, const char* scale, std::int64_t k) {
  std::vector<TType> all;
  for (const Element* e : elements())
    for (const Zero zero : {Zero::none, Zero::midpoint, Zero::integer, Zero::quantized,
                            Zero::original, Zero::rescale}) {
      const TType type{.element = e, .block = block, .scale = &element(scale), .zero = zero};
      if (is_taken(type, k)) all.push_back(type);
      const TType whole = testing::with_integer_scales(type);
      if (e->bits <= 4 && is_taken(whole, k)) all.push_back(whole);
    }
  return all;
}

/// Whole numbers of which rounding to 8 bits changes none: every 32 columns have 127 or -127.
double whole(std::int64_t t, std::int64_t i) {
  const std::int64_t mixed = (t * 7919 + i * 104729) % 255;
  return i % 32 == (t * 5) % 32 || i % 32 == 0 ? (mixed % 2 == 0 ? 127 : -127)
                                               : static_cast<double>(mixed % 9 - 4);
}

/// x in 8 bits as the header says, in the order [m, k].
std::vector<double> rounded(const std::vector<double>& x, std::int64_t k, std::int64_t block) {
  std::vector<double> out;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(k))
    for (std::int64_t begin = 0; begin < k; begin += block) {
      float most = 0;
      const std::int64_t end = std::min(begin + block, k);
      for (std::int64_t i = begin; i < end; ++i)
        most = std::max(most, static_cast<float>(std::abs(x[row + static_cast<std::size_t>(i)])));
      for (std::int64_t i = begin; i < end; ++i) {
        const float value = static_cast<float>(x[row + static_cast<std::size_t>(i)]);
        const float q = most < 0x1p-100f ? 0 : std::nearbyint(value * (127.0f / most));
        out.push_back(double{q} * double{most / 127.0f});
      }
    }
  return out;
}

struct Shape {
  std::int64_t n, k;
  Block block;
};

// K below and above a block of 32 and of 128 columns, ending inside a word; groups that are a part
// of a block, a whole one, several, and neither; rows below and above the tiles of all kernels.
const Shape kShapes[] = {
    {1, 1, {1, 0}},    {3, 15, {1, 8}},     {5, 33, {1, 16}},    {9, 127, {1, 32}},
    {8, 128, {1, 0}},  {17, 260, {1, 128}}, {33, 300, {1, 256}}, {4, 200, {1, 24}},
    {7, 129, {1, 64}}, {19, 150, {1, 40}},  {6, 96, {4, 32}},    {70, 64, {1, 0}},
};
constexpr std::int64_t kTokens[] = {1, 2, 3, 4, 5, 7, 13, 16, 17, 33, 40};

template <class Value>
Product product8(const RandomWeight& w, Isa isa, Case c, Value x_value,
                 const Parallel& parallel = serial) {
  Product p = product(w, Isa::generic, c, x_value);
  std::memset(p.y.bytes.get(), 0xff, static_cast<std::size_t>(c.m * w.n * p.y.size));
  linear(w.view(), p.x.matrix(), p.addends(c), p.y.matrix(), isa, parallel);
  return p;
}

TEST_P(EveryIsaInt8, is_exact_on_whole_numbers_for_every_type_zero_and_shape) {
  unsigned seed = 0;
  for (const Shape& shape : kShapes)
    for (const TType& type : types(shape.block, "float16", shape.k)) {
      ++seed;
      const RandomWeight w(type, shape.n, shape.k, Draw::exact, false, seed);
      const Case c{.dtype = kDtypes[seed % 3],
                   .m = kTokens[seed / 3 % std::size(kTokens)],
                   .bias = seed % 2 == 0,
                   .residual = seed % 5 < 2};
      const Product p = product8(w, GetParam(), c, whole);
      const Element& format = format_of(c.dtype);
      for (std::int64_t t = 0; t < c.m; ++t)
        for (std::int64_t r = 0; r < w.n; ++r) {
          const double wanted =
              decode(format, encode(format, exact_sum(w, p, c, t, r), Overflow::special));
          ASSERT_EQ(p.y.get(t, r), wanted) << label(w, GetParam(), c) << " at " << t << ", " << r;
        }
    }
}

TEST_P(EveryIsaInt8, keeps_the_derived_bound_on_real_numbers_rounded_to_8_bits) {
  unsigned seed = 0;
  for (const char* scale : {"float16", "bfloat16", "float32"})
    for (const Shape& shape : kShapes)
      for (const TType& type : types(shape.block, scale, shape.k)) {
        // Zeros that are fractions are taken from sums in float32, not from integers.
        if (++seed % 3 != 0 || type.zero == Zero::original || type.zero == Zero::rescale) continue;
        const RandomWeight w(type, shape.n, shape.k, Draw::any, false, seed);
        const Case c{.m = kTokens[seed / 3 % std::size(kTokens)]};
        Product p = product8(w, GetParam(), c, [](std::int64_t t, std::int64_t i) {
          return std::sin(static_cast<double>(t * 31 + i * 17 + 1)) * std::exp2(i % 7);
        });
        p.x_values = rounded(p.x_values, w.k, x_block(type, w.k));
        for (std::int64_t t = 0; t < c.m; ++t)
          for (std::int64_t r = 0; r < w.n; ++r) {
            double magnitude = 0;
            for (std::int64_t i = 0; i < w.k; ++i)
              magnitude += std::abs(p.x_values[static_cast<std::size_t>(t * w.k + i)] *
                                    w.values[static_cast<std::size_t>(r * w.k + i)]);
            const double wanted = exact_sum(w, p, c, t, r);
            const double bound = 6 * std::sqrt(static_cast<double>(w.k)) * 0x1p-24 * magnitude +
                                 0x1p-24 * std::abs(wanted);
            ASSERT_LE(std::abs(p.y.get(t, r) - wanted), bound)
                << label(w, GetParam(), c) << " at " << t << ", " << r;
          }
      }
}

TEST_P(EveryIsaInt8, reads_and_writes_nothing_past_an_end_on_any_number_of_threads) {
  unsigned seed = 0;
  for (const Shape& shape : kShapes)
    for (const TType& type : types(shape.block, "float16", shape.k)) {
      if (++seed % 5 != 0) continue;
      const RandomWeight w(type, shape.n, shape.k, Draw::exact, false, seed);
      const std::int64_t m = kTokens[seed / 5 % std::size(kTokens)];
      Product p = product8(w, GetParam(), {.m = m}, whole);
      const auto fence = [](const auto& v) { return Fenced(v.data(), v.size() * sizeof(v[0])); };
      Fenced codes = fence(w.codes), scales = fence(w.scales), zeros = fence(w.zeros);
      Fenced x(p.x.bytes.get(), static_cast<std::size_t>(m * w.k * 4));
      Fenced y(static_cast<std::size_t>(m * w.n * 4));
      WeightView view = w.view();
      view.codes = reinterpret_cast<const std::uint32_t*>(codes.data());
      if (view.scales != nullptr) view.scales = scales.data();
      if (view.zeros != nullptr) view.zeros = zeros.data();
      linear(view, {x.data(), Scalar::f32, m, w.k, w.k}, {}, {y.data(), Scalar::f32, m, w.n, w.n},
             GetParam(), on_threads(1 + seed % 4));
      ASSERT_EQ(std::memcmp(y.data(), p.y.bytes.get(), static_cast<std::size_t>(m * w.n * 4)), 0)
          << label(w, GetParam(), {.m = m});
    }
}

TEST_P(EveryIsaInt8, takes_whole_tables_of_8_bits) {
  // All values of 8 bits out of order, so that every part of a table is looked up; less their zero
  // they fit a signed byte, or are too large, or too small.
  for (const int first : {-128, -60, -200}) {
    std::vector<double> values;
    for (int code = 0; code < 256; ++code) values.push_back((code * 77 + 5) % 256 + first);
    const std::string name = "int8_test_from" + std::to_string(-first);
    const Element& shuffled = register_table(name, 8, values);
    const TType type{.element = &shuffled, .block = {1, 64}, .scale = &element("float32")};
    RandomWeight w(type, 11, 256, Draw::any, false, 5);
    for (const std::int64_t m : {6, 20}) {
      const Product p = product8(w, GetParam(), {.m = m}, whole);
      for (std::int64_t t = 0; t < m; ++t)
        for (std::int64_t r = 0; r < w.n; ++r) {
          double magnitude = 0;
          for (std::int64_t i = 0; i < w.k; ++i)
            magnitude += std::abs(p.x_values[static_cast<std::size_t>(t * w.k + i)] *
                                  w.values[static_cast<std::size_t>(r * w.k + i)]);
          ASSERT_LE(std::abs(p.y.get(t, r) - exact_sum(w, p, {}, t, r)),
                    6 * 16 * 0x1p-24 * magnitude)
              << name << " at " << t << ", " << r;
        }
    }
  }
}

/// AVX-512 with bfloat16 products is AVX-512 here.
INSTANTIATE_TEST_SUITE_P(Cpu, EveryIsaInt8, ::testing::ValuesIn(isas_that_differ([](Isa isa) {
                           return std::pair(&int8_kernels_of(isa), kernels_of(isa).widen);
                         })),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace ladder::cpu::int8
