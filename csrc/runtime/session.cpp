// SPDX-License-Identifier: Apache-2.0
#include "runtime/session.h"

#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/joined.h"
#include "compile.h"
#include "device/device.h"
#include "layout/weight_image.h"
#include "runtime/gpus.h"
#include "runtime/kernel_key.h"
#include "runtime/kernels.h"
#include "runtime/notices.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

/// In a slot: asked and declined, so that it is not asked again.
const LinearKernel* declined() {
  static const LinearKernel* const mark = reinterpret_cast<const LinearKernel*>(1);
  return mark;
}

/// In a slot: a dense product is the plan, or the scheduler's choice.
const LinearKernel* dense() {
  static const LinearKernel* const mark = reinterpret_cast<const LinearKernel*>(2);
  return mark;
}

/// The kernel in a slot, if there is one.
const LinearKernel* kernel_in(const LinearKernel* slot) {
  return slot == declined() || slot == dense() ? nullptr : slot;
}

// A compiler that fails at one schedule may do others; another one is not likely to mend a driver.
constexpr int kFailures = 2;

}  // namespace

std::size_t interval_of(std::int64_t m, std::optional<RoundedX> rounded) {
  const auto all = intervals_of(rounded);
  std::size_t interval = 0;
  while (interval < all.size() && all[interval] < m) ++interval;
  return interval;
}

std::int64_t tokens_of_kernel(std::int64_t m, std::optional<RoundedX> rounded) {
  if (m <= kMostTokensAsTheyCome) rounded.reset();
  const auto all = intervals_of(rounded);
  const auto interval = interval_of(m, rounded);
  return all[std::min(interval, all.size() - 1)];
}

Problem expression(const TType& type, std::int64_t n, std::int64_t k, bool gather,
                   Scalar activation, std::int64_t m, std::optional<RoundedX> rounded, bool wide,
                   const std::optional<Gating>& gating, std::optional<Gated> function,
                   bool residual, std::optional<Scalar> quantised) {
  const auto all = intervals_of(rounded);
  LADDER_REQUIRE(1 <= m && m <= all.back(), "no kernel serves ", m, " tokens");
  Problem problem = linear_of(type, n, k, activation, all[interval_of(m, rounded)]);
  problem.set_bias(true);
  problem.permuted_columns = gather;
  problem.round_x(rounded);
  problem.widen_y(wide);
  problem.set_gate(gating);
  problem.set_activation_function(function);
  problem.set_residual(residual);
  if (quantised) problem.quantise_y(quantised);
  if (const auto why = refusal(problem); !why.empty()) fail<Unsupported>(why);
  return problem;
}

std::string no_kernels(const TType& type, std::int64_t n, std::int64_t k, bool gather,
                       const Device& device, std::optional<RoundedX> rounded) {
  if (auto why = target_of(device.family).toolchain.objection(device.architecture); !why.empty())
    return why;
  // What packs and decodes images has a tile for each block of rows; other kernels have fewer.
  if (n > kMostTilesOfRows * kBlock) {
    return joined(n, " rows, of at most ", kMostTilesOfRows * kBlock);
  }
  std::string why;
  for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
    try {
      const Problem problem = expression(type, n, k, gather, activation, 1, rounded);
      if (rounded) require_rounded(problem, device);
      compile(problem, device);
      return {};
    } catch (const Unsupported& error) {
      if (why.empty()) why = error.what();
    } catch (const InvalidArgument& error) {  // no such expression
      if (!rounded) throw;
      if (why.empty()) why = error.what();
    }
  }
  return why;
}

Session::Session(const TType& type, std::int64_t n, std::int64_t k, bool gather,
                 bool dependent_launch, std::optional<RoundedX> rounded, Session* as_they_come,
                 bool wide, const std::optional<Gating>& gating, std::optional<Gated> function,
                 Session* without_residual, std::optional<Scalar> quantised, Session* alike)
    : type_(type),
      n_(n),
      k_(k),
      gather_(gather),
      dependent_launch_(dependent_launch),
      rounded_(rounded),
      as_they_come_(as_they_come),
      wide_(wide),
      gating_(gating),
      function_(function),
      without_residual_(without_residual),
      quantised_(quantised),
      alike_(alike),
      // The activations are no part of the image.
      parts_(image_parts(expression(type, n, k, gather, Scalar::f16, 1))) {}

void Session::refuse_in_capture(std::int64_t m) const {
  fail<Unsupported>(
      "the kernel of ", to_string(type_), " [", n_, ", ", k_, "] for ", m, " tokens",
      has_residual() ? " and a residual" : "", quantised_ ? " and codes of y" : "",
      " is not compiled, and a CUDA graph is being captured: call ",
      quantised_       ? "the layer once with as many tokens"
      : has_residual() ? "layer.compile_for(dtype, m, residual=True)"
                       : "ladder.warmup(model, m=...)",
      " before the capture");
}

const LinearKernel* Session::linear(int ordinal, Scalar activation, std::int64_t m, void* stream) {
  const std::size_t interval = interval_of(m, rounded_);
  if (interval == intervals_of(rounded_).size() || activation == Scalar::f32) return nullptr;
  Slot& slot = this->slot(ordinal, activation, m);
  const LinearKernel* kernel = slot.load(std::memory_order_acquire);
  if (kernel == nullptr) [[unlikely]] {
    if (gpus().driver.capturing(stream, ordinal)) refuse_in_capture(m);
    const std::lock_guard lock(compiling_);
    kernel = slot.load(std::memory_order_acquire);
    if (kernel == nullptr) {
      kernel = first_kernel(ordinal, activation, m);
      slot.store(kernel, std::memory_order_release);
    }
  }
  return kernel_in(kernel);
}

Session::Passes Session::passes(int ordinal, Scalar activation, std::int64_t m, void* stream,
                                Incoming incoming) {
  if (rounded_) return rounded_passes(ordinal, activation, m, stream, incoming);
  LADDER_CHECK(incoming == Incoming::numbers, "activations of 8 bits by kernels of 16");
  std::int64_t step = std::min(m, kMostTokens);
  const LinearKernel* most = linear(ordinal, activation, step, stream);
  const bool declines = most == nullptr && m <= kMostTokensInPasses && activation != Scalar::f32 &&
                        slot(ordinal, activation, m).load(std::memory_order_acquire) == declined();
  for (auto fewer = kTokensOfPasses.begin();
       declines && most == nullptr && m <= kMostTokensInPasses && fewer != kTokensOfPasses.end();
       ++fewer) {
    if (*fewer < m) most = linear(ordinal, activation, step = *fewer, stream);
  }
  if (most == nullptr) return {};
  const std::int64_t rest = m % step;
  const LinearKernel* last = rest == 0 ? most : linear(ordinal, activation, rest, stream);
  // Tiles without tokens end at once.
  if (last == nullptr && m > kMostTokens) last = most;
  return last == nullptr ? Passes{} : Passes{most, last, step};
}

const LinearKernel* Session::instead_of(const LinearKernel& kernel, int ordinal, Scalar activation,
                                        std::int64_t m, void* stream) {
  Slot& slot = this->slot(ordinal, activation, m);
  const std::lock_guard lock(compiling_);
  const LinearKernel* now = slot.load(std::memory_order_acquire);
  if (now == &kernel) {
    if (gpus().driver.capturing(stream, ordinal)) refuse_in_capture(m);
    refused_[{ordinal, activation, interval_of(m, rounded_)}].insert(kernel.schedule);
    now = first_kernel(ordinal, activation, m);
    slot.store(now, std::memory_order_release);
    if (kernel.trial != nullptr) kernel.trial->lose();
  }
  return kernel_in(now);
}

std::optional<Plan> Session::known_plan(int ordinal, Scalar activation, std::int64_t m) {
  const Interval interval{ordinal, activation, interval_of(m, rounded_)};
  if (const auto known = plans_.find(interval); known != plans_.end()) return known->second;
  const auto stored = plan_of(decided(ordinal, activation, m), in_chain());
  if (stored) plans_.insert_or_assign(interval, *stored);
  if (stored || alike_ == nullptr) return stored;
  const std::lock_guard lock(alike_->compiling_);
  return alike_->known_plan(ordinal, activation, m);
}

namespace {

/// Turing has no arithmetic of bfloat16, which many models come in: that costs so much that it is
/// said.
bool multiplies(int ordinal, Scalar activation) {
  const Device& device = device_row(ordinal);
  if (tile_instruction(activation, device) != nullptr) return true;
  notice(joined("cuda:", ordinal, " (", device.name, ") has no instruction that multiplies ",
                element_of(activation).name,
                ": weights are dequantised in each call with such activations, which float16 ones "
                "avoid"));
  return false;
}

}  // namespace

const LinearKernel* Session::first_kernel(int ordinal, Scalar activation, std::int64_t m) {
  if (!multiplies(ordinal, activation)) return declined();
  int failures = 0;
  const auto& refused = refused_[{ordinal, activation, interval_of(m, rounded_)}];
  try {
    const Decisions decisions = decided(ordinal, activation, m);
    const auto kernel_of = [&](const Schedule& schedule) -> const LinearKernel* {
      if (is_dense(schedule)) return dense();
      if (failures == kFailures || refused.contains(to_string(schedule))) return nullptr;
      try {
        return compile_linear(ordinal, decisions, schedule, Purpose::good);
      } catch (const Unsupported&) {
        // It is rejected, or only emitting or the driver shows that the device cannot have it: the
        // next one.
      } catch (const ToolchainError& error) {
        // What is wrong with the compiler or the driver is not told to every call.
        notice(joined(to_string(type_), " [", n_, ", ", k_, "], up to ",
                      intervals_of(rounded_)[interval_of(m, rounded_)],
                      " tokens: ", first_line(error.what())));
        ++failures;
      }
      return nullptr;
    };
    if (const auto plan = known_plan(ordinal, activation, m)) {
      if (const LinearKernel* kernel = kernel_of(plan->schedule)) return kernel;
    }
    const auto choices = schedules_to_try(decisions, in_chain());
    for (const Schedule& schedule : choices) {
      // Where the kernels that are expected to be faster all spill, passes of fewer tokens may do.
      if (is_dense(schedule) && schedule != choices.front()) break;
      if (const LinearKernel* kernel = kernel_of(schedule)) return kernel;
    }
  } catch (const Unsupported&) {
    // No kernel serves the expression.
  }
  return declined();
}

Decisions Session::decided(int ordinal, Scalar activation, std::int64_t m) const {
  return decide(expression(type_, n_, k_, gather_, activation, m, rounded_, wide_, gating_,
                           function_, has_residual(), quantised_),
                device_row(ordinal));
}

std::vector<std::string> Session::schedules(int ordinal, Scalar activation, std::int64_t m,
                                            std::size_t count, Deadline deadline) const {
  std::vector<std::string> out;
  for (const Schedule& schedule :
       schedules_to_measure(decided(ordinal, activation, m), in_chain(), count, deadline)) {
    out.push_back(to_string(schedule));
  }
  return out;
}

namespace {

Schedule required(const std::string& text, const Decisions& decisions, bool dependent_launch) {
  const auto schedule = schedule_called(text, decisions, dependent_launch);
  if (!schedule) {
    fail<Unsupported>("the scheduler has no \"", text, "\" for ", to_string(decisions.problem));
  }
  return *schedule;
}

}  // namespace

void Session::use(int ordinal, Scalar activation, std::int64_t m, const std::string& text,
                  Purpose purpose) {
  const Decisions decisions = decided(ordinal, activation, m);
  const Schedule schedule = required(text, decisions, in_chain());
  {
    const std::lock_guard lock(compiling_);
    const LinearKernel* const kernel =
        is_dense(schedule) ? dense() : compile_linear(ordinal, decisions, schedule, purpose);
    const LinearKernel* const before =
        kernel_in(slot(ordinal, activation, m).exchange(kernel, std::memory_order_acq_rel));
    if (before != nullptr && before->trial != nullptr) {
      before->trial->lose();
    }
  }
  unload_losers();
}

std::optional<Schedule> Session::plan(int ordinal, Scalar activation, std::int64_t m,
                                      std::int64_t measured) {
  const std::lock_guard lock(compiling_);
  auto known = known_plan(ordinal, activation, m);
  if (!known || known->measured < measured) return std::nullopt;
  return known->schedule;
}

void Session::compile_ahead(int ordinal, Scalar activation, std::int64_t m,
                            const Schedule& schedule) const {
  if (is_dense(schedule)) return;
  compile_missing({compile(decided(ordinal, activation, m), schedule).source}, device_row(ordinal));
}

void Session::keep(int ordinal, Scalar activation, std::int64_t m, const std::string& text,
                   std::int64_t measured) {
  const Decisions decisions = decided(ordinal, activation, m);
  const Schedule schedule = required(text, decisions, in_chain());
  keep_plan(plan_key(decisions.problem, *decisions.device, in_chain()), {text, measured});
  const std::lock_guard lock(compiling_);
  plans_.insert_or_assign({ordinal, activation, interval_of(m, rounded_)},
                          Plan{schedule, measured});
}

Session& Session::with_residual() {
  if (has_residual()) return *this;
  Session* found = residual_session_.load(std::memory_order_acquire);
  if (found == nullptr) [[unlikely]] {
    found = &session(open_session(type_, n_, k_, gather_, dependent_launch_, rounded_, wide_,
                                  gating_, function_, true, quantised_));
    residual_session_.store(found, std::memory_order_release);
  }
  return *found;
}

const LinearKernel& Session::transform(int ordinal, Transform which, void* stream) {
  if (as_they_come_ != nullptr) return as_they_come_->transform(ordinal, which, stream);
  if (has_residual()) return without_residual_->transform(ordinal, which, stream);
  Slot& slot = transforms_.at(ordinal)[static_cast<std::size_t>(which)];
  const LinearKernel* kernel = slot.load(std::memory_order_acquire);
  if (kernel == nullptr) [[unlikely]] {
    if (gpus().driver.capturing(stream, ordinal)) {
      fail<Unsupported>("a kernel that brings weights of ", to_string(type_), " [", n_, ", ", k_,
                        "] to another form is not compiled, and a CUDA graph is being captured: "
                        "call ladder.warmup(model, m=...), or the layer once, before the capture");
    }
    const std::lock_guard lock(compiling_);
    kernel = slot.load(std::memory_order_acquire);
    if (kernel == nullptr) {
      if (const auto why = device_failure(ordinal); !why.empty()) fail<ToolchainError>(why);
      try {
        kernel = compile_transform(ordinal, which);
      } catch (const ToolchainError& error) {
        report_failure(ordinal, error.what());
        throw;
      }
      slot.store(kernel, std::memory_order_release);
    }
  }
  return *kernel;
}

namespace {

std::shared_mutex sessions_mutex;
/// Never destroyed: the driver may be gone before, with the modules that kernels would unload.
std::unordered_map<std::int64_t, std::unique_ptr<Session>>& sessions() {
  static auto& all = *new std::unordered_map<std::int64_t, std::unique_ptr<Session>>;
  return all;
}

}  // namespace

std::int64_t open_session(const TType& type, std::int64_t n, std::int64_t k, bool gather,
                          bool dependent_launch, std::optional<RoundedX> rounded, bool wide,
                          const std::optional<Gating>& gating, std::optional<Gated> function,
                          bool residual, std::optional<Scalar> quantised) {
  LADDER_REQUIRE(n > 0 && k > 0, "a weight of [", n, ", ", k, "] has no kernels");
  Session *as_they_come = nullptr, *without_residual = nullptr, *alike = nullptr;
  LADDER_CHECK(!quantised || rounded, "y of ", name_of(*quantised), " of activations as they come");
  if (rounded || gating || function || residual) {
    check(expression(type, n, k, gather, Scalar::f16, 1, rounded, wide, gating, function, residual,
                     quantised));
  }
  if (rounded) {
    as_they_come = &session(open_session(type, n, k, gather, dependent_launch, std::nullopt, false,
                                         gating, function, residual));
  }
  if (residual) {
    alike = without_residual = &session(
        open_session(type, n, k, gather, dependent_launch, rounded, wide, gating, function));
  } else if (quantised || wide) {
    alike = &session(open_session(type, n, k, gather, dependent_launch, rounded,
                                  wide && quantised.has_value(), gating, function));
  }
  const auto number = number_of(joined(
      to_string(type), "|", n, "|", k, gather ? "|gather" : "",
      dependent_launch ? "|dependent launch" : "", rounded ? "|activations of " : "",
      activation_type_of(rounded), wide ? "|y of float32" : "",
      gating ? "|gate " + to_string(*gating) : "",
      function ? joined("|then ", name_of(*function)) : "", residual ? "|plus a residual" : "",
      quantised ? joined("|codes of ", name_of(*quantised)) : ""));
  const std::unique_lock lock(sessions_mutex);
  auto& slot = sessions()[number];
  if (slot == nullptr) {
    slot = std::make_unique<Session>(type, n, k, gather, dependent_launch, rounded, as_they_come,
                                     wide, gating, function, without_residual, quantised,
                                     alike);
  }
  LADDER_CHECK(slot->n() == n && slot->k() == k && slot->type() == type &&
                   slot->gather() == gather && slot->dependent_launch() == dependent_launch &&
                   slot->rounded() == rounded && slot->has_wide_y() == wide &&
                   slot->gating() == gating && slot->function() == function &&
                   slot->has_residual() == residual && slot->quantised() == quantised,
               "two weights are called ", number);
  return number;
}

Session& session(std::int64_t number) {
  // On the path of every call: no lock for a weight that this thread asked for lately. Sessions
  // live as long as the process.
  struct Recent {
    std::int64_t number;
    Session* session;
  };
  thread_local std::array<Recent, 16> recents{};
  Recent& recent = recents[static_cast<std::uint64_t>(number) % recents.size()];
  if (recent.session != nullptr && recent.number == number) return *recent.session;
  const std::shared_lock lock(sessions_mutex);
  const auto found = sessions().find(number);
  LADDER_REQUIRE(found != sessions().end(), "no weight has the number ", number,
                 " in this process: call ladder.warmup on the model first");
  recent = {number, found->second.get()};
  return *recent.session;
}

}  // namespace ladder
