// SPDX-License-Identifier: Apache-2.0
//
// A team of threads has a block of weights: a warp, half of one for blocks of up to 16 weights, or
// for blocks beyond 256 several warps, which take its segments in turn. A team of a warp keeps its
// weights in registers, so that 25 candidates read memory once.
//
// What bounds it (H200, 8192 x 8192, groups of 128): 2^26 weights and 25 candidates make 5.2e7
// steps of a warp, each of about 50 instructions, three of them conversions of double, which take
// eight times as long: 75 issue slots, 3.9e9 in all. 132 multiprocessors of four schedulers at 1.7
// GHz have 9e11 a second: 4.4 ms. The sum of a candidate is 5 steps of some 5 instructions a warp,
// half as much again where a block has 32 weights.
#include "codegen/cuda/quantize.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "codegen/cuda/prelude.h"
#include "codegen/cuda/quantize_rules.h"
#include "codegen/cuda/quantize_tensor.h"
#include "codegen/emit/literal.h"

namespace ladder::cuda {
namespace {

constexpr std::int64_t kHeldWeights = 256, kHalfWarp = 16;
constexpr unsigned kThreads = 256;
constexpr std::int64_t kWarp = 32;

/// Weights of a whole block, or more than any team of a warp has where the matrix decides.
std::int64_t weights_of(const Block& block) {
  return block.rows == 0 || block.columns == 0 ? kHeldWeights + 1 : block.rows * block.columns;
}

bool one_team_a_block(const TType& type) { return weights_of(type.block) > kHeldWeights; }

/// Threads of a team that has no more than a warp.
std::int64_t team_of(const TType& type) {
  return weights_of(type.block) <= kHalfWarp ? kHalfWarp : kWarp;
}

/// count, the weights of the block, and mine[place(e)], weight e of it. Numbers of 32 bits where
/// they do: a division of 64 bits is a call, around which registers are saved.
std::string places(const TType& type) {
  const bool contiguous = type.block.rows == 1 || type.block.columns == 0;
  const auto extent = [](std::int64_t fixed, const char* whole) {
    return fixed == 0 ? std::string(whole) : std::to_string(fixed) + "u";
  };
  std::ostringstream out;
  out << "  const u32 rows = " << extent(type.block.rows, "n")
      << ", columns = " << extent(type.block.columns, "k") << ";\n"
      << R"(  const u32 groups = (k + columns - 1) / columns, block_row = block / groups;
  const u32 group = block % groups, left = group * columns;
  const u64 first = (u64)block_row * rows;
  const u32 width = k - left < columns ? k - left : columns;
  const bool there = first < n;
  const u32 height = !there ? 0 : n - first < rows ? (u32)(n - first) : rows;
  const u32 count = height * width;
  const u64 corner = there ? first * k + left : 0;
  const float* const mine = weight + corner;
  u8* const to = codes + corner;
  const auto place = [&](u32 e) { return )"
      << (contiguous ? "e" : "(u64)(e / width) * k + e % width") << "; };\n"
      << unit_of_rows(type);
  return out.str();
}

/// least, greatest and error_of of a team that holds its weights.
std::string held_team(const TType& type) {
  std::ostringstream out;
  out << "  constexpr u32 kEach = " << (weights_of(type.block) + team_of(type) - 1) / team_of(type)
      << R"(;
  const u32 lane = threadIdx.x % kTeam;
  const u32 block = blockIdx.x * (256 / kTeam) + threadIdx.x / kTeam;
)" << places(type)
      << R"(  float held[kEach];
  float least = as_float(0x7f800000u), greatest = as_float(0xff800000u);
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) {
    const u32 e = lane + kTeam * i;
    held[i] = e < count ? mine[place(e)] : 0.0f;
    if (e < count) widen_range(held[i], least, greatest);
  }
  team_range(least, greatest);
  const auto error_of = [&](Choice c) {
    const double inverse = inverse_of(c, unit);
    double sum = 0;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const double error = squared_error(held[i], c, inverse, unit, tables);
      if (lane + kTeam * i < count) sum = __dadd_rn(sum, error);
    }
    return added(sum);
  };
)";
  return out.str();
}

/// The same of a block of threads that reads its weights again for every candidate.
std::string reading_team(const TType& type) {
  return std::string(R"(  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 block = blockIdx.x;
)") + places(type) +
         R"(  float least = mine[0], greatest = least;
  for (u32 e = threadIdx.x; e < count; e += 32 * warps)
    widen_range(mine[place(e)], least, greatest);
  team_range(least, greatest);
  if (lane == 0) {
    sums[2 * warp] = least;
    sums[2 * warp + 1] = greatest;
  }
  __syncthreads();
  for (u32 w = 0; w < warps; ++w) {
    widen_range((float)sums[2 * w], least, greatest);
    widen_range((float)sums[2 * w + 1], least, greatest);
  }
  __syncthreads();
  const auto error_of = [&](Choice c) {
    const double inverse = inverse_of(c, unit);
    double total = 0;
    for (u32 begin = 0; begin < count; begin += kSegment * kSegments) {
      const u32 rest = (count - begin + kSegment - 1) / kSegment;
      const u32 segments = rest < kSegments ? (u32)rest : kSegments;
      for (u32 s = warp; s < segments; s += warps) {
        const u32 from = begin + s * kSegment;
        const u32 end = from + kSegment < count ? from + kSegment : count;
        double sum = 0;
        for (u32 e = from + lane; e < end; e += 32)
          sum = __dadd_rn(sum, squared_error(mine[place(e)], c, inverse, unit, tables));
        sum = added(sum);
        if (lane == 0) sums[s] = sum;
      }
      __syncthreads();
      for (u32 s = 0; s < segments; ++s) total = __dadd_rn(total, sums[s]);
      __syncthreads();
    }
    return total;
  };
)";
}

/// best: the choice among candidates.
std::string search(const TType& type) {
  if (type.scale == nullptr)
    return "  const Choice best = first_choice(cover_of(least, greatest), unit);\n";
  // A whole warp skips a scale that it has just tried: an equal error is not less.
  const bool skips = type.scale->bits <= 8 && (one_team_a_block(type) || team_of(type) == kWarp);
  const Steps steps = steps_of(type);
  std::ostringstream out;
  // One loop, so that the sum of errors stands in one place and no call is made of it.
  out << R"(  const Cover cover = cover_of(least, greatest);
  Choice best = candidate(cover, 1.0f, unit))"
      << (skips ? ", last = best" : "") << R"(;
  double least_error = __hiloint2double(0x7ff00000, 0);
  float middle = 1.0f;
  const u32 steps = search ? )"
      << steps.fine << " : " << steps.nearest << R"(;
#pragma unroll 1
  for (u32 step = 0; step < steps; ++step) {
    const float fraction = fraction_of(step, middle);
    const Choice c = choice_of(step, cover, fraction, unit);
)";
  if (skips) {
    out << "    if (step > 0 && c.scale == last.scale && c.zero == last.zero) continue;\n"
           "    last = c;\n";
  }
  out << R"(    const double error = error_of(c);
    if (!(error < least_error)) continue;
    least_error = error;
    best = c;
    if (is_coarse(step)) middle = fraction;
  }
)";
  return out.str();
}

std::string store(const TType& type) {
  std::ostringstream out;
  out << "  if (" << (one_team_a_block(type) ? "threadIdx.x == 0" : "lane == 0 && there") << ") {\n"
      << stores_of(type);
  out << "  }\n  const double inverse = inverse_of(best, unit);\n"
         "  const auto code = [&](float w) {\n"
         "    return (u8)code_of(grid_of(w, best, inverse), tables);\n  };\n";
  if (one_team_a_block(type)) {
    out << "  for (u32 e = threadIdx.x; e < count; e += 32 * warps) to[place(e)] = "
           "code(mine[place(e)]);\n";
  } else {
    out << "#pragma unroll\n  for (u32 i = 0; i < kEach; ++i)\n"
           "    if (lane + kTeam * i < count) to[place(lane + kTeam * i)] = code(held[i]);\n";
  }
  return out.str();
}

}  // namespace

std::string measure_source() {
  std::ostringstream out;
  out << prelude() << R"(
extern "C" __global__ void __launch_bounds__(256) measure(
    const float* __restrict__ weight, u32* __restrict__ found, u32 n, u32 k) {
  const u64 count = (u64)n * k;
  u32 largest = 0;
  for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += 256 * )"
      << kMeasureBlocks << R"() {
    const u32 magnitude = as_bits(weight[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) {
    const u32 other = __shfl_xor_sync(0xffffffffu, largest, lanes);
    largest = other > largest ? other : largest;
  }
  if (threadIdx.x % 32 == 0) atomicMax(found, largest);
}
)";
  return out.str();
}

std::string measure_rows_source() {
  return std::string(prelude()) + R"(
extern "C" __global__ void __launch_bounds__(256) measure_rows(
    const float* __restrict__ weight, u32* __restrict__ found, u32 n, u32 k) {
  const u64 row = (u64)blockIdx.x * 8 + threadIdx.x / 32;
  u32 largest = 0;
  for (u32 i = threadIdx.x % 32; row < n && i < k; i += 32) {
    const u32 magnitude = as_bits(weight[row * k + i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (u32 lanes = 16; lanes > 0; lanes /= 2) {
    const u32 other = __shfl_xor_sync(0xffffffffu, largest, lanes);
    largest = other > largest ? other : largest;
  }
  if (threadIdx.x % 32 == 0 && row < n) found[row] = largest;
}
)";
}

QuantizeLaunch quantize_launch(const TType& type, std::int64_t n, std::int64_t k) {
  LADDER_CHECK(!is_of_tensor(type), "a type of whole matrices");
  const std::int64_t blocks = type.block_rows(n) * type.groups(k);
  const std::int64_t rows = type.block.rows == 0 ? n : std::min(n, type.block.rows);
  const std::int64_t columns = type.block.columns == 0 ? k : std::min(k, type.block.columns);
  constexpr std::int64_t kMost = 1ll << 31;  // and 31 bits in which loops may run past the end
  if (n >= kMost || k >= kMost || blocks >= kMost || rows * columns >= kMost)
    fail<Unsupported>("a weight [", n, ", ", k, "] has ", blocks, " blocks of ", rows * columns,
                      " weights, beyond 31 bits");
  if (!one_team_a_block(type)) {
    const std::int64_t teams = kThreads / team_of(type);
    return {(blocks + teams - 1) / teams, kThreads};
  }
  const std::int64_t segments = (rows * columns + kSegmentWeights - 1) / kSegmentWeights;
  return {blocks, static_cast<unsigned>(kWarp * std::clamp<std::int64_t>(segments, 1, 8))};
}

std::string quantize_source(const TType& type) {
  LADDER_CHECK(!is_of_tensor(type), "a type of whole matrices");
  std::ostringstream out;
  out << prelude() << "constexpr u32 kSegment = " << kSegmentWeights << ", kSegments = 256;\n"
      << rule_functions(type)
      << team_functions(team_of(type))
      // Two: without a number the assembler spills to have more blocks on a multiprocessor.
      << "extern \"C\" __global__ void __launch_bounds__(256"
      << (one_team_a_block(type) ? ", 2" : "") << R"() quantize(
    const float* __restrict__ weight, const u32* __restrict__ found, u8* __restrict__ codes,
    void* __restrict__ scales, void* __restrict__ zeros, float* __restrict__ scale2, u32 n, u32 k,
    u32 search, u32 warps) {
)" << (one_team_a_block(type) ? "  __shared__ double sums[kSegments];\n" : "")
      << tables_and_unit(type, "32 * warps")
      << (one_team_a_block(type) ? reading_team(type) : held_team(type)) << search(type)
      << store(type) << "}\n";
  return out.str();
}

std::string pack_rows_source(int bits) {
  LADDER_REQUIRE(bits >= 1 && bits <= 8, "bits is ", bits, ", not 1 to 8");
  std::ostringstream out;
  out << R"(typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
constexpr u32 kBits = )"
      << bits << R"(;
extern "C" __global__ void __launch_bounds__(256) pack_rows(
    const u8* __restrict__ codes, u32* __restrict__ words, u32 n, u32 k) {
  const u32 row_words = (u32)(((u64)k * kBits + 31) / 32), word = blockIdx.x * 256 + threadIdx.x;
  if (word >= row_words) return;
  const u64 bit = (u64)word * 32;
  for (u32 row = blockIdx.y; row < n; row += )"
      << kMostRows << R"() {
    const u8* const from = codes + (u64)row * k;
    u32 w = 0;
    for (u32 j = (u32)(bit / kBits); j < k && (u64)j * kBits < bit + 32; ++j) {
      const u32 code = from[j];
      const int place = (int)((long long)((u64)j * kBits) - (long long)bit);
      w |= place < 0 ? code >> -place : code << place;  // negative: begins a word earlier
    }
    words[(u64)row * row_words + word] = w;
  }
}
)";
  return out.str();
}

}  // namespace ladder::cuda
