// SPDX-License-Identifier: Apache-2.0
#include "bounds/einsum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bounds/mapping.h"
#include "bounds/slope.h"

namespace ladder::bounds {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

template <class Call>
void refused(Call call, const char* why) {
  EXPECT_THAT(call, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
}

TEST(Einsum, sizes_below_one_are_refused_by_name) {
  refused([] { matmul(0, 4, 4); }, "rank M is 0, less than 1");
  refused([] { matmul(4, 4, -3); }, "rank K is -3, less than 1");
  refused([] { conv2d({.kernel_height = 3, .stride = 0}); }, "coefficient of rank P");
}

TEST(Einsum, a_rank_that_no_tensor_uses_is_refused) {
  Einsum einsum = matmul(2, 2, 2);
  einsum.ranks.push_back({"Z", 5});
  refused([&] { ski_slope(einsum); }, "no tensor uses rank Z");
}

TEST(Einsum, counts_past_63_bits_are_refused) {
  refused([] { matmul(1ll << 31, 1ll << 31, 1ll << 31); }, "does not fit 63 bits");
  refused([] { matmul(1ll << 62, 1, 1); }, "does not fit 63 bits");
  refused([] { conv1d({.width = 1ll << 40, .kernel_width = 2, .stride = 1ll << 30}); },
          "does not fit 63 bits");
  EXPECT_NO_THROW(matmul(1ll << 20, 1ll << 20, 1ll << 20));
}

TEST(Einsum, more_than_seven_ranks_are_refused) {
  Einsum einsum = conv2d({.batch = 2, .kernel_height = 3});
  einsum.ranks.push_back({"Z", 5});
  einsum.tensors[0].axes.push_back({{7}});
  refused([&] { validate(einsum); }, "8 ranks; at most 7");
}

TEST(Einsum, scattered_outputs_and_repeated_ranks_are_refused) {
  Einsum scatter = matmul(2, 2, 2);
  scatter.tensors[2].axes[0] = {{0}, {2}};
  refused([&] { validate(scatter); }, "is not a plain rank");
  Einsum diagonal = matmul(2, 2, 2);
  diagonal.tensors[0].axes.push_back({{0}});
  refused([&] { validate(diagonal); }, "uses rank M more than once");
}

TEST(Einsum, heads_that_do_not_divide_into_groups_are_refused) {
  refused([] { grouped_matmul(32, 5, 1, 1, 1); }, "32 heads do not divide into 5 groups");
}

TEST(Einsum, elements_without_bytes_are_refused) {
  refused([] { matmul(2, 2, 2, {.a = {.store = 0}}); }, "tensor a has 0 bytes");
  refused([] { matmul(2, 2, 2, {.w = {.store = 1, .buffer = 1, .code = 2}}); }, "the code");
}

TEST(Einsum, a_strided_input_has_holes_that_are_not_touched) {
  const Einsum pointwise = conv2d({.in_channels = 64, .height = 16, .width = 16, .stride = 2});
  EXPECT_EQ(elements(pointwise, pointwise.tensors[0]), 64 * 31 * 31);
  EXPECT_EQ(touched_elements(pointwise, pointwise.tensors[0]), 64 * 16 * 16);
}

TEST(Einsum, counts_operations_without_the_first_addition) {
  EXPECT_EQ(operations(matmul(4, 3, 5)), 2 * 60 - 12);
}

TEST(Mappings, of_a_4096_matmul_are_those_of_table_one) {
  EXPECT_EQ(mapping_count(matmul(4096, 4096, 4096)), 11269);
  EXPECT_EQ(mapping_count(matmul(4096, 4096, 4096), true), 90152);
}

TEST(Mappings, that_do_not_fit_are_refused) {
  refused([] { traffic_bytes(matmul(4, 4, 4), {{5, 1, 1}, {0, 1, 2}}); }, "not in 1..4");
  refused([] { traffic_bytes(matmul(4, 4, 4), {{1, 1, 1}, {0, 1, 1}}); }, "every rank once");
}

TEST(TileSizes, of_integers_give_every_number_of_blocks_once) {
  EXPECT_EQ(tile_sizes(12, Factors::divisors), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 12}));
  for (std::int64_t size = 1; size <= 300; ++size) {
    std::vector<std::int64_t> every;
    for (std::int64_t j = size; j >= 1; --j) {
      const std::int64_t tile = (size + j - 1) / j;
      if (every.empty() || every.back() != tile) every.push_back(tile);
    }
    EXPECT_EQ(tile_sizes(size, Factors::integers), every) << size;
  }
  EXPECT_EQ(tile_sizes(4096, Factors::integers).size(), 127);
}

}  // namespace
}  // namespace ladder::bounds
