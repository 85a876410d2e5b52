// SPDX-License-Identifier: Apache-2.0
//
// A thread has the 16 columns that digit_place keeps together: 32 bytes in, 16 out, and no byte
// goes to another thread. Magnitudes are compared as integers of 15 bits, two at once, which puts
// what is not finite above all numbers.
//
// What bounds it is memory: three bytes a column. About six instructions a column are a quarter of
// what an H100 issues in the time of those bytes.
#include "codegen/activations/rounding.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "codegen/emit/literal.h"
#include "codegen/emit/plain_functions.h"

namespace ladder {

namespace {

// Two pieces of a thread are four loads of 16 bytes under way; with four, a block of 1024 threads
// still has its 64 registers a thread.
constexpr std::int64_t kPieces = 2, kMostPieces = 4, kMostThreads = 1024;
constexpr unsigned kWarpsOfBlock = 4;
constexpr std::int64_t kMostWarps = kMostThreads / 32;  // of the fewest lanes

}  // namespace

RoundingPlan rounding_plan(std::int64_t k, int lanes) {
  LADDER_REQUIRE(k > 0 && k % kColumnsOfPiece == 0, "tokens of ", k,
                 " columns, no positive multiple of ", kColumnsOfPiece);
  const std::int64_t all = k / kColumnsOfPiece;
  if (all <= kPieces * lanes) {
    const unsigned threads = kWarpsOfBlock * static_cast<unsigned>(lanes);
    return {static_cast<int>(ceil_div(all, std::int64_t{lanes})), true, true, threads,
            kWarpsOfBlock};
  }
  const auto threads =
      std::min(kMostThreads, round_up(ceil_div(all, kPieces), std::int64_t{lanes}));
  const auto pieces = ceil_div(all, threads);
  const bool held = pieces <= kMostPieces;
  return {held ? static_cast<int>(pieces) : 1, held, false, static_cast<unsigned>(threads), 1};
}

}  // namespace ladder

namespace ladder::activations {
namespace {

constexpr std::string_view kFunctions = R"(
// Columns 0 to 7 and 8 to 15.
struct Piece { Words4 low, high; };
DEVICE Piece piece_of(const Words4* x) { return {x[0], x[1]}; }
// The larger of each half, of 15 bits.
DEVICE u32 larger(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
  u32 d;
  asm("max.s16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  const u32 low = max(a & 0xffffu, b & 0xffffu), high = max(a & 0xffff0000u, b & 0xffff0000u);
  return low | high;
#endif
}
DEVICE u32 largest(const Piece& p, u32 most) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    most = larger(most, p.low.w[i] & 0x7fff7fffu);
    most = larger(most, p.high.w[i] & 0x7fff7fffu);
  }
  return most;
}
)";

// Whole numbers below 2^22 appear in the lowest bits of their sum with 1.5 * 2^23.
constexpr std::string_view kToS8 = R"(
DEVICE u32 whole(float x, float inverse) {
  return as_bits(__fadd_rn(WITHIN, 12582912.0f));
}
DEVICE u32 rounded(u32 low, u32 high, float inverse) {
  const u32 a = whole(low_TYPE(low), inverse), b = whole(low_TYPE(high), inverse);
  const u32 c = whole(high_TYPE(low), inverse), d = whole(high_TYPE(high), inverse);
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
)";

// With its own scale no number of a token is larger than 127.
constexpr std::string_view kOwnWithin = "__fmul_rn(x, inverse)";
constexpr std::string_view kGivenWithin = "fminf(fmaxf(__fmul_rn(x, inverse), -128.0f), 127.0f)";

constexpr std::string_view kToE4m3 = R"(
DEVICE u32 both(float low, float high, float inverse) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(codes) : "f"(__fmul_rn(high, inverse)), "f"(__fmul_rn(low, inverse)));
  return codes;
}
DEVICE u32 rounded(u32 low, u32 high, float inverse) {
  const u32 first = both(low_TYPE(low), low_TYPE(high), inverse);
  return first | both(high_TYPE(low), high_TYPE(high), inverse) << 16;
}
)";

// Without such an instruction. From 2^-6 on the nearest of the mantissas of three bits, ties to
// even; below it whole multiples of 2^-9 appear in the lowest bits of their sum with 2^14.
constexpr std::string_view kPlainToE4m3 = R"(
DEVICE u32 to_e4m3(float x) {
  const float magnitude = fminf(as_float(as_bits(x) & 0x7fffffffu), TOP);
  const u32 bits = as_bits(magnitude);
  const u32 normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - 960u;
  const u32 small = as_bits(__fadd_rn(magnitude, 16384.0f)) - as_bits(16384.0f);
  return (magnitude < 0.015625f ? small : normal) | (as_bits(x) >> 24 & 0x80u);
}
DEVICE u32 rounded(u32 low, u32 high, float inverse) {
  const u32 a = to_e4m3(__fmul_rn(low_TYPE(low), inverse));
  const u32 b = to_e4m3(__fmul_rn(high_TYPE(low), inverse));
  const u32 c = to_e4m3(__fmul_rn(low_TYPE(high), inverse));
  const u32 d = to_e4m3(__fmul_rn(high_TYPE(high), inverse));
  return AS_READ(a | c << 8 | b << 16 | d << 24);
}
)";

// Registers of a piece have pairs of neighbours: columns 2 i and 2 i + 1, and those 8 behind them.
constexpr std::string_view kKernel = R"(
DEVICE void round_piece(const Piece& p, float inverse, Words4* out) {
  Words4 to;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) to.w[i] = rounded(p.low.w[i], p.high.w[i], inverse);
  *out = to;
}
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
round_tokens(const Words4* x, Words4* out, float* scales, u32 tokens, u32 pieces, u32 threadsMORE) {
  BEGIN
  TEAM
  const Words4* const from = x + (u64)token * pieces * 2;
  Words4* const to = out + (u64)token * pieces;
  u32 most = 0;
  FIRST
  most = max(most & 0xffffu, most >> 16);
  ALL
  SCALE
  SECOND
}
)";

constexpr std::string_view kOwnScale = R"(const float magnitude = low_TYPE(most);
  const bool finite = most < INFINITE, none = magnitude < LEAST;
  const float inverse = finite && !none ? __fdiv_rn(TOP, magnitude) : 0.0f;
  if (thread == 0) {
    const float scale = none ? 0.0f : __fdiv_rn(magnitude, TOP);
    scales[token] = finite ? scale : as_float(0x7fc00000u);
  })";
// Infinite numbers are the largest; bits above theirs are NaN.
constexpr std::string_view kGivenScale = R"(const float scale = given[token * each];
  const float inverse = __fdiv_rn(1.0f, scale);
  if (thread == 0) scales[token] = most > INFINITE ? as_float(0x7fc00000u) : scale;)";
constexpr std::string_view kGiven = ", u32 each, const float* given";

// What waves of CDNA 3 read of codes of e4m3.
constexpr std::string_view kStorePlaced = "to[at] = placed;";
constexpr std::string_view kStoreFnuz =
    R"(for (u32 i = 0; i < 4; ++i) placed.w[i] = fnuz_bytes(placed.w[i]);
    to[at] = placed;)";

// Codes that come: neighbours are columns 2 i and 2 i + 1 of both halves of a piece, as rounded().
constexpr std::string_view kCodes = R"(
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
round_tokens(const Words4* x, Words4* out, float* scales, u32 tokens, u32 pieces, u32 threadsMORE) {
  BEGIN
  TEAM
  const Words4* const from = x + (u64)token * pieces;
  Words4* const to = out + (u64)token * pieces;
  if (thread == 0) scales[token] = given == nullptr ? 1.0f : given[token * each];
  for (u32 at = thread; at < pieces; at += step) {
    const Words4 piece = from[at];
    Words4 placed;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      placed.w[2 * i] = __byte_perm(piece.w[i], piece.w[2 + i], 0x5140);
      placed.w[2 * i + 1] = __byte_perm(piece.w[i], piece.w[2 + i], 0x7362);
    }
    to[at] = placed;
  }
}
)";
constexpr std::string_view kBlockOfCodes =
    "const u32 thread = threadIdx.x, token = blockIdx.x, step = threads;";

constexpr std::string_view kWarpTeam = R"(const u32 thread = threadIdx.x % LANES;
  const u32 token = blockIdx.x * (threads / LANES) + threadIdx.x / LANES, step = LANES;
  if (token >= tokens) return;)";
constexpr std::string_view kBlockTeam = R"(__shared__ u32 of_warps[MOST_WARPS];
  const u32 thread = threadIdx.x, token = blockIdx.x, step = threads;)";

constexpr std::string_view kWarpMost = "most = largest_of_warp(most);";
constexpr std::string_view kBlockMost = R"(most = largest_of_warp(most);
  if (thread % LANES == 0) of_warps[thread / LANES] = most;
  __syncthreads();
  most = thread % LANES < threads / LANES ? of_warps[thread % LANES] : 0;
  most = largest_of_warp(most);)";

// All loads of a thread are under way before the first is waited for.
constexpr std::string_view kHeldFirst = R"(Piece mine[PIECES];
#pragma unroll
  for (u32 i = 0; i < PIECES; ++i) {
    const u32 at = thread + i * step;
    if (at < pieces) mine[i] = piece_of(from + 2 * at);
    else mine[i] = Piece{};
  }
#pragma unroll
  for (u32 i = 0; i < PIECES; ++i) most = largest(mine[i], most);)";
constexpr std::string_view kHeldSecond = R"(
#pragma unroll
  for (u32 i = 0; i < PIECES; ++i) {
    const u32 at = thread + i * step;
    if (at < pieces) round_piece(mine[i], inverse, to + at);
  })";

constexpr std::string_view kReadFirst =
    R"(for (u32 at = thread; at < pieces; at += step) {
    most = largest(piece_of(from + 2 * at), most);
  })";
constexpr std::string_view kReadSecond = R"(
  for (u32 at = thread; at < pieces; at += step) {
    round_piece(piece_of(from + 2 * at), inverse, to + at);
  })";

}  // namespace

std::string round_tokens_source(Scalar from, Scalar to, TokenScales whose, const RoundingPlan& plan,
                                InChain chain, const Words& words) {
  const bool codes = bytes_of(from) == 1, given = whose == TokenScales::given;
  LADDER_CHECK(codes || from == Scalar::f16 || from == Scalar::bf16, "tokens of ", name_of(from));
  LADDER_CHECK(!codes || given, "codes without scales");
  LADDER_CHECK(to == Scalar::s8 || has_fields_of_e4m3(to), "rounded to ", name_of(to));
  const bool fnuz = to == Scalar::e4m3fnuz;
  LADDER_CHECK(!codes || from == (fnuz ? Scalar::e4m3 : to), name_of(from), " as ", name_of(to));
  LADDER_CHECK(words.dependent_launch || !(chain.waits || chain.starts),
               "no dependent launch on such devices");
  const bool bf16 = from == Scalar::bf16, exact = plan.of_warps || !words.any_threads;
  const std::string_view rounds = to == Scalar::s8      ? kToS8
                                  : words.converts_e4m3 ? kToE4m3
                                                        : kPlainToE4m3;
  const std::string text = joined(fnuz ? codegen::kFnuzFunctions : "",
                                  codes ? kCodes : joined(kFunctions, rounds, kKernel));
  const std::string_view team = plan.of_warps ? kWarpTeam : codes ? kBlockOfCodes : kBlockTeam;
  return text_of(words, text,
                 {{"BEGIN", joined(chain.waits ? "dependent_wait();" : "",
                                   chain.waits && chain.starts ? "\n  " : "",
                                   chain.starts ? "dependent_launch();" : "")},
                  {"TEAM", std::string(team)},
                  {"MORE", std::string(given ? kGiven : "")},
                  {"AS_READ", fnuz ? "unsigned_zeros" : ""},
                  {kStorePlaced, std::string(fnuz ? kStoreFnuz : kStorePlaced)},
                  {"WITHIN", std::string(given ? kGivenWithin : kOwnWithin)},
                  {"SCALE", std::string(given ? kGivenScale : kOwnScale)},
                  {"FIRST", std::string(plan.held ? kHeldFirst : kReadFirst)},
                  {"ALL", std::string(plan.of_warps ? kWarpMost : kBlockMost)},
                  {"SECOND", std::string(plan.held ? kHeldSecond : kReadSecond)},
                  {"MOST_WARPS", joined(kMostWarps)},
                  {"LANES", std::string(words.lanes)},
                  {"MOST_THREADS", joined(exact ? plan.threads : kMostThreads)},
                  {"PIECES", joined(plan.pieces, "u")},
                  {"INFINITE", bf16 ? "0x7f80u" : "0x7c00u"},
                  {"LEAST", literal(kLeastRounded)},
                  {"TOP", literal(largest_rounded(to))},
                  {"_TYPE", bf16 ? "_bf16" : "_f16"}});
}

}  // namespace ladder::activations
