// SPDX-License-Identifier: Apache-2.0
//
// Waves: kernels for AMD's devices and for Volta, of as many tokens as tiles. A wave of 64 lanes
// has 128 rows of the weight, eight of each parity and 16-row unit of two blocks of the image
// (linear/image_fit.h).
//
// There are no asynchronous copies. Codes and scales go straight from memory to the registers of
// the wave that multiplies them, and activations through registers to shared memory, all one k-tile
// ahead; the compiler waits for each register when it is used:
//
//     at first:     k-tile 0 to registers; its activations to stage 0
//     each k-tile:  barrier; ask for the next; multiply; its activations to the other stage
//
// Codes and scales that are not loaded ahead, but where they are multiplied, take fewer registers:
// for waves of 32 lanes, of which others hide the wait.
//
// With one stage there is a second barrier in front of the last of these: a tile of 256 tokens has
// no room for two in 64 KiB.
//
// Two waves of each SIMD may alternate (alternate.cpp): one multiplies a step while the other reads
// activations, decodes, and moves the next k-tile, with a barrier behind each.
//
// Waves side by side along K are for few tokens, whose kernels read as fast as memory allows; waves
// along the tokens decode the codes of their rows each.
//
// Up to four tokens may be multiplied by 4 x 4 x 4, which takes fewer clocks, one of them by dot
// products of each lane, whose sums and scales are a quarter of the registers. Lanes have the same
// codes as ever; those that share rows sum up other columns, and the sums meet in shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expr/decoding.h"
#include "expr/problem.h"
#include "layout/index_map.h"
#include "pipelines/cost.h"
#include "schedule/decisions.h"
#include "schedule/route.h"

namespace ladder {

/// Rows of the weight that a wave has, and its lanes. Where waves have 32 lanes, two are called one
/// here, which have these rows together.
constexpr std::int64_t kWaveRows = 128, kWaveLanes = 64;

/// What a wave multiplies by: the instruction that is decided on, or one of few tokens.
enum class WaveProducts { matrix, blocks, dots };

struct WaveSchedule {
  int tokens;   ///< of a workgroup, whole instructions of each wave along them
  int columns;  ///< of a wave in a k-tile, a multiple of 64
  int waves_n;  ///< side by side along the rows
  int waves_m;  ///< along the tokens
  int waves_k;  ///< along the columns
  int k_tiles;  ///< of a workgroup
  Reduction reduction;
  Route route;
  int groups_per_cu;       ///< workgroups to leave registers and shared memory for
  int token_tiles = 1;     ///< workgroups side by side along the tokens
  int stages = 2;          ///< k-tiles of activations in shared memory: 1 or 2
  bool behind = false;     ///< codes and scales are loaded where they are needed, no k-tile ahead
  bool alternate = false;  ///< the two waves of a SIMD multiply in turn
  ScalePlace scale_place = ScalePlace::usual;
  WaveProducts products = WaveProducts::matrix;

  bool operator==(const WaveSchedule&) const = default;
  std::int64_t rows() const { return kWaveRows * waves_n; }
  std::int64_t waves() const { return std::int64_t{waves_n} * waves_m * waves_k; }
  std::int64_t threads() const { return kWaveLanes * waves(); }
  std::int64_t tile_columns() const { return std::int64_t{columns} * waves_k; }
  std::int64_t wave_tokens() const { return tokens / waves_m; }
};

// What every pipeline has (pipelines/schedule.h).
/// "waves 2x1x4, tile 256x16x512, k-tiles 8, ordered, multiply_add, 2 per compute unit".
std::string to_string(const WaveSchedule& schedule);
std::optional<WaveSchedule> wave_schedule_of(std::string_view text);
std::string objection(const WaveSchedule& schedule, const Decisions& decisions);
Cost cost(const WaveSchedule& schedule, const Decisions& decisions);
CtaGrid grid_of(const WaveSchedule& schedule, const Problem& problem);
/// All that are considered, in a fixed order.
std::vector<WaveSchedule> wave_space(const Decisions& decisions);

/// Null where the device has no such instruction.
const MatrixInstruction* instruction_of(const WaveSchedule& schedule, const Decisions& decisions);
/// Parts of the sums that waves have, along K and in lanes.
std::int64_t sum_parts(const WaveSchedule& schedule);

/// Groups of columns whose scales a wave has in a k-tile; 1 where a group has several k-tiles.
std::int64_t groups_of_wave(const WaveSchedule& schedule, const Problem& problem);
/// The sums of groups are added up in registers of their own.
bool keeps_totals(const WaveSchedule& schedule, const Problem& problem);

/// The buffers of a workgroup, in elements, in the order in which they lie.
struct WaveMemory {
  std::int64_t x_pitch;      ///< from one token to the next
  std::int64_t activations;  ///< [stage][token]
  std::int64_t table;        ///< u32, of a type that is looked up
  std::int64_t sum_pitch;    ///< from the sums of one token to those of the next
  std::int64_t sums;  ///< f32, where there are parts; they take the place of all that is above
};
WaveMemory wave_memory(const WaveSchedule& schedule, const Problem& problem);
/// Bytes of shared memory that a workgroup asks for, to the byte.
std::int64_t shared_bytes(const WaveSchedule& schedule, const Problem& problem);
/// From an instruction's registers to shared memory and the weight image, each as a function of
/// (lane, slot) or of coordinates. Bijections, but for that of shared memory, whose rows are
/// padded, and those of operands that several lanes have, of waves of 32.
struct NamedMap {
  std::string name;
  IndexMap map;
};
std::vector<NamedMap> maps_of(const WaveSchedule& schedule, const Decisions& decisions);
/// A map and its inverse in a line each.
std::string to_string(const std::vector<NamedMap>& maps);

/// Registers of a lane, about.
std::int64_t wave_registers(const WaveSchedule& schedule, const Problem& problem);

}  // namespace ladder
