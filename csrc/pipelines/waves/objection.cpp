// SPDX-License-Identifier: Apache-2.0
// Why waves cannot serve an expression on a device.
#include "pipelines/linear/objection.h"

#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "layout/weight_image.h"
#include "pipelines/waves/schedule.h"
#include "program/alternate.h"

namespace ladder {
namespace {

/// Registers of a lane that an instruction can name: with accumulation registers, which waves of
/// 32 lanes have not.
constexpr std::int64_t kMostRegisters = 512, kMostOfFewLanes = 256;

std::string not_counts(const WaveSchedule& s) {
  return count_objection({{"tokens", 1, s.tokens},
                          {"columns", 1, s.columns},
                          {"waves along N", 1, s.waves_n},
                          {"waves along M", 1, s.waves_m},
                          {"waves along K", 1, s.waves_k},
                          {"k-tiles", 1, s.k_tiles},
                          {"stages", 1, s.stages},
                          {"token tiles", 1, s.token_tiles},
                          {"workgroups of a compute unit", 1, s.groups_per_cu}});
}

std::string bad_waves(const WaveSchedule& s, const MatrixInstruction& row) {
  if (!row.by_waves()) return joined(row.name, " is no instruction of waves");
  if (s.columns % kBlock != 0) {
    return joined("columns of ", s.columns, " are not whole blocks of the image");
  }
  if (s.stages > 2) return joined(s.stages, " stages of activations, of at most 2");
  if (row.parts() > 1 && (s.waves_m > 1 || s.token_tiles > 1 || s.tokens != row.n)) {
    return joined(row.name, " multiplies ", row.n, " tokens, not ", s.tokens, " of ", s.waves_m,
                  " waves and ", s.token_tiles, " workgroups");
  }
  if (s.tokens % (s.waves_m * row.n) != 0) {
    return joined(s.tokens, " tokens for ", s.waves_m, " waves are not whole instructions of ",
                  row.n);
  }
  return {};
}

/// A wave's columns of a k-tile belong to one group or to whole ones, and so do those of its
/// neighbours and of the other parts of K.
std::string bad_groups(const WaveSchedule& s, const Problem& problem, int step, std::int64_t splits,
                       std::int64_t group) {
  if (group >= problem.k) return {};
  const auto why = joined("groups of ", group, " do not follow ", s.waves_k, " waves of ",
                          s.columns, " columns in ", s.k_tiles, " k-tiles");
  if (group <= s.columns) {
    const bool whole = s.columns % group == 0 && group % step == 0 &&
                       (group < kBlock ? kBlock % group : group % kBlock) == 0;
    return whole ? "" : why;
  }
  if (group % s.columns != 0) return why;
  const auto sharing = group / s.columns;  // of waves in the order of K
  if (sharing < s.waves_k) return s.waves_k % sharing == 0 ? "" : why;
  const auto per_split = std::int64_t{s.k_tiles} * s.waves_k;
  const bool whole = sharing % s.waves_k == 0 &&
                     (splits == 1 || per_split % sharing == 0 || sharing % per_split == 0);
  return whole ? "" : why;
}

std::string bad_grid(const WaveSchedule& s, const Problem& problem, const CtaGrid& grid,
                     const Device& device) {
  if (const auto tiles = grid.tiles * grid.token_tiles; tiles > kMostTilesOfRows) {
    return joined(tiles, " tiles, of at most ", kMostTilesOfRows);
  }
  if (grid.token_tiles % grid.together != 0) {
    return joined(grid.token_tiles, " token tiles are no groups of ", grid.together);
  }
  if (s.reduction == Reduction::cluster) return joined(device.name, " has no clusters");
  if (auto why = reduction_objection(s.reduction, grid.splits, s.rows(), device); !why.empty()) {
    return why;
  }
  if (problem.has_gate() && sum_parts(s) == 1) {
    return "gate and up are in the registers of other lanes";
  }
  return pairs_objection(problem, s.threads(), s.rows());
}

/// What a library multiplies by the instruction of waves is dequantised first where the cost of
/// `dense` is less: of the decision on places only the tokens count that no kernel serves. By bytes
/// no library multiplies.
std::string unserved(const Problem& problem) {
  if (problem.has_bytes_of_x()) return {};
  const auto why = no_kernel(ConvertPlace::shared_to_registers, problem.m);
  return why.empty() ? "" : joined(problem.m, " tokens: ", why);
}

/// Each SIMD has one wave of each half, and a k-tile to bring while another is multiplied.
std::string bad_alternation(const WaveSchedule& s, const Problem& problem,
                            const MatrixInstruction& row, const Device& device, int granule) {
  if (!s.alternate) return {};
  if (!is_amd(device.family) || device.warp != kWaveLanes) {
    return joined("waves of ", device.warp, " lanes do not alternate");
  }
  if (s.waves() != kHalves * device.schedulers || s.groups_per_cu != 1) {
    return joined(s.waves(), " waves of ", s.groups_per_cu, " workgroups on ", device.schedulers,
                  " SIMDs do not alternate");
  }
  if (s.products != WaveProducts::matrix || s.waves_k > 1 || s.behind) {
    return "what alternates are waves along N and M, of whole products, with words ahead";
  }
  if (s.k_tiles < 2) return "one k-tile: nothing to bring while waves alternate";
  if (s.stages > 1) return "waves that alternate need one stage of activations, of any size";
  if (s.columns < 2 * row.step_columns()) {
    return joined("a step of ", row.step_columns(), " columns is all of a k-tile");
  }
  return has_whole_pieces(problem, granule) ? "" : "single elements of x while waves alternate";
}

/// Of operands of twice the columns that wave_registers() counts, 32 bytes of a row; and beside
/// float8, without which clang-22 spilled up to 26 for gfx950.
std::int64_t more_registers(const WaveSchedule& s, const Problem& problem,
                            const MatrixInstruction& row) {
  constexpr int kCounted = 32, kBesideFloats = 32;
  // By which clang-19 stays below the count for waves of 32 lanes.
  constexpr int kSpared = 64, kSparedTwice = 56;
  if (row.lanes() < kWaveLanes) {
    // Activations are those of two waves, and RDNA 3 has A and B twice.
    const auto of_b = s.wave_tokens() / 8;
    if (row.fragment == Fragment::wmma) return of_b - (s.columns == kBlock ? kSpared : 0);
    const auto words = (s.behind ? 1 : 2) * kUnits * problem.weight.bits * (s.columns / kBlock);
    return 8 * of_b + 4 * kUnits + words - kSparedTwice;
  }
  const auto more = std::max(row.step_columns() * row.operand_bits() - kCounted * 8, 0) / 32;
  return more * (kWaveRows + s.wave_tokens()) / kWaveLanes +
         (problem.rounded_x() == Scalar::e4m3 ? kBesideFloats : 0);
}

/// What the count of registers does not see, by the spills of clang-19.
std::string spilling(const WaveSchedule& s, const Problem& problem, const MatrixInstruction& row) {
  constexpr std::int64_t kMostOfWmma = 32, kMostColumnsTwice = 128, kMostOfOthers = 64,
                         kMostBitsTwice = 4;
  if (!is_amd(row.family)) return {};
  const auto tokens = s.wave_tokens();
  if (row.lanes() < kWaveLanes && tokens > kMostOfWmma) {
    return joined(tokens, " tokens of a wave of ", row.lanes(), " lanes: clang spills");
  }
  if (row.fragment == Fragment::wmma_twice && s.columns > kMostColumnsTwice) {
    return joined(s.columns, " columns of operands that are twice there: clang spills");
  }
  if (row.lanes() < kWaveLanes && keeps_totals(s, problem) && problem.group_size() <= row.k) {
    return joined("sums of groups of ", problem.group_size(), " columns in waves of ", row.lanes(),
                  " lanes: clang spills");
  }
  const bool narrow = problem.groups() > 1 && problem.group_size() < kBlock;
  if (row.fragment == Fragment::wmma_twice && narrow &&
      (problem.weight.stored_zero != Zero::none || problem.weight.bits > kMostBitsTwice)) {
    return joined("groups of ", problem.group_size(), " columns of ", problem.weight.bits,
                  " bits or stored zeros in waves of ", row.lanes(), " lanes: clang spills");
  }
  if (row.fragment == Fragment::wmma_twice && narrow && problem.group_size() <= row.k &&
      (s.scale_place == ScalePlace::rounded || (s.behind && s.token_tiles > 1))) {
    return joined(s.behind ? "words that are not ahead" : "rounded operands", " of groups of ",
                  problem.group_size(), " columns in waves of ", row.lanes(),
                  " lanes: clang spills");
  }
  if ((narrow || problem.has_bytes_of_x()) && tokens > kMostOfOthers) {
    return joined(tokens, " tokens of a wave beside ", narrow ? "narrow groups" : "bytes",
                  ": clang spills");
  }
  if (problem.rounded_x() == Scalar::e4m3 && s.columns > kBlock && groups_of_wave(s, problem) > 1) {
    return joined(s.columns, " columns of float8 of several groups: clang spills");
  }
  return {};
}

}  // namespace

std::string objection(const WaveSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  if (auto why = not_counts(s); !why.empty()) return why;
  if (s.products != WaveProducts::matrix && problem.has_bytes_of_x()) {
    return "no products of bytes are for few tokens";
  }
  const MatrixInstruction* const found = instruction_of(s, decisions);
  if (found == nullptr) {
    return joined(device.name, " has no such products of ", name_of(problem.formats.x));
  }
  const MatrixInstruction& row = *found;
  if (s.route == Route::digits) return "digits are for devices that multiply u8 by s8";
  if (s.scale_place == ScalePlace::relative) return "no relative scales in waves";
  if (auto why = unserved(problem); !why.empty()) return why;
  if (auto why = bad_waves(s, row); !why.empty()) return why;
  if (const auto tokens = std::int64_t{s.tokens} * s.token_tiles; tokens < problem.m) {
    return joined("serves ", tokens, " tokens of ", problem.m);
  }
  const CtaGrid grid = grid_of(s, problem);
  const auto groups = [&](std::int64_t columns) {
    return bad_groups(s, problem, row.step_columns(), grid.splits, columns);
  };
  if (auto why = groups(problem.group_size()); !why.empty()) return why;
  if (const auto& superblocks = problem.weight.superblocks) {
    if (auto why = groups(superblocks->columns); !why.empty()) return why;
  }
  if (auto why = bad_grid(s, problem, grid, device); !why.empty()) return why;
  if (auto why = code_objection(s.route, s.scale_place, decisions); !why.empty()) return why;
  if (s.route == Route::in_place &&
      (problem.weight.zero != 0 || problem.weight.stored_zero != Zero::none)) {
    return "a zero point in place would be another one for each parity of rows";
  }
  if (s.route == Route::in_place && problem.activation() == Scalar::bf16 &&
      problem.group_size() == row.step_columns()) {
    return joined("in place, groups of ", row.step_columns(),
                  " columns take one more product each: clang spills");
  }
  if (!row.subnormals && problem.weight.element != nullptr) {
    try {
      without_subnormals(decoding_of(problem, s.scale_place), problem);
    } catch (const Unsupported& error) {
      return error.what();
    }
  }
  const int granule = decisions.of(s.route).hint.granularity_bytes;
  if (auto why = bad_alternation(s, problem, row, device, granule); !why.empty()) return why;
  const auto threads = s.threads();
  if (auto why = residence_objection(threads, shared_bytes(s, problem), s.groups_per_cu, device);
      !why.empty()) {
    return why;
  }
  const auto waves_of_simd =
      std::max<std::int64_t>(threads / device.warp * s.groups_per_cu / device.schedulers, 1);
  const auto most = std::min(row.lanes() < kWaveLanes ? kMostOfFewLanes : kMostRegisters,
                             device.registers / (device.schedulers * device.warp) / waves_of_simd);
  const auto registers = wave_registers(s, problem) + more_registers(s, problem, row);
  if (registers > most) return joined(registers, " registers a lane, of at most ", most);
  return spilling(s, problem, row);
}

}  // namespace ladder
