// SPDX-License-Identifier: Apache-2.0
// Layers that are not fused, and the choice of segments; fused chains are in fusion.cpp.
#include "bounds/chain.h"

#include <algorithm>
#include <limits>

#include "bounds/checked.h"
#include "bounds/slope.h"

namespace ladder::bounds {
namespace {

double times(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}

/// A matmul whose weight streams past the row tile, one element at a time, unless it is kept.
Curve rows(const Layer& l) {
  const double a = l.activation_bytes, w = l.weight_bytes;
  const double input = a * times(l.m, l.k), weight = w * times(l.k, l.n),
               output = a * times(l.m, l.n);
  const auto ms = tile_sizes(l.m, Factors::divisors), ks = tile_sizes(l.k, Factors::divisors),
             ns = tile_sizes(l.n, Factors::divisors);
  std::vector<Point> points;
  for (const std::int64_t m : ms) {
    const double again = static_cast<double>(l.m / m);
    for (const std::int64_t n : ns) {  // the output tile stays
      points.push_back({a * (times(m, n) + m) + w,
                        input * static_cast<double>(l.n / n) + weight * again + output});
    }
    for (const std::int64_t k : ks) {  // the input tile stays
      points.push_back(
          {a * (times(m, k) + m) + w, input + weight * again + output * (2.0 * (l.k / k) - 1)});
    }
  }
  for (const std::int64_t k : ks) {
    for (const std::int64_t n : ns) {  // the weight tile stays
      points.push_back(
          {a * static_cast<double>(k + n) + w * times(k, n),
           input * static_cast<double>(l.n / n) + weight + output * (2.0 * (l.k / k) - 1)});
    }
  }
  return Curve(std::move(points));
}

/// One layer; attention products are matmuls of whole tiles, one for each head and sequence.
Curve single(const Layer& l, bool together) {
  if (l.heads == 1 && l.batch == 1) return rows(l);
  const Bytes activation{l.activation_bytes, l.activation_bytes};
  const Bytes weight{l.weight_bytes, l.weight_bytes};
  const Einsum one = matmul(l.m / l.batch, l.n, l.k, {activation, weight, activation});
  return ski_slope(one, kPaper).scaled(together ? l.heads : 1, times(l.heads, l.batch));
}

/// One layer with its input, its output or both whole in the buffer.
Curve beside_resident(const Layer& l, bool input_inside, bool output_inside) {
  const double a = l.activation_bytes, w = l.weight_bytes;
  const std::int64_t m_one = l.m / l.batch;
  const double problems = times(l.heads, l.batch);
  const double input = a * times(m_one, l.k), weight = w * times(l.k, l.n),
               output = a * times(m_one, l.n);
  double inside = 0;
  if (input_inside) inside += input * problems;
  if (output_inside) inside += output * problems;
  std::vector<Point> points;
  const auto add = [&](double buffer, double traffic) {
    points.push_back({inside + buffer, traffic * problems});
  };
  if (input_inside && output_inside) add(w, weight);
  for (const std::int64_t m : tile_sizes(m_one, Factors::divisors)) {
    if (input_inside == output_inside) break;
    add(a * m + w, (input_inside ? output : input) + weight * static_cast<double>(m_one / m));
  }
  if (output_inside && !input_inside) {
    for (const std::int64_t n : tile_sizes(l.n, Factors::divisors)) {
      add(a + w * n, input * static_cast<double>(l.n / n) + weight);
    }
  }
  if (input_inside && !output_inside) {
    for (const std::int64_t k : tile_sizes(l.k, Factors::divisors)) {
      add(a + w * k, output * (2.0 * (l.k / k) - 1) + weight);
    }
  }
  return Curve(std::move(points));
}

Curve segment(std::span<const Layer> layers, Accounting accounting) {
  if (layers.size() == 1) return single(layers[0], false);
  if (layers.size() > 2) return fused(layers, accounting);
  if (accounting == Accounting::paper) return flash(layers, accounting);
  const Curve ways[] = {fused(layers, accounting), flash(layers, accounting)};
  return envelope(ways);
}

}  // namespace

void validate(std::span<const Layer> chain) {
  LADDER_REQUIRE(!chain.empty(), "a chain without layers");
  LADDER_REQUIRE(chain.size() <= 16, "a chain of ", chain.size(),
                 " layers; at most 16 are supported");
  for (std::size_t e = 0; e < chain.size(); ++e) {
    const Layer& l = chain[e];
    for (const std::int64_t size : {l.m, l.k, l.n, l.heads, l.batch}) {
      LADDER_REQUIRE(size >= 1, "a size of layer ", l.name, " is ", size, ", less than 1");
    }
    LADDER_REQUIRE(l.m % l.batch == 0, "the ", l.m, " rows of layer ", l.name,
                   " do not divide into ", l.batch, " batches");
    LADDER_REQUIRE(l.activation_bytes > 0 && l.weight_bytes > 0, "an element of layer ", l.name,
                   " has ", std::min(l.activation_bytes, l.weight_bytes), " bytes");
    // More than any schedule of the layer moves.
    product(product(product(product(l.m, l.k), l.n), l.heads), 8);
    if (e == 0) continue;
    const Layer& before = chain[e - 1];
    LADDER_REQUIRE(l.m == before.m, "layer ", l.name, " has ", l.m, " rows, layer ", before.name,
                   " before it ", before.m);
    LADDER_REQUIRE(l.heads * l.k == before.heads * before.n, "layer ", l.name, " reads ",
                   l.heads * l.k, " columns, layer ", before.name, " before it writes ",
                   before.heads * before.n);
    LADDER_REQUIRE(l.activation_bytes == before.activation_bytes, "activations of layer ", l.name,
                   " have ", l.activation_bytes, " bytes, those of layer ", before.name, " ",
                   before.activation_bytes);
  }
}

double algorithmic_minimum(std::span<const Layer> chain) {
  validate(chain);
  double bytes = 0;
  for (const Layer& l : chain) {
    bytes += times(l.m, l.heads) * static_cast<double>(l.k + l.n) * l.activation_bytes +
             times(l.k, l.n) * times(l.heads, l.batch) * l.weight_bytes;
  }
  return bytes;
}

double fused_minimum(std::span<const Layer> chain) {
  double bytes = algorithmic_minimum(chain);
  for (std::size_t e = 0; e + 1 < chain.size(); ++e) {
    bytes -= 2 * times(chain[e].m, chain[e].heads * chain[e].n) * chain[e].activation_bytes;
  }
  return bytes;
}

double operations(std::span<const Layer> chain) {
  validate(chain);
  double count = 0;
  for (const Layer& l : chain) {
    count += times(l.m, l.n) * static_cast<double>(l.heads) * (2.0 * l.k - 1);
  }
  return count;
}

Curve unfused(std::span<const Layer> chain, bool together) {
  validate(chain);
  std::vector<Curve> curves;
  for (const Layer& l : chain) curves.push_back(single(l, together));
  return sum(curves);
}

Curve untiled(std::span<const Layer> chain) {
  validate(chain);
  if (chain.size() == 1) return single(chain[0], false);
  std::vector<Curve> curves;
  for (std::size_t e = 0; e < chain.size(); ++e) {
    curves.push_back(beside_resident(chain[e], e > 0, e + 1 < chain.size()));
  }
  return sum(curves);
}

Curve segmented(std::span<const Layer> chain, Accounting accounting) {
  validate(chain);
  std::vector<Curve> best(chain.size() + 1);  // best[e]: layers before e
  for (std::size_t end = 1; end <= chain.size(); ++end) {
    std::vector<Curve> ways;
    for (std::size_t first = 0; first < end; ++first) {
      const Curve last = segment(chain.subspan(first, end - first), accounting);
      const Curve parts[] = {best[first], last};
      ways.push_back(first == 0 ? last : sum(parts));
    }
    best[end] = envelope(ways);
  }
  return best.back();
}

std::vector<Segment> best_segments(std::span<const Layer> chain, double buffer_bytes,
                                   Accounting accounting) {
  validate(chain);
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<double> best(chain.size() + 1, kNone);
  std::vector<Segment> last(chain.size() + 1);
  best[0] = 0;
  for (std::size_t end = 1; end <= chain.size(); ++end) {
    for (std::size_t first = 0; first < end; ++first) {
      const double own = segment(chain.subspan(first, end - first), accounting).at(buffer_bytes);
      if (best[first] + own >= best[end]) continue;
      best[end] = best[first] + own;
      last[end] = {static_cast<int>(first), static_cast<int>(end - first), own};
    }
  }
  LADDER_REQUIRE(best.back() < kNone, "no segment of the chain fits ", buffer_bytes, " bytes");
  std::vector<Segment> segments;
  for (std::size_t end = chain.size(); end > 0; end = last[end].first)
    segments.push_back(last[end]);
  std::ranges::reverse(segments);
  return segments;
}

std::vector<Layer> gpt3_6_7b_chain() {
  constexpr std::int64_t m = 16 * 2048;
  return {{"q", m, 4096, 4096},          {"qk", m, 128, 2048, 32, 16, After::softmax},
          {"qkv", m, 2048, 128, 32, 16}, {"o", m, 4096, 4096, 1, 1, After::layer_norm},
          {"fc1", m, 4096, 16384},       {"fc2", m, 16384, 4096, 1, 1, After::layer_norm}};
}

std::vector<Layer> gpt3_6_7b_side() {
  return {{"k", 16 * 2048, 4096, 4096}, {"v", 16 * 2048, 4096, 4096}};
}

}  // namespace ladder::bounds
