// SPDX-License-Identifier: Apache-2.0
// Chains of matmuls, each of which reads what the one before wrote, and what fusing them saves.
//
// A tile of M0 rows of the whole chain is in the buffer at a time (the FFMT templates of the
// paper), and the rows stream past the weights: a weight that stays in the buffer is read once,
// any other is read once for each of the M / M0 row tiles and takes one element of space.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bounds/curve.h"

namespace ladder::bounds {

/// What follows a layer, elementwise work aside.
enum class After {
  nothing,
  softmax,     ///< may be computed block by block (FlashAttention)
  layer_norm,  ///< needs whole rows
};

/// output[M, N] = input[M, K] weight[K, N], for each of `heads` side by side.
struct Layer {
  std::string name;
  std::int64_t m, k, n;  ///< rows of all batches; k and n of one head
  std::int64_t heads = 1;
  std::int64_t batch = 1;  ///< distinct weights along M, as the keys and values of each sequence
  After after = After::nothing;
  double activation_bytes = 2;
  double weight_bytes = 2;
};

/// How buffer space is counted in fused chains.
enum class Accounting {
  sound,  ///< whatever is needed again is in the buffer until then
  paper,  ///< as published: some tiles that are still needed are not counted
};

/// Throws InvalidArgument for an empty chain, sizes below 1, a batch that does not divide M, layers
/// whose rows or whose output and input do not match, or counts that 63 bits do not hold.
void validate(std::span<const Layer> chain);

/// Each tensor between the buffer and the store once: inputs, outputs and weights of every layer.
double algorithmic_minimum(std::span<const Layer> chain);

/// The same with all intermediate tensors left out.
double fused_minimum(std::span<const Layer> chain);

/// Multiplications and additions of the chain, first additions left out.
double operations(std::span<const Layer> chain);

/// Layers one after the other. Heads one after the other, or with `together` side by side, as the
/// paper's Fig. 20 compares them.
Curve unfused(std::span<const Layer> chain, bool together = false);

/// Intermediate tensors whole in the buffer, layers one after the other.
Curve untiled(std::span<const Layer> chain);

/// The whole chain in one row tile after another. Two layers: the swapped pair (M1 N2 K2, then M1
/// K2 N2). More: TiledKN or TiledK, TiledK, Full..., TiledN.
Curve fused(std::span<const Layer> chain, Accounting accounting = Accounting::sound);

/// Two layers with whole rows of the intermediate: TiledK, then TiledN (FLAT). All heads at once.
Curve flat(std::span<const Layer> pair, Accounting accounting = Accounting::sound);

/// Two layers with the columns of the intermediate outermost (FlashAttention): a block of both
/// weights stays while all rows pass. All heads at once as published, one by one if `sound`.
Curve flash(std::span<const Layer> pair, Accounting accounting = Accounting::sound);

/// The best cut of the chain into fused segments, executed one after the other. A pair of layers
/// takes the best of the orders above (as published: flash alone), a single layer is unfused.
Curve segmented(std::span<const Layer> chain, Accounting accounting = Accounting::sound);

/// One segment of the best cut for a buffer.
struct Segment {
  int first, count;      ///< layers [first, first + count)
  double traffic_bytes;  ///< of the segment
};

/// The cut that `segmented` takes at `buffer_bytes`. Throws InvalidArgument if nothing fits.
std::vector<Segment> best_segments(std::span<const Layer> chain, double buffer_bytes,
                                   Accounting accounting = Accounting::sound);

/// A GPT-3 6.7B block with 16 sequences of 2048: q projection, both attention products, output
/// projection and the two layers of the MLP. The paper's Figs. 21 to 23.
std::vector<Layer> gpt3_6_7b_chain();

/// Its k and v projections, which no chain contains.
std::vector<Layer> gpt3_6_7b_side();

/// Of the whole block, as the paper's Fig. 23 counts them.
inline constexpr double kGpt3BlockOperations = 14399012077568;

}  // namespace ladder::bounds
