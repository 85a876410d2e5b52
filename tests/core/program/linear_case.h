// SPDX-License-Identifier: Apache-2.0
//
// A linear layer with data, run through the interpreter, and what is right. Internal to the tests.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "expr/decoding.h"
#include "expr/reference.h"
#include "integer_layer.h"
#include "layout/digits.h"
#include "layout/weight_image.h"
#include "pipelines/lower.h"
#include "program/interpret.h"

namespace ladder::testing {

/// `argument`, of x of e4m3 in the bytes in which a program reads it whose buffer is of `scalar`.
inline Argument as_read(Argument argument, Scalar scalar) {
  if (scalar != Scalar::e4m3fnuz) return argument;
  for (auto& byte : argument.bytes) byte = static_cast<std::uint8_t>(fnuz_bytes(byte));
  return argument;
}

struct LinearCase {
  Problem problem;
  std::int64_t m;
  ProblemData data;

  /// Activations in {-2 .. 2}, scales of a quarter to one, of e8m0 beside bf16 to four, small
  /// integers as zero points, a bias of integers: every partial sum is exact when the values of the
  /// codes are.
  static LinearCase integers(const Problem& problem, std::int64_t m, unsigned seed = 1) {
    std::mt19937 random(seed);
    LinearCase out{problem, m, {}};
    ProblemData& data = out.data;
    const auto groups = problem.n * problem.groups();
    for (std::int64_t i = 0; i < problem.n * problem.k; ++i) {
      std::uint32_t code;
      do {
        code = random() % (1u << problem.weight.bits);
      } while (!std::isfinite(value_of(problem.weight, code)));
      data.codes.push_back(static_cast<std::uint8_t>(code));
    }
    const auto small = [&] { return static_cast<int>(random() % 5) - 2; };
    for (std::int64_t i = 0; i < m * problem.k; ++i) {
      // All of s8 where y is f32, which holds the sums.
      const int most = problem.wide_y() && problem.weight.bits <= 4 ? 128 : 16;
      const int wide = std::min(static_cast<int>(random() % (2 * most + 1)) - most, 127);
      const int x = problem.rounded_x() == Scalar::s8 ? wide : small();
      data.x.push_back(to_bits(problem.formats.x, x) & ((1ull << bits_of(problem.formats.x)) - 1));
    }
    for (std::int64_t i = 0; i < m && problem.has_bytes_of_x(); ++i) {
      data.x_scales.push_back(std::ldexp(1.0f, -static_cast<int>(random() % 3)));
    }
    for (std::int64_t i = 0; i < groups && problem.weight.scale; ++i) {
      if (problem.weight.type.has_integer_scales()) {
        const auto largest = static_cast<std::uint32_t>(max_value(*problem.weight.type.scale));
        data.scales.push_back(1 + random() % largest);
        continue;
      }
      if (const auto& superblocks = problem.weight.superblocks) {
        data.scales.push_back(out.small_integer(random(), superblocks->integers));
        continue;
      }
      // Of e8m0 also from 2 on, which kernels of bf16 may multiply otherwise.
      const auto drawn = random();
      const bool powers =
          problem.weight.scale == Scalar::e8m0 && problem.activation() == Scalar::bf16;
      const int exponent = powers ? 2 - static_cast<int>(drawn % 5) : -static_cast<int>(drawn % 3);
      data.scales.push_back(to_bits(*problem.weight.scale, std::ldexp(1.0, exponent)));
    }
    for (std::int64_t i = 0; i < groups && problem.weight.stored_zero != Zero::none; ++i) {
      // 2^bits itself is a zero point of GPTQ, where a byte holds it.
      const double zero =
          problem.weight.stored_zero == Zero::integer
              ? random() % (problem.weight.bits < 8 ? (1u << problem.weight.bits) + 1 : 256)
              : static_cast<int>(random() % 9) / 2.0 - 2;
      data.zeros.push_back(problem.weight.seconds() > 1
                               ? out.small_integer(random(), problem.weight.zero_in_memory())
                               : to_bits(problem.weight.zero_scalar(), zero));
    }
    const auto superblocks = problem.n * problem.superblocks() * problem.weight.seconds();
    for (std::int64_t i = 0; i < superblocks; ++i) {
      const double second =
          std::ldexp(random() % 4 == 0 ? -1.0 : 1.0, -static_cast<int>(random() % 2));
      data.seconds.push_back(to_bits(problem.weight.superblocks->seconds, second));
    }
    if (problem.has_scale2()) data.scale2 = 0.5f;
    for (std::int64_t i = 0; i < problem.n && problem.weight.type.scale2_of_rows; ++i) {
      data.scale2_of_rows.push_back(std::ldexp(1.0f, -static_cast<int>(random() % 4)));
    }
    for (std::int64_t i = 0; i < problem.n && problem.has_bias(); ++i)
      data.bias.push_back(to_bits(problem.formats.bias, small()));
    if (problem.permuted_columns) {
      data.gather.resize(problem.k);
      std::iota(data.gather.begin(), data.gather.end(), 0);
      std::shuffle(data.gather.begin(), data.gather.end(), random);
    }
    for (std::int64_t i = 0; i < m * problem.columns_of_y() && problem.has_residual(); ++i)
      data.residual.push_back(out.bits(static_cast<int>(random() % 129) - 64));
    // Halves are ties, and some results are beyond the largest code; or no power of two, so that a
    // quotient and a product with the inverse are not the same.
    constexpr float kScales[] = {2.0f, 0.125f, 3.0f, 0.7f, 256.0f};
    if (problem.has_bytes_of_y()) data.y_scale = kScales[random() % std::size(kScales)];
    return out;
  }

  static LinearCase reals(const Problem& problem, std::int64_t m, unsigned seed = 1) {
    LinearCase out = integers(problem, m, seed);
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (auto& x : out.data.x) {
      if (problem.rounded_x() != Scalar::s8) x = to_bits(problem.formats.x, normal(random));
    }
    for (auto& s : out.data.scales) {
      if (problem.weight.type.has_integer_scales() || problem.weight.superblocks) break;
      s = to_bits(*problem.weight.scale, 0.01 * std::exp(normal(random)));
    }
    for (auto& s : out.data.seconds) {
      s = to_bits(problem.weight.superblocks->seconds, 0.01 * normal(random));
    }
    if (problem.weight.seconds() < 2 && (problem.weight.stored_zero == Zero::original ||
                                         problem.weight.stored_zero == Zero::rescale)) {
      for (auto& z : out.data.zeros) z = to_bits(problem.weight.zero_scalar(), normal(random));
    }
    if (problem.has_scale2()) out.data.scale2 = 0.37f;
    for (float& second : out.data.scale2_of_rows) {
      second = static_cast<float>(0.01 * std::exp(normal(random)));
    }
    for (auto& b : out.data.bias) b = to_bits(problem.formats.bias, normal(random));
    for (auto& r : out.data.residual) r = out.bits(normal(random));
    return out;
  }

  /// Few bits, of either sign where the scalar has one.
  static std::uint32_t small_integer(std::uint32_t drawn, Scalar scalar) {
    const int most = 5, least = scalar == Scalar::s8 ? -4 : 0;
    const int value = least + static_cast<int>(drawn % static_cast<unsigned>(most - least + 1));
    return static_cast<std::uint32_t>(value) & 0xffu;
  }

  /// Of y.
  std::uint32_t bits(double value) const {
    return problem.has_bytes_of_y() ? nearest_code(problem.formats.y, static_cast<float>(value))
                                    : to_bits(problem.formats.y, value);
  }

  /// y[i] of its bytes.
  double number(const std::vector<std::uint8_t>& bytes, std::size_t i) const {
    const auto size = static_cast<std::size_t>(y_bytes());
    std::uint32_t code = 0;
    for (std::size_t b = 0; b < size; ++b) code |= std::uint32_t{bytes[size * i + b]} << 8 * b;
    return to_number(problem.formats.y, code);
  }
  std::int64_t y_bytes() const { return bytes_of(problem.formats.y); }

  /// The parameter of that name.
  Argument argument(const std::string& name, const Schedule& schedule) const {
    const auto workspace = workspace_of(problem, schedule);
    if (name == "weight") return weight();
    if (name == "scales") return per_group(data.scales, problem.weight.scale_in_memory());
    if (name == "zeros") return per_group(data.zeros, problem.weight.zero_in_memory());
    if (name == "scale2" && problem.weight.superblocks) return seconds();
    if (name == "scale2") {
      return problem.weight.type.scale2_of_rows ? input(data.scale2_of_rows)
                                                : Argument::input(&data.scale2, 4);
    }
    if (name == "bias") return packed(data.bias, problem.formats.bias);
    if (name == "gather") return input(data.gather);
    if (name == "x") return packed(placed(), problem.formats.x);
    if (name == "x_scales") return input(data.x_scales);
    if (name == "residual") return packed(data.residual, problem.formats.y);
    if (name == "y_scale") return Argument::input(&data.y_scale, 4);
    if (name == "y") return Argument::output(m * problem.columns_of_y() * y_bytes());
    if (name == "workspace") return Argument::output(workspace.floats * 4);
    if (name == "counters") return input(std::vector<std::uint32_t>(workspace.counters));
    fail<InternalError>("the program wants ", name);
  }

  /// The parameters of `program`, by name.
  std::vector<Argument> arguments(const Program& program, const Schedule& schedule) const {
    std::vector<Argument> out;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.level == Level::global)
        out.push_back(as_read(argument(buffer.name, schedule), buffer.scalar));
    }
    return out;
  }

  /// y [m, n] as the program computes it, in bytes.
  std::vector<std::uint8_t> bytes(const Program& program, const Schedule& schedule) const {
    auto memory = arguments(program, schedule);
    interpret(program, memory, m);
    std::size_t at = 0;
    while (program.buffers[at].name != "y") ++at;
    const Argument& y = memory[at];
    for (std::int64_t i = 0; i < m * problem.columns_of_y(); ++i) {
      if (!y.written[y_bytes() * i]) fail<InternalError>("y[", i, "] was not written");
    }
    return y.bytes;
  }
  /// The same as numbers.
  std::vector<double> run(const Program& program, const Schedule& schedule) const {
    const auto y = bytes(program, schedule);
    std::vector<double> out;
    for (std::int64_t i = 0; i < m * problem.columns_of_y(); ++i) {
      out.push_back(number(y, static_cast<std::size_t>(i)));
    }
    return out;
  }

  /// The expression in double, rounded as y is.
  std::vector<double> exact() const {
    auto y = evaluate(problem, data).y;
    for (double& value : y) value = to_number(problem.formats.y, bits(value));
    return y;
  }

  /// Why `bytes` of y are not right: exactly, or within the bound where sums are not exact, as of
  /// values that a table rounds, or that are far apart, or of gates and functions. "": they are.
  std::string objection_to(const std::vector<std::uint8_t>& bytes) const {
    const auto reference = evaluate(problem, data);
    const bool far_apart =
        problem.weight.element != nullptr && problem.weight.element->exponent_bits > 4;
    const bool rounded = decoding_error(problem) > 0 || far_apart || problem.has_gate() ||
                         problem.activation_function().has_value();
    for (std::size_t i = 0; i < reference.y.size(); ++i) {
      const double value = number(bytes, i);
      const double wanted = to_number(problem.formats.y, bits(reference.y[i]));
      if (std::isnan(value) && std::isnan(wanted)) continue;
      if (value == wanted || (rounded && std::fabs(reference.y[i]) > largest())) continue;
      if (!rounded || !(std::fabs(value - reference.y[i]) <= bound(reference, i))) {
        return joined("y[", i, "] is ", value, ", not ", wanted);
      }
    }
    return "";
  }
  /// The same of what the interpreter gives for y.
  std::string objection_to(const Program& program, const Schedule& schedule) const {
    return objection_to(bytes(program, schedule));
  }

  /// The largest finite y.
  double largest() const {
    return to_number(problem.formats.y, bits(HUGE_VAL) - (problem.has_bytes_of_y() ? 0 : 1));
  }

  /// How far y[i] may be from `reference`: sums in f32, operands of tables rounded, y rounded.
  double bound(const Reference& reference, std::size_t i) const {
    return bound(reference, i, decoding_error(problem));
  }
  /// The same, with operands of that relative error.
  double bound(const Reference& reference, std::size_t i, double operands) const {
    const double sums = 6 * std::sqrt(problem.k) * std::ldexp(1.0, -24) + operands;
    if (problem.has_bytes_of_y()) {
      // Half a code, of e4m3 half of the last bit of three.
      const double half = problem.formats.y == Scalar::s8
                              ? 0.5
                              : std::max(std::ldexp(std::fabs(reference.y[i]), -4), 0x1p-10);
      return (sums + 0x1p-22) * reference.magnitude[i] + half;
    }
    const int significant = problem.activation() == Scalar::f16 ? 11 : 8;
    return sums * reference.magnitude[i] + std::ldexp(std::fabs(reference.y[i]), -significant) +
           std::ldexp(1.0, linear_exponent(problem.activation()));
  }

 private:
  template <class T>
  static Argument input(const std::vector<T>& values) {
    return Argument::input(values.data(), values.size() * sizeof(T));
  }

  Argument weight() const {
    const auto row = (problem.k * problem.weight.bits + 31) / 32;
    std::vector<std::uint32_t> canonical(problem.n * row);
    for (std::int64_t n = 0; n < problem.n; ++n) {
      for (std::int64_t k = 0; k < problem.k; ++k) {
        for (int b = 0; b < problem.weight.bits; ++b) {
          const auto at = k * problem.weight.bits + b;
          canonical[n * row + at / 32] |= (data.codes[n * problem.k + k] >> b & 1u) << at % 32;
        }
      }
    }
    std::vector<std::uint32_t> image(image_words(problem.n, problem.k, problem.weight.bits));
    pack_image(canonical.data(), problem.n, problem.k, problem.weight.bits, 0, image.data());
    return input(image);
  }

  /// x as kernels find it.
  std::vector<std::uint32_t> placed() const {
    if (!problem.has_bytes_of_x()) return data.x;
    std::vector<std::uint32_t> out(data.x.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto column = static_cast<int>(i % static_cast<std::size_t>(problem.k));
      out[i - static_cast<std::size_t>(column) + static_cast<std::size_t>(digit_place(column))] =
          data.x[i];
    }
    return out;
  }

  static Argument packed(const std::vector<std::uint32_t>& values, Scalar scalar) {
    std::vector<std::uint8_t> bytes;
    for (const auto value : values) {
      for (int b = 0; b < bytes_of(scalar); ++b) bytes.push_back(value >> 8 * b & 0xff);
    }
    return input(bytes);
  }

  /// [n, groups] in the order of layout/weight_image.h; 0 beyond n.
  Argument per_group(const std::vector<std::uint32_t>& values, Scalar scalar) const {
    return packed(by_blocks(values, problem.groups(), 1, 0), scalar);
  }
  /// Those of scales, then those of zero points.
  Argument seconds() const {
    const int kinds = problem.weight.seconds();
    std::vector<std::uint32_t> out;
    for (int kind = 0; kind < kinds; ++kind) {
      const auto some = by_blocks(data.seconds, problem.superblocks(), kinds, kind);
      out.insert(out.end(), some.begin(), some.end());
    }
    return packed(out, problem.weight.superblocks->seconds);
  }
  /// [n, groups, kinds] of one kind as kernels read it.
  std::vector<std::uint32_t> by_blocks(const std::vector<std::uint32_t>& values,
                                       std::int64_t groups, int kinds, int kind) const {
    const auto n_blocks = round_up(problem.n, kBlock) / kBlock;
    std::vector<std::uint32_t> out(groups * n_blocks * kBlock);
    for (std::int64_t row = 0; row < problem.n; ++row) {
      for (std::int64_t group = 0; group < groups; ++group) {
        const auto in_block = row % 8 * 8 + row % kBlock / 8;
        out[(group * n_blocks + row / kBlock) * kBlock + in_block] =
            values[(row * groups + group) * kinds + kind];
      }
    }
    return out;
  }
};

/// Schedules of every shape that lowering has, with the smallest layers that they serve.
inline std::vector<std::pair<Problem, DecodeSchedule>> lowered_cases() {
  std::vector<std::pair<Problem, DecodeSchedule>> out;
  const auto add = [&](const Problem& problem, const DecodeSchedule& schedule) {
    if (objection(schedule, decide(problem, device("h200"))).empty())
      out.emplace_back(problem, schedule);
  };
  const auto columns = [](const DecodeSchedule& schedule) {
    return schedule.cta_columns() * (schedule.reduction == Reduction::none ? 1 : 2);
  };
  struct Warps {
    int n, k;
    Weights weights;
  };
  const Warps of_ways[] = {{1, 2, weights::AtOnce{}},
                           {2, 1, weights::DoubleBuffered{.k_tiles = 2}},
                           {1, 1, weights::Ring{.k_tiles = 4, .stages = 2}},
                           {2, 2, weights::Ring{.k_tiles = 3, .stages = 3}},
                           {1, 4, weights::AtOnce{}}};
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (auto route : {Route::multiply_add, Route::in_place}) {
      for (bool dependent : {false, true}) {
        for (const auto& [warps_n, warps_k, weights] : of_ways) {
          const DecodeSchedule schedule{.tokens = 8,
                                        .warps_n = warps_n,
                                        .warps_k = warps_k,
                                        .blocks_per_warp = 1,
                                        .weights = weights,
                                        .reduction = reduction,
                                        .route = route,
                                        .dependent_launch = dependent};
          const Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8,
                                                         schedule.tile_rows(), columns(schedule));
          if (!objection(schedule, decide(problem, device("h200"))).empty()) continue;
          out.emplace_back(problem, schedule);
          if (route == Route::in_place || warps_n != warps_k) continue;
          // A table in shared memory; columns gathered one by one.
          Problem other = problem;
          set_element(other, element("nf4")), other.permuted_columns = true, other.set_bias(true);
          add(other, schedule);
        }
      }
    }
  }
  // Of two warps along K, with k-tiles in register stages.
  const auto staged = [&](const weights::RegisterStages& way, Reduction reduction) {
    return DecodeSchedule{.tokens = 8,
                          .warps_n = 1,
                          .warps_k = 2,
                          .blocks_per_warp = 1,
                          .weights = way,
                          .reduction = reduction};
  };
  // Activations by bulk copy, for a CTA or for the tiles of a cluster.
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (auto [multicast, tiles, by_k_tiles] : {std::tuple{1, 1, false},
                                                {1, 2, false},
                                                {2, 1, false},
                                                {2, 2, false},
                                                {1, 1, true},
                                                {2, 1, true}}) {
      for (bool dependent : {false, true}) {
        auto schedule = staged({.k_tiles = 2, .stages = 1, .tiles_per_cta = tiles}, reduction);
        schedule.m16_tiles = 2, schedule.dependent_launch = dependent;
        schedule.activations =
            activations::BulkCopy{.multicast = multicast, .by_k_tiles = by_k_tiles};
        add(testing::integer_layer(4, 8, 64, Scalar::f16, 8, 192, columns(schedule)), schedule);
      }
    }
  }
  // Several tiles of rows per CTA, register stages, parts of blocks.
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (int tiles : {1, 2, 3}) {
      for (auto [m16_tiles, stages] : {std::array{4, 1}, {4, 2}, {2, 2}}) {
        for (int buffers : {1, 2}) {
          auto schedule = staged({.k_tiles = 2,
                                  .stages = stages,
                                  .tiles_per_cta = tiles,
                                  .reduction_buffers = buffers},
                                 reduction);
          schedule.m16_tiles = m16_tiles, schedule.dependent_launch = tiles == 2;
          add(testing::integer_layer(4, 8, 64, Scalar::f16, 8, 192, columns(schedule)), schedule);
        }
      }
    }
  }
  // Blocks of a k-tile loaded anew one by one.
  for (int tiles : {1, 2}) {
    auto schedule =
        staged({.k_tiles = 4, .stages = 2, .tiles_per_cta = tiles, .block_by_block = true},
               Reduction::none);
    schedule.blocks_per_warp = 2;
    out.emplace_back(testing::integer_layer(4, 8, 128, Scalar::f16, 8, 128, schedule.cta_columns()),
                     schedule);
  }
  // Activations in stages: by a barrier, and by signals; written out, and in a loop; with a ring of
  // weights; with several tiles per CTA.
  using activations::Signalled, activations::Staged;
  const std::pair<Weights, Activations> in_stages[] = {
      {weights::DoubleBuffered{.k_tiles = 3}, Staged{.stages = 2}},
      {weights::DoubleBuffered{.k_tiles = 4}, Signalled{.stages = 3, .consumer_lag = 1}},
      {weights::Ring{.k_tiles = 3, .stages = 2}, Staged{.stages = 2}},
      {weights::Ring{.k_tiles = 4, .stages = 3}, Staged{.stages = 3}},
      {weights::RegisterStages{.k_tiles = 4, .stages = 2}, Staged{.stages = 4}},
      {weights::RegisterStages{.k_tiles = 4, .stages = 2},
       Signalled{.stages = 4, .consumer_lag = 1}},
      {weights::RegisterStages{.k_tiles = 8, .stages = 2},
       Signalled{.stages = 4, .consumer_lag = 2}},
      {weights::RegisterStages{.k_tiles = 10, .stages = 2},
       Signalled{.stages = 4, .consumer_lag = 1}},
      {weights::RegisterStages{.k_tiles = 10, .stages = 2}, Staged{.stages = 2}}};
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (const auto& [weights, activations] : in_stages) {
      DecodeSchedule schedule{.tokens = 8,
                              .warps_n = 2,
                              .warps_k = 2,
                              .blocks_per_warp = 1,
                              .weights = weights,
                              .activations = activations,
                              .reduction = reduction};
      schedule.dependent_launch = schedule.k_tiles() == 8;
      const int stages = schedule.activation_stages();
      const int lag = schedule.signalled() != nullptr ? schedule.signalled()->consumer_lag : 0;
      for (bool gather : {false, true}) {
        // Threads that arrive themselves, not by their copies, say more than is needed.
        if (gather && (lag == 0 ? stages > 2 : lag > 1 || schedule.k_tiles() == stages)) continue;
        Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, schedule.tile_rows(),
                                                 columns(schedule));
        problem.permuted_columns = gather;
        add(problem, schedule);
        if (lag != 1 || gather) continue;
        set_element(problem, element("nf4"));  // no signal orders its table
        add(problem, schedule);
      }
    }
    auto tiles = staged({.k_tiles = 4, .stages = 2, .tiles_per_cta = 3}, reduction);
    tiles.activations = Staged{.stages = 4};
    add(testing::integer_layer(4, 8, 64, Scalar::f16, 8, 192, columns(tiles)), tiles);
  }
  return out;
}

}  // namespace ladder::testing
