// SPDX-License-Identifier: Apache-2.0
#include "program/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "program/program_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using namespace ladder::testing;  // NOLINT: the helpers of these tests

constexpr Grid kBlock64{.x = 1, .y = 1, .threads = 64};
const Layout kLine = spatial({64}) * local({4});  // 256 elements

/// y = body(x) over 256 f32.
std::vector<float> over_line(const std::vector<float>& in,
                             const std::function<Tile(Builder&, Tile)>& body) {
  Builder p("line", kBlock64);
  const auto x = p.input("x", Scalar::f32, {256}), y = p.output("y", Scalar::f32, {256});
  p.store(body(p, p.load(x, {0}, kLine)), y, {0});
  std::vector<Argument> memory{given(in), Argument::output(1024)};
  EXPECT_EQ(objection_to(p.finish(), memory), "");
  return values_of<float>(memory[1]);
}

TEST(Elementwise, operations_are_those_of_f32) {
  auto in = counting(256, 0.37f);
  in[0] = -0.0f;
  in[1] = std::numeric_limits<float>::infinity();
  const auto negated =
      over_line(in, [](Builder& p, Tile t) { return p.unary(UnaryOp::negate, t); });
  const auto root =
      over_line(in, [](Builder& p, Tile t) { return p.unary(UnaryOp::square_root, t); });
  const auto rounded =
      over_line(in, [](Builder& p, Tile t) { return p.unary(UnaryOp::round_to_even, t); });
  const auto inverse =
      over_line(in, [](Builder& p, Tile t) { return p.unary(UnaryOp::reciprocal, t); });
  const auto third = over_line(in, [](Builder& p, Tile t) {
    return p.binary(BinaryOp::divide, p.binary(BinaryOp::subtract, t, 1.0), 3.0);
  });
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(negated[i], -in[i]);
    EXPECT_EQ(root[i], std::sqrt(in[i]));
    EXPECT_EQ(rounded[i], std::nearbyint(in[i]));
    EXPECT_EQ(inverse[i], 1.0f / in[i]);
    EXPECT_EQ(third[i], (in[i] - 1.0f) / 3.0f);
  }
  EXPECT_TRUE(std::signbit(rounded[0]));
}

TEST(Elementwise, integers_go_modulo_two_to_the_32_and_shifts_end_at_zero) {
  Builder p("integers", kBlock64);
  const auto x = p.input("x", Scalar::u32, {256}), y = p.output("y", Scalar::u32, {256});
  const auto t = p.load(x, {0}, kLine);
  const auto product = p.binary(BinaryOp::multiply, t, 0x10001);
  const auto gone = p.binary(BinaryOp::shift_left, t, 32);
  p.store(p.binary(BinaryOp::bit_xor, product, gone), y, {0});
  std::vector<std::uint32_t> in;
  for (std::uint32_t i = 0; i < 256; ++i) in.push_back(i * 0x01234567u);
  std::vector<Argument> memory{given(in), Argument::output(1024)};
  ASSERT_EQ(objection_to(p.finish(), memory), "");
  const auto out = values_of<std::uint32_t>(memory[1]);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(out[i], in[i] * 0x10001u);
}

TEST(Elementwise, a_dimension_of_extent_one_repeats_where_the_thread_has_it) {
  Builder p("rows", kBlock64);
  const auto x = p.input("x", Scalar::f32, {32, 8}), s = p.input("s", Scalar::f32, {32, 1});
  const auto y = p.output("y", Scalar::f32, {32, 8});
  const auto tile = p.load(x, {0, 0}, spatial({32, 2}) * local({1, 4}));
  const auto rows = p.load(s, {0, 0}, spatial({32, 1}) * replicated(2, 2));
  p.store(p.binary(BinaryOp::multiply, tile, rows), y, {0, 0});
  std::vector<Argument> memory{given(counting(256)), given(counting(32)), Argument::output(1024)};
  ASSERT_EQ(objection_to(p.finish(), memory), "");
  const auto out = values_of<float>(memory[2]);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(out[i], float(i) * float(i / 8));

  Builder wrong("rows", kBlock64);
  const auto a =
      wrong.load(wrong.input("x", Scalar::f32, {32, 8}), {0, 0}, spatial({32, 2}) * local({1, 4}));
  const auto b = wrong.load(wrong.input("s", Scalar::f32, {32, 1}), {0, 0},
                            replicated(2, 2) * spatial({32, 1}));
  wrong.binary(BinaryOp::multiply, a, b);
  EXPECT_THAT(objection_to(wrong.finish(), memory),
              HasSubstr("threads do not hold the elements of t1 that t2 takes"));
}

TEST(Cast, integers_saturate_and_truncate_and_floats_round_to_even) {
  std::vector<float> in(256, 0.0f);
  in[0] = -3.5f, in[1] = 2.999f, in[2] = 17.0f, in[3] = 1e30f, in[4] = NAN, in[5] = 15.0f;
  const auto small = over_line(in, [](Builder& p, Tile t) {
    return p.cast(p.cast(t, ElementType(Scalar::u32, 4)), Scalar::f32);
  });
  EXPECT_THAT(std::vector(small.begin(), small.begin() + 6),
              ::testing::ElementsAre(0, 2, 15, 15, 0, 15));
  in[0] = 1.0f + 0x1p-11f, in[1] = 1.0f + 0x3p-11f;  // halfway in f16
  const auto halves =
      over_line(in, [](Builder& p, Tile t) { return p.cast(p.cast(t, Scalar::f16), Scalar::f32); });
  EXPECT_EQ(halves[0], 1.0f);
  EXPECT_EQ(halves[1], 1.0f + 0x1p-9f);
}

// Codes cross words at 3, 5, 6 and 7 bits.
TEST(View, packed_words_are_codes_of_every_width) {
  for (int width : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    Builder p("codes", kBlock64);
    const auto w = p.input("w", Scalar::u32, {64, width});
    const auto y = p.output("y", Scalar::f32, {64, 32});
    const auto words = p.load(w, {0, 0}, spatial({64, 1}) * local({1, width}));
    const auto layout = spatial({64, 1}) * local({1, 32});
    p.store(p.cast(p.view(words, ElementType(Scalar::u32, width), layout), Scalar::f32), y, {0, 0});
    std::vector<std::uint32_t> bits(64 * width), codes;
    for (int i = 0; i < 64 * 32; ++i) {
      const auto code = static_cast<std::uint32_t>(i * 2654435761u >> 7) & ((1u << width) - 1);
      for (int b = 0; b < width; ++b) {
        const int at = i % 32 * width + b;
        bits[i / 32 * width + at / 32] |= (code >> b & 1u) << at % 32;
      }
      codes.push_back(code);
    }
    std::vector<Argument> memory{given(bits), Argument::output(64 * 32 * 4)};
    ASSERT_EQ(objection_to(p.finish(), memory), "") << width;
    const auto out = values_of<float>(memory[1]);
    for (std::size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(out[i], float(codes[i])) << width;
  }
}

TEST(View, back_and_forth_is_the_identity_and_other_sizes_are_refused) {
  Builder p("views", kBlock64);
  const auto w = p.input("w", Scalar::u32, {64, 3}), y = p.output("y", Scalar::u32, {64, 3});
  const Layout words = spatial({64, 1}) * local({1, 3});
  const auto halves =
      p.view(p.load(w, {0, 0}, words), Scalar::f16, spatial({64, 1}) * local({1, 6}));
  const auto codes = p.view(halves, ElementType::of("u12"), spatial({64, 1}) * local({1, 8}));
  p.store(p.view(codes, Scalar::u32, words), y, {0, 0});
  EXPECT_THROW(p.view(codes, ElementType::of("u5"), words), InvalidArgument);
  std::vector<std::uint32_t> bits;
  for (std::uint32_t i = 0; i < 192; ++i) bits.push_back(i * 2654435761u);
  std::vector<Argument> memory{given(bits), Argument::output(192 * 4)};
  ASSERT_EQ(objection_to(p.finish(), memory), "");
  EXPECT_EQ(values_of<std::uint32_t>(memory[1]), bits);
}

/// Sums of rows [8, 64] or columns under `layout`.
std::string sum_error(const Layout& layout, int dim, ReduceOp op = ReduceOp::add) {
  Builder p("sums", kBlock64);
  const auto x = p.input("x", Scalar::f32, {8, 64});
  const std::int64_t n = dim == 1 ? 8 : 64;
  const auto y =
      p.output("y", Scalar::f32, dim == 1 ? Builder::Extents{8, 1} : Builder::Extents{1, 64});
  p.store(p.reduce(op, p.load(x, {0, 0}, layout), dim), y, {0, 0});
  auto in = counting(512);
  std::vector<Argument> memory{given(in), Argument::output(n * 4)};
  if (auto why = objection_to(p.finish(), memory); !why.empty()) return why;
  const auto out = values_of<float>(memory[1]);
  for (int i = 0; i < n; ++i) {
    float sum = op == ReduceOp::minimum ? 1e9f : 0;
    for (int j = 0; j < 512 / n; ++j) {
      const float part = dim == 1 ? in[i * 64 + j] : in[j * 64 + i];
      sum = op == ReduceOp::add       ? sum + part
            : op == ReduceOp::maximum ? std::max(sum, part)
                                      : std::min(sum, part);
    }
    if (out[i] != sum) return "wrong sum " + std::to_string(i);
  }
  return "";
}

TEST(Reduce, adds_over_slots_lanes_and_warps) {
  for (int dim : {0, 1}) {
    for (ReduceOp op : {ReduceOp::add, ReduceOp::minimum, ReduceOp::maximum}) {
      EXPECT_EQ(sum_error(spatial({1, 64}) * local({8, 1}), dim, op), "");
      EXPECT_EQ(sum_error(spatial({8, 8}) * local({1, 8}), dim, op), "");
      EXPECT_EQ(sum_error(spatial({2, 1}) * spatial({1, 32}) * local({4, 2}), dim, op), "");
      EXPECT_EQ(sum_error(column_spatial({8, 8}) * local({1, 8}), dim, op), "");
      EXPECT_EQ(sum_error(local({2, 1}) * spatial({4, 16}) * local({1, 4}), dim, op), "");
    }
  }
}

TEST(Reduce, keeps_replicas_apart_and_needs_its_scratch) {
  EXPECT_EQ(sum_error(spatial({2, 4}) * replicated(8, 2) * local({4, 16}), 1), "");
  Builder p("sums", kBlock64);
  p.reduce(ReduceOp::add, p.load(p.input("x", Scalar::f32, {64}), {0}, spatial({64})), 0);
  auto program = p.finish();
  std::get<Reduce>(program.body.back().op).scratch = -1;
  std::vector<Argument> memory{given(counting(64))};
  EXPECT_THAT(objection_to(program, memory), HasSubstr("a sum over warps without scratch memory"));
}

TEST(AtomicAdd, blocks_add_to_what_was_given_and_to_nothing_else) {
  const auto build = [](bool store) {
    Builder p("count", {.x = 3, .y = 1, .threads = 64});
    const auto x = p.input("x", Scalar::f32, {3, 64}), y = p.output("y", Scalar::f32, {1, 64});
    const auto t = p.load(x, {p.x(), 0}, spatial({1, 64}));
    if (store) p.store(t, y, {0, 0});
    p.atomic_add(t, y, {0, 0});
    return p.finish();
  };
  std::vector<Argument> memory{given(counting(192)), given(std::vector<float>(64, 1))};
  ASSERT_EQ(objection_to(build(false), memory), "");
  const auto out = values_of<float>(memory[1]);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], 1 + i + (64 + i) + (128 + i));
  std::vector<Argument> unwritten{given(counting(192)), Argument::output(256)};
  EXPECT_THAT(objection_to(build(false), unwritten), HasSubstr("adds to what nobody wrote to y"));
  EXPECT_THAT(objection_to(build(true), memory), HasSubstr("adds to what a block stored to y"));
}

TEST(AtomicAdd, replicas_would_add_twice_and_are_refused) {
  Builder p("count", kBlock64);
  const auto t = p.fill(Scalar::f32, replicated(64, 1), 1);
  p.atomic_add(t, p.output("y", Scalar::f32, {1}), {0});
  std::vector<Argument> memory{given(std::vector<float>(1, 0))};
  EXPECT_THAT(objection_to(p.finish(), memory),
              HasSubstr("elements that several threads would add"));
}

TEST(Builder, refuses_names_that_kernels_use_and_what_has_no_end) {
  Builder p("good", kBlock64);
  EXPECT_THROW(p.input("float", Scalar::f32, {1}), InvalidArgument);
  EXPECT_THROW(p.input("Bad", Scalar::f32, {1}), InvalidArgument);
  EXPECT_THROW(p.input("add_f32", Scalar::f32, {1}), InvalidArgument);
  p.input("x", Scalar::f32, {1});
  EXPECT_THROW(p.input("x", Scalar::f32, {1}), InvalidArgument);
  p.begin_for("k", 2);
  EXPECT_THROW(p.finish(), InvalidArgument);
  EXPECT_THROW(p.tile(Scalar::f32, spatial({32})), InvalidArgument);
}

TEST(Builder, prints_what_was_written) {
  Builder p("sums", kBlock64);
  const auto x = p.input("x", Scalar::f32, {2, 64});
  const auto sum = p.reduce(ReduceOp::add, p.load(x, {p.x(), 0}, spatial({2, 32})), 1, "sum");
  p.atomic_add(sum, p.output("y", Scalar::f32, {2, 1}), {0, 0});
  EXPECT_THAT(to_string(p.finish()), HasSubstr("t0 = load x[split, 0]\n"
                                               "sum = reduce add t0 along 1\n"
                                               "atomic_add y[0, 0] += sum in any order\n"));
}

}  // namespace
}  // namespace ladder
