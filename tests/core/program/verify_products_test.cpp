// SPDX-License-Identifier: Apache-2.0
//
// What the verifier objects to in products by warpgroups, whose activations lie swizzled in shared
// memory: each rule, one slip at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pipelines/lower.h"
#include "program/tile_cases.h"
#include "program/verify_slips.h"

namespace ladder {
namespace {

using namespace ladder::testing;  // NOLINT: the helpers of these tests

/// 64 rows by 24 tokens, k-tiles of two panels.
Program by_warpgroups() {
  const auto cases = tile_case(kWarpgroupShapes[0], ttype("uint4,group=128,scale=float16"),
                               Scalar::f16, Reduction::none, Route::multiply_add, false, 3, true);
  LADDER_CHECK(cases.size() == 1, "no such tile");
  const auto& [problem, schedule] = cases.front();
  return lower(decide(problem, device("h200")), schedule);
}

View& view(Program& p, const MmaShared& i) { return p.views[i.from]; }

/// Elements along `dim` in another order: digits of lanes and of slots get strides in place of
/// those that they have.
struct Stride {
  std::int64_t before, behind;
};
void reorder(Layout& layout, int dim, Stride lanes, Stride slots) {
  const auto change = [dim](std::vector<Digit>& digits, Stride stride) {
    for (Digit& digit : digits) {
      if (digit.dim == dim && digit.stride == stride.before) digit.stride = stride.behind;
    }
  };
  change(layout.threads, lanes);
  change(layout.slots, slots);
}

TEST(VerifyProducts, by_an_instruction_that_is_none_of_warpgroups) {
  const auto p = by_warpgroups();
  const char* text = "an instruction that does not read B from shared memory";
  expect<MmaShared>(p, text, [](Program&, MmaShared& i) { i.row = nullptr; });
  expect<MmaShared>(p, text, [](Program&, MmaShared& i) { i.row = tile_instruction(Scalar::f16); });
}

TEST(VerifyProducts, of_scalars_that_it_does_not_take) {
  const auto p = by_warpgroups();
  const char* text = "scalars that wgmma.m64nNk16.f16 does not take";
  expect<MmaShared>(p, text,
                    [](Program& p, MmaShared& i) { p.registers[i.a].scalar = Scalar::bf16; });
  expect<MmaShared>(p, text,
                    [](Program& p, MmaShared& i) { buffer(p, i.from).scalar = Scalar::bf16; });
  expect<MmaShared>(p, text,
                    [](Program& p, MmaShared& i) { p.registers[i.acc].scalar = Scalar::s32; });
}

TEST(VerifyProducts, of_tokens_that_it_does_not_have) {
  const auto p = by_warpgroups();
  expect<MmaShared>(p, "acc is not [rows, tokens] of warps", [](Program& p, MmaShared& i) {
    layout(p, i.acc) = spatial({64, 2});
  });
  expect<MmaShared>(p, "20 tokens, no multiple of 8 up to 256",
                    [](Program& p, MmaShared& i) { layout(p, i.acc).shape[2] = 20; });
  expect<MmaShared>(p, "264 tokens, no multiple of 8 up to 256",
                    [](Program& p, MmaShared& i) { layout(p, i.acc).shape[2] = 264; });
}

TEST(VerifyProducts, of_tokens_that_those_of_integers_do_not_come_with) {
  const auto cases = tile_case(kByteShapes[1], ttype("uint4,group=128,scale=float16"), Scalar::f16,
                               Reduction::none, Route::bytes, false, 3, true, Scalar::s8);
  ASSERT_EQ(cases.size(), 1U);
  const auto& [problem, schedule] = cases.front();
  const auto p = lower(decide(problem, device("h200")), schedule);
  expect<MmaShared>(p, "40 tokens, which wgmma.m64nNk32.s8 does not come with",
                    [](Program& p, MmaShared& i) { layout(p, i.acc).shape[2] = 40; });
  expect<MmaShared>(p, "scalars that wgmma.m64nNk32.s8 does not take",
                    [](Program& p, MmaShared& i) { p.registers[i.a].scalar = Scalar::e4m3; });
}

TEST(VerifyProducts, of_registers_that_are_not_its_operands) {
  const auto p = by_warpgroups();
  const char* text = "a and acc are not operands of wgmma.m64nNk16.f16";
  expect<MmaShared>(p, text, [](Program& p, MmaShared& i) { layout(p, i.a) = spatial({64, 2}); });
  expect<MmaShared>(p, text, [](Program& p, MmaShared& i) {
    layout(p, i.a) = local({1, 2, 1}) * layout(p, i.a);  // twice the rows of the sums
  });
  expect<MmaShared>(p, text, [](Program& p, MmaShared& i) {
    layout(p, i.acc) = local({1, 2, 1}) * layout(p, i.acc);
  });
  expect<MmaShared>(p, text, [](Program& p, MmaShared&) { p.threads = 96; });
  // Columns in another order than shared memory has them, then tokens, then rows of the two.
  expect<MmaShared>(p, text, [](Program& p, MmaShared& i) {
    reorder(layout(p, i.a), 2, {2, 1}, {1, 4});
  });
  expect<MmaShared>(p, text, [](Program& p, MmaShared& i) {
    reorder(layout(p, i.acc), 2, {2, 1}, {1, 4});
  });
  expect<MmaShared>(p, text, [](Program& p, MmaShared& i) {
    reorder(layout(p, i.acc), 1, {1, 2}, {8, 1});
  });
}

TEST(VerifyProducts, of_a_view_that_is_not_swizzled_panels) {
  const auto p = by_warpgroups();
  const auto refused = [&](const auto& slip) {
    expect<MmaShared>(p, "x_ring is not [tiles, tokens, panels, 128 bytes], swizzled", slip);
  };
  refused([](Program& p, MmaShared& i) { buffer(p, i.from).level = Level::global; });
  refused([](Program& p, MmaShared& i) { view(p, i).is_swizzled = false; });
  refused([](Program& p, MmaShared& i) {
    view(p, i).extents.pop_back(), view(p, i).strides.pop_back();
  });
  refused([](Program&, MmaShared& i) { i.at.pop_back(); });
  refused([](Program& p, MmaShared& i) { view(p, i).extents[3] = 32; });
  refused([](Program& p, MmaShared& i) { view(p, i).strides[3] = 2; });
  refused([](Program& p, MmaShared& i) { view(p, i).strides[1] = 72; });
  refused([](Program& p, MmaShared& i) { view(p, i).strides[0] += 64; });
  refused([](Program& p, MmaShared& i) { view(p, i).strides[2] += 64; });
  refused([](Program&, MmaShared& i) { i.at[1] = 4; });
  refused([](Program&, MmaShared& i) { i.at[3] = 8; });
}

TEST(VerifyProducts, outside_their_view) {
  const auto p = by_warpgroups();
  expect<MmaShared>(p, "dimension 0 reaches 4 of 3", [](Program&, MmaShared& i) { i.at[0] = 3; });
  expect<MmaShared>(p, "dimension 0 reaches 0 of 3", [](Program&, MmaShared& i) { i.at[0] = -1; });
  expect<MmaShared>(p, "dimension 1 reaches 24 of 16",
                    [](Program& p, MmaShared& i) { view(p, i).extents[1] = 16; });
  expect<MmaShared>(p, "dimension 1 reaches 32 of 24", [](Program&, MmaShared& i) { i.at[1] = 8; });
  expect<MmaShared>(p, "dimension 2 reaches 3 of 2", [](Program&, MmaShared& i) { i.at[2] = 2; });
  expect<MmaShared>(p, "dimension 3 reaches 80 of 64",
                    [](Program&, MmaShared& i) { i.at[3] = 64; });
}

TEST(VerifyProducts, swizzled_memory_that_something_else_would_read_or_that_begins_elsewhere) {
  const auto p = by_warpgroups();
  expect<MmaShared>(p, "x_ring is swizzled at multiples of 128 bytes",
                    [](Program& p, MmaShared& i) { buffer(p, i.from).alignment = 128; });
  expect<Load>(p, " is swizzled, in: ", [](Program& p, Load& i) {
    p.views[i.from].is_swizzled = true, buffer(p, i.from).alignment = kSwizzleAlignment;
  });
}

// Rows of activations are copied to panels that lie apart.
TEST(VerifyProducts, copies_to_panels_that_are_not_whole_pieces) {
  Program p = by_warpgroups();
  p.body.erase(p.body.begin(), p.body.begin() + 2);  // the first copies of weights and scales
  ASSERT_EQ(p.views[first<CopyAsync>(p.body)->to].extents.size(), 3U);
  const auto refused = [&](const auto& slip) {
    expect<CopyAsync>(p, "rows that are not whole pieces of 16 bytes", slip);
  };
  for (const int d : {0, 1}) {
    refused([d](Program& p, CopyAsync& i) { p.views[i.to].strides[d] += 4; });
  }
  refused([](Program& p, CopyAsync& i) { p.views[i.to].strides[2] = 2; });
  refused([](Program& p, CopyAsync& i) { p.views[i.to].extents[2] = 60; });
  refused([](Program& p, CopyAsync& i) {
    View& to = p.views[i.to];
    to.extents.insert(to.extents.begin(), 1), to.strides.insert(to.strides.begin(), 0);
  });
}

}  // namespace
}  // namespace ladder
