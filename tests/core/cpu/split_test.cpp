// SPDX-License-Identifier: Apache-2.0
//
// bfloat16 x by weights that no bfloat16 holds: some kernels take such for sums of bfloat16
// numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/linear.h"
#include "cpu/product.h"
#include "cpu/random_weight.h"

namespace ladder::cpu {
namespace {

using ::ladder::testing::Draw;

/// 256 values that differ by the last bits of a float32: no two bfloat16 make a value, and one each
/// difference.
const Element& neighbours() {
  std::vector<double> values;
  for (int code = 0; code < 256; ++code) values.push_back(1 + 0x1p-9 + code * 0x1p-23);
  register_table("neighbours", 8, values);
  return element("neighbours");
}

class EveryIsaSplit : public OnIsa {};

/// Fewer and more tokens than the loops of float32 are quicker for, a last tile of one, and of all.
constexpr std::int64_t kTokens[] = {3, 20, 24, 33, 64};

TEST_P(EveryIsaSplit, keeps_every_bit_of_a_value) {
  const Element& type = neighbours();
  for (const std::int64_t columns : {0, 16, 128})
    for (const std::int64_t m : kTokens) {
      RandomWeight w({.element = &type, .block = {1, columns}}, 70, 330, Draw::any, false,
                     static_cast<unsigned>(m));
      const Case c{.dtype = Scalar::bf16, .m = m};
      const auto first = [&](std::int64_t t) { return t * 41 % w.k; };
      const auto second = [&](std::int64_t t) { return (t * 41 + 7) % w.k; };
      const Product p = product(w, GetParam(), c, [&](std::int64_t t, std::int64_t i) {
        return i == first(t) ? 1.0 : i == second(t) ? -1.0 : 0.0;
      });
      for (std::int64_t t = 0; t < m; ++t)
        for (std::int64_t r = 0; r < w.n; ++r)
          ASSERT_EQ(p.y.get(t, r), exact_sum(w, p, c, t, r))
              << label(w, GetParam(), c) << " at " << t << ", " << r;
    }
}

TEST_P(EveryIsaSplit, passes_infinities_of_x_on) {
  // Of every 128 values one has a term of zero.
  const RandomWeight w({.element = &neighbours()}, 600, 140, Draw::any, false, 3);
  for (const std::int64_t m : kTokens) {
    const Case c{.dtype = Scalar::bf16, .m = m};
    const Product p = product(w, GetParam(), c, [](std::int64_t t, std::int64_t i) {
      return t == 1 && i == 130 ? std::numeric_limits<double>::infinity() : 1.0;
    });
    for (std::int64_t t = 0; t < m; ++t)
      for (std::int64_t r = 0; r < w.n; ++r)
        ASSERT_EQ(std::isinf(p.y.get(t, r)), t == 1) << label(w, GetParam(), c) << " at " << t;
  }
}

// Without padding, whose zeros times an infinity are NaN.
TEST_P(EveryIsaSplit, passes_infinite_and_missing_scales_on) {
  for (const float scale :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const std::int64_t m : kTokens) {
      RandomWeight w({.element = &neighbours(), .block = {1, 0}, .scale = &element("float32")}, 40,
                     256, Draw::exact, false, 3);
      std::memcpy(w.scales.data() + 33 * sizeof scale, &scale, sizeof scale);
      const Case c{.dtype = Scalar::bf16, .m = m};
      const Product p = product(w, GetParam(), c, [](auto, auto) { return 1.0; });
      for (std::int64_t t = 0; t < m; ++t)
        for (std::int64_t r = 0; r < w.n; ++r) {
          const double y = p.y.get(t, r);
          ASSERT_EQ(std::isfinite(y), r != 33) << label(w, GetParam(), c) << " at " << t;
          ASSERT_EQ(std::isnan(y), r == 33 && std::isnan(scale)) << label(w, GetParam(), c);
        }
    }
}

// Of 8, 16 and 24 significant bits in narrow groups, which pairs would scale one after the other.
TEST_P(EveryIsaSplit, is_exact_on_narrow_groups) {
  for (const char* type :
       {"nvfp4", "mxfp4", "int4,group=16,scale=float16",
        "uint4,group=32,scale=float16,zero=midpoint", "int8,group=16,scale=float32"})
    for (const std::int64_t m : {5, 16, 33, 270}) {
      const RandomWeight w(ttype(type), 70, 400, Draw::exact, false, static_cast<unsigned>(m));
      ASSERT_NO_FATAL_FAILURE(
          expect_exact(w, GetParam(), {.dtype = Scalar::bf16, .m = m, .bias = m == 5}, 4));
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, EveryIsaSplit, ::testing::ValuesIn(isas_that_differ([](Isa isa) {
                           return &kernels_of(isa);
                         })),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace ladder::cpu
