// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "device/device.h"

namespace ladder {
namespace {

// To add an instruction, add its row and its wrapper in the prelude of each target that has it.
constexpr MatrixInstruction kInstructions[] = {
    {.name = "mma.m16n8k16.f16",
     .architecture = 80,
     .operand = Scalar::f16,
     .accumulator = Scalar::f32,
     .m = 16,
     .n = 8,
     .k = 16,
     .accumulator_bits = 24,
     .source = "PTX ISA, matrix fragments for mma.m16n8k16"},
    {.name = "mma.m16n8k16.bf16",
     .architecture = 80,
     .operand = Scalar::bf16,
     .accumulator = Scalar::f32,
     .m = 16,
     .n = 8,
     .k = 16,
     .accumulator_bits = 24,
     .source = "PTX ISA, matrix fragments for mma.m16n8k16"},
};

}  // namespace

// All rows are of the m16n8 family: 8 x 4 lanes, two neighbouring columns per lane, registers that
// step over rows by 8, then over columns by 8.
Layout MatrixInstruction::a() const {
  return column_local({m / 8, k / 8}) * spatial({8, 4}) * local({1, 2});
}
Layout MatrixInstruction::b() const {
  return local({n / 8, k / 8}) * spatial({8, 4}) * local({1, 2});
}
Layout MatrixInstruction::d() const {
  return local({m / 8, n / 8}) * spatial({8, 4}) * local({1, 2});
}

std::vector<const MatrixInstruction*> instructions(int architecture, Scalar operand) {
  std::vector<const MatrixInstruction*> found;
  for (const auto& row : kInstructions) {
    if (row.architecture <= architecture && row.operand == operand) found.push_back(&row);
  }
  return found;
}

const MatrixInstruction* tile_instruction(Scalar operand) {
  for (const auto& row : kInstructions) {
    if (row.operand == operand) return &row;
  }
  return nullptr;
}

Hint hint(const Device& device, const MatrixInstruction& instruction) {
  struct Layer {
    int granule_bytes;
    std::vector<std::int64_t> shape;
  };
  const int operand = bytes_of(instruction.operand);
  // ldmatrix moves rows of 16 bytes; four 8 x 8 matrices are 16 x 2 of them. Shared memory serves
  // 32 banks of 4 bytes at once.
  const std::vector<Layer> layers = {
      {operand, {instruction.m, instruction.k}},
      {operand, {instruction.n, instruction.k}},
      {16, {16, 2}},
      {4, {device.shared.transaction_bytes / 4}},
      {1, {device.global.transaction_bytes}},
  };
  int granularity = 1;
  for (const Layer& layer : layers) granularity = std::lcm(granularity, layer.granule_bytes);
  std::int64_t inner = 1, total = 1;
  for (const Layer& layer : layers) {
    auto shape = layer.shape;
    LADDER_CHECK(shape.back() * layer.granule_bytes % granularity == 0, "a run of ",
                 shape.back() * layer.granule_bytes, " bytes in granules of ", granularity);
    shape.back() = shape.back() * layer.granule_bytes / granularity;
    inner = std::lcm(inner, shape.back());
    total = std::lcm(
        total, std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  }
  return {granularity, {total / inner, inner}};
}

}  // namespace ladder
