// SPDX-License-Identifier: Apache-2.0
#include "expr/reference.h"

#include <cmath>
#include <utility>

namespace ladder {
namespace {

/// a[b, i, k] of one product, [m, k].
std::vector<double> rows_of_a(const Problem& problem, const ProblemData& data, std::int64_t b,
                              std::int64_t m) {
  const auto* form = std::get_if<ImageToColumn>(&problem.rows);
  std::vector<double> out;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t k = 0; k < problem.k; ++k) {
      const auto column = problem.permuted_columns ? data.gather[k] : k;
      const auto at = form != nullptr                ? place_in_a(form->form, b, i, column)
                      : problem.windows() != nullptr ? problem.windows()->place(i, column)
                                                     : (b * m + i) * problem.k + column;
      out.push_back((at < 0 ? 0 : to_number(problem.formats.x, data.x[at])) *
                    (problem.has<ScaleOfToken>() ? data.x_scales[b * m + i] : 1));
    }
  }
  return out;
}

/// Row `row` of all weights of a batch, and the magnitudes of what is added up to it.
void row_of_weight(const Problem& problem, const ProblemData& data, std::int64_t row,
                   std::vector<double>& values, std::vector<double>& magnitudes) {
  const Weight& weight = problem.weight;
  for (std::int64_t k = 0; k < problem.k; ++k) {
    const auto group = k / problem.group_size(), at = row * problem.groups() + group;
    const double scale = weight.scale ? to_number(weight.scale_in_memory(), data.scales[at]) *
                                            data.second_of_group(problem, row, group, false)
                                      : 1;
    const double zero = weight.stored_zero == Zero::none
                            ? 0
                            : to_number(weight.zero_in_memory(), data.zeros[at]) *
                                  (weight.stored_zero == Zero::rescale
                                       ? data.second_of_group(problem, row, group, true)
                                       : scale);
    const double value = scale * value_of(weight, data.codes[row * problem.k + k]);
    values[k] = value - zero;
    magnitudes[k] = weight.stored_zero == Zero::integer ? std::fabs(values[k])
                                                        : std::fabs(value) + std::fabs(zero);
  }
}

/// How much more an error of `gate` is in its function, at most: below 1.2 but for a square.
double slope_of(Gated what, double gate) {
  return what == Gated::relu2 ? 2 * std::fabs(gate) : 1.2;
}
/// A value of a function is so many roundings from right.
constexpr double kRoundings = 8;

/// The function of each sum.
Reference activated(Gated what, Reference sums) {
  for (std::size_t at = 0; at < sums.y.size(); ++at) {
    const double sum = sums.y[at], y = ladder::activated(what, sum);
    sums.y[at] = y;
    sums.magnitude[at] = slope_of(what, sum) * sums.magnitude[at] + kRoundings * std::fabs(y);
  }
  return sums;
}

/// Of sums [.., n] the products of gate and up. An error of a sum is one of the product times the
/// slope of the function or times its value.
Reference gated(const Gating& gating, const Reference& sums, std::int64_t n) {
  Reference out;
  for (std::size_t at = 0; at < sums.y.size(); ++at) {
    if (static_cast<std::int64_t>(at) % n / kGateRows % 2 != 0) continue;
    const double gate = sums.y[at], up = sums.y[at + kGateRows];
    const double y = ladder::gated(gating, gate, up), of_one = ladder::gated(gating, gate, 1.0);
    const double beside = std::fabs(up) + (gating.what == Gated::swiglu_oai ? 1 : 0);
    out.y.push_back(y);
    out.magnitude.push_back(slope_of(gating.what, gate) * sums.magnitude[at] * beside +
                            std::fabs(of_one) * sums.magnitude[at + kGateRows] +
                            kRoundings * std::fabs(y));
  }
  return out;
}

/// The sums, plus the residual where there is one.
Reference with_residual(const Problem& problem, const ProblemData& data, Reference sums) {
  for (std::size_t at = 0; at < sums.y.size() && problem.has_residual(); ++at) {
    const double residual = to_number(problem.formats.y, data.residual[at]);
    sums.y[at] += residual;
    sums.magnitude[at] += std::fabs(residual);
  }
  return sums;
}

/// What becomes codes, by the inverse that kernels have.
Reference with_inverse(float y_scale, Reference results) {
  const double inverse = 1.0f / y_scale;
  for (double& y : results.y) y *= inverse;
  for (double& magnitude : results.magnitude) magnitude *= std::fabs(inverse);
  return results;
}

/// What the steps behind the bias make of the sums.
Reference behind_sums(const Problem& problem, const ProblemData& data, Reference sums) {
  if (const Gating* gate = problem.gate()) return gated(*gate, sums, problem.n);
  const auto what = problem.activation_function();
  return with_residual(problem, data, what ? activated(*what, std::move(sums)) : std::move(sums));
}

}  // namespace

float ProblemData::second_scale(const Problem& problem, std::int64_t row) const {
  if (!problem.has_scale2()) return 1;
  return problem.weight.type.scale2_of_rows ? scale2_of_rows[row] : scale2;
}

double ProblemData::second_of_group(const Problem& problem, std::int64_t row, std::int64_t group,
                                    bool of_zeros) const {
  const auto& superblocks = problem.weight.superblocks;
  if (!superblocks) return 1;
  const auto superblock = group * problem.group_size() / superblocks->columns;
  const auto at = row * problem.superblocks() + superblock;
  return to_number(superblocks->seconds,
                   seconds[at * problem.weight.seconds() + (of_zeros ? 1 : 0)]);
}

Reference evaluate(const Problem& problem, const ProblemData& data) {
  check(problem);
  const auto m = std::holds_alternative<ImageToColumn>(problem.rows) || problem.windows() != nullptr
                     ? problem.m
                     : static_cast<std::int64_t>(data.x.size()) / (problem.batch * problem.k);
  const auto elements = problem.batch * m * problem.n;
  Reference out{std::vector<double>(elements), std::vector<double>(elements)};
  std::vector<double> weight(problem.k), magnitude(problem.k);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::vector<double> a = rows_of_a(problem, data, b, m);
    for (std::int64_t n = 0; n < problem.n; ++n) {
      row_of_weight(problem, data, b * problem.n + n, weight, magnitude);
      const double bias =
          problem.has_bias() ? to_number(problem.formats.bias, data.bias[b * problem.n + n]) : 0;
      const double scale2 = data.second_scale(problem, b * problem.n + n);
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0, total = 0;
        for (std::int64_t k = 0; k < problem.k; ++k) {
          sum += a[i * problem.k + k] * weight[k];
          total += std::fabs(a[i * problem.k + k]) * magnitude[k];
        }
        const auto at = (b * m + i) * problem.n + n;
        out.y[at] = sum * scale2 + bias;
        out.magnitude[at] = total * std::fabs(scale2) + std::fabs(bias);
      }
    }
  }
  out = behind_sums(problem, data, std::move(out));
  return problem.has<Quantise>() ? with_inverse(data.y_scale, std::move(out)) : out;
}

}  // namespace ladder
