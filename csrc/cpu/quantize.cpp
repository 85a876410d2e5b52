// SPDX-License-Identifier: Apache-2.0
#include "cpu/quantize.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "cpu/values.h"
#include "types/scale_search.h"
#include "types/weight.h"

namespace ladder::cpu {
namespace {

constexpr std::int64_t kGrainWeights = 1 << 14;
constexpr float kNever = std::numeric_limits<float>::infinity();

struct Choice {
  float scale = 1;
  float zero = 0;  ///< subtracted from the code's value before scaling
};

/// Chooses scale and zero point for blocks of weights.
class BlockQuantizer {
 public:
  BlockQuantizer(const TType& type, Rounding rounding, float unit, const QuantizeKernels& kernels)
      : type_(type),
        rounding_(rounding),
        unit_(unit),
        kernels_(kernels),
        values_(values_of(*type.element)),
        scales_(type.scale),
        smallest_(smallest_scale(type)),
        zero_(fixed_zero(type)) {}

  /// The second scale, which multiplies the scales of the blocks that follow.
  void set_unit(float unit) { unit_ = unit; }

  /// The scale and zero point of a block. Throws nothing; `weights` are finite.
  Choice choose(const float* weights, std::int64_t count) const {
    if (type_.scale == nullptr && !is_asymmetric(type_.zero)) return {.scale = 1, .zero = zero_};
    float least, greatest;
    kernels_.range(weights, count, &least, &greatest);
    if (type_.scale == nullptr) return {.scale = 1, .zero = covering_zero(least)};
    Search search{.best = candidate(least, greatest, 1.0f)};
    if (rounding_ == Rounding::nearest && smallest_ == 0) return search.best;
    const auto attempt = [&](const Choice& choice) {
      return improves(search, choice, weights, count);
    };
    attempt(search.best);
    if (smallest_ != 0) attempt({.scale = smallest_, .zero = zero_});
    if (rounding_ == Rounding::nearest) return search.best;
    float middle = 1.0f;
    for (int step = 1; step <= kCoarseSteps; ++step)
      if (attempt(candidate(least, greatest, coarse_fraction(step))))
        middle = coarse_fraction(step);
    for (int step = 0; step < kFineSteps; ++step)
      attempt(candidate(least, greatest, fine_fraction(middle, step)));
    return search.best;
  }

  void encode(const float* weights, std::int64_t count, const Choice& choice,
              std::uint8_t* codes) const {
    kernels_.encode(values_, weights, count, scaling(choice), codes);
  }

  void store_scale(float scale, void* data, std::int64_t index) const {
    const std::uint32_t code = scales_.code(scale);
    const std::int64_t bytes = std::max(type_.scale->bits / 8, 1);
    std::memcpy(static_cast<char*>(data) + index * bytes, &code, static_cast<std::size_t>(bytes));
  }
  /// A zero point in the format of scales.
  void store_zero(float zero, void* data, std::int64_t index) const {
    store_scale(scales_(zero), data, index);
  }

 private:
  struct Search {
    Choice best;
    double error = std::numeric_limits<double>::infinity();
    std::array<Choice, 2 + kCoarseSteps + kFineSteps> tried{};
    std::size_t tries = 0;
  };

  bool improves(Search& search, const Choice& choice, const float* weights,
                std::int64_t count) const {
    // Narrow formats make one scale of several candidates, and an equal error is not less.
    for (std::size_t i = 0; i < search.tries; ++i)
      if (search.tried[i].scale == choice.scale && search.tried[i].zero == choice.zero)
        return false;
    search.tried[search.tries++] = choice;
    const double error = kernels_.error(values_, weights, count, scaling(choice), search.error);
    if (!(error < search.error)) return false;
    search.error = error;
    search.best = choice;
    return true;
  }

  /// The scale that covers least to greatest, times `fraction`.
  Choice candidate(float least, float greatest, float fraction) const {
    Choice choice{.scale = 1, .zero = zero_};
    if (is_asymmetric(type_.zero)) {
      // The range must hold 0, so that a zero weight stays zero.
      const float low = std::min(least, 0.0f) * fraction;
      const float high = std::max(greatest, 0.0f) * fraction;
      choice.scale = stored((high - low) / (values_.high - values_.low));
      const float step = choice.scale * unit_;
      choice.zero = step == 0 ? zero_of(values_.low) : zero_of(low / step);
    } else {
      // The largest multiple of the scale on each side; one-sided formats cover what they can.
      const float up = values_.high - zero_, down = zero_ - values_.low;
      float scale = 0;
      if (up > 0) scale = std::max(scale, greatest / up);
      if (down > 0) scale = std::max(scale, -least / down);
      choice.scale = stored(scale * fraction);
    }
    return choice;
  }

  /// The zero point that has the least weight, in steps, at the least value.
  float zero_of(float low) const {
    return std::clamp(std::nearbyint(values_.low - low), values_.low, values_.high);
  }

  /// The same of types without scales: the least zero point whose least value is no more than half
  /// a step above the least weight, so that most is left for the greatest.
  float covering_zero(float least) const {
    const float zero = std::ceil(values_.low - std::min(least, 0.0f) - 0.5f);
    return std::clamp(zero, values_.low, values_.high);
  }

  float stored(float scale) const { return scales_(unit_ == 0 ? 0 : scale / unit_); }

  Scaling scaling(const Choice& choice) const {
    // Divided by infinity, every weight becomes the zero point.
    const float step = choice.scale * unit_;
    return {.divisor = step == 0 ? kNever : step,
            .zero = choice.zero,
            .scale = choice.scale,
            .unit = unit_};
  }

  const TType& type_;
  Rounding rounding_;
  float unit_;
  const QuantizeKernels& kernels_;
  Values values_;
  ScaleRounding scales_;
  float smallest_, zero_;
};

/// The largest magnitude. Throws for a weight that is not finite.
float largest_magnitude(const float* weight, std::int64_t n, std::int64_t k,
                        const QuantizeKernels& kernels, const Parallel& parallel) {
  std::atomic<std::uint32_t> largest = 0;
  parallel(n, std::max<std::int64_t>(1, 16 * kGrainWeights / k),
           [&](std::int64_t begin, std::int64_t end) {
             const auto mine = kernels.largest(weight + begin * k, (end - begin) * k);
             auto seen = largest.load();
             while (seen < mine && !largest.compare_exchange_weak(seen, mine)) {
             }
           });
  const auto magnitude = std::bit_cast<float>(largest.load());
  if (std::isfinite(magnitude)) return magnitude;
  for (std::int64_t i = 0; i < n * k; ++i)
    LADDER_REQUIRE(std::isfinite(weight[i]), "weight at row ", i / k, ", column ", i % k, " is ",
                   weight[i], ", not a finite number");
  fail<InternalError>("no weight is ", magnitude);
}

}  // namespace

void quantize(const float* weight, std::int64_t n, std::int64_t k, const TType& type,
              Rounding rounding, const QuantizedParts& parts, Isa isa, const Parallel& parallel) {
  const QuantizeKernels& kernels = quantize_kernels_of(isa);
  float unit = 1;
  const float largest = largest_magnitude(weight, n, k, kernels, parallel);
  if (type.scale2 != nullptr && !type.scale2_of_rows) {
    *parts.scale2 = unit = second_scale(type, largest);
  }
  const BlockQuantizer of_all(type, rounding, unit, kernels);
  const std::int64_t groups = type.groups(k);
  const int bits = type.element->bits;
  const std::int64_t rows = type.block.rows == 0 ? n : type.block.rows;
  const std::int64_t columns = type.block.columns == 0 ? k : type.block.columns;
  const auto block_row = [&](BlockQuantizer& quantizer, std::int64_t index, std::uint8_t* codes,
                             std::uint8_t* row_zeros, std::vector<float>& block,
                             std::vector<std::uint8_t>& block_codes) {
    const std::int64_t first = index * rows, last = std::min(first + rows, n);
    if (type.scale2_of_rows) {
      const auto most = std::bit_cast<float>(kernels.largest(weight + first * k, k));
      quantizer.set_unit(parts.scale2[first] = second_scale(type, most));
    }
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t left = group * columns, width = std::min(columns, k - left);
      const float* weights = weight + first * k + left;
      const bool copied = last - first > 1 && width < k;  // else the block is contiguous
      if (copied) {
        block.clear();
        for (std::int64_t row = first; row < last; ++row)
          block.insert(block.end(), weight + row * k + left, weight + row * k + left + width);
        block_codes.resize(block.size());
        weights = block.data();
      }
      const std::int64_t count = (last - first) * width, at = index * groups + group;
      const Choice choice = quantizer.choose(weights, count);
      quantizer.encode(weights, count, choice, copied ? block_codes.data() : codes + left);
      for (std::int64_t row = 0; copied && row < last - first; ++row)
        std::memcpy(codes + row * k + left, block_codes.data() + row * width,
                    static_cast<std::size_t>(width));
      if (type.scale != nullptr) quantizer.store_scale(choice.scale, parts.scales, at);
      switch (type.zero) {
        case Zero::none:
        case Zero::midpoint: break;
        case Zero::integer:
          static_cast<std::uint8_t*>(parts.zeros)[at] = static_cast<std::uint8_t>(choice.zero);
          break;
        case Zero::quantized: row_zeros[group] = static_cast<std::uint8_t>(choice.zero); break;
        case Zero::original: quantizer.store_zero(choice.zero, parts.zeros, at); break;
        case Zero::rescale:
          quantizer.store_zero(choice.zero * choice.scale, parts.zeros, at);
          break;
      }
    }
    pack_codes(codes, last - first, k, bits, parts.codes + first * row_words(k, bits));
    if (type.zero == Zero::quantized)
      pack_codes(row_zeros, 1, groups, bits,
                 static_cast<std::uint32_t*>(parts.zeros) + index * row_words(groups, bits));
  };
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainWeights / (std::min(rows, n) * k));
  parallel(type.block_rows(n), grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(std::min(rows, n) * k)), block_codes;
    std::vector<std::uint8_t> row_zeros(static_cast<std::size_t>(groups));
    std::vector<float> block;
    BlockQuantizer quantizer = of_all;
    for (std::int64_t index = begin; index < end; ++index)
      block_row(quantizer, index, codes.data(), row_zeros.data(), block, block_codes);
  });
}

}  // namespace ladder::cpu
