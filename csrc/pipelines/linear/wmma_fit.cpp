// SPDX-License-Identifier: Apache-2.0
//
// Lane L of wave v, of two side by side: c = L / 16, h = L / 8 % 2 and g = L % 8. An instruction's
// row L % 16 is row g of block h, of one unit and parity, as for waves of 64 lanes; wave v has
// units 2 v and 2 v + 1. Of 16 columns a lane has all (wmma_twice), in both c, or those that two
// lanes of the image have (wmma): 4 c to 4 c + 3 and the same plus 8, of bytes, which come in the
// order of digit_place, 8 c to 8 c + 7. Columns stay in their order, so that activations are read
// in runs. A lane therefore has the words of four lanes of the image, or of two.
#include "pipelines/linear/wmma_fit.h"

#include "layout/weight_image.h"

namespace ladder::wmma {
namespace {

constexpr std::int64_t kWaves = 2, kBlocks = 2, kLanesOfRow = 4;

bool twice(const MatrixInstruction& row) { return row.fragment == Fragment::wmma_twice; }

/// [1, rows, 16]: digits of a row behind those of the wave and of c.
Layout of_columns(const MatrixInstruction& row, std::int64_t rows, Digit wave,
                  std::vector<Digit> lanes, std::vector<Digit> slots) {
  const bool bytes = row.operand_bits() == 8;
  lanes.insert(lanes.begin(), {wave, {2, 2, twice(row) ? 0 : bytes ? 8 : 4}});
  if (twice(row)) {
    slots.push_back({2, 16, 1});
  } else if (bytes) {
    slots.push_back({2, 8, 1});
  } else {
    slots.insert(slots.end(), {{2, 2, 8}, {2, 4, 1}});
  }
  return {{1, rows, 16}, std::move(lanes), std::move(slots)};
}

/// Eight rows of sums: of row i of the instruction c is bit 0 (wmma_twice), or bit 3.
std::vector<Digit> lanes_of_sums(const MatrixInstruction& row) {
  return {{1, kWaves, 32}, twice(row) ? Digit{1, 2, 1} : Digit{1, kBlocks, 64}};
}
std::vector<Digit> slots_of_sums(const MatrixInstruction& row) {
  if (twice(row)) return {{1, kBlocks, 64}, {1, 4, 2}};
  return {{1, 8, 1}};
}

}  // namespace

Layout a(const MatrixInstruction& row) {
  return of_columns(row, 128, {1, kWaves, 32}, {{1, kBlocks, 64}, {1, 8, 1}},
                    {{1, kUnitsOfWave, 16}, {1, 2, 8}});
}

Layout b(const MatrixInstruction& row, std::int64_t tokens) {
  return local({1, tokens / 16, 1}) * of_columns(row, 16, {1, kWaves, 0}, {{1, 16, 1}}, {});
}

Layout sums(const MatrixInstruction& row, std::int64_t tokens) {
  Layout out{{1, 128, tokens}, lanes_of_sums(row), {{1, kUnitsOfWave, 16}, {1, 2, 8}}};
  out.threads.push_back({2, 16, 1});
  if (tokens > 16) out.slots.push_back({2, tokens / 16, 16});
  const auto rows = slots_of_sums(row);
  out.slots.insert(out.slots.end(), rows.begin(), rows.end());
  return out;
}

Layout zero_row(const MatrixInstruction& row) {
  return of_columns(row, 16, {1, kWaves, 0}, {{1, 16, 1}}, {});
}

Layout zero_sum(const MatrixInstruction& row, std::int64_t tokens) {
  return replicated(kWaves, 3) * local({1, 1, tokens / row.n}) * lifted(row.d());
}

Layout zeros(std::int64_t copies) {
  return {{1, 128, copies},
          {{1, kWaves, 32}, {1, 2, 0}, {1, kBlocks, 64}, {1, 8, 1}},
          {{1, 2 * kUnitsOfWave, 8}, {2, copies, 1}}};
}

// Words of two units are whole chunks, half a chunk (of 1 bit), or begin within one (LoadUnits).
Layout words(const MatrixInstruction& row, int bits) {
  const std::int64_t words = kUnitsOfWave * bits, lanes = twice(row) ? kLanesOfRow : 2;
  const bool chunks = words % kChunkWords == 0, part = !chunks && kChunkWords % words == 0;
  const Digit wave = chunks ? Digit{2, kWaves, words / kChunkWords}
                     : part ? Digit{4, kWaves, words}
                            : Digit{2, kWaves, 1};
  Layout out{{kBlocks, 1,
              chunks ? bits
              : part ? 1
                     : kWaves,
              kLanes, part ? kWaves * words : words},
             {wave, {3, 2, twice(row) ? 0 : 2}, {0, kBlocks, 1}, {3, 8, 4}},
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
  if (of_a) {
    return {shape, {{4, kWaves, rows}, {3, 2, 0}, {1, kBlocks, 1}, {2, 8, 1}}, {{4, rows, 1}}};
  }
  if (twice(row)) {
    return {shape,
            {{4, kWaves, rows}, {2, 2, 1}, {3, 16, 0}},
            {{1, kBlocks, 1}, {2, 4, 2}, {4, rows, 1}}};
  }
  return {shape, {{4, kWaves, rows}, {1, kBlocks, 1}, {3, 16, 0}}, {{2, 8, 1}, {4, rows, 1}}};
}

Layout rows(const MatrixInstruction& row, bool of_a) {
  const Digit by_unit{1, 2 * kUnitsOfWave, 8};
  if (of_a) {
    return {{1, 128}, {{1, kWaves, 32}, {1, 2, 0}, {1, kBlocks, 64}, {1, 8, 1}}, {by_unit}};
  }
  auto lanes = lanes_of_sums(row);
  lanes.push_back({1, 16, 0});
  auto slots = slots_of_sums(row);
  slots.push_back(by_unit);
  return {{1, 128}, std::move(lanes), std::move(slots)};
}

}  // namespace ladder::wmma
