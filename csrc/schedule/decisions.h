// SPDX-License-Identifier: Apache-2.0
//
// What LADDER's Algorithm 1 decides before it cuts tiles: by which instruction of which operand
// type, what tiles are aligned to, and where weights are converted. Tile plans and the schedules of
// kernels both take it from here (docs/compiler.md).
#pragma once

#include <optional>
#include <vector>

#include "device/hint.h"
#include "expr/problem.h"
#include "schedule/core.h"
#include "schedule/placement.h"
#include "schedule/route.h"

namespace ladder {

/// The values of a weight's codes as the image has them, up to the power of two that multiplies
/// sums: signed ones flipped to unsigned with a zero point.
TileType tile_type(const Weight& weight);

/// Of operands of one type.
struct OperandDecisions {
  Core core;
  Hint hint;
  Shape block;  ///< [m, n, k] of one thread block's step in tile plans; places are judged by it
  std::vector<ConvertCost> places;  ///< of b, cheapest first; empty when b needs no conversion
  /// The cheapest for which there is a kernel; on devices that have none at all, the cheapest.
  std::optional<ConvertPlace> place;
};

/// Of whoever multiplies activations as they are, in Roller's block or in one of whole fragments
/// that is given. Weights are the first operand of the instruction: only that one may come from
/// registers everywhere.
/// Throws Unsupported as choose_core does, InvalidArgument for a problem without meaning.
OperandDecisions decide_operands(const Problem& problem, const Device& device,
                                 Multiplier by = Multiplier::any,
                                 std::optional<Shape> block = std::nullopt);

/// Everything that is decided before there are schedules: objections, costs and lowering take it
/// from here. A value, but for the row of the device.
struct Decisions {
  Problem problem;
  const Device* device;
  OperandDecisions whole;  ///< activations as they are
  /// Activations as digits, or that come as bytes: core and hint are those of bytes, where tile
  /// programs multiply these.
  OperandDecisions digits;

  const OperandDecisions& of(Route route) const { return has_bytes(route) ? digits : whole; }
};
/// Of a kernel of ours that multiplies `problem`. Throws InvalidArgument for one without meaning,
/// Unsupported where refusal() says why, and on a device that has no tile programs.
Decisions decide(const Problem& problem, const Device& device);

/// The hint's tile in elements, [m, n, k], k innermost: whole instructions along every axis.
Shape fragment_tile(const Core& core, const Hint& hint);

/// Roller's choice: from one fragment by one run, the axis that saves most traffic for the shared
/// memory it costs, while two steps fit a block, sums fit the registers and there is a block for
/// every multiprocessor.
Shape block_tile(const Problem& problem, const Device& device, const Core& core, const Hint& hint);

/// Why weights of `m` tokens are not converted as a kernel multiplies, and where they are instead;
/// empty when they are, or need no conversion.
std::string not_while_multiplying(const OperandDecisions& decisions, std::int64_t m);

/// Every decision in lines.
std::string to_string(const OperandDecisions& decisions, const Problem& problem,
                      const Device& device);

}  // namespace ladder
