// SPDX-License-Identifier: Apache-2.0
//
// The order of sums leaves segments independent of each other and makes one chain of additions of
// them: errors has a warp for each segment and holds its weights in registers; choose is one warp
// with a candidate in each lane, so that an instruction adds a segment to all candidates.
//
// What bounds it, predicted for an H200, 8192 x 8192 with the search (17 coarse and 8 fine steps):
// errors takes as many steps of a warp as groups of 128 do (codegen/cuda/quantize.cpp), 4.4 ms.
// choose adds 65536 segments in each phase, 16 cycles an addition at 1.7 GHz: 2 x 0.6 ms. Memory:
// measure and extent read 256 MiB, codes reads them and writes 64 MiB, pack_rows reads those and
// writes 32: 0.24 ms at 4 TB/s. Together 5.9 ms, and 0.25 ms without a search.
#include "codegen/cuda/quantize_tensor.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "codegen/cuda/prelude.h"
#include "codegen/cuda/quantize_rules.h"

namespace ladder::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kWarp = 32, kMostParts = 1024;

/// Doubles of a segment in `sums`: as many as the longest phase has steps, so that a load's
/// distance from the next is known to the compiler.
constexpr const char* kRow = "constexpr u32 kRow = kFirst + kCoarse;\n";

/// TensorState, its scale and zero point a Choice.
constexpr const char* kState = R"(
struct State {
  double least_error;
  Choice best;
  float middle;
};
)";

/// The cover of the whole matrix, which a warp finds from what extent() left.
constexpr const char* kWholeCover = R"(
DEVICE Cover whole_cover(const float* ends, u32 parts) {
  float least = ends[0], greatest = ends[1];
  for (u32 p = threadIdx.x % 32; p < parts; p += 32) {
    widen_range(ends[2 * p], least, greatest);
    widen_range(ends[2 * p + 1], least, greatest);
  }
  team_range(least, greatest);
  return cover_of(least, greatest);
}
)";

}  // namespace

bool is_of_tensor(const TType& type) { return type.block == Block{0, 0}; }

TensorLaunch tensor_launch(const TType& type, std::int64_t n, std::int64_t k, bool search) {
  LADDER_CHECK(is_of_tensor(type), "a type with more than one block");
  constexpr std::int64_t kMost = 1ll << 31;  // and 31 bits in which loops may run past the end
  if (n >= kMost || k >= kMost || n * k >= kMost)
    fail<Unsupported>("a weight [", n, ", ", k, "] has a block of ", n, " x ", k,
                      " weights, beyond 31 bits");
  const std::int64_t count = n * k;
  const std::int64_t segments = (count + kSegmentWeights - 1) / kSegmentWeights;
  constexpr std::int64_t kWarps = kThreads / kWarp;
  const Steps steps = steps_of(type);
  TensorLaunch launch{
      .count = static_cast<std::uint32_t>(count),
      .parts = static_cast<unsigned>(std::min(kMostParts, (count + kThreads - 1) / kThreads)),
      .segments = static_cast<unsigned>(segments),
      .error_blocks = static_cast<unsigned>((segments + kWarps - 1) / kWarps),
      .phases = {{0, search ? steps.coarse : steps.nearest}},
      .sums = 0};
  if (search && steps.fine > steps.coarse) launch.phases.push_back({steps.coarse, steps.fine});
  LADDER_CHECK(steps.coarse <= kWarp && steps.fine - steps.coarse <= steps.coarse,
               "a phase of more steps than lanes, or a longer second phase");
  if (launch.phases.front().last > 0) launch.sums = segments * steps.coarse;
  return launch;
}

std::string tensor_extent_source() {
  std::ostringstream out;
  out << prelude() << team_functions(kWarp) << R"(
extern "C" __global__ void __launch_bounds__(256) extent(
    const float* __restrict__ weight, float* __restrict__ ends, u32 count, u32 parts) {
  __shared__ float of_warps[16];
  float least = weight[0], greatest = least;
#pragma unroll 4
  for (u32 e = blockIdx.x * 256 + threadIdx.x; e < count; e += 256 * parts)
    widen_range(weight[e], least, greatest);
  team_range(least, greatest);
  if (threadIdx.x % 32 == 0) {
    of_warps[threadIdx.x / 16] = least;
    of_warps[threadIdx.x / 16 + 1] = greatest;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (u32 w = 1; w < 8; ++w) {
    widen_range(of_warps[2 * w], least, greatest);
    widen_range(of_warps[2 * w + 1], least, greatest);
  }
  ends[2 * blockIdx.x] = least;
  ends[2 * blockIdx.x + 1] = greatest;
}
)";
  return out.str();
}

std::string tensor_errors_source(const TType& type) {
  std::ostringstream out;
  out << prelude() << "constexpr u32 kSegment = " << kSegmentWeights << ", kEach = kSegment / 32;\n"
      << rule_functions(type) << team_functions(kWarp) << kState << kRow
      << kWholeCover
      // Two: without a number the assembler spills to have more blocks on a multiprocessor.
      << R"(struct Candidate {
  Choice choice;
  double inverse;
};
extern "C" __global__ void __launch_bounds__(256, 2) errors(
    const float* __restrict__ weight, const u32* __restrict__ found,
    const float* __restrict__ ends, const State* __restrict__ state, double* __restrict__ sums,
    u32 count, u32 parts, u32 first, u32 last) {
  __shared__ Candidate candidates[32];
)" << tables_and_unit(type, "256")
      << R"(  const u32 lane = threadIdx.x % 32, steps = last - first;
  if (threadIdx.x < 32) {
    const Cover cover = whole_cover(ends, parts);
    if (lane < steps) {
      const float fraction = fraction_of(first + lane, first == 0 ? 1.0f : state->middle);
      const Choice choice = choice_of(first + lane, cover, fraction, unit);
      candidates[lane].choice = choice;
      candidates[lane].inverse = inverse_of(choice, unit);
    }
  }
  __syncthreads();
  const u32 segment = blockIdx.x * 8 + threadIdx.x / 32, from = segment * kSegment + lane;
  if (segment * kSegment >= count) return;
  float held[kEach];
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) held[i] = from + 32 * i < count ? weight[from + 32 * i] : 0.0f;
  double mine = 0;
#pragma unroll 1
  for (u32 step = 0; step < steps; ++step) {
    const Choice choice = candidates[step].choice;
    const double inverse = candidates[step].inverse;
    double sum = 0;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i)
      if (from + 32 * i < count)
        sum = __dadd_rn(sum, squared_error(held[i], choice, inverse, unit, tables));
    sum = added(sum);
    if (lane == step) mine = sum;
  }
  if (lane < steps) sums[(u64)segment * kRow + lane] = mine;
}
)";
  return out.str();
}

std::string tensor_choose_source(const TType& type) {
  std::ostringstream out;
  out << prelude() << rule_functions(type) << team_functions(kWarp) << kState << kRow << kWholeCover
      << R"(
extern "C" __global__ void __launch_bounds__(32) choose(
    const u32* __restrict__ found, const float* __restrict__ ends,
    const double* __restrict__ sums, State* __restrict__ state, u32 parts, u32 segments, u32 first,
    u32 last) {
  __shared__ double errors[32];
)" << unit(type)
      << R"(  const u32 lane = threadIdx.x, steps = last - first;
  const Cover cover = whole_cover(ends, parts);
  // Sums are loaded while those before them are added. Adding 0 behind the last changes nothing.
  constexpr u32 kAhead = 32;
  const double* from = sums + lane;
  const u32 mine = lane < steps ? segments : 0;
  double total = 0, next[kAhead];
#pragma unroll
  for (u32 i = 0; i < kAhead; ++i) next[i] = i < mine ? from[i * kRow] : 0.0;
#pragma unroll 1
  for (u32 begin = kAhead; begin < segments + kAhead; begin += kAhead) {
    double held[kAhead];
    from += kAhead * kRow;
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
      held[i] = next[i];
      next[i] = begin + i < mine ? from[i * kRow] : 0.0;
    }
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) total = __dadd_rn(total, held[i]);
  }
  errors[lane] = total;
  __syncthreads();
  if (lane > 0) return;
  State now = {__hiloint2double(0x7ff00000, 0), first_choice(cover, unit), 1.0f};
  if (first > 0) now = *state;
#pragma unroll 1
  for (u32 step = first; step < last; ++step) {
    if (!(errors[step - first] < now.least_error)) continue;
    const float fraction = fraction_of(step, now.middle);
    now.least_error = errors[step - first];
    now.best = choice_of(step, cover, fraction, unit);
    if (is_coarse(step)) now.middle = fraction;
  }
  *state = now;
}
)";
  return out.str();
}

std::string tensor_codes_source(const TType& type) {
  std::ostringstream out;
  out << prelude() << rule_functions(type) << kState << R"(
extern "C" __global__ void __launch_bounds__(256) codes(
    const float* __restrict__ weight, const u32* __restrict__ found,
    const State* __restrict__ state, u8* __restrict__ to, void* __restrict__ scales,
    void* __restrict__ zeros, float* __restrict__ scale2, u32 count, u32 parts) {
)" << tables_and_unit(type, "256")
      << R"(  const Choice best = state->best;
  const u32 block = 0, first = blockIdx.x * 256 + threadIdx.x;
  if (first == 0) {
)" << stores_of(type)
      << R"(  }
  const double inverse = inverse_of(best, unit);
#pragma unroll 4
  for (u32 e = first; e < count; e += 256 * parts)
    to[e] = (u8)code_of(grid_of(weight[e], best, inverse), tables);
}
)";
  return out.str();
}

}  // namespace ladder::cuda
