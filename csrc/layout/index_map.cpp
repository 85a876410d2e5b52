// SPDX-License-Identifier: Apache-2.0
#include "layout/index_map.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

/// A digit and the output that uses it.
struct Use {
  IndexDigit digit;
  int output;
};

/// The digits of coordinate `input`, innermost first.
std::vector<Use> uses_of(const IndexMap& map, int input) {
  std::vector<Use> out;
  for (std::size_t o = 0; o < map.outputs.size(); ++o) {
    for (const IndexDigit& d : map.outputs[o].digits) {
      if (d.input == input) out.push_back({d, static_cast<int>(o)});
    }
  }
  std::sort(out.begin(), out.end(),
            [](const Use& a, const Use& b) { return a.digit.divisor < b.digit.divisor; });
  return out;
}

/// True when the digits are the places of a mixed radix of all values below `extent`.
bool is_radix_of(const std::vector<Use>& uses, std::int64_t extent) {
  std::int64_t weight = 1;
  for (const Use& use : uses) {
    if (use.digit.divisor != weight) return false;
    weight *= use.digit.extent;
  }
  return weight == extent;
}

/// True when the output takes each value of [0, product of its digits) once.
bool counts(const IndexExpr& output) {
  if (output.constant != 0) return false;
  std::int64_t weight = 1;
  for (auto d = output.digits.rbegin(); d != output.digits.rend(); ++d) {
    if (d->factor != weight) return false;
    weight *= d->extent;
  }
  return true;
}

}  // namespace

std::vector<std::int64_t> IndexMap::operator()(const std::vector<std::int64_t>& x) const {
  LADDER_REQUIRE(x.size() == extents.size(), x.size(), " coordinates for a map of ",
                 extents.size());
  for (std::size_t d = 0; d < x.size(); ++d) {
    LADDER_REQUIRE(0 <= x[d] && x[d] < extents[d], "coordinate ", x[d], " of dimension ", d,
                   " is outside ", extents[d]);
  }
  std::vector<std::int64_t> out;
  for (const IndexExpr& output : outputs) out.push_back(output(x));
  return out;
}

std::vector<std::int64_t> IndexMap::shape() const {
  std::vector<std::int64_t> out;
  for (const IndexExpr& output : outputs) {
    LADDER_REQUIRE(output.low() >= 0, "results from ", output.low(), " have no shape");
    out.push_back(output.high() + 1);
  }
  return out;
}

IndexMap index_map(std::vector<std::int64_t> extents,
                   const std::function<IndexExprs(const IndexExprs&)>& outputs) {
  IndexExprs coordinates;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    coordinates.push_back(IndexExpr::of(static_cast<int>(d), extents[d]));
  }
  return {std::move(extents), outputs(coordinates)};
}

IndexMap identity_map(std::vector<std::int64_t> extents) {
  return index_map(std::move(extents), [](const IndexExprs& x) { return x; });
}

IndexMap operator*(const IndexMap& outer, const IndexMap& inner) {
  LADDER_REQUIRE(inner.outputs.size() == outer.extents.size(), "a map to ", inner.outputs.size(),
                 " coordinates before one of ", outer.extents.size());
  for (std::size_t d = 0; d < inner.outputs.size(); ++d) {
    const auto& result = inner.outputs[d];
    LADDER_REQUIRE(result.low() >= 0 && result.high() < outer.extents[d], "results from ",
                   result.low(), " to ", result.high(), " for a coordinate below ",
                   outer.extents[d]);
  }
  IndexMap out{inner.extents, {}};
  for (const IndexExpr& output : outer.outputs) {
    IndexExpr sum = output.constant;
    for (const IndexDigit& d : output.digits) {
      auto place = inner.outputs[d.input] / d.divisor;
      if (place.high() >= d.extent) place = place % d.extent;
      sum = sum + place * d.factor;
    }
    out.outputs.push_back(std::move(sum));
  }
  return out;
}

std::optional<IndexMap> inverse(const IndexMap& map) {
  for (const IndexExpr& output : map.outputs) {
    if (!counts(output)) return std::nullopt;
  }
  const auto shape = map.shape();
  IndexMap out{shape, {}};
  for (std::size_t input = 0; input < map.extents.size(); ++input) {
    const auto uses = uses_of(map, static_cast<int>(input));
    if (!is_radix_of(uses, map.extents[input])) return std::nullopt;
    IndexExpr coordinate;
    for (const auto& [d, output] : uses) {
      coordinate =
          coordinate + IndexExpr::of(output, shape[output]) / d.factor % d.extent * d.divisor;
    }
    out.outputs.push_back(std::move(coordinate));
  }
  return out;
}

IndexMap index_map(const Layout& layout) {
  return index_map({layout.thread_count(), layout.slot_count()}, [&](const IndexExprs& x) {
    IndexExprs out(layout.shape.size());
    for (const auto& [digits, number] :
         {std::pair{&layout.threads, x[0]}, std::pair{&layout.slots, x[1]}}) {
      auto rest = number;
      for (auto digit = digits->rbegin(); digit != digits->rend(); ++digit) {
        out[digit->dim] = out[digit->dim] + rest % digit->extent * digit->stride;
        rest = rest / digit->extent;
      }
    }
    return out;
  });
}

Layout layout_of(const IndexMap& map) {
  LADDER_REQUIRE(map.extents.size() == 2, "a map of ", map.extents.size(),
                 " coordinates, not of thread and slot");
  Layout out{map.shape(), {}, {}};
  for (const IndexExpr& output : map.outputs) {
    if (output.constant != 0) fail<Unsupported>(to_string(map), " is no sum of digits");
  }
  for (int input = 0; input < 2; ++input) {
    auto& digits = input == 0 ? out.threads : out.slots;
    std::int64_t weight = 1;
    // Innermost first; values of the number that no output depends on are replicas.
    const auto replicate = [&](std::int64_t to) {
      if (to % weight != 0) fail<Unsupported>(to_string(map), " is no sum of digits");
      digits.insert(digits.begin(), Digit{0, to / weight, 0});
      weight = to;
    };
    for (const auto& [d, output] : uses_of(map, input)) {
      if (d.divisor < weight) fail<Unsupported>(to_string(map), " uses a digit twice");
      replicate(d.divisor);
      digits.insert(digits.begin(), Digit{output, d.extent, d.factor});
      weight *= d.extent;
    }
    replicate(map.extents[input]);
  }
  return out * local(std::vector<std::int64_t>(out.shape.size(), 1));
}

std::string to_string(const IndexMap& map) {
  std::ostringstream out;
  out << '(';
  for (std::size_t d = 0; d < map.extents.size(); ++d) out << (d ? ", x" : "x") << d;
  out << ") -> (";
  for (std::size_t o = 0; o < map.outputs.size(); ++o) {
    const IndexExpr& output = map.outputs[o];
    out << (o ? ", " : "");
    bool first = true;
    for (const IndexDigit& d : output.digits) {
      out << (first ? "" : " + ") << 'x' << d.input;
      if (d.divisor != 1) out << " / " << d.divisor;
      if (d.divisor * d.extent < d.whole) out << " % " << d.extent;
      if (d.factor != 1) out << " * " << d.factor;
      first = false;
    }
    if (output.constant != 0 || first) out << (first ? "" : " + ") << output.constant;
  }
  out << ')';
  return out.str();
}

}  // namespace ladder
