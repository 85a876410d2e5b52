// SPDX-License-Identifier: Apache-2.0
#include "pipelines/waves/schedule.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/linear/padding.h"
#include "pipelines/linear/raster.h"
#include "pipelines/spelling.h"
#include "program/program.h"
#include "schedule/decoding_cost.h"

namespace ladder {
namespace {

/// By the numbers of WaveProducts.
constexpr std::array<std::string_view, 3> kWaveProducts = {"", ", blocks of 4 tokens",
                                                           ", dot products"};

struct Spelling {
  template <class Schedule, class Text>
  static void spell(Schedule& s, Text& text) {
    text.number("waves ", s.waves_n);
    text.number("x", s.waves_m);
    text.number("x", s.waves_k);
    text.number(", tokens ", s.tokens);
    text.number(", token tiles ", s.token_tiles, 1);
    text.number(", columns ", s.columns);
    text.number(", k-tiles ", s.k_tiles);
    text.number(", stages ", s.stages, 2);
    text.flag(", not ahead", s.behind);
    text.flag(", alternating", s.alternate);
    text.name(", ", s.reduction, kReductions);
    text.name(", ", s.route, kRoutes);
    text.name("", s.scale_place, kScalePlaces);
    text.name("", s.products, kWaveProducts);
    text.number(", ", s.groups_per_cu);
    text.end(" per compute unit");
  }
};

}  // namespace

std::string to_string(const WaveSchedule& schedule) { return spelled<Spelling>(schedule); }

std::optional<WaveSchedule> wave_schedule_of(std::string_view text) {
  return read_schedule<Spelling, WaveSchedule>(text);
}

const MatrixInstruction* instruction_of(const WaveSchedule& s, const Decisions& decisions) {
  const Scalar x = decisions.problem.formats.x;
  switch (s.products) {
    case WaveProducts::matrix: return decisions.of(s.route).core.instruction;
    case WaveProducts::blocks:
      return few_tokens_instruction(x, Fragment::wave_blocks, *decisions.device);
    case WaveProducts::dots:
      return few_tokens_instruction(x, Fragment::wave_lanes, *decisions.device);
  }
  fail<InternalError>("products of waves");
}

std::int64_t sum_parts(const WaveSchedule& s) {
  return s.waves_k * (s.products == WaveProducts::matrix ? 1 : kPartsOfLanes);
}

CtaGrid grid_of(const WaveSchedule& s, const Problem& problem) {
  return {.tiles = ceil_div(round_up(problem.n, kBlock), s.rows()),
          .token_tiles = s.token_tiles,
          .splits = ceil_div(round_up(problem.k, kBlock), s.k_tiles * s.tile_columns()),
          .together = tiles_together(s.token_tiles, s.tokens)};
}

std::int64_t groups_of_wave(const WaveSchedule& s, const Problem& problem) {
  return problem.groups() == 1 ? 1 : std::max<std::int64_t>(s.columns / problem.group_size(), 1);
}

bool keeps_totals(const WaveSchedule& s, const Problem& problem) {
  return problem.groups() > 1 && !scales_operands(problem, s.scale_place);
}

WaveMemory wave_memory(const WaveSchedule& s, const Problem& problem) {
  WaveMemory out{};
  out.x_pitch = s.tile_columns() + kActivationPadBytes / bytes_of(problem.formats.x);
  out.activations = s.stages * s.tokens * out.x_pitch;
  if (decoding_kind(problem) == Decoding::Kind::table)
    out.table = table_entries(problem.weight.bits) * kLanes;
  out.sum_pitch = s.rows() + kSumPad;
  if (sum_parts(s) > 1) out.sums = sum_parts(s) * s.tokens * out.sum_pitch;
  return out;
}

std::int64_t shared_bytes(const WaveSchedule& s, const Problem& problem) {
  const WaveMemory m = wave_memory(s, problem);
  const auto buffer = [](std::int64_t elements, std::int64_t bytes) {
    return round_up(elements * bytes, kSharedAlignment);
  };
  return std::max(buffer(m.activations, bytes_of(problem.formats.x)) + buffer(m.table, 4),
                  buffer(m.sums, 4));
}

std::int64_t wave_registers(const WaveSchedule& s, const Problem& problem) {
  // Of addresses, the loop and values between instructions.
  constexpr std::int64_t kOthers = 40;
  // Of bf16, whose products by scales are of pairs of f32: without, clang spilled up to 75.
  constexpr std::int64_t kWidened = 96;
  const bool dots = s.products == WaveProducts::dots;
  const auto sums = kWaveRows * s.wave_tokens() * sum_parts(s) / (s.waves_k * kWaveLanes);
  const bool rounded = s.scale_place == ScalePlace::rounded;
  const bool bf16 = problem.activation() == Scalar::bf16;
  const bool zeros = problem.weight.stored_zero != Zero::none ||
                     (problem.weight.zero != 0 && !rounded) ||
                     (s.route == Route::in_place && bf16) ||
                     (s.route == Route::bytes && problem.weight.bits > kMostOffsetBits);
  const auto words = (s.behind ? 1 : 2) * kUnits * problem.weight.bits *
                     (s.columns / kBlock);  // the next k-tile's
  const auto operands = 4 * kUnits + s.wave_tokens() / 8;
  const auto columns_staged = s.tile_columns() / (s.alternate ? 2 : 1);
  const auto staged =
      ceil_div(s.tokens * columns_staged * bytes_of(problem.formats.x), 4 * s.threads());
  // Of a lane's rows: 32 of sums, 8 of operands and dot products; those of the next k-tile, and f32
  // of one group.
  const std::int64_t rows_of_sums = dots ? 8 : 32;
  const auto of_rows = [&](std::int64_t rows, Scalar scalar) {
    const auto of_group = ceil_div(rows * bytes_of(scalar), 4);
    if (s.behind) return of_group;
    return of_group * groups_of_wave(s, problem) * (problem.groups() > 1 ? 2 : 1);
  };
  const bool operands_scaled = scales_operands(problem, s.scale_place);
  std::int64_t scales = problem.groups() > 1 && !rounded ? rows_of_sums : 0;
  if (problem.weight.scale) {
    scales += of_rows(operands_scaled ? 8 : rows_of_sums, *problem.weight.scale);
  }
  if (problem.weight.stored_zero != Zero::none) {
    scales += of_rows(problem.weight.stored_zero == Zero::integer ? 8 : rows_of_sums,
                      problem.weight.zero_scalar());
  }
  // Sums of narrow groups begin before those of the last group are scaled.
  const bool narrow = keeps_totals(s, problem) && problem.group_size() < kBlock;
  const auto begun = narrow ? 3 * sums / 4 : 0;
  return begun + kOthers + (operands_scaled && bf16 ? kWidened : 0) +
         (keeps_totals(s, problem) ? 2 : 1) * sums + (zeros ? s.wave_tokens() / 4 : 0) + words +
         operands + staged + scales + decoding_registers(problem, s.scale_place);
}

}  // namespace ladder
