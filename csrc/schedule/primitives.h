// SPDX-License-Identifier: Apache-2.0
//
// LADDER's four primitives, as values: what happens to a tile on its way between two memory levels.
// They can be printed and applied to real codes, so a whole way can be compared with the reference
// without a machine.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "layout/index_map.h"
#include "types/element.h"

namespace ladder {

using Shape = std::vector<std::int64_t>;

/// How the elements of a tile are stored: value = decode(code) - zero.
struct TileType {
  const Element* element;
  double zero = 0;
  bool operator==(const TileType&) const = default;
};

/// A tile of codes, row-major.
struct CodeTile {
  TileType type;
  Shape shape;
  std::vector<std::uint32_t> codes;
  bool operator==(const CodeTile&) const = default;
};
std::vector<double> values(const CodeTile& tile);

/// Cuts out the box of `shape` at `origin`.
struct Slice {
  Shape origin, shape;
  bool operator==(const Slice&) const = default;
};

/// Adds elements of `code` on both sides of each dimension.
struct Pad {
  Shape before, after;
  std::uint32_t code;
  bool operator==(const Pad&) const = default;
};

/// Stores every value in another type: exact where the type has the value, else the nearest one.
struct ConvertTo {
  TileType type;
  bool operator==(const ConvertTo&) const = default;
};

/// Moves the element at x to map(x); `map` is a bijection onto its shape.
struct MapTo {
  IndexMap map;
  bool operator==(const MapTo&) const = default;
};

using Transform = std::variant<Slice, Pad, ConvertTo, MapTo>;

/// Throws InvalidArgument when the transform does not fit the tile: a box that leaves it, another
/// rank, a code too wide, a map of another shape or one that is no bijection.
CodeTile transformed(const Transform& transform, const CodeTile& tile);
/// One after the other.
CodeTile transformed(const std::vector<Transform>& transforms, CodeTile tile);

/// The transform that undoes a map. Throws InvalidArgument for one that is no bijection.
MapTo inverse(const MapTo& map);

/// The code whose value is 0; that of decode 0 when the type has none, as ±1 has: the other operand
/// is 0 there.
std::uint32_t padding_code(const TileType& type);

/// "[16, 64]".
std::string to_string(const Shape& shape);
/// "nf4", "uint4 - 8".
std::string to_string(const TileType& type);
/// "slice [16, 63] at [0, 0]", "pad (0, 0, 0, 1) with code 7", "convert to float16",
/// "map (x0, x1) -> ...".
std::string to_string(const Transform& transform);

}  // namespace ladder
