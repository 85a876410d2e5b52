// SPDX-License-Identifier: Apache-2.0
#include "codegen/hip/emit.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "codegen/emit/dialect.h"
#include "codegen/hip/prelude.h"

namespace ladder::hip {
namespace {

bool multiplies_by(const MatrixInstruction& row) {
  return is_amd(row.family) && (row.in_tiles || row.parts() > 1);
}

// Columns of CDNA 3 go without saying: of integers CDNA 2 has half of them, CDNA 4 of all but
// floats of 8 bits twice as many. RDNA 3 and 4 have the same instructions with other fragments.
std::string product(const MatrixInstruction& row, Scalar a) {
  if (row.family == Family::rdna) {
    return joined(row.fragment == Fragment::wmma_twice ? "wmma_twice_" : "wmma_", name_of(a));
  }
  if (row.fragment == Fragment::wave_blocks) return joined("mma_blocks_", name_of(a));
  if (row.fragment == Fragment::wave_lanes) return joined("dot_", name_of(a));
  const bool other = row.k * bits_of(a) != 256;
  return joined("mma_", name_of(a), other ? joined("_k", row.k) : "");
}

bool is_here(const std::vector<Statement>& statements, const auto& wanted) {
  return std::ranges::any_of(statements, [&](const Statement& statement) {
    return wanted(statement) || std::visit(
                                    [&](const auto& i) {
                                      if constexpr (requires { i.body; })
                                        return is_here(i.body, wanted);
                                      return false;
                                    },
                                    statement.op);
  });
}

/// Lanes of a wave, by the instruction that it multiplies by; 64 where there is none. SIMDs of a
/// compute unit, over which the waves of a workgroup are spread.
struct Waves {
  int lanes = 64, simds = 4;
};
Waves waves_of(const Program& program) {
  Waves out;
  is_here(program.body, [&](const Statement& statement) {
    const auto* product = std::get_if<Mma>(&statement.op);
    if (product != nullptr && product->row->family == Family::rdna) out = {32, 2};
    return product != nullptr;
  });
  return out;
}

std::string heading(const Program& program) {
  const Waves of = waves_of(program);
  const int waves = ceil_div(program.threads, of.lanes) * program.blocks_per_multiprocessor;
  return joined("KERNEL(", program.threads, ", ", std::max(waves / of.simds, 1), ") void");
}

/// What the language would take and the machine has not.
void check_instructions(const Program& program) {
  if (program.cluster > 1) fail<Unsupported>("workgroups of AMD's devices form no clusters");
  if (!program.signals.empty()) fail<Unsupported>("AMD's devices have no signals in memory");
  if (is_here(program.body, [](const Statement& statement) {
        return std::holds_alternative<LoadMatrix>(statement.op);
      })) {
    fail<Unsupported>("AMD's devices have no load-matrix instruction");
  }
}

// Of the alignment that SHARED has (prelude.cpp).
std::string shared_memory(int) { return "extern SHARED unsigned char shared[];"; }

constexpr codegen::Dialect kDialect = {
    .preludes = {.common = &prelude,
                 .scales = &scale_prelude,
                 .digits = &byte_prelude,
                 .quad_pairs = nullptr,
                 .e4m3 = &float_byte_prelude,
                 .wholes = &whole_byte_prelude,
                 .relative = nullptr,
                 .gates = &gate_prelude,
                 .codes = &code_prelude,
                 .tiles = &tile_prelude,
                 .products = nullptr,
                 .roles = nullptr,
                 .tensors = nullptr,
                 .phases = &phase_prelude},
    .heading = &heading,
    .shared = "SHARED",
    .constants = "static __attribute__((device)) const",
    .shared_memory = &shared_memory,
    .thread = "thread_id()",
    .split = "block_x()",
    .tile = "block_y()",
    .item = "__builtin_amdgcn_workgroup_id_z()",
    .byte_perm = "byte_perm",
    .multiplies_by = &multiplies_by,
    .product = &product,
    .shared_product = nullptr,
};

}  // namespace

std::string emit(const Program& program) {
  check_instructions(program);
  return codegen::emit(program, kDialect);
}

}  // namespace ladder::hip
