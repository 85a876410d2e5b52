// SPDX-License-Identifier: Apache-2.0
//
// Fragments against the lane formulas of the manuals, written here as the manuals write them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "device/device.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

using Place = std::vector<std::int64_t>;
using Formula = std::function<Place(std::int64_t lane, std::int64_t i)>;

struct Documented {
  std::string_view name;
  Formula a, b, d;  ///< b: empty where it has no fragment
};

// PTX ISA: groupID = lane / 4, threadID_in_group = lane % 4. B and D of the m16n8 family.
Place pairs_d(std::int64_t l, std::int64_t i) {
  return {l / 4 + (i < 2 ? 0 : 8), l % 4 * 2 + i % 2};
}

Place a_k16(std::int64_t l, std::int64_t i) {
  const bool low = i < 2 || (4 <= i && i < 6);
  return {l / 4 + (low ? 0 : 8), l % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Place b_k16(std::int64_t l, std::int64_t i) {
  return {l / 4, l % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0)};
}
Place a_k32(std::int64_t l, std::int64_t i) {
  const bool low = i < 4 || (8 <= i && i < 12);
  return {l / 4 + (low ? 0 : 8), l % 4 * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
}
Place b_k32(std::int64_t l, std::int64_t i) {
  return {l / 4, l % 4 * 4 + (i & 3) + (i >= 4 ? 16 : 0)};
}

Place quad_a(std::int64_t l, std::int64_t i) { return {l % 16 / 4, l % 4 + (l < 16 ? 0 : 4), i}; }
Place quad_d(std::int64_t l, std::int64_t i) {
  return {l % 16 / 4, (l & 1) + (i & 2) + (l < 16 ? 0 : 4), (i & 4) + (l & 2) + (i & 1)};
}

// Of the four products that quad pairs multiply at once, here: product q has rows 8 (q % 2) of A
// and columns 8 (q / 2) of B, four values of k in each of four steps.
Formula quad_pairs_ab(std::int64_t pairs) {
  return [=](std::int64_t l, std::int64_t i) {
    return Place{quad_a(l, i % 4)[1] + 8 * (l % 16 / 4 / pairs % 2), i};
  };
}
Place quad_pairs_d(std::int64_t l, std::int64_t i) {
  const auto of_product = quad_d(l, i);
  return {of_product[1] + 8 * (of_product[0] % 2), of_product[2] + 8 * (of_product[0] / 2)};
}

Place wgmma_d(std::int64_t t, std::int64_t i) {
  return {16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + t % 4 * 2 + i % 2};
}
Formula of_warps(Place (*warp)(std::int64_t, std::int64_t)) {
  return [warp](std::int64_t t, std::int64_t i) {
    auto place = warp(t % 32, i);
    place[0] += 16 * (t / 32);
    return place;
  };
}

// AMD Matrix Instruction Calculator: A[i][k] lies in lane i + rows * (k / per lane).
Formula mfma_ab(int rows, int per_lane) {
  return [=](std::int64_t l, std::int64_t e) { return Place{l % rows, l / rows * per_lane + e}; };
}
// Of 32 bytes of a lane: 16 of each half of the columns.
Formula mfma_two_pieces(int rows, int columns) {
  return [=](std::int64_t l, std::int64_t e) {
    return Place{l % rows, l / rows * 16 + e % 16 + columns / 2 * (e / 16)};
  };
}
Formula mfma_d(int columns) {
  return [=](std::int64_t l, std::int64_t e) {
    const std::int64_t rows = 64 / columns;
    return Place{4 * rows * (e / 4) + 4 * (l / columns) + e % 4, l % columns};
  };
}

// RDNA 4, in runs of a half of the lanes each; the first of RDNA 3 are in both halves.
Formula wmma_ab(int run) {
  return [=](std::int64_t l, std::int64_t e) {
    return Place{l % 16, e / run * 2 * run + l / 16 * run + e % run};
  };
}
Place wmma_d(std::int64_t l, std::int64_t e) { return {l / 16 * 8 + e, l % 16}; }
Place wmma_twice_ab(std::int64_t l, std::int64_t e) { return {l % 16, e}; }
Place wmma_twice_d(std::int64_t l, std::int64_t e) { return {2 * e + l / 16, l % 16}; }

std::vector<Documented> documented() {
  std::vector<Documented> all = {
      {"mma.m8n8k4.f16", quad_a, quad_a, quad_d},
      {"4 x mma.m8n8k4.f16", quad_pairs_ab(1), quad_pairs_ab(2), quad_pairs_d},
      {"mma.m16n8k8.f16",
       [](auto l, auto i) {
         return Place{l / 4 + (i < 2 ? 0 : 8), l % 4 * 2 + i % 2};
       },
       [](auto l, auto i) {
         return Place{l / 4, l % 4 * 2 + i};
       },
       pairs_d},
      {"mma.m8n8k16.s8",
       [](auto l, auto i) {
         return Place{l / 4, l % 4 * 4 + i};
       },
       [](auto l, auto i) {
         return Place{l / 4, l % 4 * 4 + i};
       },
       [](auto l, auto i) {
         return Place{l / 4, l % 4 * 2 + i};
       }},
  };
  for (const char* name : {"mma.m16n8k16.f16", "mma.m16n8k16.bf16", "2 x mma.m16n8k8.f16"}) {
    all.push_back({name, a_k16, b_k16, pairs_d});
  }
  for (const char* name : {"mma.m16n8k32.s8", "mma.m16n8k32.e4m3", "4 x mma.m8n8k16.s8"}) {
    all.push_back({name, a_k32, b_k32, pairs_d});
  }
  for (const char* name : {"wgmma.m64nNk16.f16", "wgmma.m64nNk16.bf16"}) {
    all.push_back({name, of_warps(a_k16), {}, wgmma_d});
  }
  for (const char* name : {"wgmma.m64nNk32.s8", "wgmma.m64nNk32.e4m3"}) {
    all.push_back({name, of_warps(a_k32), {}, wgmma_d});
  }
  for (const auto& row : matrix_instructions()) {  // amd_layouts_test.cpp has these by name
    if (row.fragment != Fragment::wave) continue;
    const int slots = row.k * row.m / 64;
    const auto operand = slots == 32 ? mfma_two_pieces(row.m, row.k) : mfma_ab(row.m, slots);
    all.push_back({row.name, operand, operand, mfma_d(row.m)});
  }
  return all;
}

const Documented* formulas_of(const MatrixInstruction& row) {
  static const auto all = documented();
  // Two machines, one name.
  static const Documented halves{"", wmma_ab(4), wmma_ab(4), wmma_d},
      bytes{"", wmma_ab(8), wmma_ab(8), wmma_d},
      twice{"", wmma_twice_ab, wmma_twice_ab, wmma_twice_d};
  if (row.fragment == Fragment::wmma_twice) return &twice;
  if (row.fragment == Fragment::wmma) return row.operand_bits() == 8 ? &bytes : &halves;
  for (const auto& known : all) {
    if (known.name == row.name) return &known;
  }
  return nullptr;
}

void expect_formula(const MatrixInstruction& row, const Layout& layout, const Formula& formula) {
  for (std::int64_t lane = 0; lane < layout.thread_count(); ++lane) {
    for (std::int64_t i = 0; i < layout.slot_count(); ++i) {
      ASSERT_EQ(layout(lane, i), formula(lane, i)) << row.name << " lane " << lane << " " << i;
    }
  }
}

TEST(Fragment, of_every_instruction_agrees_with_the_manual_in_every_lane_and_register) {
  for (const auto& row : matrix_instructions()) {
    if (row.fragment == Fragment::vector) continue;  // one lane: nothing to distribute
    const Documented* known = formulas_of(row);
    ASSERT_NE(known, nullptr) << row.name << " has no formula here";
    expect_formula(row, row.a(), known->a);
    expect_formula(row, row.d(), known->d);
    ASSERT_EQ(row.b_in_registers(), static_cast<bool>(known->b)) << row.name;
    if (known->b) expect_formula(row, row.b(), known->b);
  }
}

TEST(Fragment, of_every_instruction_holds_each_element_once) {
  for (const auto& row : matrix_instructions()) {
    const std::int64_t copies = row.copies;
    auto expect = [&](const Layout& layout, std::int64_t rows, std::int64_t columns) {
      // Operands of RDNA 3 and of Volta are twice there: the formulas above say where.
      const bool shared =
          row.fragment == Fragment::wmma_twice || row.fragment == Fragment::quad_pairs;
      const bool twice = shared && columns == row.k && layout.slot_count() == row.k;
      EXPECT_EQ(is_bijective(layout), !twice) << row.name;
      EXPECT_EQ(layout.element_count(), copies * rows * columns) << row.name;
    };
    expect(row.a(), row.m, row.k);
    expect(row.d(), row.m, row.most_n);
    if (row.b_in_registers()) {
      expect(row.b(), row.n, row.k);
    } else {
      EXPECT_THROW(row.b(), Unsupported) << row.name;
    }
  }
}

TEST(Fragment, of_a_step_of_wgmma_is_that_of_its_warps_mma) {
  const auto& mma = *tile_instruction(Scalar::f16);
  for (const auto& row : matrix_instructions()) {
    if (row.name != "wgmma.m64nNk16.f16") continue;
    EXPECT_EQ(row.a() / mma.a(), spatial({4, 1}));
  }
}

TEST(Fragment, a_block_of_the_weight_image_is_made_of_a_operands) {
  const auto outer = block_fragment() / tile_instruction(Scalar::f16)->a();
  ASSERT_TRUE(outer);
  EXPECT_EQ(*outer, local({4, 4}));
}

// PTX ISA, tcgen05: a warp has 32 lanes, each a row; shapes 16x128b (two for 16 columns) and
// 16x256b.
TEST(Fragment, of_tensor_memory_are_those_of_its_shapes) {
  ASSERT_FALSE(tensor_memory_instructions().empty());
  for (const MatrixInstruction& row : tensor_memory_instructions()) {
    const Layout a = row.a(), d = row.d(32);
    ASSERT_EQ(row.lanes(), 128);
    for (std::int64_t t = 0; t < 128; ++t) {
      const auto lane = t % 32, first = t / 32 * 32;
      for (std::int64_t s = 0; s < a.slot_count(); ++s) {
        const auto unit = s / 8, r = s % 8 / 2;
        const auto column = lane % 4 + r / 2 * 4;  // of 32 bits
        EXPECT_EQ(a(t, s), (std::vector<std::int64_t>{first + unit * 16 + lane / 4 + r % 2 * 8,
                                                      2 * column + s % 2}));
      }
      for (std::int64_t s = 0; s < d.slot_count(); ++s) {
        const auto unit = s / 16, r = s % 16;
        EXPECT_EQ(d(t, s), (std::vector<std::int64_t>{first + unit * 16 + lane / 4 + r / 2 % 2 * 8,
                                                      r / 4 * 8 + lane % 4 * 2 + r % 2}));
      }
    }
  }
}

}  // namespace
}  // namespace ladder
