// SPDX-License-Identifier: Apache-2.0
#include "schedule/tile_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "expr/constructors.h"

namespace ladder {
namespace {

const TileType kF16{&element("float16")};
const TileType kNf4{&element("nf4")};
const TileType kU4{&element("uint4"), 8};

const TType kSymmetric{&element("uint4"), {}, nullptr, Zero::midpoint};

Problem product(std::int64_t m, std::int64_t n, std::int64_t k, const TType& weight) {
  return linear_of(weight, n, k, Scalar::f16, m);
}

/// By whatever instruction the device has.
TilePlan plan_in(const Problem& problem, const Device& device, std::optional<Shape> block = {}) {
  return tile_plan(problem, device,
                   decide_operands(problem, device, Multiplier::any, std::move(block)));
}

CodeTile random_codes(const TileType& type, Shape shape, std::uint32_t seed) {
  CodeTile tile{type, shape, {}};
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    state = state * 1664525 + 1013904223;
    // Floats: small integers, whose products sum exactly.
    tile.codes.push_back(type == kF16 ? encode(*type.element, static_cast<int>(state >> 29) - 3)
                                      : (state >> 20) % type.element->code_count());
  }
  return tile;
}

/// Element (row, column) of `tile` as the operand type holds it, 0 outside.
double operand_value(const CodeTile& tile, const Element& operand, std::int64_t row,
                     std::int64_t column) {
  if (row >= tile.shape[0] || column >= tile.shape[1]) return 0;
  const auto code = tile.codes[row * tile.shape[1] + column];
  return decode(operand, encode(operand, decode(*tile.type.element, code) - tile.type.zero));
}

/// Carries a tensor to every fragment by the plan's moves; out[block][fragment], row-major.
std::vector<std::vector<CodeTile>> carried(const std::vector<TileMove>& moves,
                                           const CodeTile& tensor) {
  std::vector<std::vector<CodeTile>> out;
  for (std::int64_t block = 0; block < moves[0].pieces(); ++block) {
    const auto stored = transformed(moves[0].steps(block), tensor);
    out.emplace_back();
    for (std::int64_t piece = 0; piece < moves[1].pieces(); ++piece) {
      out.back().push_back(transformed(moves[1].steps(piece), stored));
    }
  }
  return out;
}

/// The same as numbers.
std::vector<std::vector<std::vector<double>>> carried_values(const std::vector<TileMove>& moves,
                                                             const CodeTile& tensor) {
  std::vector<std::vector<std::vector<double>>> out;
  for (const auto& block : carried(moves, tensor)) {
    out.emplace_back();
    for (const CodeTile& piece : block) out.back().push_back(values(piece));
  }
  return out;
}

/// Whether every fragment holds what the tensor has at its place.
void expect_carries(const std::vector<TileMove>& moves, const CodeTile& tensor, const Shape& block,
                    const Shape& fragment, const Element& operand) {
  const auto fragments = carried(moves, tensor);
  const std::int64_t across = (tensor.shape[1] + block[1] - 1) / block[1];
  const std::int64_t inside = block[1] / fragment[1];
  for (std::int64_t b = 0; b < std::ssize(fragments); ++b) {
    for (std::int64_t p = 0; p < std::ssize(fragments[b]); ++p) {
      const CodeTile& piece = fragments[b][p];
      ASSERT_EQ(piece.shape, fragment);
      ASSERT_EQ(piece.type.element, &operand);
      const auto found = values(piece);
      for (std::int64_t r = 0; r < fragment[0]; ++r) {
        for (std::int64_t c = 0; c < fragment[1]; ++c) {
          const auto row = b / across * block[0] + p / inside * fragment[0] + r;
          const auto column = b % across * block[1] + p % inside * fragment[1] + c;
          ASSERT_EQ(found[r * fragment[1] + c], operand_value(tensor, operand, row, column))
              << "block " << b << " piece " << p << " at " << r << ", " << c;
        }
      }
    }
  }
}

// LADDER, figure 5: A float16 [32, 63], B nf4 [32, 63], C float16 [32, 32].
TEST(TilePlan, of_the_example_of_the_paper_pads_converts_and_maps_as_it_says) {
  const auto plan = plan_in(product(32, 32, 63, ttype("nf4")), device("a100"), Shape{16, 16, 64});
  EXPECT_EQ(plan.decisions.core.instruction->name, "mma.m16n8k16.f16");
  EXPECT_FALSE(plan.decisions.core.exact);  // nf4 is a table of float32
  EXPECT_EQ(plan.decisions.hint, (Hint{16, {4, 8}}));
  EXPECT_EQ(plan.fragment, (Shape{16, 16, 16}));
  auto early = plan;
  early.b[0] = schedule_move({"global", kNf4, {32, 63}}, {"shared", kF16, {16, 64}},
                             {"registers", kF16, {16, 16}}, plan.decisions.hint);
  const auto steps = early.b[0].steps(1);
  ASSERT_EQ(steps.size(), 4u);  // slice, pad, convert, map
  EXPECT_EQ(std::get<Slice>(steps[0]), (Slice{{16, 0}, {16, 63}}));
  EXPECT_EQ(std::get<Pad>(steps[1]), (Pad{{0, 0}, {0, 1}, 7}));
  EXPECT_EQ(std::get<ConvertTo>(steps[2]), ConvertTo{kF16});
  // Four [16, 16] pieces, each 4 runs of 64 halves: 128 bytes.
  EXPECT_EQ(std::get<MapTo>(steps[3]).map.shape(), (Shape{4, 4, 64}));
  early.b[1] = read_piece(early.b[0], {"registers", kF16, {16, 16}});
  expect_carries(early.b, random_codes(kNf4, {32, 63}, 1), {16, 64}, {16, 16}, element("float16"));
}

TEST(TilePlan, carries_every_tensor_on_every_device_unchanged_to_the_registers) {
  for (const Device& device : devices()) {
    for (const TType& type : {kSymmetric, ttype("nf4"), ttype("float6_e3m2"), ttype("float16")}) {
      const TileType weight = tile_type(Weight(type));
      // Converted on the way to registers, and before.
      for (std::int64_t m : {13, 37}) {
        const auto plan = plan_in(product(m, 70, 130, type), device);
        SCOPED_TRACE(to_string(plan));
        const Element& operand = plan.decisions.core.operand();
        const Shape& block = plan.decisions.block;
        expect_carries(plan.a, random_codes(kF16, {m, 130}, 2), {block[0], block[2]},
                       {plan.fragment[0], plan.fragment[2]}, operand);
        expect_carries(plan.b, random_codes(weight, {70, 130}, 3), {block[1], block[2]},
                       {plan.fragment[1], plan.fragment[2]}, operand);
      }
    }
  }
}

// Fragments multiplied, added up over k and stored: the whole of Transform-Load, Compute and
// Transform-Store against the expression.
TEST(TilePlan, computes_the_expression_from_its_fragments) {
  const std::int64_t m = 21, n = 35, k = 130;
  const auto plan = plan_in(product(m, n, k, kSymmetric), device("a100"), Shape{32, 32, 64});
  const auto a = random_codes(kF16, {m, k}, 4), b = random_codes(kU4, {n, k}, 5);
  const auto x = carried_values(plan.a, a), w = carried_values(plan.b, b);
  const OperatorTypes types{ttype("float16"), ttype("uint4"), ttype("float16")};
  const auto want = evaluate(linear_expr(m, n, k, types), values(a), values(b));
  const auto across = (k + 63) / 64, f = plan.fragment[0], h = plan.fragment[1];
  for (std::int64_t row = 0; row * 32 < m; ++row) {
    for (std::int64_t column = 0; column * 32 < n; ++column) {
      CodeTile sums{{&element("float32")}, {32, 32}, {}};
      for (std::int64_t i = 0; i < 32; ++i) {
        for (std::int64_t j = 0; j < 32; ++j) {
          double sum = 0;
          for (std::int64_t step = 0; step < across; ++step) {
            for (std::int64_t c = 0; c < 64; ++c) {
              const auto p = plan.fragment[2];
              const auto& left = x[row * across + step][i / f * (64 / p) + c / p];
              const auto& right = w[column * across + step][j / h * (64 / p) + c / p];
              sum += left[i % f * p + c % p] * right[j % h * p + c % p];
            }
          }
          sums.codes.push_back(encode(element("float32"), sum));
        }
      }
      const auto stored = transformed(plan.store(row, column), sums);
      EXPECT_EQ(stored.type, kF16);
      const auto got = values(stored);
      for (std::int64_t i = 0; i < stored.shape[0]; ++i) {
        for (std::int64_t j = 0; j < stored.shape[1]; ++j) {
          const auto exact = want[(row * 32 + i) * n + column * 32 + j];
          EXPECT_EQ(got[i * stored.shape[1] + j],
                    decode(element("float16"), encode(element("float16"), exact)));
        }
      }
    }
  }
}

TEST(TilePlan, block_tiles_fit_and_leave_a_block_for_every_multiprocessor) {
  for (const Device& device : devices()) {
    for (std::int64_t m : {1, 16, 4096}) {
      const auto plan = plan_in(product(m, 16384, 4096, kSymmetric), device);
      const auto bytes = plan.decisions.core.instruction->operand_bits() / 8;
      EXPECT_LE(
          2 * plan.decisions.block[2] * (plan.decisions.block[0] + plan.decisions.block[1]) * bytes,
          std::max<std::int64_t>(device.shared_per_block_bytes,
                                 2 * plan.decisions.block[2] * 128 * bytes))
          << device.name;
      EXPECT_EQ(plan.decisions.block[2] * bytes, plan.decisions.hint.run_bytes()) << device.name;
    }
  }
}

TEST(Core, is_the_narrowest_type_that_holds_both_operands_and_then_the_fastest) {
  const Element &f16 = element("float16"), &i8 = element("int8");
  EXPECT_EQ(choose_core(device("a100"), f16, kU4).instruction->name, "mma.m16n8k16.f16");
  EXPECT_EQ(choose_core(device("h200"), f16, kU4).instruction->name, "wgmma.m64nNk16.f16");
  EXPECT_EQ(choose_core(device("a100"), i8, kU4).instruction->name, "mma.m16n8k32.s8");
  EXPECT_EQ(choose_core(device("t4"), i8, kU4).instruction->name, "4 x mma.m8n8k16.s8");
  EXPECT_EQ(choose_core(device("v100"), f16, kU4).instruction->name, "4 x mma.m8n8k4.f16");
  EXPECT_EQ(choose_core(device("mi300x"), element("float8_e4m3fnuz"), {&element("float4_e2m1")})
                .instruction->operand,
            "float8_e4m3fnuz");
  EXPECT_EQ(choose_core(device("h200"), element("float8_e4m3"), kU4).instruction->name,
            "wgmma.m64nNk32.e4m3");
  // 255 - 8 has more bits than e4m3 or int8.
  EXPECT_EQ(choose_core(device("h200"), element("float8_e4m3"), {&element("uint8"), 8})
                .instruction->operand,
            "float16");
  // A processor multiplies in float32, which holds the table.
  const auto core = choose_core(device("x86_avx512"), f16, kNf4);
  EXPECT_TRUE(core.exact);
  EXPECT_EQ(core.instruction->name, "vfmadd231ps.zmm");
}

TEST(Core, rounds_a_table_that_no_instruction_holds_and_says_so) {
  const auto core = choose_core(device("a100"), element("float16"), kNf4);
  EXPECT_FALSE(core.exact);
  EXPECT_EQ(core.instruction->operand, "float16");
  EXPECT_THAT(core.considered.back(), testing::HasSubstr("weights rounded"));
}

TEST(Core, of_activations_that_no_instruction_takes_is_refused_with_what_there_is) {
  EXPECT_THAT([] { choose_core(device("t4"), element("bfloat16"), kU4); },
              testing::ThrowsMessage<Unsupported>(testing::HasSubstr("mma.m16n8k8.f16")));
}

TEST(TileInstruction, of_an_operand_is_one_row_of_each_device_and_other_rows_are_in_no_program) {
  std::set<const MatrixInstruction*> in_programs;
  for (const Device& each : devices()) {
    for (const MatrixInstruction* row : instructions(each)) {
      const auto operand = tile_operand(*row);
      if (!operand) continue;
      in_programs.insert(row);
      // CDNA 4's of twice the columns, of all but float8, beside that of the fewest.
      if (row->family == Family::cdna && row->k * row->operand_bits() == 512) {
        EXPECT_EQ(each.architecture, "gfx950") << row->name;
        EXPECT_LT(tile_instruction(*operand, each)->k, row->k);
        continue;
      }
      EXPECT_EQ(tile_instruction(*operand, each), row) << each.name;
      if (each.family == Family::nvidia && each.capability >= 80) {
        EXPECT_EQ(tile_instruction(*operand), row) << each.name;
      }
    }
  }
  EXPECT_EQ(in_programs.size(),
            // Of NVIDIA, of Turing, of Volta, of CDNA 2, of CDNA 3 and 4, float8 of either, CDNA
            // 4's of twice the columns, of RDNA 3 and 4.
            4U + 2U + 1U + 3U + 3U + 2U + 3U + 3U + 4U);
  EXPECT_FALSE(tile_operand(*instructions(device("h200"), "float16").front()));
}

// The faster instruction is passed over in words.
TEST(Core, of_a_tile_program_is_the_fastest_instruction_that_tile_programs_have) {
  const Element &f16 = element("float16"), &i8 = element("int8");
  const auto core =
      choose_core(device("h200"), f16, {&element("uint4")}, Multiplier::tile_programs);
  EXPECT_EQ(core.instruction, tile_instruction(Scalar::f16));
  EXPECT_THAT(
      core.considered,
      testing::Contains(
          "float16 by wgmma.m64nNk16.f16, 761 TFLOP/s: warpgroups of tiles multiply by it"));
  const auto table = choose_core(device("h200"), f16, {&element("nf4")}, Multiplier::tile_programs);
  EXPECT_EQ(table.instruction, tile_instruction(Scalar::f16));
  EXPECT_FALSE(table.exact);
  EXPECT_EQ(choose_core(device("h200"), i8, {&i8}, Multiplier::tile_programs).instruction,
            tile_instruction(Scalar::s8));
  EXPECT_THROW(
      choose_core(device("x86_avx512"), f16, {&element("uint4")}, Multiplier::tile_programs),
      Unsupported);
}

// The table of places in LADDER and BitBLAS, for 4-bit codes and 16-bit operands.
TEST(ConvertPlace, moves_and_converts_what_the_table_of_places_says) {
  const ConvertWork work{.m = 256,
                         .n = 4096,
                         .k = 4096,
                         .block_m = 128,
                         .block_n = 128,
                         .warps_m = 2,
                         .weight_bits = 4,
                         .operand_bits = 16,
                         .instructions = 11.0 / 8,
                         .operations_rate = 761e12};
  const double nk = 4096.0 * 4096, times = 2;  // ceil(m / block_m)
  for (const ConvertCost& cost : convert_costs(device("h200"), work)) {
    switch (cost.place) {
      case ConvertPlace::once:
        EXPECT_EQ(cost.global_bytes, nk * 2);
        EXPECT_EQ(cost.shared_bytes, times * nk * (2 + 2));
        EXPECT_EQ(cost.conversions, 0);
        EXPECT_EQ(cost.workspace_bytes, nk * 2);
        EXPECT_DOUBLE_EQ(cost.before_seconds, nk * 2.5 / 4.53e12);
        break;
      case ConvertPlace::global_to_shared:
        EXPECT_EQ(cost.global_bytes, nk / 2);
        EXPECT_EQ(cost.shared_bytes, times * nk * (2 + 2));
        EXPECT_EQ(cost.conversions, times * nk);
        EXPECT_EQ(cost.workspace_bytes, 0);
        break;
      case ConvertPlace::shared_to_registers:
        EXPECT_EQ(cost.global_bytes, nk / 2);
        EXPECT_EQ(cost.shared_bytes, times * nk * (0.5 + 0.5));
        EXPECT_EQ(cost.conversions, times * nk * 2);
        break;
    }
  }
}

// The rule of the paper: bound by memory, convert on the chip; bound by arithmetic, once.
TEST(ConvertPlace, is_on_the_chip_for_few_tokens_and_once_for_many) {
  auto place = [](std::int64_t m, std::int64_t block_m) {
    return convert_costs(device("h200"), {.m = m,
                                          .n = 8192,
                                          .k = 8192,
                                          .block_m = block_m,
                                          .block_n = 128,
                                          .warps_m = (block_m + 63) / 64,
                                          .weight_bits = 4,
                                          .operand_bits = 16,
                                          .instructions = instructions_per_weight(4, 11),
                                          .operations_rate = 761e12})
        .front()
        .place;
  };
  EXPECT_EQ(place(1, 16), ConvertPlace::shared_to_registers);
  EXPECT_EQ(place(16, 16), ConvertPlace::shared_to_registers);
  EXPECT_EQ(place(8192, 128), ConvertPlace::once);
}

}  // namespace
}  // namespace ladder
