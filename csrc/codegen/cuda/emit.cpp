// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/emit.h"

#include "base/joined.h"
#include "codegen/cuda/prelude.h"
#include "codegen/emit/dialect.h"
#include "codegen/gated_product.h"

namespace ladder::cuda {
namespace {

std::string heading(const Program& program) {
  auto out = joined("extern \"C\" __global__ void __launch_bounds__(", program.block_threads(),
                    ", ", program.blocks_per_multiprocessor, ")");
  if (program.cluster > 1) {
    out += joined(" __cluster_dims__(", program.tiles_in_cluster ? "1, " : "", program.cluster,
                  program.tiles_in_cluster ? ", 1)" : ", 1, 1)");
  }
  return out;
}

bool multiplies_by(const MatrixInstruction& row) {
  return row.family == Family::nvidia && row.in_tiles;
}

std::string product(const MatrixInstruction& row, Scalar a) {
  return joined(row.fragment == Fragment::quad_pairs ? "mma_quad_pairs_" : "mma_", name_of(a));
}

std::string shared_memory(int alignment) {
  return joined("extern __shared__ __align__(", alignment, ") unsigned char shared[];");
}

constexpr codegen::Dialect kDialect = {
    .preludes = {.common = &prelude,
                 .scales = &scale_prelude,
                 .digits = &digit_prelude,
                 .quad_pairs = &quad_pair_prelude,
                 .e4m3 = &float_byte_prelude,
                 .wholes = &whole_byte_prelude,
                 .relative = &relative_prelude,
                 .gates = [] { return kSigmoid; },
                 .codes = &code_prelude,
                 .tiles = &tile_prelude,
                 .products = &product_prelude,
                 .roles = &role_prelude,
                 .tensors = &tensor_prelude,
                 .phases = nullptr},
    .heading = &heading,
    .shared = "__shared__",
    .constants = "__device__ const",
    .shared_memory = &shared_memory,
    .thread = "threadIdx.x",
    .split = "blockIdx.x",
    .tile = "blockIdx.y",
    .item = "blockIdx.z",
    .byte_perm = "__byte_perm",
    .multiplies_by = &multiplies_by,
    .product = &product,
    .shared_product = &shared_product,
};

}  // namespace

std::string emit(const Program& program) { return codegen::emit(program, kDialect); }

}  // namespace ladder::cuda
