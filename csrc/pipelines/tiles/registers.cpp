// SPDX-License-Identifier: Apache-2.0
#include "pipelines/tiles/registers.h"

#include <algorithm>

#include "layout/weight_image.h"
#include "schedule/decoding_cost.h"

namespace ladder {
namespace {

// What NVRTC 13.0 uses, of 1008 kernels of 24 types: addresses of the ring, the loop, and values
// between instructions; codes of odd widths, whose last bits are put together; floats of which sums
// are scaled; sums of groups that are narrower than a block of the image, of which those of the
// next begin before the last are scaled; zero points of several groups; and words, however few. Of
// e4m3 by single warps the first tiles spilled 96 to 168 bytes, of integers a quarter of their sums
// more. Integers in e4m3 of narrow groups take what floats do (520 bytes).
constexpr std::int64_t kOthers = 32, kOddWidth = 5, kScaledFloats = 30, kZerosOfGroups = 16,
                       kFewestWords = 8, kFloatsOfWarps = 36;
// With parts of the tokens, of 171 kernels of 9 types: beside sums and operands, and beside the
// sums of the end and the scales of their tokens. 192 x 128 and 128 x 192 have just enough.
constexpr std::int64_t kOthersOfParts = 8, kOthersOfLast = 24;
// Of the sums of narrow groups, and of integers in e4m3 by warpgroups where a k-tile has several
// sums; of narrow groups of these (392 bytes); and, where zero points take a product, of a unit's
// sums beside them: uint4 with groups of 32 and 64 tokens a CTA would spill 8 and more registers.
constexpr double kNarrowGroups = 0.875, kNarrowWholes = 1.5, kNarrowProducts = 1.5;

// Where a warp of one unit scales sums of several groups in a k-tile, or of bytes, NVRTC takes up
// to 93 registers more than all this says (198 kernels of 23 types). Threads of eight warps and
// fewer have them; those of twelve have 152 or 168, and of 681 kernels 72 spilled or had their
// products serialised, all but one of this kind. With so many more none of it is left.
constexpr int kTwelveWarps = 12;
constexpr std::int64_t kGroupsOfTwelve = 44;

// Beside producers, by the first three choices of 57 types for 1 to 256 tokens (6529 kernels, H200).
// Of eight warps and k-tiles of 128 columns: codes of 7 bits with two tiles of rows a warp, and sums
// of narrow groups of many tokens. Of sixteen warps: many tokens, whose products NVRTC serialises
// else. With these and those of decode/registers.cpp 113 of the kernels are rejected for 257, and
// three that are not rejected have gone.
constexpr std::int64_t kBesideProducers = 64, kSixteenWarpsOfMany = 8, kLongTile = 128;
constexpr std::int64_t kTokensOfSevenBits = 48, kManyTokens = 96;
constexpr int kEightWarps = 8, kSixteenWarps = 16;

// The most sums of a thread of which NVRTC keeps no further set where a k-tile has two groups.
constexpr std::int64_t kFewOfTwoGroups = 64;

// Between the last product and y: what a thread adds up, and the next part of it.
std::int64_t sum_registers(const TileSchedule& s, const CtaGrid& grid) {
  const auto all = std::int64_t{s.rows} * s.tokens / s.threads();
  switch (s.reduction) {
    case Reduction::none: return all;
    case Reduction::cluster: return 2 * all / grid.splits;
    case Reduction::ordered: return 3 * all;
  }
  return all;
}

/// With parts of the tokens: totals, and sums of two parts; the operands of a k-tile, which codes
/// of 8 bits are as they are. After the last product the scales of tokens beside the totals.
std::int64_t part_registers(const TileSchedule& s, const Problem& problem) {
  const auto totals = s.warp_tokens() / 2, sums = kPartsInTurn * s.part_tokens() / 2;
  const std::int64_t bits = problem.weight.bits;
  const std::int64_t least = 0, narrow = 2 * bits + bits % 2 * kOddWidth - kFewestWords;
  const auto words = bits == 8 ? 0 : std::max(narrow, least);
  const auto products = totals + sums + 4 * operand_stages(s, problem) + words + kOthersOfParts;
  return std::max(products, 2 * totals + kOthersOfLast);
}

}  // namespace

std::int64_t tile_registers(const TileSchedule& s, const Problem& problem) {
  if (s.token_parts > 1) return part_registers(s, problem);
  const bool totals = keeps_totals(s, problem);
  const auto of_unit = s.warp_tokens() / 2;  // sums of 16 rows
  const bool zeros = problem.weight.stored_zero != Zero::none;
  const bool product = takes_zero_product(problem, s.route);
  const auto sums = s.tensor_memory
                        ? s.units() * tokens_of_load(s) / 2
                        : (totals ? 2 : 1) * s.units() * of_unit + (product ? of_unit : 0);
  // Words of two blocks: those of the next are loaded while the last are multiplied.
  const auto words = std::max(
      s.units() * (2 * problem.weight.bits + problem.weight.bits % 2 * kOddWidth), kFewestWords);
  const auto operands = s.warpgroups ? 4 * s.units() * operand_stages(s, problem)
                                     : 4 * s.units() + s.warp_tokens() / 4;
  const auto groups = groups_of_tile(s, problem);
  const bool relative = s.scale_place == ScalePlace::relative;
  const bool narrow = totals && !relative && problem.group_size() < kBlock;
  const bool e4m3 = problem.rounded_x() == Scalar::e4m3;
  const bool integers = e4m3 && problem.weight.element == nullptr;
  const bool of_warpgroups = integers && s.warpgroups;
  // Of int8 the sums of one group are scaled while the next are multiplied; with more than two in a
  // k-tile NVRTC keeps a further set (groups of 64 in 256 columns spill 1328 to 1524 bytes), with
  // two where they are many (128 rows x 144 to 176 tokens spill 144 to 800).
  const bool many = s.warpgroups && !s.tensor_memory && totals && !narrow && !relative &&
                    problem.rounded_x() == Scalar::s8 &&
                    groups > (s.units() * of_unit > kFewOfTwoGroups ? 1 : 2);
  const bool several = narrow || many || (of_warpgroups && summed_columns(s, problem) < s.columns);
  const double share = many || (narrow && of_warpgroups) ? kNarrowWholes : kNarrowGroups;
  const auto begun =
      several ? share * static_cast<double>(s.units() * of_unit) +
                    (product && s.warpgroups ? kNarrowProducts * static_cast<double>(of_unit) : 0)
              : 0;
  const bool floats = decoding_kind(problem) == Decoding::Kind::fields || (of_warpgroups && narrow);
  const auto of_groups =
      static_cast<std::int64_t>(begun) + (zeros && groups > 1 ? kZerosOfGroups : 0) +
      (totals && floats ? kScaledFloats : 0) + (e4m3 && !s.warpgroups ? kFloatsOfWarps : 0) +
      (integers && !s.warpgroups ? sums / 4 : 0) +
      (s.warps_n == kTwelveWarps && totals && (groups > 1 || problem.has_bytes_of_x())
           ? kGroupsOfTwelve
           : 0);
  const bool many_tokens = s.warp_tokens() >= kManyTokens;
  const bool long_tile = s.producers && s.warps_n == kEightWarps && s.columns >= kLongTile;
  const bool seven_bits =
      problem.weight.bits == 7 && s.units() > 1 && s.warp_tokens() >= kTokensOfSevenBits;
  const auto beside_producers =
      (long_tile && (seven_bits || (narrow && many_tokens && !e4m3)) ? kBesideProducers : 0) +
      (s.producers && s.warps_n == kSixteenWarps && many_tokens ? kSixteenWarpsOfMany : 0);
  const auto products = sums + words + operands + of_groups + beside_producers +
                        decoding_registers(problem, s.scale_place);
  return kOthers + std::max(products, sum_registers(s, grid_of(s, problem)));
}

}  // namespace ladder
