// SPDX-License-Identifier: Apache-2.0
//
// Tiles: more tokens than decoding serves, where the matrix instruction takes the time.
//
// A CTA has `rows` rows of the weight and `tokens` tokens. It goes over its columns in k-tiles,
// whose codes, scales and activations come through a ring of `stages` in shared memory by
// asynchronous copies:
//
//     at first:     the copies of k-tiles 0 .. stages - 2 are on their way
//     each k-tile:  wait for its copies; barrier; start those of stages - 1 later; multiply
//
// Or warps of their own copy, producers, which are ahead as far as the ring lets them:
//
//     producers:  wait until the stage of a k-tile is empty; copy; it is full when that has ended
//     consumers:  wait until the stage of a k-tile is full; multiply; the stage before is empty
//
// Consumers then have no addresses to compute and no barrier to meet at, and products run on over
// the border of k-tiles.
//
// A warp has 16 or 32 or 64 of the rows and some of the tokens; it decodes the codes of its rows
// in registers, once for all of its tokens. Weights are decoded by each warp along the tokens.
//
// Or, with tensor memory (program/tensor_memory.h), the four warps of a warpgroup decode 32 rows
// each and store them there, block by block of the image, in two places in turn; one thread starts
// the products, whose sums stay in tensor memory until the last k-tile:
//
//     each block:  wait until its place is free; decode; store; barrier; start its products
//
// Where the device has an instruction of warpgroups, four warps side by side along the rows may
// multiply together, each its own rows, by all tokens of the CTA, which the instruction reads from
// shared memory. Codes of the next step are decoded while it runs.
//
// Where sums of groups are added up to others, they take as many registers again. In parts of the
// tokens they take fewer, so that a CTA has more tokens:
//
//     each k-tile:  decode all of it
//     each part of its tokens:  start the products; wait for those of the part before; add these up
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expr/decoding.h"
#include "expr/problem.h"
#include "pipelines/cost.h"
#include "program/program.h"
#include "schedule/decisions.h"
#include "schedule/route.h"

namespace ladder {

/// Threads of a CTA that copy, where such do: a warpgroup.
constexpr int kProducers = 128;

struct TileSchedule {
  int rows;     ///< of the weight that a CTA has, a multiple of 64
  int tokens;   ///< of a CTA, a multiple of 8
  int columns;  ///< of a k-tile, a multiple of 64
  int warps_n;  ///< warps side by side along the rows
  int warps_m;  ///< warps side by side along the tokens
  int k_tiles;  ///< of a CTA
  int stages;   ///< k-tiles in shared memory or on their way there, at least 2
  Reduction reduction;
  Route route;
  bool dependent_launch;       ///< as DecodeSchedule has it
  int ctas_per_sm;             ///< to leave registers and shared memory for
  int token_tiles = 1;         ///< CTAs side by side along the tokens
  bool warpgroups = false;     ///< four warps multiply together, activations from shared memory
  bool producers = false;      ///< a warpgroup more, which copies for those that multiply
  bool tensor_memory = false;  ///< with producers: operands and sums in tensor memory
  int token_parts = 1;         ///< of a warpgroup's tokens, multiplied and added up in turn
  ScalePlace scale_place = ScalePlace::usual;
  /// With producers, of a CTA that has all of K: the last so many tiles, which would fill a device
  /// in part, have `tail_splits` CTAs each, whose sums are added up in order. 0: none.
  int tail_tiles = 0;
  int tail_splits = 1;

  bool operator==(const TileSchedule&) const = default;
  std::int64_t warp_rows() const { return rows / warps_n; }
  std::int64_t units() const { return warp_rows() / 16; }  ///< 16 rows each, of a warp
  std::int64_t warp_tokens() const { return tokens / warps_m; }
  std::int64_t part_tokens() const { return warp_tokens() / token_parts; }
  /// That multiply, and of the whole CTA.
  std::int64_t threads() const { return std::int64_t{32} * warps_n * warps_m; }
  std::int64_t cta_threads() const { return threads() + (producers ? kProducers : 0); }
};

// What every pipeline has (pipelines/schedule.h).
/// "tile 256x64x128, warps 8x1, k-tiles 16, stages 4, cluster, multiply_add, 1 per
/// multiprocessor".
std::string to_string(const TileSchedule& schedule);
std::optional<TileSchedule> tile_schedule_of(std::string_view text);
std::string objection(const TileSchedule& schedule, const Decisions& decisions);
Cost cost(const TileSchedule& schedule, const Decisions& decisions);
/// That of schedules whose warpgroups multiply.
Cost cost_of_warpgroups(const TileSchedule& schedule, const Decisions& decisions);
CtaGrid grid_of(const TileSchedule& schedule, const Problem& problem);
/// All that are considered, in a fixed order.
std::vector<TileSchedule> tile_space(const Decisions& decisions, bool dependent_launch);

/// K-tiles of a CTA in the tail.
std::int64_t tail_k_tiles(const TileSchedule& schedule);
/// Groups of columns whose scales a k-tile has; 1 where a group has several k-tiles.
std::int64_t groups_of_tile(const TileSchedule& schedule, const Problem& problem);
/// The instruction by which warpgroups multiply; null where they do not, or `device` has none.
const MatrixInstruction* product_row(const TileSchedule& schedule, const Problem& problem,
                                     const Device& device);
/// Places of operands in tensor memory, each of the columns of a block of the image.
constexpr int kOperandPlaces = 2;
/// Columns of tensor memory that a CTA uses.
std::int64_t tensor_columns(const TileSchedule& schedule);
/// Tokens of sums that a thread brings from tensor memory at a time.
std::int64_t tokens_of_load(const TileSchedule& schedule);
/// Registers of a thread of each role, of those that a CTA has. There must be enough for producers.
Roles roles_of(const TileSchedule& schedule, const Device& device);
/// Tiles of operands that a warp of a warpgroup decodes in turn; of parts all of a sum.
int operand_stages(const TileSchedule& schedule, const Problem& problem);
/// Sums that are multiplied at a time, of the parts of the tokens.
constexpr int kPartsInTurn = 2;
/// Columns of a k-tile whose sums are added up to others: those of a group, but of e4m3, whose
/// products keep few bits of sums, no more than 128.
std::int64_t summed_columns(const TileSchedule& schedule, const Problem& problem);
/// How often scales multiply the sums of a k-tile.
std::int64_t scaled_sums(const TileSchedule& schedule, const Problem& problem);
/// Sums are added up in registers of their own, in which their products are not.
bool keeps_totals(const TileSchedule& schedule, const Problem& problem);

/// The buffers of a CTA, in elements, in the order in which they lie; 0: there is none.
struct TileMemory {
  std::int64_t words;           ///< u32: codes, [stage][row of blocks][column]
  std::int64_t per_group;       ///< scales, [stage][group][row], then as many zero points
  std::int64_t per_superblock;  ///< second scales of these
  std::int64_t x_pitch;         ///< from one token to the next; of warpgroups in a panel of columns
  std::int64_t activations;     ///< [stage][token]
  std::int64_t table;           ///< u32, of a type that is looked up
  std::int64_t sum_pitch;       ///< from the sums of one token to those of the next
  std::int64_t sums;            ///< f32; they take the place of all that is above
  std::int64_t token_scales;    ///< f32, behind the sums: one a thread, or more
};
TileMemory tile_memory(const TileSchedule& schedule, const Problem& problem);
/// Bytes of shared memory that a CTA asks for, to the byte.
std::int64_t shared_bytes(const TileSchedule& schedule, const Problem& problem);

}  // namespace ladder
