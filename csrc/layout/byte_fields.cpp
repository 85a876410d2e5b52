// SPDX-License-Identifier: Apache-2.0
#include "layout/byte_fields.h"

#include <set>
#include <utility>

#include "base/error.h"

namespace ladder {

// Four bits are one word per k-step: pair r of it lies at bit 4 r of each half.
ByteFields byte_fields(int bits, int place) {
  LADDER_REQUIRE(fields_are_bytes(bits, place), bits, " bits at ", place, " are not bytes");
  const BitPlan& plan = bit_plan(bits);
  ByteFields out;
  for (int step = 0; step < 4; ++step) {
    for (int upper = 0; upper < 2; ++upper) {
      const BitPlace at = plan.pairs[4 * step + upper].front();
      LADDER_CHECK(at == (BitPlace{step, bits * upper}) &&
                       plan.pairs[4 * step + upper + 2].front() == (BitPlace{step, at.bit + 8}),
                   "pairs of step ", step, " are not codes of its bytes");
      const std::uint32_t magnitude = ((1u << (bits - 1)) - 1) << (place - 8);
      out[step][upper] = {{step, at.bit - (place - 8), magnitude * 0x01010101u},
                          {step, at.bit + bits - 1 - 7, 0x80808080u}};
    }
  }
  return out;
}

int shift_count(const ByteFields& fields) {
  std::set<std::pair<int, int>> shifts;
  for (const auto& step : fields) {
    for (const auto& pieces : step) {
      for (const auto& piece : pieces) {
        if (piece.shift != 0) shifts.insert({piece.word, piece.shift});
      }
    }
  }
  return static_cast<int>(shifts.size());
}

std::uint32_t read_byte_fields(const ByteFields& fields, const std::uint32_t* words, int pair) {
  const auto bytes = read_pieces(fields[pair / 4][pair % 2], words);
  return pair % 4 < 2 ? (bytes & 0x00ff00ffu) << 8 : bytes & 0xff00ff00u;
}

}  // namespace ladder
