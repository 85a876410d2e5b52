// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

TEST(Hint, of_the_a100_is_the_one_worked_out_for_it) {
  const auto& mma = *instructions(80, Scalar::f16).front();
  EXPECT_EQ(hint(device("a100"), mma), (Hint{16, {4, 8}}));
}

TEST(Device, every_row_has_a_source_and_consistent_capacities) {
  for (const Device& row : devices()) {
    EXPECT_FALSE(row.source.empty()) << row.name;
    EXPECT_LE(row.shared_per_block_bytes, row.shared.capacity_bytes) << row.name;
    EXPECT_LT(row.shared.capacity_bytes, row.l2.capacity_bytes) << row.name;
    EXPECT_LT(row.l2.capacity_bytes, row.global.capacity_bytes) << row.name;
    EXPECT_EQ(row.max_cluster > 1, row.capability >= 90) << row.name;
  }
}

TEST(Device, an_unknown_name_is_refused_with_the_known_ones) {
  EXPECT_THAT([] { device("h300"); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("h200")));
}

TEST(MatrixInstruction, fragments_hold_each_element_once) {
  for (Scalar operand : {Scalar::f16, Scalar::bf16}) {
    EXPECT_TRUE(instructions(75, operand).empty());
    for (const auto* row : instructions(100, operand)) {
      for (const Layout& layout : {row->a(), row->b(), row->d()}) {
        EXPECT_TRUE(is_bijective(layout)) << row->name;
        EXPECT_EQ(layout.thread_count(), 32) << row->name;
      }
    }
  }
}

TEST(MatrixInstruction, a_block_of_the_weight_image_is_made_of_a_operands) {
  const auto& mma = *instructions(80, Scalar::f16).front();
  const auto outer = block_fragment() / mma.a();
  ASSERT_TRUE(outer);
  EXPECT_EQ(*outer, local({4, 4}));
}

}  // namespace
}  // namespace ladder
