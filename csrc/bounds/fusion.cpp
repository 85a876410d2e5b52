// SPDX-License-Identifier: Apache-2.0
// Fused chains. Tile sizes that matter: M0 and the block N0 of the first intermediate; of every
// other rank one element or all of it, since anything between costs space and saves nothing.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "bounds/chain.h"
#include "bounds/slope.h"

namespace ladder::bounds {
namespace {

/// Words of a layer, in the units of its tensors.
struct Words {
  double rows, rows_of_batch;
  double one;            ///< an element of each head
  double input, output;  ///< a row
  double weight;         ///< all heads, one batch
  double batch;
  double activation_bytes, weight_bytes;

  explicit Words(const Layer& l)
      : rows(l.m),
        rows_of_batch(l.m / l.batch),
        one(l.heads),
        input(static_cast<double>(l.heads * l.k)),
        output(static_cast<double>(l.heads * l.n)),
        weight(static_cast<double>(l.heads) * l.k * l.n),
        batch(l.batch),
        activation_bytes(l.activation_bytes),
        weight_bytes(l.weight_bytes) {}

  /// Bytes read of the weights when each of `row_tiles` tiles reads all of them or, kept, none.
  double weight_traffic(bool kept, double row_tiles) const {
    return weight_bytes * weight * (kept ? batch : std::max(batch, row_tiles));
  }
  double weight_space(bool kept) const { return weight_bytes * (kept ? weight : one); }
};

std::vector<Words> words_of(std::span<const Layer> chain) {
  std::vector<Words> words;
  for (const Layer& l : chain) words.emplace_back(l);
  return words;
}

/// Tiles of one candidate: rows, words per row, and the set of layers whose weights stay.
struct Candidate {
  double m;
  double block;       ///< words per row of the first intermediate in the buffer at once
  double blocks;      ///< how many of those make a row
  bool input_whole;   ///< whole input rows of the first layer, else an element of each
  bool output_whole;  ///< whole output rows of the last layer, else an element of each
  unsigned kept;      ///< layers whose weights stay
  bool keeps(std::size_t e) const { return kept >> e & 1; }
};

/// Words of each layer's input and output tiles.
struct Tiles {
  double input, output;
};

Tiles tiles(const std::vector<Words>& w, const Candidate& c, std::size_t e) {
  Tiles t{w[e].input, w[e].output};
  if (e == 0) t = {c.input_whole ? w[0].input : w[0].one, c.block};
  if (e == 1) t.input = c.block;
  if (e > 0 && e + 1 == w.size() && !c.output_whole) t.output = w[e].one;
  return {t.input * c.m, t.output * c.m};
}

double chain_traffic(const std::vector<Words>& w, const Candidate& c) {
  const Words &first = w.front(), &last = w.back();
  const double inputs = c.input_whole || first.input == first.one ? 1 : c.blocks;
  // Only in a pair is the output tile left and met again for each block of the intermediate.
  const bool leaves = w.size() == 2 && !c.output_whole && last.output != last.one;
  const double outputs = leaves ? 2 * c.blocks - 1 : 1;
  double bytes =
      first.activation_bytes * first.rows * (first.input * inputs + last.output * outputs);
  for (std::size_t e = 0; e < w.size(); ++e) {
    bytes += w[e].weight_traffic(c.keeps(e), w[e].rows / c.m);
  }
  return bytes;
}

/// As published: the largest layer, or run of layers with kept weights, by itself.
double paper_space(const std::vector<Words>& w, const Candidate& c) {
  const double a = w[0].activation_bytes;
  double space = 0;
  for (std::size_t e = 0; e < w.size();) {
    std::size_t end = e;
    while (end < w.size() && c.keeps(end)) ++end;
    if (end == e) {
      const Tiles t = tiles(w, c, e);
      space = std::max(space, a * (t.input + t.output) + w[e].weight_space(false));
      ++e;
      continue;
    }
    double weights = 0, interior = 0;
    for (std::size_t i = e; i < end; ++i) {
      weights += w[i].weight_space(true);
      interior = std::max(interior, (i > e ? w[i].input : 0) + (i + 1 < end ? w[i].output : 0));
    }
    const double rows = c.m * (w[e].input + w[end - 1].output);
    space = std::max(space, weights + a * (rows + interior));
    e = end;
  }
  return space;
}

/// All kept weights all the time, and in each phase whatever a later phase reads again: the first
/// input and the second output outlive a step of the loop over blocks.
double sound_space(const std::vector<Words>& w, const Candidate& c) {
  const double a = w[0].activation_bytes;
  double kept = 0, phase = 0;
  for (std::size_t e = 0; e < w.size(); ++e) {
    const Tiles t = tiles(w, c, e);
    double space = a * (t.input + t.output);
    if (c.blocks > 1) {
      const bool second_stays = w.size() > 2 || c.output_whole;
      if (e == 0 && second_stays) space += a * tiles(w, c, 1).output;
      if (e == 1 && c.input_whole) space += a * tiles(w, c, 0).input;
    }
    if (c.keeps(e))
      kept += w[e].weight_space(true);
    else
      space += w[e].weight_space(false);
    phase = std::max(phase, space);
  }
  return kept + phase;
}

enum class Blocks { one, any };

Curve template_curve(std::span<const Layer> chain, Accounting accounting, Blocks allowed) {
  const std::vector<Words> w = words_of(chain);
  std::int64_t rows = chain[0].m;
  if (accounting == Accounting::sound) {
    // A tile of rows that spans sequences would need the weights of each of them at once.
    for (const Layer& l : chain) rows = std::min(rows, l.m / l.batch);
  }
  std::vector<std::int64_t> blocks{chain[0].n};
  if (allowed == Blocks::any) blocks = tile_sizes(chain[0].n, Factors::divisors);
  std::vector<Point> points;
  const unsigned sets = 1u << chain.size();
  for (const std::int64_t m : tile_sizes(rows, Factors::divisors)) {
    if (chain[0].m % m != 0) continue;
    for (const std::int64_t n : blocks) {
      for (const bool input_whole : {false, true}) {
        for (const bool output_whole : {false, true}) {
          // Leaving the output tile only matters in a pair; elsewhere one element always does.
          if (output_whole && chain.size() > 2) continue;
          for (unsigned kept = 0; kept < sets; ++kept) {
            const Candidate c{static_cast<double>(m),
                              static_cast<double>(n * chain[0].heads),
                              static_cast<double>(chain[0].n / n),
                              input_whole,
                              output_whole,
                              kept};
            points.push_back(
                {accounting == Accounting::paper ? paper_space(w, c) : sound_space(w, c),
                 chain_traffic(w, c)});
          }
        }
      }
    }
  }
  return Curve(std::move(points));
}

/// One head of one sequence of an attention pair, if the pair is one.
std::array<Layer, 2> one_head(std::span<const Layer> pair) {
  std::array<Layer, 2> one{pair[0], pair[1]};
  for (Layer& l : one) {
    l.m /= l.batch;
    l.batch = l.heads = 1;
  }
  return one;
}

bool independent_heads(std::span<const Layer> pair) {
  return pair[0].heads == pair[1].heads && pair[0].batch == pair[1].batch;
}

void require_pair(std::span<const Layer> pair, const char* what) {
  validate(pair);
  LADDER_REQUIRE(pair.size() == 2, what, " fuses 2 layers, not ", pair.size());
}

}  // namespace

Curve fused(std::span<const Layer> chain, Accounting accounting) {
  validate(chain);
  if (chain.size() == 1) return unfused(chain);
  const After after = chain[0].after;
  if (chain.size() == 2 && accounting == Accounting::sound && independent_heads(chain)) {
    const double problems = static_cast<double>(chain[0].heads * chain[0].batch);
    // Blocks of a softmax combine (FlashAttention), those of a normalised row do not.
    const Blocks blocks = after == After::layer_norm ? Blocks::one : Blocks::any;
    return template_curve(one_head(chain), accounting, blocks).scaled(1, problems);
  }
  return template_curve(chain, accounting, after == After::nothing ? Blocks::any : Blocks::one);
}

Curve flat(std::span<const Layer> pair, Accounting accounting) {
  require_pair(pair, "FLAT");
  return template_curve(pair, accounting, Blocks::one);
}

Curve flash(std::span<const Layer> pair, Accounting accounting) {
  require_pair(pair, "FlashAttention order");
  const bool sound = accounting == Accounting::sound;
  const bool apart = sound && independent_heads(pair);
  const std::array<Layer, 2> one = apart ? one_head(pair) : std::array{pair[0], pair[1]};
  const Words first(one[0]), second(one[1]);
  const double a = first.activation_bytes;
  const double rows = first.rows;
  std::vector<std::int64_t> blocks = tile_sizes(one[0].n, Factors::divisors);
  if (one[0].after == After::layer_norm) blocks = {one[0].n};
  std::vector<Point> points;
  for (const std::int64_t n : blocks) {
    const double passes = static_cast<double>(one[0].n / n);
    const double block = static_cast<double>(n) * first.one;
    const double share = 1 / passes;
    const double outer = a * rows * (first.input * passes + second.output * (2 * passes - 1));
    if (sound) {
      const double weights = first.weight_bytes * first.weight * first.batch +
                             second.weight_bytes * second.weight * second.batch;
      const double space = share * (first.weight_space(true) + second.weight_space(true)) +
                           a * (block + std::max(first.one, second.one));
      points.push_back({space, outer + weights});
      continue;
    }
    for (const std::int64_t m : tile_sizes(one[0].m, Factors::divisors)) {
      for (unsigned kept = 0; kept < 4; ++kept) {
        const Candidate c{static_cast<double>(m), block, passes, true, true, kept};
        // With one block the weights are kept whole and both at once, as in a chain.
        if (n == one[0].n) {
          points.push_back({paper_space({first, second}, c), chain_traffic({first, second}, c)});
          continue;
        }
        double space = 0, traffic = outer;
        for (const int e : {0, 1}) {
          const Words& w = e == 0 ? first : second;
          const double row = e == 0 ? w.input : w.output;
          const double tile = c.keeps(e) ? share * w.weight : w.one;
          space = std::max(space, a * c.m * (row + block) + w.weight_bytes * tile);
          // As published: a kept block serves all sequences, although each has its own.
          traffic += w.weight_bytes * w.weight * (c.keeps(e) ? 1 : std::max(w.batch, w.rows / c.m));
        }
        points.push_back({space, traffic});
      }
    }
  }
  return Curve(std::move(points)).scaled(1, apart ? pair[0].heads * pair[0].batch : 1);
}

}  // namespace ladder::bounds
