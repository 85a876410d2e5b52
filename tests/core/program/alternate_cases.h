// SPDX-License-Identifier: Apache-2.0
//
// Kernels whose waves alternate, small enough to run without a device. Internal to the tests.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "program/wave_cases.h"

namespace ladder::testing {

/// Shapes of wave_case(), of eight waves: few tokens and many, two steps of columns and eight.
constexpr std::array<std::array<int, 7>, 5> kAlternatingShapes = {{{64, 64, 2, 4, 1, 1, 1},
                                                                   {16, 128, 8, 1, 1, 1, 1},
                                                                   {32, 64, 4, 2, 1, 2, 1},
                                                                   {128, 64, 2, 4, 1, 1, 1},
                                                                   {256, 64, 2, 4, 1, 1, 1}}};

/// A schedule of that shape for the type, or nothing where waves object on the device.
inline std::vector<std::pair<Problem, WaveSchedule>> alternate_case(
    const std::array<int, 7>& shape, const TType& type, Scalar activation, Reduction reduction,
    Route route, const Device& device, int k_tiles = 3, std::optional<Scalar> x = {},
    ScalePlace place = ScalePlace::usual) {
  auto cases = wave_case(shape, type, activation, reduction, route, device, k_tiles, x, place);
  std::erase_if(cases, [&](auto& each) {
    auto& [problem, schedule] = each;
    schedule.alternate = true;
    return !objection(schedule, decide(problem, device)).empty();
  });
  return cases;
}

/// The same of the first shape, from that of a turn on, to which waves do not object.
inline std::vector<std::pair<Problem, WaveSchedule>> some_alternate_case(
    unsigned turn, const TType& type, Scalar activation, Reduction reduction, Route route,
    const Device& device, int k_tiles, std::optional<Scalar> x = {},
    ScalePlace place = ScalePlace::usual) {
  constexpr auto kSmall = kAlternatingShapes.size() - 1;  // the last is of 256 tokens
  for (unsigned i = turn; i < turn + kSmall; ++i) {
    auto cases = alternate_case(kAlternatingShapes[i % kSmall], type, activation, reduction, route,
                                device, k_tiles, x, place);
    if (!cases.empty()) return cases;
  }
  return {};
}

}  // namespace ladder::testing
