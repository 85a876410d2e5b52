// SPDX-License-Identifier: Apache-2.0
#include "codegen/activations/routing.h"

#include "base/error.h"
#include "base/joined.h"
#include "codegen/gated_product.h"

namespace ladder::activations {
namespace {

// Every block counts all choices: that is quicker than a launch of its own for the counts, and
// sums of integers are the same in any order.
constexpr std::string_view kRoute = R"(
extern "C" __global__ void __launch_bounds__(THREADS)
route(const u32* __restrict__ experts, const Piece* __restrict__ x, Piece* __restrict__ rows,SCALES
      u32* __restrict__ items, u32* __restrict__ places, u32 choices, u32 of_token, u32 wide,
      u32 count, u32 tile, u32 pieces, u32 slots) {
  __shared__ u32 all[MOST_EXPERTS];
  __shared__ u32 before[MOST_EXPERTS];
  __shared__ u32 mine[MOST_CHOICES];
  __shared__ u32 used;
  BEGIN
  const u32 thread = threadIdx.x;
  const u32 share = (choices + BLOCKS_X - 1) / BLOCKS_X;
  const u32 first = min(blockIdx.x * share, choices), end = min(first + share, choices);
  for (u32 e = thread; e < count; e += THREADS) all[e] = before[e] = 0;
  __syncthreads();
  for (u32 c = thread; c < choices; c += THREADS) {
    const u32 expert = wide ? experts[2 * c + 1] ? 0xffffffffu : experts[2 * c] : experts[c];
    if (c >= first && c < end) mine[c - first] = expert;
    if (expert >= count) continue;
    atomicAdd(&all[expert], 1u);
    if (c < first) atomicAdd(&before[expert], 1u);
  }
  __syncthreads();
  // Rows and items in front of each expert: a lane has experts side by side, lanes are added up.
  if (thread < LANES) {
    const u32 of_lane = (count + LANES - 1) / LANES, from = min(count, thread * of_lane);
    const u32 to = min(count, from + of_lane);
    u32 row = 0, item = 0;
    for (u32 e = from; e < to; ++e) row += all[e], item += (all[e] + tile - 1) / tile;
    const u32 rows_here = row, items_here = item;
    for (u32 step = 1; step < LANES; step *= 2) {
      const u32 r = __shfl_up_sync(0xffffffffu, row, step);
      const u32 i = __shfl_up_sync(0xffffffffu, item, step);
      if (thread >= step) row += r, item += i;
    }
    if (thread == LANES - 1) used = item;
    row -= rows_here, item -= items_here;
    for (u32 e = from; e < to; ++e) {
      const u32 has = all[e];
      before[e] += row;
      if (blockIdx.x == 0) {
        for (u32 at = 0; at < has; at += tile, ++item) {
          items[3 * item] = e, items[3 * item + 1] = row + at;
          items[3 * item + 2] = min(tile, has - at);
        }
      }
      row += has;
    }
  }
  __syncthreads();
  if (blockIdx.x == 0) {
    for (u32 i = 3 * used + thread; i < 3 * slots; i += THREADS) items[i] = 0;
  }
  __syncthreads();
  // The choices of this block in front of each of its own.
  for (u32 c = thread; c < end - first; c += THREADS) {
    const u32 expert = mine[c];
    u32 place = 0xffffffffu;
    if (expert < count) {
      place = before[expert];
      for (u32 other = 0; other < c; ++other) place += mine[other] == expert;
    }
    places[first + c] = place;
  }
  __syncthreads();
  for (u32 c = first; c < end; ++c) {
    const u32 place = places[c];
    if (place == 0xffffffffu) continue;
    const Piece* from = x + (u64)(c / of_token) * pieces;
    Piece* to = rows + (u64)place * pieces;MOVE
    for (u32 p = thread; p < pieces; p += THREADS) to[p] = from[p];
  }
}
)";

constexpr std::string_view kGated = R"(
extern "C" __global__ void __launch_bounds__(THREADS)
gated(const Piece* __restrict__ x, Piece* __restrict__ y, u32 rows, u32 pieces, float limit,
      float alpha) {
  BEGIN
  const u32 column = blockIdx.x * THREADS + threadIdx.x;
  if (column >= pieces) return;
  for (u32 row = blockIdx.y; row < rows; row += BLOCKS_Y) {
    const u64 at = (u64)row * 2 * pieces + GATE_COLUMN;
    const Piece gates = x[at], ups = x[at + UP_BEHIND];
    Piece out;
#pragma unroll
    for (u32 i = 0; i < OF_PIECE; ++i) {
      const float gate = fminf(low_TYPE(gates.v[i]), limit);
      const float up = fminf(fmaxf(low_TYPE(ups.v[i]), -limit), limit);
      out.v[i] = (u16)pack_TYPE(PRODUCT, 0.0f);
    }
    y[(u64)row * pieces + column] = out;
  }
}
)";

// Choices of a token that are asked for together: first their places and weights, then their rows.
// One after the other each waits for memory twice.
constexpr int kAtOnce = 4;

constexpr std::string_view kCombine = R"(
extern "C" __global__ void __launch_bounds__(THREADS)
combine(const Piece* __restrict__ rows, const u32* __restrict__ places,
        const WEIGHT* __restrict__ weights, Piece* __restrict__ y, u32 tokens, u32 of_token,
        u32 pieces) {
  BEGIN
  const u32 column = blockIdx.x * THREADS + threadIdx.x;
  if (column >= pieces) return;
  for (u32 token = blockIdx.y; token < tokens; token += BLOCKS_Y) {
    float sums[OF_PIECE] = {};
    for (u32 first = 0; first < of_token; first += AT_ONCE) {
      u32 place[AT_ONCE];
      float weight[AT_ONCE];
      Piece row[AT_ONCE];
#pragma unroll
      for (u32 j = 0; j < AT_ONCE; ++j) {
        const u32 choice = token * of_token + first + j;
        place[j] = 0xffffffffu, weight[j] = 0.0f;
        if (first + j < of_token) place[j] = places[choice], weight[j] = VALUE;
      }
#pragma unroll
      for (u32 j = 0; j < AT_ONCE; ++j) {
        if (place[j] != 0xffffffffu) row[j] = rows[(u64)place[j] * pieces + column];
      }
#pragma unroll
      for (u32 j = 0; j < AT_ONCE; ++j) {
        if (place[j] == 0xffffffffu) continue;
#pragma unroll
        for (u32 i = 0; i < OF_PIECE; ++i) sums[i] += weight[j] * low_TYPE(row[j].v[i]);
      }
    }
    Piece out;
#pragma unroll
    for (u32 i = 0; i < OF_PIECE; ++i) out.v[i] = (u16)pack_TYPE(sums[i], 0.0f);
    y[(u64)token * pieces + column] = out;
  }
}
)";

/// With pieces of rows: of 16 bytes, or else of one number. `wide`: the weights are f32.
std::string source(std::string_view kernel, RowKind rows, const Words& words, Scalar scalar,
                   std::string_view product = {}, bool wide = false) {
  LADDER_CHECK(!rows.dependent || words.dependent_launch, "no dependent launch on such devices");
  LADDER_CHECK(!rows.alternating || rows.whole, "gate and up in turn, and no whole pieces");
  constexpr std::string_view kPiece =
      "struct __align__(2 * OF_PIECE) Piece { u16 v[OF_PIECE]; };\n";
  constexpr std::string_view kScales =
      "\n      const float* __restrict__ scales, float* __restrict__ row_scales,";
  constexpr std::string_view kMove =
      "\n    if (thread == 0) row_scales[place] = scales[c / of_token];";
  return text_of(words, joined(kPiece, kernel),
                 {{"SCALES", std::string(rows.scaled ? kScales : "")},
                  {"MOVE", std::string(rows.scaled ? kMove : "")},
                  {"GATE_COLUMN", rows.alternating ? "2 * column" : "column"},
                  {"UP_BEHIND", rows.alternating ? "1" : "pieces"},
                  {"OF_PIECE", rows.whole ? "8" : "1"},
                  {"AT_ONCE", joined(kAtOnce)},
                  {"BEGIN", rows.dependent ? "dependent_wait();\n  dependent_launch();" : ""},
                  {"BLOCKS_X", std::string(words.blocks_x)},
                  {"BLOCKS_Y", std::string(words.blocks_y)},
                  {"LANES", std::string(words.lanes)},
                  {"THREADS", joined(kRoutingThreads)},
                  {"MOST_EXPERTS", joined(kMostExperts)},
                  {"MOST_CHOICES", joined(kMostChoicesOfBlock)},
                  {"PRODUCT", std::string(product)},
                  {"WEIGHT", wide ? "float" : "u16"},
                  {"VALUE", wide ? "weights[choice]" : "low_TYPE(weights[choice])"},
                  {"_TYPE", scalar == Scalar::bf16 ? "_bf16" : "_f16"}});
}

}  // namespace

std::string route_source(RowKind rows, const Words& words) {
  return source(kRoute, rows, words, Scalar::f16);
}

std::string gated_source(Scalar scalar, Gated what, RowKind rows, const Words& words) {
  const auto kernel = joined("\n", kSigmoid, kGated.substr(1));
  return source(kernel, rows, words, scalar, gated_product(what));
}

std::string combine_source(Scalar scalar, Scalar weight, RowKind rows, const Words& words) {
  return source(kCombine, rows, words, scalar, {}, weight == Scalar::f32);
}

}  // namespace ladder::activations
