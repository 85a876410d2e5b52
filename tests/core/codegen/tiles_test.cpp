// SPDX-License-Identifier: Apache-2.0
//
// CUDA for programs written by hand: element-wise arithmetic, views, reductions, bulk copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

#include "base/error.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/prelude.h"
#include "codegen/cuda/toolchain.h"
#include "program/program_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace ladder::testing;  // NOLINT: the helpers of these tests

/// One of each instruction that a tile takes.
Program every_instruction() {
  Builder p("every", {.x = 2, .y = 2, .threads = 64});
  const auto w = p.input("w", Scalar::u32, {128, 3}), s = p.input("s", Scalar::f16, {128, 1});
  const auto y = p.output("y", Scalar::f32, {128, 32}),
             h = p.output("half", Scalar::bf16, {128, 32});
  const auto total = p.output("total", Scalar::f32, {1, 32});
  const Layout codes = spatial({64, 1}) * local({1, 32});
  const Builder::At at{times(p.x(), 64), 0};
  const auto words = p.load(w, at, spatial({64, 1}) * local({1, 3}), "words");
  const auto shifted = p.binary(BinaryOp::bit_and, p.binary(BinaryOp::shift_right, words, 1), 255);
  auto value = p.cast(p.view(shifted, ElementType::of("u3"), codes, "code"), Scalar::f32);
  value = p.binary(BinaryOp::divide, p.binary(BinaryOp::subtract, value, 4), 3);
  const auto scale = p.cast(p.load(s, at, spatial({64, 1}), "scale"), Scalar::f32);
  value = p.binary(BinaryOp::multiply, value, scale);
  for (UnaryOp op : {UnaryOp::negate, UnaryOp::absolute, UnaryOp::square_root, UnaryOp::reciprocal,
                     UnaryOp::round_to_even}) {
    value = p.unary(op, value);
  }
  p.store(value, y, at);
  p.store(p.cast(value, Scalar::bf16), h, at);
  const auto back = p.cast(p.cast(p.cast(value, ElementType::of("u5")), Scalar::u32), Scalar::f16);
  const auto columns = p.reduce(ReduceOp::add, p.cast(back, Scalar::f32), 0, "columns");
  const auto largest = p.reduce(ReduceOp::maximum, columns, 1, "largest");
  const auto one = p.binary(BinaryOp::minimum, columns, largest);
  p.begin_if(p.x(), 0);
  p.atomic_add(p.load(y, {0, 0}, spatial({64, 1}) * local({1, 32})), y, {64, 0});
  p.end();
  p.store(one, total, {0, 0});
  return p.finish();
}

std::string body_of(const Program& program) {
  const auto text = cuda::emit(program);
  return text.substr(text.find("extern"));
}

TEST(EmitTiles, each_instruction_is_a_line_that_says_what_it_does) {
  const auto text = body_of(every_instruction());
  EXPECT_THAT(text, HasSubstr("t6[0] = subtract_f32(t4[0], t5[0]);"));
  // Code 10 of three bits lies in bits 30 to 32: two words.
  EXPECT_THAT(text, HasSubstr("(((code[0] >> 30) | code[1] << 2) & 7u)"));
  EXPECT_THAT(text, HasSubstr("columns[0] = add_f32(columns[0], shuffle_xor(columns[0], 16u));"));
  EXPECT_THAT(text, HasSubstr("element = from[0];"));
  EXPECT_THAT(text, HasSubstr("atomic_add_f32(to + 31, "));
}

TEST(EmitTiles, bulk_copies_are_started_by_a_warp_and_awaited_by_all) {
  const auto text = body_of(bulk_ring());
  EXPECT_THAT(text, HasSubstr("const u32 full = shared_address(shared + 2048);"));
  EXPECT_THAT(text, HasSubstr("if (thread == 0) signal_init(full, 2u, 1u);"));
  EXPECT_THAT(text, HasSubstr("if (thread == 0 && k + 2 < 5) signal_expect(full + 8 * (((k + 2) "
                              "% 2u)), 1024u);"));
  EXPECT_THAT(text, HasSubstr("signal_await(full + 8 * ((k % 2u)), ((k / 2) % 2u));"));
  EXPECT_THAT(text, HasSubstr("copy_bulk(shared_address(stages + (((k + 2) % 2u) * 256)), x + ("));
}

TEST(EmitTiles, the_compiler_takes_them) {
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  EXPECT_EQ(cuda::compile(cuda::emit(bulk_ring()), "sm_90a").spill_bytes, 0);
  for (const char* architecture : {"sm_75", "sm_80", "sm_90a"}) {
    EXPECT_EQ(cuda::compile(cuda::emit(every_instruction()), architecture).spill_bytes, 0);
  }
}

// Words are what registers are: fewer than four bytes side by side have no text.
TEST(EmitTiles, single_bytes_are_not_loaded_and_two_are_stored) {
  const auto loads = [](std::int64_t together) {
    Builder p("bytes", {.x = 1, .y = 1, .threads = 32});
    const auto b = p.input("b", Scalar::u8, {32, 4}), c = p.output("c", Scalar::u8, {32, 4});
    p.store(p.load(b, {0, 0}, spatial({32, 1}) * local({1, together}), "bytes_of"), c, {0, 0});
    return cuda::emit(p.finish());
  };
  EXPECT_NO_THROW(loads(4));
  EXPECT_THAT([&] { loads(1); },
              ThrowsMessage<Unsupported>(HasSubstr("would be loaded in pieces of 1 bytes")));
  EXPECT_THAT(loads(2), HasSubstr("\n    *(u16*)(to + 0) = (u16)(bytes_of[0]);\n"));
}

// A register called `barrier` would hide the function.
TEST(EmitTiles, every_name_of_the_prelude_is_reserved) {
  const std::string text = std::string(cuda::prelude()) + std::string(cuda::scale_prelude()) +
                           std::string(cuda::digit_prelude()) + std::string(cuda::tile_prelude()) +
                           std::string(cuda::float_byte_prelude()) +
                           std::string(cuda::quad_pair_prelude());
  const std::regex function(R"(DEVICE \w+ (\w+)\()");
  int found = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), function), end; at != end; ++at, ++found) {
    EXPECT_TRUE(is_reserved((*at)[1].str())) << (*at)[1];
  }
  EXPECT_GT(found, 40);
}

// So would a buffer called `target` be hidden by the address in it.
TEST(EmitTiles, every_name_of_a_copy_is_reserved) {
  Builder p("copies", {.x = 2, .y = 1, .threads = 64});
  const auto x = p.input("x", Scalar::f16, {kTokens, 128});
  const auto whole = p.shared("whole_tile", Scalar::f16, {16, 128}),
             odd = p.shared("odd_tile", Scalar::f16, {3, 24});
  p.copy_async(whole, x, {0, 0});
  p.copy_async(odd, x, {0, 0});
  const auto body = body_of(p.finish());
  const std::regex declared(R"((?:u32|f16|u16|u64)\*?(?: const)? (\w+) =|, (\w+) = )");
  std::set<std::string> found;
  for (std::sregex_iterator at(body.begin(), body.end(), declared), end; at != end; ++at) {
    const auto name = (*at)[1].str() + (*at)[2].str();
    if (name == "whole_tile" || name == "odd_tile") continue;
    EXPECT_TRUE(is_reserved(name)) << name;
    found.insert(name);
  }
  EXPECT_TRUE(found.contains("target") && found.contains("piece"));
}

}  // namespace
}  // namespace ladder
