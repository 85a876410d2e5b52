// SPDX-License-Identifier: Apache-2.0
//
// What machines compute and copy with, as rows. Operands and sums are named as types/ names
// elements; "int32" is the one sum that is no storage format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "layout/layout.h"
#include "types/scalar.h"

namespace ladder {

struct Device;

/// Whose instruction set a row belongs to.
enum class Family { nvidia, cdna, rdna, x86 };

/// AMD's devices, whose kernels are written in HIP.
constexpr bool is_amd(Family family) { return family == Family::cdna || family == Family::rdna; }

/// How the lanes share an operand.
enum class Fragment {
  quad_pair,  ///< four products at once, each by the eight lanes of a quad pair
  /// One product of 16 x 16 by 32 lanes, a quarter by each quad pair: Volta. Two quad pairs have
  /// the same rows of A, two the same of B.
  quad_pairs,
  warp,       ///< one product by 32 lanes
  warpgroup,  ///< one product by 128 lanes, A in registers, B in shared memory
  /// One product by tensor memory, started by one thread: A and the sums are in its 128 lanes, a
  /// row each, and B in shared memory. 128 threads store and load, 32 rows a warp.
  tensor_memory,
  wave,         ///< one product by 64 lanes
  wave_blocks,  ///< 16 products of 4 x 4 at once, each by four lanes: CDNA
  wave_lanes,   ///< 64 products of one row by one column, each by a lane: dot products
  wmma,         ///< one product by 32 lanes: RDNA 4
  /// The same of RDNA 3: lanes 16 to 31 have A and B of lanes 0 to 15 once more.
  wmma_twice,
  vector,  ///< one lane's vector register: a row of D
};

/// Parts of the sums that lanes of a wave have where they multiply blocks or dot products: 16 lanes
/// have the same columns.
inline constexpr int kPartsOfLanes = 4;

/// A matrix instruction: d[m, n] = a[m, k] * b[n, k] + d, `copies` times side by side.
struct MatrixInstruction {
  std::string_view name;
  Family family;
  int architecture;       ///< smallest Device::generation that has it
  int last_architecture;  ///< largest
  Fragment fragment;
  std::string_view operand, sum;
  Scalar accumulator;  ///< registers of a sum: f32 or s32
  int m, n, k;
  int most_n;            ///< n may be any multiple of `n` up to this
  int copies;            ///< 1 but for quad pairs, blocks and lanes of a wave
  int accumulator_bits;  ///< significant bits that a sum keeps
  std::string_view source;
  bool in_tiles = false;   ///< tile programs multiply by it: targets have its words
  bool subnormals = true;  ///< of operands are multiplied; else they are read as zero

  /// Who holds what: A [m, k], B [n, k], accumulator [m, n]; with `copies` a first dimension that
  /// counts them. The accumulator of a warpgroup has `most_n` columns, or as many as one asks for.
  /// b() throws Unsupported where B is read from shared memory. Of tensor memory A and sums are as
  /// threads store and load them.
  Layout a() const;
  Layout b() const;
  Layout d() const { return d(most_n); }
  Layout d(int columns) const;
  bool b_in_registers() const {
    return fragment != Fragment::warpgroup && fragment != Fragment::tensor_memory;
  }
  /// A may be bytes without a sign: those of NVIDIA come in both kinds, those of CDNA read two's
  /// complement alone. RDNA's are given nothing else.
  bool takes_unsigned() const { return !by_waves(); }
  /// Of AMD's devices and of Volta, which pipelines/waves multiplies by.
  bool by_waves() const {
    return family == Family::cdna || family == Family::rdna || fragment == Fragment::quad_pairs;
  }
  /// Threads that multiply together.
  int lanes() const;
  /// Of the sums; 1 where an instruction adds up all columns that its lanes have. All products of
  /// an instruction together multiply `step_rows` rows by `step_columns` columns.
  int parts() const {
    const bool of_lanes = fragment == Fragment::wave_blocks || fragment == Fragment::wave_lanes;
    return of_lanes ? kPartsOfLanes : 1;
  }
  int step_rows() const { return m * copies / parts(); }
  int step_columns() const { return k * parts(); }
  int operand_bits() const;
  /// The instruction comes with so many tokens: those of integers have no odd multiple of 8 above
  /// 24.
  bool takes_tokens(std::int64_t tokens) const {
    const bool coarse = accumulator == Scalar::s32 && fragment == Fragment::warpgroup;
    return tokens % n == 0 && tokens <= most_n && (!coarse || tokens < 32 || tokens % 16 == 0);
  }
};

std::span<const MatrixInstruction> matrix_instructions();

/// The rows of `device`, fastest first, of equally fast ones the one that does most; `operand`
/// empty: of every operand.
std::vector<const MatrixInstruction*> instructions(const Device& device,
                                                   std::string_view operand = {});

/// The part of the device's rate for its operand that an instruction reaches; 0: not published.
double reached_share(const Device& device, const MatrixInstruction& instruction);

/// Dense rate of an instruction on a device, multiplications and additions; 0: not published.
double operations_per_second(const Device& device, const MatrixInstruction& instruction);

/// The row of fewest columns by which tile programs multiply `operand` on `device`, u8 as s8, e4m3
/// by one of e4m3fnuz where the device has no other; null when there is none.
const MatrixInstruction* tile_instruction(Scalar operand, const Device& device);
/// That of NVIDIA's devices from sm_80 on, which programs that name no device take.
const MatrixInstruction* tile_instruction(Scalar operand);
/// Of the rows by which tile programs multiply registers, one of the oldest devices of the family.
const MatrixInstruction& first_tile_instruction(Family family);
/// The row by which the warpgroups of tile programs multiply `operand` on `device`, B in shared
/// memory; null when there is none.
const MatrixInstruction* warpgroup_instruction(Scalar operand, const Device& device);
/// The row by which tile programs multiply `operand` from tensor memory on `device`; null when
/// there is none. Such rows are in no list of those above: Algorithm 1 compares what has been run.
const MatrixInstruction* tensor_memory_instruction(Scalar operand, const Device& device);
/// All of them.
std::span<const MatrixInstruction> tensor_memory_instructions();
/// The row by which waves multiply few tokens on `device`, of blocks or of lanes; null when there
/// is none. Algorithm 1 does not know such rows either: a schedule asks for them.
const MatrixInstruction* few_tokens_instruction(Scalar operand, Fragment fragment,
                                                const Device& device);
/// What the operands of a row are, signed where they are integers; nothing for formats that
/// programs do not compute with.
std::optional<Scalar> operand_scalar(const MatrixInstruction& instruction);
/// The same of rows by which tile programs multiply registers; nothing for the others, which a
/// device has for warpgroups, or for whoever else multiplies on it.
std::optional<Scalar> tile_operand(const MatrixInstruction& instruction);
/// `device` has such a row.
bool has_tile_programs(const Device& device);

/// An instruction that moves data between two levels.
struct CopyInstruction {
  std::string_view name;
  Family family;
  int architecture, last_architecture;  ///< of Device::generation
  std::string_view from, to;            ///< "global", "shared" or "registers"
  int granule_bytes;                    ///< contiguous bytes that one lane or address names
  int rows, columns;                    ///< granules that one instruction moves
  std::string_view source;
};

/// The rows of `device`, in order of the table.
std::vector<const CopyInstruction*> copies(const Device& device);
/// The row called `name`; null when `device` does not have it.
const CopyInstruction* copy_instruction(const Device& device, std::string_view name);

}  // namespace ladder
