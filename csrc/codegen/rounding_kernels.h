// SPDX-License-Identifier: Apache-2.0
//
// Activations of 8 bits: the kernel that brings tokens, each with one scale, into the form of
// products of bytes, as a function that writes its source in the language of a target.
#pragma once

#include <cstdint>
#include <string>

#include "expr/problem.h"

namespace ladder {

/// The largest magnitude of a token becomes this number: 127 of s8, 448 of e4m3, also where halves
/// of these are written, as e4m3fnuz.
constexpr float largest_rounded(Scalar to) { return to == Scalar::s8 ? 127.0f : 448.0f; }
/// Tokens whose largest magnitude is below this become zeros with a scale of 0: 2^-100, as on the
/// CPU. Reciprocals of anything larger are finite.
constexpr float kLeastRounded = 0x1p-100f;

/// What a thread takes at once.
constexpr std::int64_t kColumnsOfPiece = kColumnsOfBytes;

/// How threads share a token of k columns, and blocks the tokens.
struct RoundingPlan {
  int pieces;        ///< of a thread; in registers between the maximum and the rounding
  bool held;         ///< false: the token is too long for that, and is read twice
  bool of_warps;     ///< a token is a warp's, else a block's
  unsigned threads;  ///< of a block
  unsigned tokens;   ///< of a block
};
/// With warps of `lanes`. Throws InvalidArgument where `k` is no positive multiple of
/// kColumnsOfPiece.
RoundingPlan rounding_plan(std::int64_t k, int lanes);

/// Where a kernel stands among dependent launches.
struct InChain {
  bool waits;   ///< for the kernel before it, before all else
  bool starts;  ///< lets the kernel behind it begin, which waits for this one
};

/// Whose scales tokens have: those that their largest magnitudes ask for, or given ones.
enum class TokenScales { own, given };

struct RoundingKernels {
  /// round_tokens(const void* x, u8* out, float* scales, u32 tokens, u32 pieces, u32 threads): x
  /// [tokens, 16 pieces] of `from`, f16 or bf16, to `out` of `to`, s8 or e4m3, columns in the order
  /// of digit_place (layout/digits.h). Of e4m3fnuz, for CDNA 3, are the fnuz_bytes() of what e4m3
  /// gets, with the same scales. `threads` are RoundingPlan::threads, and blocks as many as
  /// have RoundingPlan::tokens each. x and out begin at multiples of 16 bytes.
  ///
  /// With `most` the largest magnitude of a token and `top` = largest_rounded(to), each of these
  /// rounded to f32 once, to nearest, ties to even:
  ///   scale = most / top, inverse = top / most, out = x * inverse rounded to `to` in the same way.
  /// Below kLeastRounded all are 0. A token with a number that is not finite has a scale of NaN,
  /// and any codes.
  ///
  /// With given scales there are two parameters more, u32 each and const float* given: the scale of
  /// token t is given[t * each], positive and finite, its inverse 1 / scale, rounded once, and what
  /// `to` does not hold becomes the nearest of -128 to 127, or of -448 to 448. A token with a NaN
  /// has a scale of NaN, and any codes.
  /// Where `from` is s8 or e4m3 too, x has codes, [tokens, 16 pieces] in the order of the
  /// columns, which are put into the order of digit_place as they are; the scales are given, or
  /// all 1 where `given` is null.
  ///
  /// e4m3 needs sm_89 or an AMD device, a place in a chain sm_90. Throws Unsupported where the
  /// target rounds to no `to`.
  std::string (*round_tokens)(Scalar from, Scalar to, TokenScales whose, const RoundingPlan& plan,
                              InChain chain);
};

}  // namespace ladder
