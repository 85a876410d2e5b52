// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "codegen/hip/prelude.h"

namespace ladder::hip {

std::string_view words_prelude() {
  static const std::string all = std::string(prelude()) + R"(
// The words of CUDA, in which kernels of weights are written.
#define __global__ __attribute__((global))
#define __device__ static __attribute__((device))
#define __shared__ __attribute__((shared))
#define __align__(BYTES) __attribute__((aligned(BYTES)))
#define __launch_bounds__(THREADS) \
  __attribute__((amdgpu_flat_work_group_size(THREADS, THREADS)))
struct Index { u32 x, y; };
#define threadIdx (Index{thread_id(), 0u})
#define blockIdx (Index{block_x(), block_y()})
#define __syncthreads barrier
#define __byte_perm byte_perm
#define __fadd_rn added
#define __fsub_rn subtracted
#define __fmul_rn multiplied
#define __shfl_xor_sync(LANES, VALUE, MASK) of_other_lane(VALUE, MASK)
DEVICE float added(float a, float b) { return a + b; }
DEVICE float subtracted(float a, float b) { return a - b; }
DEVICE float multiplied(float a, float b) { return a * b; }
DEVICE u32 of_other_lane(u32 value, u32 mask) {
  return __builtin_amdgcn_ds_bpermute((thread_id() % 64u ^ mask) * 4u, value);
}
)";
  return all;
}

}  // namespace ladder::hip
