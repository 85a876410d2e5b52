// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions of other machines: their rows say who holds what, and the verifier and the
// interpreter ask nobody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

#include "codegen/cuda/emit.h"
#include "device/instructions.h"
#include "device/row.h"
#include "program_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::kMaxShared;
using testing::objection_to;
using ::testing::ThrowsMessage;
using testing::values_of;

/// y[m, n] = sum(k) a[m, k] b[n, k] by one instruction of each of `groups` of lanes, which have
/// rows of their own. `laid_out`: by whose fragments the tiles are laid out.
Program product(const MatrixInstruction& mma, const MatrixInstruction& laid_out, int groups) {
  Builder p("product", {.x = 1, .y = 1, .threads = laid_out.lanes() * groups});
  const Scalar operand = operand_scalar(mma).value();
  const std::int64_t m = laid_out.m * groups, n = laid_out.n;
  const auto a = p.input("a", operand, {1, m, mma.k}), b = p.input("b", operand, {1, n, mma.k}),
             y = p.output("y", mma.accumulator, {1, m, n});
  const Layout own_rows = spatial({1, groups, 1}), same_rows = replicated(groups, 3);
  const auto left = p.load(a, {0, 0, 0}, own_rows * lifted(laid_out.a())),
             right = p.load(b, {0, 0, 0}, same_rows * lifted(laid_out.b()));
  const auto sum = p.fill(mma.accumulator, own_rows * lifted(laid_out.d()), 0);
  p.mma_by(&mma, sum, left, right);
  p.store(sum, y, {0, 0, 0});
  return p.finish();
}

/// Small integers as `scalar` has them, and the bytes of that.
struct Numbers {
  std::vector<double> values;
  Argument argument;
};
Numbers numbers(Scalar scalar, std::int64_t count, int seed) {
  Numbers out{{}, Argument::output(static_cast<std::size_t>(count * bytes_of(scalar)))};
  for (std::int64_t i = 0; i < count; ++i) {
    out.values.push_back(static_cast<double>((i * 7 + seed) % 11 - 5));
    const std::uint32_t bits = to_bits(scalar, out.values.back());
    std::memcpy(&out.argument.bytes[static_cast<std::size_t>(i * bytes_of(scalar))], &bits,
                static_cast<std::size_t>(bytes_of(scalar)));
  }
  out.argument.written.assign(out.argument.bytes.size(), true);
  return out;
}

TEST(OtherLanes, multiply_exactly_by_their_rows) {
  std::set<int> lanes;
  for (const auto& mma : matrix_instructions()) {
    if (!operand_scalar(mma) || mma.copies > 1 || !mma.b_in_registers()) continue;
    const Scalar operand = *operand_scalar(mma);
    const int groups = std::max(2, 32 / mma.lanes());  // whole warps
    const std::int64_t m = mma.m * groups;
    const auto a = numbers(operand, m * mma.k, 1), b = numbers(operand, mma.n * mma.k, 4);
    std::vector<Argument> arguments = {
        a.argument, b.argument,
        Argument::output(static_cast<std::size_t>(m * mma.n * bytes_of(mma.accumulator)))};
    ASSERT_EQ(objection_to(product(mma, mma, groups), arguments), "") << mma.name;
    const auto sums = values_of<std::uint32_t>(arguments[2]);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < mma.n; ++j) {
        double exact = 0;
        for (int k = 0; k < mma.k; ++k) exact += a.values[i * mma.k + k] * b.values[j * mma.k + k];
        ASSERT_EQ(to_number(mma.accumulator, sums[i * mma.n + j]), exact)
            << mma.name << ' ' << i << ' ' << j;
      }
    }
    lanes.insert(mma.lanes());
  }
  EXPECT_THAT(lanes, ::testing::IsSupersetOf({1, 32, 64}));
}

TEST(OtherLanes, are_held_to_their_fragments) {
  const auto &wave = row("v_mfma_f32_16x16x16_f16"), &warp = row("mma.m16n8k16.f16");
  EXPECT_THAT([&] { verify(product(wave, warp, 4), kMaxShared); },
              ThrowsMessage<InternalError>(
                  HasSubstr("is not laid out as the A operand of the matrix instruction")));
}

TEST(OtherLanes, have_no_kernels_where_the_target_has_no_wrapper) {
  const auto& wave = row("v_mfma_f32_16x16x16_f16");
  EXPECT_THAT([&] { cuda::emit(product(wave, wave, 1)); },
              ThrowsMessage<Unsupported>("kernels do not multiply by v_mfma_f32_16x16x16_f16"));
}

TEST(OtherLanes, that_read_shared_memory_are_refused_by_name) {
  Builder p("product", {.x = 1, .y = 1, .threads = 128});
  const auto &mma = row("wgmma.m64nNk16.f16"), &warp = row("mma.m16n8k16.f16");
  const auto of = [&](const Layout& layout) { return p.fill(Scalar::f16, lifted(layout), 1); };
  p.mma_by(&mma, p.fill(Scalar::f32, lifted(mma.d()), 0), of(mma.a()),
           p.fill(Scalar::f16, replicated(4, 3) * lifted(warp.b()), 1));
  EXPECT_THAT(
      [&] { verify(p.finish(), kMaxShared); },
      ThrowsMessage<InternalError>(HasSubstr("wgmma.m64nNk16.f16 reads B from shared memory")));
}

}  // namespace
}  // namespace ladder
