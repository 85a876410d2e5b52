// SPDX-License-Identifier: Apache-2.0
// Why tiles cannot serve an expression on a device.
#include "pipelines/linear/objection.h"

#include <algorithm>

#include "base/joined.h"
#include "layout/weight_image.h"
#include "pipelines/linear/image_fit.h"
#include "pipelines/tiles/registers.h"
#include "pipelines/tiles/schedule.h"

namespace ladder {
namespace {

constexpr int kFewestStages = 2;

/// Producers copy whole pieces, and change registers with warpgroups.
std::string bad_producers(const TileSchedule& s, const Decisions& decisions) {
  if (!s.producers) return {};
  if (!s.warpgroups) return "producers without warpgroups";
  const int granule = decisions.of(s.route).hint.granularity_bytes;
  if (!has_whole_pieces(decisions.problem, granule)) {
    return joined("producers copy whole pieces of ", granule, " bytes");
  }
  const Roles roles = roles_of(s, *decisions.device);
  if (roles.producer_registers > roles.consumer_registers) return "too few registers for roles";
  // What is multiplied, what may still be read, and what is copied.
  if (s.stages < 3) return joined("producers and ", s.stages, " stages");
  return {};
}

/// What tensor memory serves so far: one set of sums, of operands that a warp has whole.
std::string bad_tensor_memory(const TileSchedule& s, const Decisions& decisions) {
  if (!s.tensor_memory) return {};
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  if (!s.warpgroups || !s.producers) return "tensor memory without producers";
  if (tensor_memory_instruction(problem.formats.x, device) == nullptr) {
    return joined("no products of ", name_of(problem.formats.x), " in tensor memory");
  }
  if (!device.unproven) return "tensor memory, which nobody has run: LADDER_UNPROVEN=1 allows it";
  if (s.route != Route::multiply_add || takes_zero_product(problem, s.route)) {
    return "tensor memory has no sums of zero points";
  }
  if (keeps_totals(s, problem)) return "tensor memory has one set of sums: no group's scale fits";
  if (s.units() != 2) return joined(s.units(), " units a warp, which has lanes for 2");
  if (s.columns != 2 * kBlock) {
    return joined("k-tiles of ", s.columns, " columns, not of ", kOperandPlaces, " blocks");
  }
  if (const auto all = tensor_columns(s) * s.ctas_per_sm; all > device.tensor_columns) {
    return joined(all, " columns of tensor memory, of ", device.tensor_columns);
  }
  // CTAs of a multiprocessor ask for powers of two.
  if (s.ctas_per_sm > 1) return "several CTAs of a multiprocessor with tensor memory";
  return {};
}

/// Parts have sums that begin at a product, one a k-tile, of operands that are decoded before.
std::string bad_parts(const TileSchedule& s, const Decisions& decisions) {
  if (s.token_parts == 1) return {};
  const Problem& problem = decisions.problem;
  if (!s.warpgroups || s.tensor_memory || !problem.promotes_sums()) {
    return "parts of tokens without warpgroups' sums that are promoted";
  }
  if (takes_zero_product(problem, s.route)) return "parts of tokens and products of zero points";
  if (const auto columns = summed_columns(s, problem); columns != s.columns) {
    return joined("parts of tokens, and ", columns, " columns a sum in k-tiles of ", s.columns);
  }
  if (s.units() != 1) return joined("parts of tokens, and ", s.units(), " units a warp");
  const auto* row = product_row(s, problem, *decisions.device);
  if (s.tokens % s.token_parts != 0 || !row->takes_tokens(s.part_tokens())) {
    return joined(row->name, " does not take ", s.tokens, " tokens in ", s.token_parts, " parts");
  }
  return {};
}

/// The tail is of CTAs that share no tile otherwise; each of its splits has k-tiles.
std::string bad_tail(const TileSchedule& s, const Decisions& decisions, const CtaGrid& grid) {
  if (s.tail_tiles == 0) {
    return s.tail_splits == 1 ? "" : joined("no tail of ", s.tail_splits, " splits");
  }
  if (!s.producers || s.tensor_memory) return "a tail without producers, or in tensor memory";
  if (decisions.problem.has_items()) return "a tail of items";
  if (s.reduction != Reduction::none || grid.splits != 1) return "a tail of tiles that are split";
  if (const auto tiles = grid.tiles * grid.token_tiles; s.tail_tiles >= tiles) {
    return joined("a tail of ", s.tail_tiles, " tiles, of ", tiles);
  }
  const auto of_split = tail_k_tiles(s);
  if (s.tail_splits < 2 || of_split * (s.tail_splits - 1) >= s.k_tiles) {
    return joined(s.k_tiles, " k-tiles are not ", s.tail_splits, " splits");
  }
  const Problem& problem = decisions.problem;
  const auto longest =
      problem.weight.superblocks ? problem.weight.superblocks->columns : problem.group_size();
  const auto sharing = longest >= problem.k ? 1 : std::max<std::int64_t>(longest / s.columns, 1);
  return of_split % sharing == 0
             ? ""
             : joined("groups of ", sharing, " k-tiles do not follow ", of_split, " of a split");
}

/// Of shared memory in front of all buffers, where a CTA learns how many came before it.
std::int64_t ticket_bytes(const TileSchedule& s) {
  if (s.reduction != Reduction::ordered && s.tail_tiles == 0) return 0;
  return s.warpgroups ? kSwizzleAlignment : kSharedAlignment;
}

std::string not_counts(const TileSchedule& s) {
  return count_objection({{"rows", 1, s.rows},
                          {"tokens", 1, s.tokens},
                          {"columns", 1, s.columns},
                          {"warps along N", 1, s.warps_n},
                          {"warps along M", 1, s.warps_m},
                          {"parts of tokens", 1, s.token_parts},
                          {"k-tiles", 1, s.k_tiles},
                          {"stages", kFewestStages, s.stages},
                          {"token tiles", 1, s.token_tiles},
                          {"tiles in the tail", 0, s.tail_tiles},
                          {"splits in the tail", 1, s.tail_splits},
                          {"CTAs of a multiprocessor", 1, s.ctas_per_sm}});
}

/// Warps have whole units, and where no warpgroups multiply, a lane's words of them are where
/// layouts can say: the cost of others is fitted to no kernel.
std::string bad_warps(const TileSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const OperandDecisions& operands = decisions.of(s.route);
  const MatrixInstruction& mma = *operands.core.instruction;
  if (s.rows % kBlock != 0 || s.columns % kBlock != 0) {
    return joined("a tile of ", s.rows, " x ", s.columns, " is not whole blocks of the image");
  }
  if (s.rows % (s.warps_n * mma.m) != 0 || s.tokens % (s.warps_m * mma.n) != 0) {
    return joined("a tile of ", s.rows, " x ", s.tokens, " for ", s.warps_n, " x ", s.warps_m,
                  " warps is not whole instructions of ", mma.m, " x ", mma.n);
  }
  if (s.warpgroups) {
    const auto* row = product_row(s, problem, *decisions.device);
    if (row == nullptr) return "no instruction of warpgroups";
    if (s.warps_n % (row->lanes() / mma.lanes()) != 0 || s.warps_m != 1) {
      return joined(s.warps_n, " x ", s.warps_m, " warps are no warpgroups along the rows");
    }
    if (s.tokens > row->most_n) return joined(s.tokens, " tokens, of at most ", row->most_n);
    if (!row->takes_tokens(s.tokens)) return joined(row->name, " has no ", s.tokens, " tokens");
    const auto panel = tile_memory(s, problem).x_pitch;
    if (s.columns % panel != 0) {
      return joined(s.columns, " columns are not whole panels of ", panel);
    }
  }
  const auto units = s.units();
  if (units > kUnits || kUnits % units != 0) {
    return joined(units, " row units a warp, not 1, 2 or 4 of a block");
  }
  if (!s.warpgroups && !has_chunks(units, problem.weight.bits)) {
    return joined(units, " row units of ", problem.weight.bits,
                  " bits are neither whole pieces of ", 4 * kChunkWords,
                  " bytes nor equal parts of one");
  }
  return {};
}

/// Where weights are converted is decided for products by warps: those of a library, by the faster
/// instruction of warpgroups, may be worth converting first. Tiles of warpgroups multiply by that
/// instruction themselves, so that of the decision only the tokens concern them that no kernel
/// serves. Where activations are bytes no library multiplies.
std::string converted_elsewhere(const TileSchedule& s, const Decisions& decisions) {
  const auto tokens = decisions.problem.m;
  if (decisions.problem.has_bytes_of_x()) return {};
  const bool served = no_kernel(ConvertPlace::shared_to_registers, tokens).empty();
  if (s.warpgroups && served) return {};
  if (auto why = too_many_for_warps(tokens); served && !why.empty()) return why;
  return not_while_multiplying(decisions.whole, tokens);
}

std::string bad_groups(const TileSchedule& s, const Decisions& decisions, std::int64_t splits,
                       std::int64_t group) {
  if (group >= decisions.problem.k) return {};
  if (s.scale_place == ScalePlace::relative && s.columns % kRelativeColumns != 0) {
    return joined("k-tiles of ", s.columns, " columns, and relative scales for ", kRelativeColumns);
  }
  const int step = decisions.of(s.route).core.instruction->k;
  if (group % step != 0) {
    return joined("groups of ", group, " columns are no whole k-steps of ", step);
  }
  if (group <= s.columns) {
    if (s.columns % group != 0 || (group < kBlock ? kBlock % group : group % kBlock) != 0) {
      return joined("groups of ", group, " do not divide k-tiles of ", s.columns, " columns");
    }
    return {};
  }
  const auto sharing = group / s.columns;
  const bool whole = group % s.columns == 0 &&
                     (splits == 1 || s.k_tiles % sharing == 0 || sharing % s.k_tiles == 0);
  return whole ? ""
               : joined("groups of ", group, " do not follow ", s.k_tiles, " k-tiles of ",
                        s.columns, " columns");
}

std::string bad_grid(const TileSchedule& s, const Decisions& decisions, const CtaGrid& grid) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  if (const auto tiles = grid.tiles * grid.token_tiles; tiles > kMostTilesOfRows) {
    return joined(tiles, " tiles, of at most ", kMostTilesOfRows);
  }
  if (grid.token_tiles % grid.together != 0) {
    return joined(grid.token_tiles, " token tiles are no groups of ", grid.together);
  }
  if (auto why = reduction_objection(s.reduction, grid.splits, s.rows, device); !why.empty()) {
    return why;
  }
  const auto share = s.reduction == Reduction::cluster ? s.rows / grid.splits : s.rows;
  if (auto why = pairs_objection(problem, s.threads(), share); !why.empty()) return why;
  return pairs_objection(problem, s.threads(), s.rows);
}

}  // namespace

std::string objection(const TileSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  // Of as many stages as it has k-tiles: who asks why is told of the layer.
  if (problem.k <= s.columns && s.stages < kFewestStages) {
    return joined("the layer's ", problem.k, " columns are no more than one k-tile of ", s.columns,
                  ", and tiles have at least ", kFewestStages);
  }
  if (auto why = not_counts(s); !why.empty()) return why;
  if (s.route == Route::digits) return "digits are for one token";
  if (auto why = converted_elsewhere(s, decisions); !why.empty()) return why;
  if (!device.copies_to_shared()) return "no copies by threads to shared memory";
  if (s.dependent_launch && !device.dependent_launch()) return "no dependent launch";
  if (const auto tokens = std::int64_t{s.tokens} * s.token_tiles; tokens < problem.m) {
    return joined("serves ", tokens, " tokens of ", problem.m);
  }
  if (s.stages > s.k_tiles) return "idle stages";
  if (auto why = bad_warps(s, decisions); !why.empty()) return why;
  if (auto why = bad_producers(s, decisions); !why.empty()) return why;
  if (auto why = bad_tensor_memory(s, decisions); !why.empty()) return why;
  if (auto why = bad_parts(s, decisions); !why.empty()) return why;
  const CtaGrid grid = grid_of(s, problem);
  if (auto why = bad_groups(s, decisions, grid.splits, problem.group_size()); !why.empty()) {
    return why;
  }
  if (const auto& superblocks = problem.weight.superblocks) {
    if (auto why = bad_groups(s, decisions, grid.splits, superblocks->columns); !why.empty()) {
      return why;
    }
  }
  if (auto why = bad_grid(s, decisions, grid); !why.empty()) return why;
  if (auto why = bad_tail(s, decisions, grid); !why.empty()) return why;
  if (auto why = code_objection(s.route, s.scale_place, decisions); !why.empty()) return why;
  const auto threads = s.cta_threads();
  const auto shared = shared_bytes(s, problem) + ticket_bytes(s);
  if (auto why = residence_objection(threads, shared, s.ctas_per_sm, device); !why.empty()) {
    return why;
  }
  const auto registers = tile_registers(s, problem);
  const std::int64_t most =
      s.producers
          ? roles_of(s, device).consumer_registers
          : std::min<std::int64_t>(device.registers / (threads * s.ctas_per_sm), kMostRegisters);
  if (registers > most) return joined(registers, " registers a thread, of at most ", most);
  return {};
}

}  // namespace ladder
