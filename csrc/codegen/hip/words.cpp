// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include "codegen/gated_product.h"
#include "codegen/hip/prelude.h"

namespace ladder::hip {
namespace {

// Functions of C in CUDA's words. Macros: hiprtc has some of the same names.
constexpr std::string_view kGateWords = R"(#define fminf __builtin_fminf
#define fmaxf __builtin_fmaxf
#define __expf exponential
#define __fdividef(A, B) ((A) * __builtin_amdgcn_rcpf(B))
#define log1pf logarithm_of_more
#define tanhf hyperbolic_tangent
#define erff error_function
DEVICE float exponential(float x) { return __builtin_exp2f(1.44269504f * x); }
// Of x >= 0: where 1 + x is rounded, x / (1 + x - 1) makes up for it.
DEVICE float logarithm_of_more(float x) {
  const float more = 1.0f + x;
  return more == 1.0f ? x : 0.69314718f * __builtin_log2f(more) * (x / (more - 1.0f));
}
// Below 1/4 the series, whose next term is 2^-26 of the value; above it nothing cancels.
DEVICE float hyperbolic_tangent(float x) {
  const float magnitude = __builtin_fabsf(x), square = x * x;
  const float series =
      x + x * square *
              (-0.33333333f + square * (0.13333333f + square * (-0.05396825f + square * 0.02186949f)));
  const float large = 1.0f - 2.0f / (1.0f + exponential(2.0f * magnitude));
  return magnitude < 0.25f ? series : __builtin_copysignf(large, x);
}
// Within 1.5e-7, about an ulp of 1: gates add it to 1. Abramowitz and Stegun, 7.1.26.
DEVICE float error_function(float x) {
  const float magnitude = __builtin_fabsf(x), t = 1.0f / (1.0f + 0.3275911f * magnitude);
  const float sum =
      t * (0.254829592f +
           t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  return __builtin_copysignf(1.0f - sum * exponential(-magnitude * magnitude), x);
}
)";

}  // namespace

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
  return __builtin_amdgcn_ds_bpermute((thread_id() % wave_lanes() ^ mask) * 4u, value);
}
)";
  return all;
}

std::string_view gate_prelude() {
  static const std::string all = std::string(kGateWords) + std::string(kSigmoid);
  return all;
}

std::string_view activation_prelude() {
  static const std::string all = std::string(words_prelude()) + R"(
// And those in which kernels of activations are written. Functions are macros: hiprtc has some of
// the same names.
#define min(A, B) smaller_u32(A, B)
#define max(A, B) larger_u32(A, B)
#define atomicAdd(TO, VALUE) \
  __hip_atomic_fetch_add(TO, VALUE, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP)
#define __shfl_up_sync(LANES, VALUE, STEP) of_lane_before(VALUE, STEP)
#define __fdiv_rn divided
DEVICE u32 smaller_u32(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 larger_u32(u32 a, u32 b) { return a < b ? b : a; }
// To nearest, as clang divides in HIP unless it is told otherwise.
DEVICE float divided(float a, float b) { return a / b; }
// In the lowest `step` lanes any lane's.
DEVICE u32 of_lane_before(u32 value, u32 step) {
  return __builtin_amdgcn_ds_bpermute((thread_id() - step) % wave_lanes() * 4u, value);
}
// In all lanes.
DEVICE u32 largest_of_warp(u32 value) {
  for (u32 other = wave_lanes() / 2; other != 0; other /= 2) {
    value = larger_u32(value, of_other_lane(value, other));
  }
  return value;
}
)" + std::string(kGateWords);
  return all;
}

}  // namespace ladder::hip
