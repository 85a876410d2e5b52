// SPDX-License-Identifier: Apache-2.0
#include "layout/weight_image.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "layout/bit_plan.h"

namespace ladder {
namespace {

std::int64_t blocks(std::int64_t extent) { return round_up(extent, kBlock) / kBlock; }

/// Bits [at, at + bits) of a row.
std::uint32_t read_code(const std::uint32_t* row, std::int64_t at, int bits) {
  const auto word = at / 32;
  const int shift = static_cast<int>(at % 32);
  std::uint64_t both = row[word];
  if (shift + bits > 32) both |= std::uint64_t{row[word + 1]} << 32;
  return static_cast<std::uint32_t>(both >> shift) & ((1u << bits) - 1);
}

void write_code(std::uint32_t* row, std::int64_t at, int bits, std::uint32_t code) {
  const auto word = at / 32;
  const int shift = static_cast<int>(at % 32);
  row[word] |= code << shift;
  if (shift + bits > 32) row[word + 1] |= code >> (32 - shift);
}

/// A pair (or quad) of one lane and unit: its row and its first column within the block.
struct PairOrigin {
  int row, column;
};
PairOrigin pair_origin(int lane, int unit, int pair, int codes) {
  const int step = pair / 4, reg = pair % 4;
  return {16 * unit + lane / 4 + 8 * (reg & 1), codes * (8 * step + 4 * (reg >> 1) + lane % 4)};
}

/// Calls visit(lane word index, pair, origin) over the units of one lane.
template <class Visit>
void for_each_pair(int lane, const BitPlan& plan, const Visit& visit) {
  for (int unit = 0; unit < kUnits; ++unit) {
    for (int pair = 0; pair < plan.operand_bits; ++pair) {
      visit(unit * plan.bits, pair, pair_origin(lane, unit, pair, 32 / plan.operand_bits));
    }
  }
}

/// Word `index` of a lane's 4 b words, within its block.
std::int64_t word_in_block(int lane, int index) { return index / 4 * 128 + lane * 4 + index % 4; }

}  // namespace

Layout block_fragment(int operand_bits) {
  const std::int64_t codes = 32 / bit_plan(1, operand_bits).operand_bits;  // of a register
  return local({4, 8 / codes}) * column_local({2, 2}) * spatial({8, 4}) * local({1, codes});
}

Layout zero_fragment(std::int64_t units, std::int64_t copies) {
  return local({1, 2 * units, 1}) * spatial({1, 8, 1}) * replicated(4, 3) * local({1, 1, copies});
}

ImagePlace image_place(std::int64_t k, int bits, std::int64_t row, std::int64_t column, int bit,
                       int operand_bits) {
  const auto block = row / kBlock * blocks(k) + column / kBlock;
  const auto place = locate(block_fragment(operand_bits), {row % kBlock, column % kBlock});
  const int codes = 32 / operand_bits, slot = static_cast<int>(place.slot);
  const BitPlace at = bit_plan(bits, operand_bits).pairs[slot / codes % operand_bits].at(bit);
  return {block * 128 * bits +
              word_in_block(static_cast<int>(place.thread), slot / 32 * bits + at.word),
          operand_bits * (slot % codes) + at.bit};
}

void pack_image(const std::uint32_t* canonical, std::int64_t n, std::int64_t k, int bits,
                std::uint32_t pad, std::uint32_t* image, int operand_bits) {
  LADDER_REQUIRE(pad >> bits == 0, "pad code ", pad, " does not fit ", bits, " bits");
  const BitPlan& plan = bit_plan(bits, operand_bits);
  const auto words_per_row = (k * bits + 31) / 32;
  std::fill_n(image, image_words(n, k, bits), 0);
  for (std::int64_t block_row = 0; block_row < blocks(n); ++block_row) {
    for (std::int64_t block_column = 0; block_column < blocks(k); ++block_column) {
      auto* block = image + (block_row * blocks(k) + block_column) * 128 * bits;
      for (int lane = 0; lane < kLanes; ++lane) {
        for_each_pair(lane, plan, [&](int first, int pair, PairOrigin origin) {
          const auto row = block_row * kBlock + origin.row;
          const auto column = block_column * kBlock + origin.column;
          for (int half = 0; half < 32 / operand_bits; ++half) {
            const bool inside = row < n && column + half < k;
            const auto code =
                inside ? read_code(canonical + row * words_per_row, (column + half) * bits, bits)
                       : pad;
            for (int i = 0; i < bits; ++i) {
              const BitPlace at = plan.pairs[pair][i];
              block[word_in_block(lane, first + at.word)] |= (code >> i & 1)
                                                             << (operand_bits * half + at.bit);
            }
          }
        });
      }
    }
  }
}

void unpack_image(const std::uint32_t* image, std::int64_t n, std::int64_t k, int bits,
                  std::uint32_t* canonical, int operand_bits) {
  const BitPlan& places = bit_plan(bits, operand_bits);
  const UnpackPlan plan = unpack_plan(places, kByteWindow);
  const auto words_per_row = (k * bits + 31) / 32;
  std::fill_n(canonical, n * words_per_row, 0);
  const auto write = [&](std::int64_t row, std::int64_t column, const auto& codes) {
    for (std::size_t i = 0; i < codes.size(); ++i, ++column) {
      if (row >= n || column >= k) continue;
      write_code(canonical + row * words_per_row, column * bits, bits, codes[i]);
    }
  };
  for (std::int64_t block_row = 0; block_row < blocks(n); ++block_row) {
    for (std::int64_t block_column = 0; block_column < blocks(k); ++block_column) {
      const auto* block = image + (block_row * blocks(k) + block_column) * 128 * bits;
      for (int lane = 0; lane < kLanes; ++lane) {
        std::array<std::uint32_t, 32> words;
        for (int i = 0; i < 4 * bits; ++i) words[i] = block[word_in_block(lane, i)];
        for_each_pair(lane, places, [&](int first, int pair, PairOrigin origin) {
          const auto row = block_row * kBlock + origin.row;
          const auto column = block_column * kBlock + origin.column;
          const auto* unit = words.data() + first;
          if (operand_bits == 8) {
            write(row, column, unpack_quad(plan, unit, pair));
          } else {
            write(row, column, unpack_pair(plan, unit, pair));
          }
        });
      }
    }
  }
}

}  // namespace ladder
