// SPDX-License-Identifier: Apache-2.0
//
// To add an instruction, add its row and, for a family that is not there, its fragments
// (fragments.cpp); docs/new-device.md says what its test wants. A wrapper in the prelude of a
// target is for what tile programs are made of only: tile_instruction() and the copies.
#include "device/instructions.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "device/calibration.h"
#include "device/device.h"

namespace ladder {
namespace {

constexpr int kNewest = 1 << 20;
constexpr std::string_view kPtx = "PTX ISA, matrix fragments of mma";
constexpr std::string_view kWgmma = "PTX ISA, register fragments of wgmma";
constexpr std::string_view kTcgen05 =
    "PTX ISA, tcgen05: matrix shapes, data movement shapes 16x128b and 16x256b";
constexpr std::string_view kMfma =
    "AMD Instinct MI200 and MI300 ISA; AMD Matrix Instruction Calculator";

constexpr std::string_view kWmma = "AMD RDNA 3 and RDNA 4 ISA; AMD Matrix Instruction Calculator";

struct Types {
  std::string_view operand, sum;
  Scalar accumulator;
  int accumulator_bits;
};
constexpr Types kF16{"float16", "float32", Scalar::f32, 24},
    kBf16{"bfloat16", "float32", Scalar::f32, 24};
constexpr Types kF32{"float32", "float32", Scalar::f32, 24};
constexpr Types kI8{"int8", "int32", Scalar::s32, 31};
// DeepSeek-V3 technical report (arXiv 2412.19437), 3.3.2: sums of e4m3 products keep about 14 bits
// on Hopper. Taken for every generation, as the least.
constexpr Types kE4m3{"float8_e4m3", "float32", Scalar::f32, 14};
// Of CDNA 3 and 4 and RDNA 4; the accumulators add in float32, so that nothing is promoted on the
// way. CDNA 3: MMA-Sim (arXiv 2511.10909), whose sums keep 24 bits. Of the others nothing is
// published.
constexpr Types kFnuz{"float8_e4m3fnuz", "float32", Scalar::f32, 24};
constexpr Types kOcp{"float8_e4m3", "float32", Scalar::f32, 24};

struct Range {
  int first, last;
};

constexpr MatrixInstruction mma(std::string_view name, Range range, Types types, int m, int k,
                                bool in_tiles = false) {
  return {name,
          Family::nvidia,
          range.first,
          range.last,
          Fragment::warp,
          types.operand,
          types.sum,
          types.accumulator,
          m,
          8,
          k,
          8,
          1,
          types.accumulator_bits,
          kPtx,
          in_tiles};
}
constexpr MatrixInstruction wgmma(std::string_view name, Types types, int k,
                                  bool in_tiles = false) {
  return {name,
          Family::nvidia,
          90,
          90,
          Fragment::warpgroup,
          types.operand,
          types.sum,
          types.accumulator,
          64,
          8,
          k,
          256,
          1,
          types.accumulator_bits,
          kWgmma,
          in_tiles};
}
// Compute capability 10.x, which has no wgmma.
constexpr MatrixInstruction tcgen05(std::string_view name, Types types, int k) {
  return {name,
          Family::nvidia,
          100,
          109,
          Fragment::tensor_memory,
          types.operand,
          types.sum,
          types.accumulator,
          128,
          16,
          k,
          256,
          1,
          types.accumulator_bits,
          kTcgen05,
          true};
}
constexpr MatrixInstruction mfma(std::string_view name, Range range, Types types, int mn, int k,
                                 bool in_tiles = false) {
  return {name, Family::cdna, range.first, range.last, Fragment::wave, types.operand, types.sum,
          types.accumulator, mn, mn, k, mn, 1, types.accumulator_bits, kMfma, in_tiles,
          // Not those of CDNA 2: PyTorch notes, numerical accuracy.
          range.last > 2 || types.accumulator == Scalar::s32};
}
// Generations 3 and 4 of RDNA have the same names with other fragments.
constexpr MatrixInstruction wmma(std::string_view name, int generation, Types types,
                                 bool in_tiles = false) {
  return {name,
          Family::rdna,
          generation,
          generation,
          generation == 3 ? Fragment::wmma_twice : Fragment::wmma,
          types.operand,
          types.sum,
          types.accumulator,
          16,
          16,
          16,
          16,
          1,
          types.accumulator_bits,
          kWmma,
          in_tiles};
}
constexpr MatrixInstruction vector(std::string_view name, Range range, Types types, int n, int k) {
  return {name,
          Family::x86,
          range.first,
          range.last,
          Fragment::vector,
          types.operand,
          types.sum,
          types.accumulator,
          1,
          n,
          k,
          n,
          1,
          types.accumulator_bits,
          "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2"};
}

constexpr MatrixInstruction kMatrix[] = {
    {"mma.m8n8k4.f16", Family::nvidia, 70, 74, Fragment::quad_pair, "float16", "float32",
     Scalar::f32, 8, 8, 4, 8, 4, 24, kPtx},
    mma("mma.m16n8k8.f16", {75, kNewest}, kF16, 16, 8),
    mma("mma.m8n8k16.s8", {75, kNewest}, kI8, 8, 16),
    mma("mma.m16n8k16.f16", {80, kNewest}, kF16, 16, 16, true),
    mma("mma.m16n8k16.bf16", {80, kNewest}, kBf16, 16, 16, true),
    mma("mma.m16n8k32.s8", {80, kNewest}, kI8, 16, 32, true),
    mma("mma.m16n8k32.e4m3", {89, kNewest}, kE4m3, 16, 32, true),
    // Turing's, side by side: fragments of one are those of the other, register by register.
    mma("2 x mma.m16n8k8.f16", {75, 79}, kF16, 16, 16, true),
    mma("4 x mma.m8n8k16.s8", {75, 79}, kI8, 16, 32, true),
    // Volta's: four, one after the other along k.
    {"4 x mma.m8n8k4.f16", Family::nvidia, 70, 74, Fragment::quad_pairs, "float16", "float32",
     Scalar::f32, 16, 16, 16, 16, 1, 24, kPtx, true},
    wgmma("wgmma.m64nNk16.f16", kF16, 16, true),
    wgmma("wgmma.m64nNk16.bf16", kBf16, 16, true),
    wgmma("wgmma.m64nNk32.s8", kI8, 32, true),
    wgmma("wgmma.m64nNk32.e4m3", kE4m3, 32, true),
    mfma("v_mfma_f32_16x16x16f16", {2, 2}, kF16, 16, 16, true),
    mfma("v_mfma_f32_32x32x8f16", {2, 2}, kF16, 32, 8),
    mfma("v_mfma_f32_16x16x16bf16_1k", {2, 2}, kBf16, 16, 16, true),
    mfma("v_mfma_f32_32x32x8bf16_1k", {2, 2}, kBf16, 32, 8),
    mfma("v_mfma_i32_16x16x16i8", {2, 2}, kI8, 16, 16, true),
    mfma("v_mfma_i32_32x32x8i8", {2, 2}, kI8, 32, 8),
    mfma("v_mfma_f32_16x16x16_f16", {3, 4}, kF16, 16, 16, true),
    mfma("v_mfma_f32_32x32x8_f16", {3, 4}, kF16, 32, 8),
    mfma("v_mfma_f32_16x16x16_bf16", {3, 4}, kBf16, 16, 16, true),
    mfma("v_mfma_f32_32x32x8_bf16", {3, 4}, kBf16, 32, 8),
    mfma("v_mfma_i32_16x16x32_i8", {3, 4}, kI8, 16, 32, true),
    mfma("v_mfma_i32_32x32x16_i8", {3, 4}, kI8, 32, 16),
    mfma("v_mfma_f32_16x16x32_fp8_fp8", {3, 3}, kFnuz, 16, 32, true),
    mfma("v_mfma_f32_32x32x16_fp8_fp8", {3, 3}, kFnuz, 32, 16),
    mfma("v_mfma_f32_16x16x32_fp8_fp8", {4, 4}, kOcp, 16, 32, true),
    mfma("v_mfma_f32_32x32x16_fp8_fp8", {4, 4}, kOcp, 32, 16),
    // Operands of 8 bits, and no scales.
    mfma("v_mfma_f32_16x16x128_f8f6f4", {4, 4}, kOcp, 16, 128),
    mfma("v_mfma_f32_32x32x64_f8f6f4", {4, 4}, kOcp, 32, 64),
    mfma("v_mfma_f32_16x16x32_f16", {4, 4}, kF16, 16, 32, true),
    mfma("v_mfma_f32_32x32x16_f16", {4, 4}, kF16, 32, 16),
    mfma("v_mfma_f32_16x16x32_bf16", {4, 4}, kBf16, 16, 32, true),
    mfma("v_mfma_f32_32x32x16_bf16", {4, 4}, kBf16, 32, 16),
    mfma("v_mfma_i32_16x16x64_i8", {4, 4}, kI8, 16, 64, true),
    mfma("v_mfma_i32_32x32x32_i8", {4, 4}, kI8, 32, 32),
    wmma("v_wmma_f32_16x16x16_f16", 3, kF16, true),
    wmma("v_wmma_f32_16x16x16_bf16", 3, kBf16, true),
    wmma("v_wmma_i32_16x16x16_iu8", 3, kI8, true),
    wmma("v_wmma_f32_16x16x16_f16", 4, kF16, true),
    wmma("v_wmma_f32_16x16x16_bf16", 4, kBf16, true),
    wmma("v_wmma_i32_16x16x16_iu8", 4, kI8, true),
    wmma("v_wmma_f32_16x16x16_fp8_fp8", 4, kOcp, true),
    vector("vfmadd231ps.ymm", {256, kNewest}, kF32, 8, 1),
    vector("vfmadd231ps.zmm", {512, kNewest}, kF32, 16, 1),
};

constexpr MatrixInstruction kTensorMemory[] = {
    tcgen05("tcgen05.mma.m128nNk16.f16", kF16, 16),
    tcgen05("tcgen05.mma.m128nNk16.bf16", kBf16, 16),
};

// Two dot products, side by side along k.
constexpr MatrixInstruction of_few_tokens(std::string_view name, Range range, Types types,
                                          Fragment fragment) {
  const bool blocks = fragment == Fragment::wave_blocks;
  MatrixInstruction out = mfma(name, range, types, blocks ? 4 : 1, 4);
  out.fragment = fragment;
  out.copies = blocks ? 16 : 64;
  return out;
}

constexpr MatrixInstruction kFewTokens[] = {
    of_few_tokens("v_mfma_f32_4x4x4f16", {2, 2}, kF16, Fragment::wave_blocks),
    of_few_tokens("v_mfma_f32_4x4x4bf16_1k", {2, 2}, kBf16, Fragment::wave_blocks),
    of_few_tokens("v_mfma_f32_4x4x4_16b_f16", {3, 4}, kF16, Fragment::wave_blocks),
    of_few_tokens("v_mfma_f32_4x4x4_16b_bf16", {3, 4}, kBf16, Fragment::wave_blocks),
    of_few_tokens("2 x v_dot2_f32_f16", {2, 2}, kF16, Fragment::wave_lanes),
    of_few_tokens("2 x v_dot2_f32_f16", {3, 4}, kF16, Fragment::wave_lanes),
    of_few_tokens("2 x v_dot2_f32_bf16", {4, 4}, kBf16, Fragment::wave_lanes),
};

constexpr CopyInstruction nvidia(std::string_view name, int first, std::string_view from,
                                 std::string_view to, int granule, int rows, int columns,
                                 int last = kNewest) {
  return {name, Family::nvidia, first, last, from, to, granule, rows, columns, "PTX ISA"};
}

// A load by lanes moves one granule for each; what one quarter-warp or address phase covers is the
// hardware's affair. Turing has a load and a store by the same thread in the place of cp.async.
constexpr CopyInstruction kCopies[] = {
    nvidia("ld.global.v4.b32", 70, "global", "registers", 16, 32, 1),
    nvidia("ld.shared.v4.b32", 70, "shared", "registers", 16, 32, 1),
    nvidia("ldmatrix.x4", 75, "shared", "registers", 16, 16, 2),
    nvidia("ld.global+st.shared", 75, "global", "shared", 16, 32, 1, 79),
    nvidia("cp.async", 80, "global", "shared", 16, 32, 1),
    nvidia("cp.async.bulk", 90, "global", "shared", 16, 1, 1),
    {"global_load_dwordx4", Family::cdna, 2, 4, "global", "registers", 16, 64, 1,
     "AMD Instinct MI200 and MI300 ISA"},
    {"ds_read_b128", Family::cdna, 2, 4, "shared", "registers", 16, 64, 1,
     "AMD Instinct MI200 and MI300 ISA"},
    {"global_load_lds_dword", Family::cdna, 2, 4, "global", "shared", 4, 64, 1,
     "AMD Instinct MI200 and MI300 ISA"},
    {"global_load_b128", Family::rdna, 3, 4, "global", "registers", 16, 32, 1,
     "AMD RDNA 3 and RDNA 4 ISA"},
    {"ds_load_b128", Family::rdna, 3, 4, "shared", "registers", 16, 32, 1,
     "AMD RDNA 3 and RDNA 4 ISA"},
    {"vmovups.ymm", Family::x86, 256, 256, "shared", "registers", 32, 1, 1,
     "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2"},
    {"vmovups.zmm", Family::x86, 512, 512, "shared", "registers", 64, 1, 1,
     "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2"},
};

template <class Row>
bool has(const Device& device, const Row& row) {
  return row.family == device.family && row.architecture <= device.generation &&
         device.generation <= row.last_architecture;
}

double rate_of(const Device& device, std::string_view operand) {
  if (operand == "float16") return device.f16_flops;
  if (operand == "bfloat16") return device.bf16_flops;
  if (operand == "int8") return device.i8_flops;
  if (operand == "float32") return device.f32_flops;
  if (operand.starts_with("float8")) return device.f8_flops;
  fail<InternalError>("no rate for operands of ", operand);
}

}  // namespace

std::span<const MatrixInstruction> matrix_instructions() { return kMatrix; }

std::vector<const MatrixInstruction*> instructions(const Device& device, std::string_view operand) {
  std::vector<const MatrixInstruction*> found;
  for (const auto& row : kMatrix) {
    if (has(device, row) && (operand.empty() || row.operand == operand)) found.push_back(&row);
  }
  std::ranges::stable_sort(found, [&](const auto* a, const auto* b) {
    const double rate_a = operations_per_second(device, *a);
    const double rate_b = operations_per_second(device, *b);
    return rate_a != rate_b ? rate_a > rate_b : a->m * a->n * a->k > b->m * b->n * b->k;
  });
  return found;
}

double reached_share(const Device& device, const MatrixInstruction& row) {
  // A narrow vector on a machine with wide ones.
  if (row.fragment == Fragment::vector) return 32.0 * row.n / device.generation;
  if (row.fragment == Fragment::warp) {
    const auto operand = std::ranges::find(kMatrixOperands, row.operand);
    if (operand == kMatrixOperands.end()) return device.warp_share;
    const double measured = device.warp_shares[operand - kMatrixOperands.begin()];
    return measured > 0 ? measured : device.warp_share;
  }
  // Of each of few tokens: two passes of the matrix units, or two vector instructions.
  if (row.parts() > 1) {
    constexpr double kClocks = 8;
    return row.copies * row.m * row.n * row.k / kClocks * device.schedulers / device.f16_lanes;
  }
  // CDNA 4 takes as many clocks for instructions of twice the depth.
  constexpr int kBitsOfCdna4 = 16 * 32 * 16;  // of an operand of v_mfma_f32_16x16x32_f16
  const bool shallow = row.m * row.k * row.operand_bits() < kBitsOfCdna4;
  return row.fragment == Fragment::wave && shallow && device.generation >= 4 ? 0.5 : 1;
}

double operations_per_second(const Device& device, const MatrixInstruction& row) {
  return rate_of(device, row.operand) * reached_share(device, row);
}

namespace {

const MatrixInstruction* tile_row(Scalar operand, const auto& taken) {
  if (operand == Scalar::u8) operand = Scalar::s8;
  const auto row = std::ranges::find_if(kMatrix, [&](const MatrixInstruction& each) {
    return taken(each) && tile_operand(each) == operand;
  });
  return row == std::end(kMatrix) ? nullptr : &*row;
}

}  // namespace

const MatrixInstruction* tile_instruction(Scalar operand, const Device& device) {
  const auto here = [&](const MatrixInstruction& row) { return has(device, row); };
  const MatrixInstruction* const row = tile_row(operand, here);
  return row == nullptr && operand == Scalar::e4m3 ? tile_row(Scalar::e4m3fnuz, here) : row;
}

const MatrixInstruction* tile_instruction(Scalar operand) {
  return tile_row(operand,
                  [](const MatrixInstruction& row) { return row.family == Family::nvidia; });
}

const MatrixInstruction& first_tile_instruction(Family family) {
  const MatrixInstruction* first = nullptr;
  for (const MatrixInstruction& row : kMatrix) {
    if (row.family != family || !tile_operand(row)) continue;
    if (first == nullptr || row.architecture < first->architecture) first = &row;
  }
  LADDER_CHECK(first != nullptr, "no tile program multiplies on such devices");
  return *first;
}

const MatrixInstruction* warpgroup_instruction(Scalar operand, const Device& device) {
  const auto row = std::ranges::find_if(kMatrix, [&](const MatrixInstruction& each) {
    return each.in_tiles && !each.b_in_registers() && has(device, each) &&
           operand_scalar(each) == operand;
  });
  return row == std::end(kMatrix) ? nullptr : &*row;
}

std::span<const MatrixInstruction> tensor_memory_instructions() { return kTensorMemory; }

const MatrixInstruction* tensor_memory_instruction(Scalar operand, const Device& device) {
  const auto row = std::ranges::find_if(kTensorMemory, [&](const MatrixInstruction& each) {
    return device.tensor_columns > 0 && has(device, each) && operand_scalar(each) == operand;
  });
  return row == std::end(kTensorMemory) ? nullptr : &*row;
}

const MatrixInstruction* few_tokens_instruction(Scalar operand, Fragment fragment,
                                                const Device& device) {
  const auto row = std::ranges::find_if(kFewTokens, [&](const MatrixInstruction& each) {
    return each.fragment == fragment && has(device, each) && operand_scalar(each) == operand;
  });
  return row == std::end(kFewTokens) ? nullptr : &*row;
}

std::optional<Scalar> operand_scalar(const MatrixInstruction& row) {
  return scalar_of(row.operand);
}

std::optional<Scalar> tile_operand(const MatrixInstruction& row) {
  return row.in_tiles && row.b_in_registers() ? operand_scalar(row) : std::nullopt;
}

bool has_tile_programs(const Device& device) {
  return std::ranges::any_of(
      kMatrix, [&](const MatrixInstruction& row) { return has(device, row) && tile_operand(row); });
}

std::vector<const CopyInstruction*> copies(const Device& device) {
  std::vector<const CopyInstruction*> found;
  for (const auto& row : kCopies) {
    if (has(device, row)) found.push_back(&row);
  }
  return found;
}

const CopyInstruction* copy_instruction(const Device& device, std::string_view name) {
  const auto row = std::ranges::find(kCopies, name, &CopyInstruction::name);
  return row != std::end(kCopies) && has(device, *row) ? &*row : nullptr;
}

}  // namespace ladder
