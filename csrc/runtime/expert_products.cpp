// SPDX-License-Identifier: Apache-2.0
#include "runtime/expert_products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "compile.h"
#include "pipelines/linear/raster.h"
#include "runtime/gpus.h"
#include "runtime/in_parallel.h"
#include "runtime/kernels.h"
#include "runtime/notices.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

// A compiler that fails at one schedule may do others, as in a session.
constexpr int kFailures = 2;
// Choices of a product that are compiled ahead, one after the other, until one is not rejected.
constexpr std::size_t kTriesAhead = 4;

// Where devices have it: kernels of items read nothing before their wait, so that only their launch
// overlaps the preceding kernel.
constexpr bool kDependent = true;

/// Kernels of all numbers of rows up to a power of two are the same.
std::int64_t counted(std::int64_t rows) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

std::string_view name_of(const ExpertProducts::Question& q) {
  switch (q.items) {
    case ItemsOf::experts: return "experts of";
    case ItemsOf::batch: return "a batch of";
    case ItemsOf::windows: return "a convolution of";
  }
  return "?";
}

// Of how much some experts of a layer are chosen more often than others, the coefficient of
// variation. Routers of trained models favour some, and those of tuning do as these
// (ladder/cuda/tune_experts.py).
constexpr double kFavour = 0.5;

/// Items of a router that favours experts at random: the rows of one have a negative binomial
/// distribution. The mean, and the standard deviation where the rows of all experts are known.
struct Expected {
  double mean, deviation;
};
Expected expected_items(std::int64_t rows, std::int64_t experts, std::int64_t of_item) {
  if (experts == 1) return {static_cast<double>(ceil_div(rows, of_item)), 0};
  const double mean = static_cast<double>(rows) / static_cast<double>(experts);
  const double shape = 1 / (kFavour * kFavour), spread = mean + mean * mean / shape;
  const auto last = std::min(static_cast<std::int64_t>(mean + 20 * std::sqrt(spread) + 20), rows);
  double all = 0, items = 0, squares = 0, with_rows = 0;
  for (std::int64_t c = 0; c <= last; ++c) {
    const double count = static_cast<double>(c);
    const double likely = std::exp(
        std::lgamma(count + shape) - std::lgamma(shape) - std::lgamma(count + 1) +
        shape * std::log(shape / (shape + mean)) + count * std::log(mean / (shape + mean)));
    const auto of_expert = static_cast<double>(ceil_div(c, of_item));
    all += likely;
    items += likely * of_expert, squares += likely * of_expert * of_expert;
    with_rows += likely * of_expert * count;
  }
  items /= all, squares /= all, with_rows /= all;    // few rows end before the distribution does
  const double together = with_rows - items * mean;  // covariance of items and rows
  const double variance = squares - items * items - together * together / spread;
  const auto n = static_cast<double>(experts);
  return {n * items, std::sqrt(n * std::max(variance, 0.0))};
}

}  // namespace

std::int64_t most_items(std::int64_t rows, std::int64_t experts, std::int64_t of_item) {
  return round_up(std::min(rows, experts) + rows / of_item, items_together(of_item));
}

bool ExpertProducts::Question::operator<(const Question& other) const {
  const auto key = [](const Question& q) {
    return std::tuple(q.ordinal, q.activation, q.experts, q.of_item, counted(q.rows), q.items,
                      q.windows, q.residual);
  };
  return key(*this) < key(other);
}

/// Of a batch or of windows.
Problem ExpertProducts::equal_items(const Question& q) const {
  Problem problem =
      q.windows ? windows_of(*q.windows, session_.type(), session_.n(), q.activation, q.of_item)
                : batched_of(session_.type(), q.experts, session_.n(), session_.k(), q.activation,
                             q.of_item);
  LADDER_REQUIRE(problem.k == session_.k(), "windows have ", problem.k, " numbers, and the weight ",
                 session_.k(), " columns");
  problem.passes = ceil_div(counted(q.rows), q.of_item);
  problem.set_bias(true);
  problem.permuted_columns = session_.gather();
  problem.round_x(session_.rounded());
  problem.set_residual(q.residual);
  return problem;
}

Decisions ExpertProducts::decided(const Question& q) const {
  if (q.items != ItemsOf::experts) return decide(equal_items(q), device_row(q.ordinal));
  const Expected items = expected_items(counted(q.rows), q.experts, q.of_item);
  Problem problem = experts_of(session_.type(), session_.n(), session_.k(), q.activation, q.of_item,
                               {.items = std::max(std::llround(items.mean), 1LL),
                                .deviation = std::llround(items.deviation),
                                .bytes = 4 * session_.parts().words});
  problem.set_bias(true);
  problem.permuted_columns = session_.gather();
  problem.round_x(session_.rounded());
  problem.set_gate(session_.gating());
  problem.set_activation_function(session_.function());
  return decide(problem, device_row(q.ordinal));
}

const ExpertProducts::Choices& ExpertProducts::choices(const Question& q) const {
  {
    const std::lock_guard lock(choosing_);
    const auto found = chosen_.find(q);
    if (found != chosen_.end()) return found->second;
  }
  Choices out{{}, std::numeric_limits<double>::infinity()};
  try {
    auto all = candidates(decided(q), kDependent);
    if (!all.empty() && all.front().dropped.empty()) {
      out.seconds = all.front().cost.seconds;
      out.schedules = schedules_to_try(std::move(all));
    }
  } catch (const Unsupported&) {
    // No kernel serves so many rows.
  }
  const std::lock_guard lock(choosing_);
  return chosen_.try_emplace(q, std::move(out)).first->second;
}

double ExpertProducts::expected_seconds(const Question& q) const { return choices(q).seconds; }

std::vector<Schedule> ExpertProducts::to_try(const Question& q, const Decisions& decisions) const {
  auto schedules = choices(q).schedules;
  auto plan = plan_of(decisions, kDependent);
  if (!plan && q.residual) {  // one more operand of y's size changes little
    Question without = q;
    without.residual = false;
    plan = plan_of(decided(without), kDependent);
  }
  if (!plan) return schedules;
  std::erase(schedules, plan->schedule);
  schedules.insert(schedules.begin(), plan->schedule);
  return schedules;
}

const LinearKernel* ExpertProducts::first_kernel(const Question& q) {
  int failures = 0;
  try {
    const Decisions decisions = decided(q);
    for (const Schedule& schedule : to_try(q, decisions)) {
      if (failures == kFailures || refused_[q].contains(to_string(schedule))) continue;
      try {
        owned_.push_back(std::make_unique<const LinearKernel>(
            compile_kernel(q.ordinal, decisions, schedule, Session::Purpose::good)));
        return owned_.back().get();
      } catch (const Unsupported&) {
        // It is rejected, or the device cannot have it: the next one.
      } catch (const ToolchainError& error) {
        notice(joined(name_of(q), " ", to_string(session_.type()), " [", session_.n(), ", ",
                      session_.k(), "], up to ", q.of_item, " rows: ", first_line(error.what())));
        ++failures;
      }
    }
  } catch (const Unsupported&) {
    // No kernel serves the expression.
  }
  return nullptr;
}

void ExpertProducts::refuse_in_capture(const Question& q, void* stream) const {
  if (!gpus().driver.capturing(stream, q.ordinal)) return;
  fail<Unsupported>("the kernel of ", name_of(q), " ", to_string(session_.type()), " [",
                    session_.n(), ", ", session_.k(), "] for ", q.rows,
                    " rows is not compiled, and a CUDA graph is being captured: call the layer "
                    "once with as many tokens before the capture");
}

const LinearKernel* ExpertProducts::kernel(const Question& q, void* stream) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = kernels_.find(q);
    if (found != kernels_.end()) return found->second;
  }
  refuse_in_capture(q, stream);
  const std::lock_guard compiling(compiling_);
  {
    const std::shared_lock lock(mutex_);
    const auto found = kernels_.find(q);
    if (found != kernels_.end()) return found->second;
  }
  const LinearKernel* const kernel = first_kernel(q);
  const std::unique_lock lock(mutex_);
  return kernels_[q] = kernel;
}

const LinearKernel* ExpertProducts::instead_of(const LinearKernel& kernel, const Question& q,
                                               void* stream) {
  refuse_in_capture(q, stream);
  const std::lock_guard compiling(compiling_);
  const LinearKernel* now = nullptr;
  {
    const std::shared_lock lock(mutex_);
    now = kernels_[q];
  }
  if (now != &kernel) return now;
  refused_[q].insert(kernel.schedule);
  now = first_kernel(q);
  const std::unique_lock lock(mutex_);
  return kernels_[q] = now;
}

bool ExpertProducts::has_plan(const Question& q, std::int64_t measured) const {
  const auto plan = plan_of(decided(q), kDependent);
  return plan && plan->measured >= measured;
}

void ExpertProducts::use(const Question& q, const std::string& text, std::int64_t measured) {
  const Decisions decisions = decided(q);
  const auto schedule = schedule_called(text, decisions, kDependent);
  if (!schedule) {
    fail<Unsupported>("the scheduler has no \"", text, "\" for ", to_string(decisions.problem));
  }
  const std::lock_guard compiling(compiling_);
  owned_.push_back(std::make_unique<const LinearKernel>(
      compile_kernel(q.ordinal, decisions, *schedule, Session::Purpose::good)));
  if (measured > 0) {
    keep_plan(plan_key(decisions.problem, *decisions.device, kDependent), {text, measured});
  }
  const std::unique_lock lock(mutex_);
  kernels_[q] = owned_.back().get();
}

std::vector<std::string> ExpertProducts::schedules(const Question& q, std::size_t count) const {
  std::vector<std::string> out;
  for (const Schedule& schedule : schedules_to_measure(decided(q), kDependent, count)) {
    out.push_back(to_string(schedule));
  }
  return out;
}

std::string ExpertProducts::first_source(const Question& q) const {
  try {
    const Decisions decisions = decided(q);
    for (const Schedule& schedule : to_try(q, decisions)) {
      try {
        auto source = compile(decisions, schedule).source;
        if (!known_to_be_rejected(source, *decisions.device)) return source;
      } catch (const Unsupported&) {
        // Only emitting shows some of the limits of a device.
      }
    }
  } catch (const Unsupported&) {
    // No kernel serves the expression.
  }
  return {};
}

void compile_ahead(const ExpertProducts& first, const ExpertProducts& second,
                   ExpertProducts::Question question, std::span<const std::int64_t> rows) {
  const ExpertProducts* const products[] = {&first, &second};
  std::vector<ExpertProducts::Question> questions;
  for (const std::int64_t of_all : rows) {
    for (const std::int64_t of_item : kItemRows) {
      questions.push_back(question);
      questions.back().rows = of_all, questions.back().of_item = of_item;
    }
  }
  in_parallel(2 * questions.size(),
              [&](std::size_t i) { products[i % 2]->expected_seconds(questions[i / 2]); });
  questions.clear();
  for (const std::int64_t of_all : rows) {
    question.rows = of_all;
    const auto of_items = rows_of_items(first, second, question);
    if (of_items.empty()) continue;
    questions.push_back(question);
    questions.back().of_item = of_items.front();
  }
  // What turns out to be rejected is followed by the next choices, several at a time, too.
  std::set<std::string> asked;
  for (std::size_t tries = 0; tries < kTriesAhead; ++tries) {
    std::vector<std::string> texts(2 * questions.size());
    in_parallel(texts.size(),
                [&](std::size_t i) { texts[i] = products[i % 2]->first_source(questions[i / 2]); });
    std::set<std::string> sources(texts.begin(), texts.end());
    sources.erase("");
    std::erase_if(sources, [&](const std::string& text) { return !asked.insert(text).second; });
    if (sources.empty()) break;
    compile_missing({sources.begin(), sources.end()}, device_row(question.ordinal));
  }
}

namespace {

/// Rows of items, those first that are expected to take least; none where that is infinite.
template <class Seconds>
std::vector<std::int64_t> by_time(const Seconds& seconds) {
  std::vector<std::pair<double, std::int64_t>> all;
  for (const std::int64_t of_item : kItemRows) {
    const double expected = seconds(of_item);
    if (std::isfinite(expected)) all.emplace_back(expected, of_item);
  }
  std::ranges::sort(all);
  std::vector<std::int64_t> out;
  for (const auto& [expected, of_item] : all) out.push_back(of_item);
  return out;
}

}  // namespace

std::vector<std::int64_t> rows_of_items(const ExpertProducts& first, const ExpertProducts& second,
                                        ExpertProducts::Question q) {
  return by_time([&](std::int64_t of_item) {
    q.of_item = of_item;
    return first.expected_seconds(q) + second.expected_seconds(q);
  });
}

std::int64_t rows_of_items(std::int64_t weight, ExpertProducts::Question q, void* stream) {
  static std::mutex mutex;
  static auto& known =
      *new std::map<std::pair<std::int64_t, ExpertProducts::Question>, std::int64_t>;
  q.of_item = 0;
  {
    const std::lock_guard lock(mutex);
    const auto found = known.find({weight, q});
    if (found != known.end()) return found->second;
  }
  ExpertProducts& products = expert_products(weight);
  const auto of_items = by_time([&](std::int64_t of_item) {
    q.of_item = of_item;
    return products.expected_seconds(q);
  });
  std::int64_t out = 0;
  for (const std::int64_t of_item : of_items) {
    q.of_item = of_item;
    if (products.kernel(q, stream) == nullptr) continue;
    out = of_item;
    break;
  }
  q.of_item = 0;
  const std::lock_guard lock(mutex);
  return known.try_emplace({weight, q}, out).first->second;
}

ExpertProducts& expert_products(std::int64_t weight) {
  static std::mutex mutex;
  // Never destroyed, as sessions are not.
  static auto& all = *new std::unordered_map<std::int64_t, std::unique_ptr<ExpertProducts>>;
  Session& of = session(weight);
  const std::lock_guard lock(mutex);
  auto& slot = all[weight];
  if (slot == nullptr) slot = std::make_unique<ExpertProducts>(of);
  return *slot;
}

}  // namespace ladder
