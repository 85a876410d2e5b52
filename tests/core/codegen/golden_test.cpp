// SPDX-License-Identifier: Apache-2.0
//
// The whole text of one kernel of each shape that lowering has, so that a change of the emitter is
// read before it is kept. `make golden` renews the files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "codegen/cuda/prelude.h"
#include "compile.h"
#include "expr/constructors.h"
#include "integer_layer.h"

namespace ladder {
namespace {

/// Compares with golden/`name`.cu, or writes it. The prelude is the same for all and left out.
template <class S = DecodeSchedule>
void expect_golden(const std::string& name, const Problem& problem, const S& schedule,
                   const char* on = "h200") {
  const auto source = compile(decide(problem, device(on)), schedule).source;
  const auto text = "// SPDX-License-Identifier: Apache-2.0\n// " + to_string(problem) + "\n// " +
                    to_string(schedule) + source.substr(cuda::prelude().size());
  const auto path = LADDER_GOLDEN "/" + name + ".cu";
  if (std::getenv("LADDER_RENEW_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    GTEST_SKIP() << "renewed " << path;
  }
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(text, golden.str()) << "`make golden` renews " << path;
}

TEST(Golden, all_at_once_in_a_cluster) {
  expect_golden("at_once", testing::integer_layer(3, 4, 64, Scalar::bf16, 8, 64, 256, Scalar::bf16),
                {.tokens = 8,
                 .warps_n = 1,
                 .warps_k = 2,
                 .blocks_per_warp = 1,
                 .reduction = Reduction::cluster,
                 .dependent_launch = true,
                 .ctas_per_sm = 4});
}

TEST(Golden, k_tiles_through_registers_summed_in_order) {
  expect_golden("double_buffered", testing::integer_layer(4, 8, 128, Scalar::f16, 8, 256, 512),
                {.tokens = 8,
                 .warps_n = 2,
                 .warps_k = 2,
                 .blocks_per_warp = 1,
                 .weights = weights::DoubleBuffered{.k_tiles = 2},
                 .reduction = Reduction::ordered,
                 .ctas_per_sm = 2});
}

TEST(Golden, a_ring_of_k_tiles_in_place) {
  expect_golden("ring", testing::integer_layer(4, 8, 128, Scalar::f16, 8, 128, 512),
                {.tokens = 8,
                 .warps_n = 2,
                 .warps_k = 1,
                 .blocks_per_warp = 1,
                 .weights = weights::Ring{.k_tiles = 4, .stages = 2},
                 .reduction = Reduction::cluster,
                 .route = Route::in_place,
                 .ctas_per_sm = 2});
}

TEST(Golden, floats_moved_into_place_with_scales_of_one_byte) {
  expect_golden("mxfp4", linear_of(ttype("mxfp4"), 64, 128, Scalar::bf16, 8),
                {.tokens = 8,
                 .warps_n = 1,
                 .warps_k = 1,
                 .blocks_per_warp = 1,
                 .weights = weights::Ring{.k_tiles = 2, .stages = 2}});
}

TEST(Golden, a_table_in_shared_memory) {
  expect_golden("nf4", linear_of(ttype("nf4,group=64,scale=float16"), 64, 128, Scalar::f16, 8),
                {.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1});
}

TEST(Golden, stored_zero_points_a_bias_and_permuted_columns) {
  Problem problem =
      linear_of(ttype("uint4,group=64,scale=bfloat16,zero=integer"), 64, 128, Scalar::f16, 8);
  problem.permuted_columns = true, problem.set_bias(true);
  expect_golden("zeros", problem, {.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1});
}

TEST(Golden, a_tile_of_two_stages_for_turing) {
  expect_golden("turing_tile", testing::integer_layer(4, 8, 64, Scalar::f16, 32, 64, 256),
                TileSchedule{.rows = 64,
                             .tokens = 32,
                             .columns = 64,
                             .warps_n = 2,
                             .warps_m = 1,
                             .k_tiles = 2,
                             .stages = 2,
                             .reduction = Reduction::ordered,
                             .route = Route::multiply_add,
                             .ctas_per_sm = 2},
                "t4");
}

}  // namespace
}  // namespace ladder
