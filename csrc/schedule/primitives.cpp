// SPDX-License-Identifier: Apache-2.0
#include "schedule/primitives.h"

#include <functional>
#include <numeric>
#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

template <class... Functions>
struct Match : Functions... {
  using Functions::operator()...;
};

std::int64_t count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t flat(const Shape& at, const Shape& shape) {
  std::int64_t place = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) place = place * shape[d] + at[d];
  return place;
}

/// Calls `visit` with every coordinate of `shape`, row-major.
template <class Visit>
void for_each(const Shape& shape, const Visit& visit) {
  Shape at(shape.size(), 0);
  for (std::int64_t n = count(shape); n-- > 0;) {
    visit(at);
    for (auto d = std::ssize(at); d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
  }
}

CodeTile sliced(const Slice& slice, const CodeTile& tile) {
  LADDER_REQUIRE(
      slice.origin.size() == tile.shape.size() && slice.shape.size() == tile.shape.size(),
      "a slice of ", to_string(slice.shape), " of a tile ", to_string(tile.shape));
  for (std::size_t d = 0; d < tile.shape.size(); ++d) {
    LADDER_REQUIRE(slice.origin[d] >= 0 && slice.origin[d] + slice.shape[d] <= tile.shape[d],
                   "a slice of ", to_string(slice.shape), " at ", to_string(slice.origin),
                   " leaves a tile ", to_string(tile.shape));
  }
  CodeTile out{tile.type, slice.shape, {}};
  for_each(slice.shape, [&](Shape at) {
    for (std::size_t d = 0; d < at.size(); ++d) at[d] += slice.origin[d];
    out.codes.push_back(tile.codes[flat(at, tile.shape)]);
  });
  return out;
}

CodeTile padded(const Pad& pad, const CodeTile& tile) {
  LADDER_REQUIRE(pad.before.size() == tile.shape.size() && pad.after.size() == tile.shape.size(),
                 "a pad of ", pad.before.size(), " dimensions of a tile ", to_string(tile.shape));
  decode(*tile.type.element, pad.code);  // refuses a code that is too wide
  CodeTile out{tile.type, tile.shape, {}};
  for (std::size_t d = 0; d < tile.shape.size(); ++d) {
    LADDER_REQUIRE(pad.before[d] >= 0 && pad.after[d] >= 0, "a pad of ", pad.before[d], " and ",
                   pad.after[d]);
    out.shape[d] += pad.before[d] + pad.after[d];
  }
  out.codes.assign(count(out.shape), pad.code);
  std::int64_t from = 0;
  for_each(tile.shape, [&](Shape at) {
    for (std::size_t d = 0; d < at.size(); ++d) at[d] += pad.before[d];
    out.codes[flat(at, out.shape)] = tile.codes[from++];
  });
  return out;
}

CodeTile converted(const ConvertTo& convert, const CodeTile& tile) {
  CodeTile out{convert.type, tile.shape, {}};
  for (const double value : values(tile)) {
    out.codes.push_back(
        encode(*convert.type.element, value + convert.type.zero, Overflow::special));
  }
  return out;
}

CodeTile mapped(const MapTo& to, const CodeTile& tile) {
  LADDER_REQUIRE(to.map.extents == tile.shape, "a map of ", to_string(to.map.extents),
                 " for a tile ", to_string(tile.shape));
  LADDER_REQUIRE(inverse(to.map).has_value(), to_string(to.map), " is no bijection");
  CodeTile out{tile.type, to.map.shape(), std::vector<std::uint32_t>(tile.codes.size())};
  std::int64_t from = 0;
  for_each(tile.shape,
           [&](const Shape& at) { out.codes[flat(to.map(at), out.shape)] = tile.codes[from++]; });
  return out;
}

}  // namespace

std::vector<double> values(const CodeTile& tile) {
  std::vector<double> out;
  for (const auto code : tile.codes) {
    out.push_back(decode(*tile.type.element, code) - tile.type.zero);
  }
  return out;
}

CodeTile transformed(const Transform& transform, const CodeTile& tile) {
  LADDER_REQUIRE(std::ssize(tile.codes) == count(tile.shape), tile.codes.size(),
                 " codes for a tile ", to_string(tile.shape));
  return std::visit(Match{[&](const Slice& t) { return sliced(t, tile); },
                          [&](const Pad& t) { return padded(t, tile); },
                          [&](const ConvertTo& t) { return converted(t, tile); },
                          [&](const MapTo& t) { return mapped(t, tile); }},
                    transform);
}

CodeTile transformed(const std::vector<Transform>& transforms, CodeTile tile) {
  for (const Transform& transform : transforms) tile = transformed(transform, tile);
  return tile;
}

MapTo inverse(const MapTo& to) {
  const auto back = inverse(to.map);
  LADDER_REQUIRE(back.has_value(), to_string(to.map), " is no bijection");
  return {*back};
}

std::uint32_t padding_code(const TileType& type) {
  const int codes = type.element->code_count();
  for (int code = 0; code < codes; ++code) {
    if (decode(*type.element, static_cast<std::uint32_t>(code)) == type.zero) {
      return static_cast<std::uint32_t>(code);
    }
  }
  return 0;
}

std::string to_string(const Shape& shape) {
  std::ostringstream out;
  out << '[';
  for (std::size_t d = 0; d < shape.size(); ++d) out << (d > 0 ? ", " : "") << shape[d];
  out << ']';
  return out.str();
}

std::string to_string(const TileType& type) {
  std::ostringstream out;
  out << type.element->name;
  if (type.zero != 0) out << " - " << type.zero;
  return out.str();
}

std::string to_string(const Transform& transform) {
  std::ostringstream out;
  std::visit(Match{[&](const Slice& t) {
                     out << "slice " << to_string(t.shape) << " at " << to_string(t.origin);
                   },
                   [&](const Pad& t) {
                     out << "pad (";
                     for (std::size_t d = 0; d < t.before.size(); ++d) {
                       out << (d > 0 ? ", " : "") << t.before[d] << ", " << t.after[d];
                     }
                     out << ") with code " << t.code;
                   },
                   [&](const ConvertTo& t) { out << "convert to " << to_string(t.type); },
                   [&](const MapTo& t) { out << "map " << to_string(t.map); }},
             transform);
  return out.str();
}

}  // namespace ladder
