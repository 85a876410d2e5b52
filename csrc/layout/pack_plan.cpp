// SPDX-License-Identifier: Apache-2.0
#include "layout/pack_plan.h"

#include <bit>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "layout/weight_image.h"

namespace ladder {

// The image of a block is linear over bits for these widths: where a code with one bit of its
// coordinates set lies says where that bit goes. Which bits of an address in the image a thread's
// words span, in order, numbers its results.
WordPermutation image_permutation(int bits, int operand_bits) {
  if (bits != 1 && bits != 2 && bits != 4) {
    fail<Unsupported>("codes of ", bits, " bits do not move by whole words");
  }
  std::vector<std::uint64_t> columns;
  const auto add = [&](std::int64_t row, std::int64_t column, int bit) {
    const auto at = image_place(kBlock, bits, row, column, bit, operand_bits);
    columns.push_back(static_cast<std::uint64_t>(at.word) * 32 +
                      static_cast<std::uint64_t>(at.bit));
    LADDER_CHECK(std::has_single_bit(columns.back()), "row ", row, ", column ", column, ", bit ",
                 bit, " of ", bits, " is at ", columns.back());
  };
  for (int bit = 1; bit < bits; bit *= 2) add(0, 0, bit);
  for (std::int64_t column = 1; column < kBlock; column *= 2) add(0, column, 0);
  add(8, 0, 0);
  std::uint64_t spanned = 0;
  for (auto column : columns) spanned |= column;
  std::vector<int> to;
  for (auto column : columns) to.push_back(std::popcount(spanned & (column - 1)));
  return plan_words(to);
}

}  // namespace ladder
