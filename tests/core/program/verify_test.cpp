// SPDX-License-Identifier: Apache-2.0
//
// What the verifier objects to, one slip at a time: each rule that neither a mutation test nor a
// test of an instruction meets, in a program that was well formed before. verify_products_test.cpp
// has those of products by warpgroups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"
#include "expr/constructors.h"
#include "pipelines/lower.h"
#include "program/builder.h"
#include "program/program_case.h"
#include "program/verify_slips.h"

namespace ladder {
namespace {

using namespace ladder::testing;  // NOLINT: the helpers of these tests

/// A program for weights of that type with an instruction of that kind.
template <class T>
Program lowered(const char* type, std::int64_t m = 8, bool gather = false) {
  Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::f16, m);
  problem.permuted_columns = gather;
  for (const Candidate& candidate : candidates(decide(problem, device("h200")))) {
    if (!candidate.dropped.empty()) break;
    Program program = lower(decide(problem, device("h200")), candidate.schedule);
    if (first<T>(program.body) != nullptr) return program;
  }
  fail<InvalidArgument>("no program of ", type, " has it");
}

/// Sums over two warps, and what is for tiles that no kernel of ours has.
Program elementwise() {
  Builder p("tiles", {.x = 1, .y = 1, .threads = 64});
  const auto x = p.input("x", Scalar::f32, {32, 64}), y = p.output("y", Scalar::f32, {32, 1});
  const auto tile = p.load(x, {0, 0}, local({32, 1}) * spatial({1, 64}));
  const auto root = p.unary(UnaryOp::square_root, tile);
  const auto sum = p.reduce(ReduceOp::add, p.binary(BinaryOp::add, root, tile), 1);
  p.store(sum, y, {0, 0});
  return p.finish();
}

TEST(Verify, tiles_that_do_not_fit_each_other) {
  const auto p = lowered<Reinterpret>("uint4,group=128,scale=float16", 16);
  expect<Reinterpret>(p, "a view that moves bits",
                      [](Program& p, Reinterpret& i) { p.registers[i.to].scalar = Scalar::f32; });
  expect<Fill>(p, " is u4", [](Program& p, Fill& i) {
    p.registers[i.to].scalar = Scalar::u32, p.registers[i.to].width = 4;
  });
  expect<Add>(p, "tiles whose slots do not match", [](Program& p, Add& i) {
    layout(p, i.from) = layout(p, i.from) * local({1, 1, 3});
  });
  expect<Cast>(p, "are laid out differently", [](Program& p, Cast& i) {
    layout(p, i.to) = layout(p, i.to) * local({1, 1, 2});
  });
}

TEST(Verify, operations_on_what_they_do_not_take) {
  const auto p = elementwise();
  expect<Unary>(p, "not f32", [](Program& p, Unary& i) { p.registers[i.to].scalar = Scalar::f16; });
  expect<Binary>(p, " is f32 and ",
                 [](Program& p, Binary& i) { p.registers[i.a].scalar = Scalar::u32; });
  expect<Binary>(p, "does not take f32", [](Program&, Binary& i) { i.op = BinaryOp::bit_and; });
  expect<Binary>(p, "divide does not take u32", [](Program& p, Binary& i) {
    for (RegisterId id : {i.to, i.a, i.b}) p.registers[id].scalar = Scalar::u32;
    i.op = BinaryOp::divide;
  });
  expect<Reduce>(p, "dimension 7 of a tile of 2", [](Program&, Reduce& i) { i.dim = 7; });
  expect<Reduce>(p, "without dimension 0", [](Program&, Reduce& i) { i.dim = 0; });
  expect<Reduce>(p, "lanes along dimension 1 are no power of two", [](Program& p, Reduce& i) {
    p.threads = 96;
    layout(p, i.from) = spatial({32, 3});
    layout(p, i.to) = reduced(layout(p, i.from), 1);
  });
  expect<Reduce>(p, " shared f32",
                 [](Program& p, Reduce& i) { p.buffers[i.scratch].elements = 1; });
}

TEST(Verify, operands_that_are_none_of_the_matrix_instruction) {
  const auto p = lowered<Unpack>("uint4,group=128,scale=float16");
  expect<Mma>(p, "no matrix instruction takes f32",
              [](Program& p, Mma& i) { p.registers[i.a].scalar = Scalar::f32; });
  expect<Mma>(p, "does not take",
              [](Program& p, Mma& i) { p.registers[i.acc].scalar = Scalar::f16; });
  expect<Mma>(p, "wgmma.m64nNk16.f16 reads B from shared memory",
              [](Program&, Mma& i) { i.row = warpgroup_instruction(Scalar::f16, device("h200")); });
  expect<Mma>(p, "shapes that do not multiply", [](Program& p, Mma& i) {
    layout(p, i.acc) = local({2, 1, 1}) * layout(p, i.acc);
  });
  expect<Unpack>(p, " slots, not one k-step of a block", [](Program& p, Unpack& i) {
    layout(p, i.to) = local({1, 3, 1}) * lifted(tile_instruction(Scalar::f16)->a());
  });
  expect<Unpack>(p, "block 99 is not among the words", [](Program&, Unpack& i) { i.block = 99; });
}

TEST(Verify, zero_points_of_another_kind) {
  const auto p = lowered<ZeroOperand>("uint4,group=128,scale=float16,zero=integer");
  expect<Unpack>(p, "zero points of bf16",
                 [](Program& p, Unpack& i) { p.registers[i.zeros].scalar = Scalar::bf16; });
  expect<Unpack>(p, "is not laid out as the rows of an A operand", [](Program& p, Unpack& i) {
    layout(p, i.zeros) = local({1, 3, 1});
  });
  expect<ZeroOperand>(p, "zero points of f16, not u8",
                      [](Program& p, ZeroOperand& i) { p.registers[i.from].scalar = Scalar::f16; });
}

TEST(Verify, digits_and_bytes_of_another_kind) {
  const auto p = lowered<UnpackBytes>("uint2,channel,scale=float16", 1);
  expect<UnpackBytes>(p, "bytes of u32",
                      [](Program& p, UnpackBytes& i) { p.registers[i.to].scalar = Scalar::u32; });
  expect<UnpackBytes>(p, "a zero point in bytes of u8",
                      [](Program&, UnpackBytes& i) { i.zero = 3; });
  expect<UnpackBytes>(p, "a zero point of 129, not 0 to 128",
                      [](Program&, UnpackBytes& i) { i.zero = 129; });
  expect<UnpackBytes>(p, "is not one k-step of a block", [](Program& p, UnpackBytes& i) {
    layout(p, i.to) = local({1, 3, 1}) * lifted(tile_instruction(Scalar::u8)->a());
  });
  expect<UnpackBytes>(p, "block 99 is not among the words",
                      [](Program&, UnpackBytes& i) { i.block = 99; });
  expect<UnpackBytes>(p, "step 2 of a block of 2", [](Program&, UnpackBytes& i) { i.step = 2; });
  expect<UnpackBytes>(p, "floats in bytes of u8",
                      [](Program&, UnpackBytes& i) { i.mantissa_bits = 1; });
  expect<UnpackBytes>(p, "bytes of u8 times 2^1", [](Program&, UnpackBytes& i) { i.shift = 1; });
  const auto whole = [](int bits, int shift, int zero) {
    return [=](Program& p, UnpackBytes& i) {
      p.registers[i.to].scalar = Scalar::e4m3;
      i.bits = bits, i.shift = shift, i.zero = zero;
    };
  };
  expect<UnpackBytes>(p, "codes of 2 bits times 2^4 in e4m3", whole(2, 4, 0));
  expect<UnpackBytes>(p, "codes of 6 bits times 2^0 in e4m3", whole(6, 0, 16));
  expect<UnpackBytes>(p, "codes of 5 bits times 2^0 less 14 in e4m3", whole(5, 0, 14));
  expect<UnpackBytes>(p, "codes of 2 bits times 2^0 less 17 in e4m3", whole(2, 0, 17));
  expect<SplitDigits>(p, "digits of f16",
                      [](Program& p, SplitDigits& i) { buffer(p, i.to).scalar = Scalar::u8; });
  expect<SplitDigits>(p, "rows that are not whole words of digits",
                      [](Program& p, SplitDigits& i) { p.views[i.to].strides[1] = 2; });
  expect<JoinDigits>(p, "digits of 16 columns", [](Program& p, JoinDigits& i) {
    layout(p, i.to) = local({1, 1, 2}) * layout(p, i.to);
  });
  const auto permuted = lowered<SplitDigits>("uint2,channel,scale=float16", 1, true);
  expect<SplitDigits>(permuted, "columns that are not u32", [](Program& p, SplitDigits& i) {
    buffer(p, i.columns).scalar = Scalar::f16;
  });
}

TEST(Verify, a_bias_of_sums_that_have_none) {
  const auto p = lowered<Scale>("uint4,group=128,scale=float16", 64);
  expect<Scale>(p, "a bias of sums of f32", [](Program&, Scale& i) { i.biased = true; });
}

TEST(Verify, words_of_units_that_are_none) {
  const auto p = lowered<LoadUnits>("uint3,group=128,scale=float16", 64);
  expect<LoadUnits>(p, "words that are not chunks of lanes",
                    [](Program& p, LoadUnits& i) { p.views[i.from].extents[3] = 16; });
  expect<LoadUnits>(p, "words that are not chunks of lanes",
                    [](Program& p, LoadUnits& i) { p.views[i.from].strides[4] = 2; });
  expect<LoadUnits>(p, "is not words of the lanes of a warp",
                    [](Program& p, LoadUnits& i) { layout(p, i.to).shape.pop_back(); });
  expect<LoadUnits>(p, "is not words of the lanes of a warp", [](Program& p, LoadUnits& i) {
    layout(p, i.to) = layout(p, i.to) * local({2, 1, 1, 1, 1});
  });
  expect<LoadUnits>(p, "dimension 2 reaches", [](Program& p, LoadUnits& i) {
    layout(p, i.to) = layout(p, i.to) * local({1, 1, 1, 1, 2});
  });
  expect<LoadUnits>(p, " registers for u32 memory",
                    [](Program& p, LoadUnits& i) { p.registers[i.to].scalar = Scalar::f32; });
  expect<LoadUnits>(p, "words of a lane from the 4. dimension on",
                    [](Program&, LoadUnits& i) { i.at[4] = 1; });
}

TEST(Verify, accesses_that_memory_does_not_serve) {
  const auto p = lowered<CopyAsync>("uint4,group=128,scale=float16");
  expect<LoadMatrix>(p, " reaches ",
                     [](Program&, LoadMatrix& i) { i.at.back() = std::int64_t{1} << 20; });
  expect<Load>(p, "registers for",
               [](Program& p, Load& i) { p.registers[i.to].scalar = Scalar::s32; });
  expect<Load>(p, "coordinates of a view of rank", [](Program&, Load& i) { i.at.pop_back(); });
  expect<Load>(p, "a negative index", [](Program&, Load& i) { i.at[0] = -1; });
  expect<CopyAsync>(p, "copies go from global to shared memory",
                    [](Program&, CopyAsync& i) { i.from = i.to; });
  expect<CopyAsync>(p, "the two sides differ in their scalar",
                    [](Program& p, CopyAsync& i) { buffer(p, i.to).scalar = Scalar::f32; });
  expect<CopyAsync>(p, "rows that are not whole pieces of 16 bytes",
                    [](Program& p, CopyAsync& i) { p.views[i.to].strides[1] = 2; });
  const auto ring = lowered<CopyOwn>("uint4,group=128,scale=float16");
  expect<CopyOwn>(ring, "sides that do not match",
                  [](Program&, CopyOwn& i) { i.from_layout.slots.clear(); });
  const auto permuted = lowered<CopyElements>("uint4,group=128,scale=float16", 8, true);
  expect<CopyElements>(permuted, "sides that are not of one scalar of 16 bits",
                       [](Program& p, CopyElements& i) { buffer(p, i.to).scalar = Scalar::f32; });
  expect<CopyElements>(permuted, "rows that are not whole words",
                       [](Program& p, CopyElements& i) { p.views[i.to].strides[0] = 3; });
  expect<CopyElements>(permuted, "columns of f16, not u32", [](Program& p, CopyElements& i) {
    buffer(p, i.columns).scalar = Scalar::f16;
  });
}

TEST(Verify, copies_that_the_engine_does_not_make) {
  const auto p = lowered<CopyRows>("uint4,group=128,scale=float16", 16);
  expect<CopyRows>(p, "copies go from global to shared memory",
                   [](Program&, CopyRows& i) { i.from = i.to; });
  expect<CopyRows>(p, "the two sides differ in their scalar",
                   [](Program& p, CopyRows& i) { buffer(p, i.to).scalar = Scalar::f32; });
  expect<CopyRows>(p, "sides that are not rows of the tokens",
                   [](Program& p, CopyRows& i) { p.views[i.from].extents[0] = 16; });
  expect<CopyRows>(p, "rows that are not whole pieces of 16 bytes",
                   [](Program&, CopyRows& i) { i.at = 1; });
  expect<CopyRows>(p, "bytes together", [](Program& p, CopyRows& i) {
    p.views[i.to].extents[1] = std::int64_t{1} << 20;
  });
  expect<CopyRows>(p, "a signal of other arrivals",
                   [](Program& p, CopyRows& i) { p.signals[i.signal].arrivals = p.threads; });
  expect<Expect>(bulk_ring(), "0 bytes, not 1 to", [](Program&, Expect& i) { i.bytes = 0; });
  expect<CopyBulk>(bulk_ring(), "coordinates of a view of rank",
                   [](Program&, CopyBulk& i) { i.at.pop_back(); });
}

TEST(Verify, counts_that_disagree_with_the_program) {
  const auto p = lowered<Ticket>("uint4,group=128,scale=float16");
  expect<For>(p, "trips of a variable of", [](Program&, For& i) { ++i.trips; });
  expect<Ticket>(p, "blocks and a variable of", [](Program&, Ticket& i) { ++i.expected; });
  const auto clustered = lowered<ClusterBarrier>("uint4,group=128,scale=float16");
  expect<ClusterBarrier>(clustered, "no cluster",
                         [](Program& p, ClusterBarrier&) { p.cluster = 1; });
}

TEST(Verify, atomic_sums_outside_global_memory) {
  Builder p("sums", {.x = 1, .y = 1, .threads = 32});
  const auto y = p.output("y", Scalar::f32, {32});
  p.atomic_add(p.fill(Scalar::f32, spatial({32}), 1), y, {0});
  expect<AtomicAdd>(p.finish(), "is not in global memory", [](Program& p, AtomicAdd& i) {
    buffer(p, i.to).level = Level::shared, buffer(p, i.to).elements = 32;
  });
}

TEST(Verify, more_shared_memory_than_a_block_may_have) {
  const auto p = lowered<Mma>("uint4,group=128,scale=float16");
  EXPECT_NO_THROW(verify(p, p.shared_bytes()));
  EXPECT_THAT(
      [&] { verify(p, p.shared_bytes() - 1); },
      ::testing::ThrowsMessage<InternalError>(::testing::HasSubstr("bytes of shared memory, of ")));
}

}  // namespace
}  // namespace ladder
