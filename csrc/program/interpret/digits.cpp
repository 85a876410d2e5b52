// SPDX-License-Identifier: Apache-2.0
//
// One token by products of integers (layout/digits.h).
#include "layout/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "layout/weight_image.h"
#include "program/interpret/interpreter.h"

namespace ladder {

void Interpreter::unpack_bytes(Block& block, const UnpackBytes& i) {
  const Scalar to = program_.registers[i.to].scalar;
  const BytePlan& plan = plan_of(i, to);
  const Layout& a = program_.registers[i.to].layout;
  const auto slots = program_.registers[i.from].layout.slot_count();
  const auto of_thread = a.slot_count();
  const ByteUnits units = byte_units(a);
  std::uint32_t words[8];
  for (std::int64_t word = 0; word < of_thread / 4; ++word) {
    const ByteWord at = byte_word(a, word, value(block, i.step));
    const auto first = units.first(at, value(block, i.block), i.bits);
    for (const int thread : running()) {
      for (int w = 0; w < i.bits; ++w) {
        words[w] = get(block, i.from, thread * slots + first + w);
        if (i.three) words[w] = three_values(words[w]);
      }
      auto bytes = read_pieces(plan.registers[at.plan_step][at.r], words);
      if (i.scales >= 0) {
        const auto row = a(thread, word * 4)[1];
        const auto slot = slot_of_row(i.scales, thread, value(block, i.group), row);
        const auto scale = get(block, i.scales, thread * coordinates_[i.scales].slots + slot);
        bytes = scaled_bytes(bytes, scale, static_cast<std::uint32_t>(i.zero));
      } else if (i.has_zero()) {
        auto zero = static_cast<std::uint32_t>(i.zero);
        if (i.zeros >= 0) {
          const auto of_row = (at.unit * 2 + at.r % 2) * 4;
          zero = get(block, i.zeros, thread * coordinates_[i.zeros].slots + of_row);
        }
        const auto zeros = zero * 0x01010101u;
        bytes = has_fields_of_e4m3(to) ? whole_less_zeros(bytes, zeros) : less_zeros(bytes, zeros);
      } else if (to == Scalar::s8 && i.flips_sign()) {
        bytes ^= kSignBits;
      }
      if (to == Scalar::e4m3fnuz) bytes = fnuz_bytes(bytes);
      for (int b = 0; b < 4; ++b) {
        set(block, i.to, thread * of_thread + word * 4 + b, bytes >> (8 * b) & 0xff);
      }
    }
  }
}

void Interpreter::split_digits(Block& block, const SplitDigits& i) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const Scalar scalar = program_.buffers[from.buffer].scalar;
  const auto origin = values(block, i.at);
  const auto columns = to.extents[1];
  const auto thread_of = [&](std::int64_t place) {
    return static_cast<int>(place / 4 % program_.threads);
  };
  std::vector<std::uint32_t> x(columns);  // by place
  double largest = 0;
  bool finite = true;
  for (std::int64_t column = 0; column < columns; ++column) {
    const auto place = column / kBlock * kBlock + digit_place(static_cast<int>(column % kBlock));
    std::int64_t source = origin[1] + column;
    if (source >= from.extents[1]) continue;
    if (i.columns >= 0) {
      std::uint32_t index;
      read_global(block, program_.views[i.columns].buffer, source * 4, 4, thread_of(place),
                  reinterpret_cast<std::uint8_t*>(&index));
      if (index >= from.extents[1]) fault("column ", index, " of ", from.extents[1]);
      source = index;
    }
    std::uint16_t bits;
    read_global(block, from.buffer, (origin[0] * from.strides[0] + source) * 2, 2, thread_of(place),
                reinterpret_cast<std::uint8_t*>(&bits));
    const double number = to_number(scalar, bits);
    if (!std::isfinite(number)) {
      finite = false;
    } else {
      x[place] = bits;
      largest = std::max(largest, std::fabs(number));
    }
  }
  const double unit = digit_unit(scalar, largest);
  std::vector<std::uint8_t> digits(to.extents[0] * columns);
  for (std::int64_t place = 0; place < columns; ++place) {
    const auto split = digits_of(scalar, x[place], unit);
    for (int p = 0; p < digit_count(scalar); ++p) {
      digits[p * columns + place] = static_cast<std::uint8_t>(split[p]);
    }
  }
  for (std::int64_t row = 0; row < to.extents[0]; ++row) {
    for (std::int64_t place = 0; place < columns; place += 4) {
      const auto at =
          program_.shared_offset(to.buffer) + value(block, to.offset) + row * to.strides[0] + place;
      refuse(block.shared.write(at, 4, thread_of(place), &digits[row * columns + place]));
    }
  }
  block.shared.barrier();
  for_each(i.unit, [&](int, std::int64_t index, const std::int64_t*) {
    set_number(block, i.unit, index, finite ? unit : std::nan(""));
  });
}

void Interpreter::join_digits(Block& block, const JoinDigits& i) {
  std::map<std::pair<std::int64_t, std::int64_t>, double> sums;  // by warp along K, row
  double unit = 1;
  for_each(i.unit, [&](int, std::int64_t index, const std::int64_t*) {
    unit = number(block, i.unit, index);
  });
  for_each(i.to, [&](int, std::int64_t index, const std::int64_t* at) {
    const int exponent = kDigitBits * static_cast<int>(at[2]) + digit_exponent(i.scalar);
    sums[{at[0], at[1]}] += std::ldexp(number(block, i.to, index), exponent);
  });
  for_each(i.to, [&](int, std::int64_t index, const std::int64_t* at) {
    set_number(block, i.to, index, at[2] == 0 ? sums[{at[0], at[1]}] * unit : 0);
  });
}

}  // namespace ladder
