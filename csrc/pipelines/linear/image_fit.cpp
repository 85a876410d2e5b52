// SPDX-License-Identifier: Apache-2.0
//
// Lane L of a wave: t = L / 16 picks columns 2 t, 2 t + 1 and the same plus 8 of A and B, of bytes
// in the order of digit_place 4 t to 4 t + 3 of each 16, and four rows of sums; h = L / 8 % 2 the
// block and g = L % 8 the row of A. The instruction's row i is row i % 8 of block i / 8, of one
// unit and parity, so sums of lane L are rows 4 (t % 2) .. + 3 of block t / 2. Waves of 32 lanes
// are in wave32_fit.cpp.
//
// Instructions of few tokens have the same A. The 16 lanes of each t have a part of the sums, of
// blocks rows 4 (L / 4 % 2) .. + 3 of block h and token L % 4, of lanes row g of it.
#include "pipelines/linear/image_fit.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "pipelines/linear/wave32_fit.h"

namespace ladder {

ImageFit::ImageFit(const MatrixInstruction& row, std::int64_t units)
    : row_(row),
      units_(units),
      columns_(row.step_columns()),
      wave_(row.by_waves()),
      few_lanes_(wave_ && row.lanes() == kLanes) {
  const std::int64_t most = few_lanes_ ? 16 : 512 / row.operand_bits();
  const bool columns = columns_ % 16 == 0 && columns_ <= most;
  const bool rows = row.parts() > 1 || (row.m == 16 && row.n == 16);
  const bool known = wave_ ? rows && columns && units == 2 * kUnits
                           : row.fragment == Fragment::warp && units > 0 && kUnits % units == 0;
  if (!known) fail<Unsupported>(row.name, " with ", 16 * units, " rows reads no weight image");
}

Layout ImageFit::of_columns(std::int64_t rows, std::vector<Digit> lanes,
                            std::vector<Digit> slots) const {
  const std::int64_t neighbours = 32 / row_.operand_bits(), words = columns_ / (4 * neighbours);
  lanes.insert(lanes.begin(), {2, 4, neighbours});
  if (words > 1) slots.push_back({2, words, 4 * neighbours});
  slots.push_back({2, neighbours, 1});
  return {{1, rows, columns_}, std::move(lanes), std::move(slots)};
}

Layout ImageFit::a() const {
  if (few_lanes_) return wave32::a(row_);
  if (!wave_) return local({1, units_, 1}) * lifted(row_.a());
  return of_columns(128, {{1, 2, 64}, {1, 8, 1}}, {{1, 4, 16}, {1, 2, 8}});
}

Layout ImageFit::b(std::int64_t tokens) const {
  if (few_lanes_) return wave32::b(row_, tokens);
  if (!wave_) return local({1, tokens / row_.n, 1}) * lifted(row_.b());
  std::vector<Digit> lanes{{1, row_.n, 1}};
  if (row_.n < 16) lanes.insert(lanes.begin(), {1, 16 / row_.n, 0});
  return local({1, tokens / row_.n, 1}) * of_columns(row_.n, std::move(lanes), {});
}

Layout ImageFit::sums(std::int64_t tokens) const {
  if (few_lanes_) return wave32::sums(row_, tokens);
  if (!wave_) {
    return local({1, units_, 1}) * local({1, 1, tokens / row_.n}) * lifted(row_.d());
  }
  Layout out{{row_.parts(), 128, tokens}, {}, {{1, 4, 16}, {1, 2, 8}}};
  switch (row_.fragment) {
    case Fragment::wave_blocks: out.threads = {{0, 4, 1}, {1, 2, 64}, {1, 2, 4}, {2, 4, 1}}; break;
    case Fragment::wave_lanes: out.threads = {{0, 4, 1}, {1, 2, 64}, {1, 8, 1}}; break;
    default: out.threads = {{1, 2, 64}, {1, 2, 4}, {2, 16, 1}};
  }
  if (tokens > row_.n) out.slots.push_back({2, tokens / row_.n, row_.n});
  if (!one_row()) out.slots.push_back({1, 4, 1});
  return out;
}

Layout ImageFit::zero_row() const {
  if (few_lanes_) return wave32::zero_row(row_);
  return wave_ ? of_columns(16, {{1, 16, 1}}, {}) : lifted(row_.a());
}

Layout ImageFit::zero_sum(std::int64_t tokens) const {
  if (few_lanes_) return wave32::zero_sum(row_, tokens);
  const Layout each = local({1, 1, tokens / row_.n});
  if (row_.parts() == 1) return each * lifted(row_.d());
  if (one_row()) return each * Layout{{4, 16, 1}, {{0, 4, 1}, {1, 16, 1}}, {}};
  return each * Layout{{4, 16, 4}, {{0, 4, 1}, {1, 4, 4}, {2, 4, 1}}, {{1, 4, 1}}};
}

Layout ImageFit::zeros() const {
  const std::int64_t copies = 32 / row_.operand_bits();
  if (few_lanes_) return wave32::zeros(row_, copies);
  if (!wave_) return zero_fragment(units_, copies);
  return {{1, 128, copies}, {{1, 4, 0}, {1, 2, 64}, {1, 8, 1}}, {{1, 8, 8}, {2, copies, 1}}};
}

bool ImageFit::reads_chunks(int bits) const {
  return !few_lanes_ || has_chunks(wave32::kUnitsOfWave, bits);
}

Layout ImageFit::words(int bits) const {
  if (few_lanes_) return wave32::words(row_, bits);
  if (!wave_) {
    const auto words = words_of_units(units_, bits);
    const auto of_chunk = has_chunks(units_, bits) ? std::min(words, kChunkWords) : words;
    return local({1, 1, words / of_chunk, 1, 1}) * spatial({1, 1, 1, kLanes, 1}) *
           local({1, 1, 1, 1, of_chunk});
  }
  const Layout lanes{{2, 1, 1, kLanes, 1}, {{3, 4, 1}, {0, 2, 1}, {3, 8, 4}}, {}};
  return local({1, 1, bits, 1, 1}) * lanes * local({1, 1, 1, 1, kChunkWords});
}

Layout ImageFit::warps_of_words(int bits) const {
  const auto of_chunk =
      has_chunks(units_, bits) ? std::min(words_of_units(units_, bits), kChunkWords) : kChunkWords;
  const auto sharing = std::min(warps_of_block(), kChunkWords / of_chunk);
  return spatial({1, 1, warps_of_block() / sharing, 1, sharing});
}

Layout ImageFit::loaded(std::int64_t groups, bool of_a) const {
  const Layout each = local({groups, 1, 1, 1, 1});
  if (few_lanes_) return each * wave32::loaded(row_, of_a);
  if (!wave_) return each * spatial({1, 1, 8, 4, 1}) * local({1, 1, 1, 1, 2 * units_});
  if (of_a || one_row()) {
    return each * Layout{{1, 2, 8, 4, 8}, {{3, 4, 1}, {1, 2, 1}, {2, 8, 1}}, {{4, 8, 1}}};
  }
  std::vector<Digit> lanes{{1, 2, 1}, {2, 2, 4}, {3, 16, 0}};
  if (row_.parts() > 1) lanes = {{3, 4, 0}, {1, 2, 1}, {2, 2, 4}, {3, 4, 0}};
  return each * Layout{{1, 2, 8, 4, 8}, std::move(lanes), {{2, 4, 1}, {4, 8, 1}}};
}

Layout ImageFit::rows(std::int64_t groups, bool of_a) const {
  const Layout each = local({groups, 1});
  if (few_lanes_) return each * wave32::rows(row_, of_a);
  if (!wave_) return each * lifted(local({2 * units_}) * spatial({8}) * replicated(4, 1));
  if (of_a || one_row()) {
    return each * Layout{{1, 128}, {{1, 4, 0}, {1, 2, 64}, {1, 8, 1}}, {{1, 8, 8}}};
  }
  std::vector<Digit> lanes{{1, 2, 64}, {1, 2, 4}, {1, 16, 0}};
  if (row_.parts() > 1) lanes = {{1, 4, 0}, {1, 2, 64}, {1, 2, 4}, {1, 4, 0}};
  return each * Layout{{1, 128}, std::move(lanes), {{1, 4, 1}, {1, 8, 8}}};
}

}  // namespace ladder
