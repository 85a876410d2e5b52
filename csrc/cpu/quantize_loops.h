// SPDX-License-Identifier: Apache-2.0
//
// The loops of QuantizeKernels, included once for each instruction set by a file that is compiled
// for it and defines rank_of() before. Loops over arrays of fixed size become the vectors of
// that set; every function is local to the file (kernels.h says why), and the build forbids
// contraction to fused operations, which would round otherwise.
//
// rank_of(const Values& values, float value): how many of values.borders are less.
#include <cstdint>
#include <cstring>

#include "cpu/quantize_kernels.h"

namespace ladder::cpu {
namespace {

constexpr int kLanes = 32, kSegment = 1024;     // kSumLanes, kSegmentWeights: checked by the driver
constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23
constexpr std::uint32_t kSignBit = 0x80000000u;
constexpr double kNever = __builtin_inf();

inline std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
inline float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline float clamped(float value, float low, float high) {
  const float above = value > low ? value : low;
  return above < high ? above : high;
}

/// The magnitude nearest to |value|.
inline float rounded_magnitude(const Values& to, float value) {
  const float magnitude = float_of(bits_of(value) & ~kSignBit);
  const float m = magnitude < to.high ? magnitude : to.high;
  const std::uint32_t b = bits_of(m);
  const std::uint32_t normal = (b + to.half + ((b >> to.shift ^ to.flip) & 1)) & ~to.mask;
  const std::uint32_t subnormal = bits_of((m + to.subnormal) - to.subnormal);
  return float_of(m < to.smallest_normal ? subnormal : normal);
}

/// near[i]: the value nearest to numbers[i].
template <Values::Kind kKind, int N>
inline void nearest(const Values& values, const float* numbers, float* near) {
  if constexpr (kKind == Values::Kind::integer) {
    for (int i = 0; i < N; ++i)
      near[i] = (clamped(numbers[i], values.low, values.high) + kRoundToInteger) - kRoundToInteger;
  } else if constexpr (kKind == Values::Kind::floating) {
    for (int i = 0; i < N; ++i)
      near[i] = float_of(bits_of(rounded_magnitude(values, numbers[i])) |
                         (bits_of(numbers[i]) & kSignBit));
  } else if constexpr (kKind == Values::Kind::few) {
    // The bits of values are added up step by step, so that no step of it rounds.
    std::uint32_t sums[N];
    for (int i = 0; i < N; ++i) sums[i] = bits_of(values.by_rank[0]);
    for (int step = 0; step < values.count; ++step) {
      const float border = values.borders[step];
      const std::uint32_t more = values.steps[step];
      for (int i = 0; i < N; ++i) sums[i] += numbers[i] > border ? more : 0;
    }
    for (int i = 0; i < N; ++i) near[i] = float_of(sums[i]);
  } else {
    for (int i = 0; i < N; ++i) near[i] = values.by_rank[rank_of(values, numbers[i])];
  }
}

/// Adds the squared error of `taken` of N weights to as many sums.
template <Values::Kind kKind, int N>
inline void add_errors(const Values& values, const float* weights, const Scaling& s, double* sums,
                       int taken = N) {
  alignas(64) float numbers[N], back[N];
  for (int i = 0; i < N; ++i) numbers[i] = weights[i] / s.divisor + s.zero;
  nearest<kKind, N>(values, numbers, back);
  for (int i = 0; i < N; ++i) back[i] = (back[i] - s.zero) * s.scale * s.unit;
  const auto add = [&](int i) {
    const double error = static_cast<double>(back[i]) - static_cast<double>(weights[i]);
    sums[i] += error * error;
  };
  if (taken == N) {
    for (int i = 0; i < N; ++i) add(i);
  } else {
    for (int i = 0; i < taken; ++i) add(i);
  }
}

/// The sums of a segment in the order of types/scale_search.h.
inline double added(const double* sums) {
  double halves[kLanes / 2];
  for (int i = 0; i < 16; ++i) halves[i] = sums[i] + sums[i + 16];
  for (int i = 0; i < 8; ++i) halves[i] += halves[i + 8];
  for (int i = 0; i < 4; ++i) halves[i] += halves[i + 4];
  return (halves[0] + halves[2]) + (halves[1] + halves[3]);
}

template <Values::Kind kKind>
double error(const Values& values, const float* weights, std::int64_t count, const Scaling& s,
             double limit) {
  double total = 0;
  for (std::int64_t first = 0; first < count; first += kSegment) {
    const float* const from = weights + first;
    const auto length = static_cast<int>(count - first < kSegment ? count - first : kSegment);
    alignas(64) double sums[kLanes] = {};
    int i = 0;
    for (; i + 32 <= length; i += 32) {
      add_errors<kKind, 32>(values, from + i, s, sums);
      // Sums only grow, rounded or not: what has reached the limit by now will not be below it.
      if ((i == 32 || i % 256 == 224) && total + added(sums) >= limit) return kNever;
    }
    double* to = sums;
    if (i + 16 <= length) {
      add_errors<kKind, 16>(values, from + i, s, to);
      i += 16, to += 16;
    }
    if (i + 8 <= length) {
      add_errors<kKind, 8>(values, from + i, s, to);
      i += 8, to += 8;
    }
    if (i < length) {
      float rest[8] = {};
      for (int j = 0; j < length - i; ++j) rest[j] = from[i + j];
      add_errors<kKind, 8>(values, rest, s, to, length - i);
    }
    total += added(sums);
    if (total >= limit) return kNever;
  }
  return total < kNever ? total : kNever;  // not a number: not the least either
}

template <Values::Kind kKind, int N>
inline void encode_some(const Values& values, const float* weights, const Scaling& s,
                        std::uint8_t* codes) {
  alignas(64) float numbers[N], near[N];
  for (int i = 0; i < N; ++i) numbers[i] = weights[i] / s.divisor + s.zero;
  if constexpr (kKind == Values::Kind::integer) {
    nearest<kKind, N>(values, numbers, near);
    for (int i = 0; i < N; ++i)
      codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(near[i]) & values.code_mask);
  } else if constexpr (kKind == Values::Kind::floating) {
    for (int i = 0; i < N; ++i) near[i] = rounded_magnitude(values, numbers[i]);
    const std::uint32_t base = bits_of(values.subnormal);
    for (int i = 0; i < N; ++i) {
      const std::uint32_t b = bits_of(near[i]);
      const std::uint32_t normal = (b >> values.shift) - values.rebias;
      const std::uint32_t subnormal = bits_of(near[i] + values.subnormal) - base;
      const std::uint32_t magnitude = near[i] < values.smallest_normal ? subnormal : normal;
      const std::uint32_t sign = bits_of(numbers[i]) >> 31 << values.sign_shift;
      codes[i] = static_cast<std::uint8_t>(b == 0 ? values.zero_code : magnitude | sign);
    }
  } else if constexpr (kKind == Values::Kind::few) {
    std::int32_t ranks[N] = {};
    for (int step = 0; step < values.count; ++step) {
      const float border = values.borders[step];
      for (int i = 0; i < N; ++i) ranks[i] += numbers[i] > border ? 1 : 0;
    }
    for (int i = 0; i < N; ++i) codes[i] = values.codes[ranks[i]];
  } else {
    for (int i = 0; i < N; ++i) codes[i] = values.codes[rank_of(values, numbers[i])];
  }
}

template <Values::Kind kKind>
void encode(const Values& values, const float* weights, std::int64_t count, const Scaling& s,
            std::uint8_t* codes) {
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32) encode_some<kKind, 32>(values, weights + i, s, codes + i);
  for (; i + 8 <= count; i += 8) encode_some<kKind, 8>(values, weights + i, s, codes + i);
  if (i < count) {
    float rest[8] = {};
    std::uint8_t eight[8];
    for (std::int64_t j = 0; j < count - i; ++j) rest[j] = weights[i + j];
    encode_some<kKind, 8>(values, rest, s, eight);
    for (std::int64_t j = 0; j < count - i; ++j) codes[i + j] = eight[j];
  }
}

/// One function of each kind of values.
#define LADDER_OF_KIND(function, values, ...)                                                  \
  switch ((values).kind) {                                                                     \
    case Values::Kind::integer: return function<Values::Kind::integer>(values, __VA_ARGS__);   \
    case Values::Kind::floating: return function<Values::Kind::floating>(values, __VA_ARGS__); \
    case Values::Kind::few: return function<Values::Kind::few>(values, __VA_ARGS__);           \
    case Values::Kind::many: return function<Values::Kind::many>(values, __VA_ARGS__);         \
  }

double error_of(const Values& values, const float* weights, std::int64_t count,
                const Scaling& scaling, double limit) {
  LADDER_OF_KIND(error, values, weights, count, scaling, limit)
  __builtin_unreachable();
}

void encode_all(const Values& values, const float* weights, std::int64_t count,
                const Scaling& scaling, std::uint8_t* codes) {
  LADDER_OF_KIND(encode, values, weights, count, scaling, codes)
}
#undef LADDER_OF_KIND

void range(const float* weights, std::int64_t count, float* least, float* greatest) {
  float low[16], high[16];
  for (int i = 0; i < 16; ++i) low[i] = high[i] = weights[0];
  std::int64_t at = 0;
  for (; at + 16 <= count; at += 16)
    for (int i = 0; i < 16; ++i) {
      const float w = weights[at + i];
      low[i] = w < low[i] ? w : low[i];
      high[i] = w > high[i] ? w : high[i];
    }
  float lowest = low[0], highest = high[0];
  for (int i = 1; i < 16; ++i) {
    lowest = low[i] < lowest ? low[i] : lowest;
    highest = high[i] > highest ? high[i] : highest;
  }
  for (; at < count; ++at) {
    lowest = weights[at] < lowest ? weights[at] : lowest;
    highest = weights[at] > highest ? weights[at] : highest;
  }
  *least = lowest;
  *greatest = highest;
}

std::uint32_t largest(const float* weights, std::int64_t count) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = bits_of(weights[i]) & ~kSignBit;
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

constexpr QuantizeKernels kQuantizeKernels{
    .range = range, .largest = largest, .error = error_of, .encode = encode_all};

}  // namespace
}  // namespace ladder::cpu
