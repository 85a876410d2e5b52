// SPDX-License-Identifier: Apache-2.0
//
// How a register tile is cut into accesses of memory: what every target emits, and what traffic.h
// counts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace ladder {

/// The element of the buffer that coordinate `at` of the view is.
Affine origin_of(const View& view, const std::vector<Affine>& at);

/// Where LoadUnits finds coordinate `at` of its tile, of so many words of a lane.
std::array<std::int64_t, 5> place_in_chunks(const std::int64_t* at, std::int64_t words);

/// Words that one load of LoadUnits has: as many as lie side by side in every part.
constexpr std::int64_t width_of_units(std::int64_t words) { return words % 2 == 0 ? 2 : 1; }

/// Dimensions in which some of the tile at `at` may lie outside the view.
std::vector<bool> guarded_dimensions(const Program& program, const Layout& tile, const View& view,
                                     const std::vector<Affine>& at);

/// The most consecutive slots of `tile` that may move together: at most 16 bytes, consecutive and
/// aligned in the buffer for every thread, and cut by no border. `origin` is that of the tile.
std::int64_t piece_width(const Layout& tile, Scalar scalar, const View& view, const Affine& origin,
                         const std::vector<bool>& guarded);

}  // namespace ladder
