// SPDX-License-Identifier: Apache-2.0
//
// Lane L of wave v, of two side by side: c = L / 16, h = L / 8 % 2 and g = L % 8. An instruction's
// row L % 16 is row g of block h, of one unit and parity, as for waves of 64 lanes; wave v has
// units 2 v and 2 v + 1. Of 16 columns a lane has all, in both c (whole_rows), or those that two
// lanes of the image have: 4 c to 4 c + 3 and the same plus 8, of bytes, which come in the
// order of digit_place, 8 c to 8 c + 7. Columns stay in their order, so that activations are read
// in runs. A lane therefore has the words of four lanes of the image, or of two.
//
// Quad pairs have these in other bits of L: g is L % 4 and, as its highest bit, L / 16; of A c is
// L / 8 % 2 and h L / 4 % 2, of B the other way round.
#include "pipelines/linear/wave32_fit.h"

#include "layout/weight_image.h"

namespace ladder::wave32 {
namespace {

constexpr std::int64_t kWaves = 2, kBlocks = 2, kLanesOfRow = 4;

bool quad_pairs(const MatrixInstruction& row) { return row.fragment == Fragment::quad_pairs; }
/// A lane has all columns of its row.
bool whole_rows(const MatrixInstruction& row) {
  return row.fragment == Fragment::wmma_twice || quad_pairs(row);
}

/// What lanes of waves have by c, h and g: `half` by h, `eight` the stride of a row of g.
std::vector<Digit> lanes_of(const MatrixInstruction& row, Digit wave, Digit c, Digit half,
                            Digit eight) {
  if (!quad_pairs(row)) return {wave, c, half, eight};
  return {wave, {eight.dim, 2, 4 * eight.stride}, c, half, {eight.dim, 4, eight.stride}};
}

Layout canonical(Layout layout) {
  return local(std::vector<std::int64_t>(layout.shape.size(), 1)) * layout;
}

/// [1, rows, 16], columns by c.
Layout of_columns(const MatrixInstruction& row, std::int64_t rows, Digit wave, Digit half,
                  bool of_b, std::vector<Digit> slots) {
  const bool bytes = row.operand_bits() == 8;
  const Digit c{2, 2, whole_rows(row) ? 0 : bytes ? 8 : 4}, eight{1, 8, 1};
  const bool other = of_b && quad_pairs(row);
  if (whole_rows(row)) {
    slots.push_back({2, 16, 1});
  } else if (bytes) {
    slots.push_back({2, 8, 1});
  } else {
    slots.insert(slots.end(), {{2, 2, 8}, {2, 4, 1}});
  }
  return canonical({{1, rows, 16},
                    lanes_of(row, wave, other ? half : c, other ? c : half, eight),
                    std::move(slots)});
}

/// Sixteen rows or tokens, one of each lane.
Layout of_sixteen(const MatrixInstruction& row, bool of_b) {
  return of_columns(row, 16, {1, kWaves, 0}, {1, 2, 8}, of_b, {});
}

/// Of sums a lane has eight rows: of row i of the instruction c is bit 0 (wmma_twice), or bit 3;
/// of quad pairs, which have two rows and four tokens, its bits 0, 2 and 3 are of lanes. `block`
/// and `one` are strides of h and g; tokens are of dimension 2 of those that have them.
std::vector<Digit> lanes_of_sums(const MatrixInstruction& row, Digit wave, Digit block, Digit one,
                                 Digit tokens) {
  if (quad_pairs(row)) {
    return {wave,  {one.dim, 2, 4 * one.stride},       {tokens.dim, 2, 8 * tokens.stride},
            block, {tokens.dim, 2, 2 * tokens.stride}, {one.dim, 2, one.stride}};
  }
  const bool twice = row.fragment == Fragment::wmma_twice;
  return {wave, twice ? Digit{one.dim, 2, one.stride} : block, {tokens.dim, 16, tokens.stride}};
}
std::vector<Digit> slots_of_sums(const MatrixInstruction& row, Digit block, Digit one) {
  if (quad_pairs(row)) return {{one.dim, 2, 2 * one.stride}};
  if (row.fragment == Fragment::wmma_twice) return {block, {one.dim, 4, 2 * one.stride}};
  return {{one.dim, 8, one.stride}};
}

constexpr Digit kWaveRows{1, kWaves, 32}, kBlockRows{1, kBlocks, 64}, kRow{1, 8, 1};

}  // namespace

Layout a(const MatrixInstruction& row) {
  return of_columns(row, 128, kWaveRows, kBlockRows, false, {{1, kUnitsOfWave, 16}, {1, 2, 8}});
}

Layout b(const MatrixInstruction& row, std::int64_t tokens) {
  return local({1, tokens / 16, 1}) * of_sixteen(row, true);
}

Layout sums(const MatrixInstruction& row, std::int64_t tokens) {
  Layout out{{1, 128, tokens},
             lanes_of_sums(row, kWaveRows, kBlockRows, kRow, {2, 16, 1}),
             {{1, kUnitsOfWave, 16}, {1, 2, 8}}};
  if (tokens > 16) out.slots.push_back({2, tokens / 16, 16});
  if (quad_pairs(row)) out.slots.push_back({2, 2, 4});
  const auto rows = slots_of_sums(row, kBlockRows, kRow);
  out.slots.insert(out.slots.end(), rows.begin(), rows.end());
  if (quad_pairs(row)) out.slots.push_back({2, 2, 1});
  return out;
}

Layout zero_row(const MatrixInstruction& row) { return of_sixteen(row, false); }

Layout zero_sum(const MatrixInstruction& row, std::int64_t tokens) {
  return replicated(kWaves, 3) * local({1, 1, tokens / row.n}) * lifted(row.d());
}

Layout zeros(const MatrixInstruction& row, std::int64_t copies) {
  return {{1, 128, copies},
          lanes_of(row, kWaveRows, {1, 2, 0}, kBlockRows, kRow),
          {{1, 2 * kUnitsOfWave, 8}, {2, copies, 1}}};
}

// Words of two units are whole chunks, half a chunk (of 1 bit), or begin within one (LoadUnits).
Layout words(const MatrixInstruction& row, int bits) {
  const std::int64_t words = kUnitsOfWave * bits, lanes = whole_rows(row) ? kLanesOfRow : 2;
  const bool chunks = words % kChunkWords == 0, part = !chunks && kChunkWords % words == 0;
  const Digit wave = chunks ? Digit{2, kWaves, words / kChunkWords}
                     : part ? Digit{4, kWaves, words}
                            : Digit{2, kWaves, 1};
  Layout out{{kBlocks, 1,
              chunks ? bits
              : part ? 1
                     : kWaves,
              kLanes, part ? kWaves * words : words},
             lanes_of(row, wave, {3, 2, whole_rows(row) ? 0 : 2}, {0, kBlocks, 1}, {3, 8, 4}),
             {{3, lanes, 1}}};
  if (chunks) {
    out.shape[4] = kChunkWords;
    if (words > kChunkWords) out.slots.push_back({2, words / kChunkWords, 1});
  }
  out.slots.push_back({4, chunks ? kChunkWords : words, 1});
  return out;
}

Layout loaded(const MatrixInstruction& row, bool of_a) {
  const std::int64_t rows = 2 * kUnitsOfWave;  // of a lane's g: by unit and parity
  const std::vector<std::int64_t> shape{1, kBlocks, 8, 4, 8};
  const Digit wave{4, kWaves, rows}, block{1, kBlocks, 1}, one{2, 8, 1}, of_row{4, rows, 1};
  if (of_a) return {shape, lanes_of(row, wave, {3, 2, 0}, block, one), {of_row}};
  auto slots = slots_of_sums(row, block, one);
  slots.push_back(of_row);
  return canonical({shape, lanes_of_sums(row, wave, block, one, {3, 16, 0}), std::move(slots)});
}

Layout rows(const MatrixInstruction& row, bool of_a) {
  const Digit by_unit{1, 2 * kUnitsOfWave, 8};
  if (of_a) return {{1, 128}, lanes_of(row, kWaveRows, {1, 2, 0}, kBlockRows, kRow), {by_unit}};
  auto slots = slots_of_sums(row, kBlockRows, kRow);
  slots.push_back(by_unit);
  return canonical(
      {{1, 128}, lanes_of_sums(row, kWaveRows, kBlockRows, kRow, {1, 16, 0}), std::move(slots)});
}

}  // namespace ladder::wave32
