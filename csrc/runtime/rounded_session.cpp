// SPDX-License-Identifier: Apache-2.0
// What sessions of rounded activations have of their own: which weights and devices have them, the
// kernel that rounds, and passes.
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/target.h"
#include "device/device.h"
#include "pipelines/linear/objection.h"
#include "runtime/gpus.h"
#include "runtime/notices.h"
#include "runtime/session.h"

namespace ladder {

void require_rounded(const Problem& problem, const Device& device) {
  rounding_kernels(target_of(device.family));
  const Decisions decisions = decide(problem, device);
  if (auto why = code_objection(Route::bytes, ScalePlace::usual, decisions); !why.empty()) {
    fail<Unsupported>(why);
  }
  std::map<std::string, int> reasons;
  for (const Candidate& candidate : candidates(decisions)) {
    if (candidate.dropped.empty()) return;
    ++reasons[candidate.dropped];
  }
  const auto most =
      std::ranges::max_element(reasons, {}, [](const auto& reason) { return reason.second; });
  fail<Unsupported>(most == reasons.end() ? "no schedule" : most->first);
}

std::string no_device_rounds(const TType& type, std::int64_t n, std::int64_t k, RoundedX rounded) {
  std::string why;
  for (const Device& device : devices()) {
    if (!no_target(device).empty() || target_of(device).rounding == nullptr) continue;
    if (tile_instruction(rounded.scalar, device) == nullptr) continue;  // says nothing of the type
    std::string of_device;
    for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
      if (tile_instruction(activation, device) == nullptr) continue;
      try {
        require_rounded(expression(type, n, k, false, activation, 1, rounded), device);
        return {};
      } catch (const Unsupported& error) {
        of_device = error.what();
      } catch (const InvalidArgument& error) {
        return error.what();  // of no device
      }
    }
    if (why.empty()) why = of_device;  // of the first
  }
  return why;
}

Session& Session::wide() {
  LADDER_CHECK(rounded_, "sums of activations as they come are rounded");
  if (wide_) return *this;
  Session* found = wide_session_.load(std::memory_order_acquire);
  if (found == nullptr) [[unlikely]] {
    found = &session(open_session(type_, n_, k_, gather_, dependent_launch_, rounded_, true,
                                  gating_, function_, false, quantised_));
    wide_session_.store(found, std::memory_order_release);
  }
  return *found;
}

Session& Session::quantised(Scalar to) {
  LADDER_CHECK(rounded_ && !quantised_, "codes of y of ", rounded_ ? "codes" : "numbers");
  auto& kept = quantised_sessions_.at(to == Scalar::e4m3 ? 1 : 0);
  Session* found = kept.load(std::memory_order_acquire);
  if (found == nullptr) [[unlikely]] {
    found = &session(open_session(type_, n_, k_, gather_, dependent_launch_, rounded_, wide_,
                                  gating_, function_, has_residual(), to));
    kept.store(found, std::memory_order_release);
  }
  return *found;
}

const RoundingKernel* Session::rounding(int ordinal, Scalar activation, std::int64_t m,
                                        void* stream, Incoming incoming) {
  static const RoundingKernel failed{};
  const bool codes = incoming == Incoming::codes;
  const Scalar from = codes ? rounded_->scalar : activation;
  auto& slot = rounding_.at(ordinal)[from == Scalar::bf16][static_cast<std::size_t>(incoming)];
  const RoundingKernel* kernel = slot.load(std::memory_order_acquire);
  if (kernel == nullptr) [[unlikely]] {
    if (gpus().driver.capturing(stream, ordinal)) refuse_in_capture(m);
    const std::lock_guard lock(compiling_);
    kernel = slot.load(std::memory_order_acquire);
    if (kernel == nullptr) {
      const bool chains = device_row(ordinal).dependent_launch();
      const TokenScales whose =
          incoming == Incoming::numbers ? TokenScales::own : TokenScales::given;
      const InChain chain{.waits = dependent_launch_ && chains, .starts = chains};
      try {
        kernel = rounding_kernels_
                     .emplace_back(std::make_unique<const RoundingKernel>(
                         rounding_kernel(ordinal, from, rounded_->scalar, whose, k_, chain)))
                     .get();
      } catch (const ToolchainError& error) {
        notice(joined("activations of ", k_, " columns to ", activation_type_of(rounded_), ": ",
                      first_line(error.what())));
        kernel = &failed;
      }
      slot.store(kernel, std::memory_order_release);
    }
  }
  return kernel == &failed ? nullptr : kernel;
}

Session::Passes Session::rounded_passes(int ordinal, Scalar activation, std::int64_t m,
                                        void* stream, Incoming incoming) {
  if (activation == Scalar::f32) return {};
  const RoundingKernel* const rounding = this->rounding(ordinal, activation, m, stream, incoming);
  if (rounding == nullptr) return {};
  const auto all = intervals_of(rounded_);
  const LinearKernel* most = nullptr;
  std::int64_t step = 0;
  // Fewer tokens at once where the kernels for as many all spill.
  for (auto i = std::min(interval_of(m, rounded_) + 1, all.size()); most == nullptr && i > 0; --i) {
    most = linear(ordinal, activation, step = std::min(m, all[i - 1]), stream);
  }
  if (most == nullptr) return {};
  const std::int64_t rest = m % step;
  const LinearKernel* const last = rest == 0 ? most : linear(ordinal, activation, rest, stream);
  return last == nullptr ? Passes{} : Passes{most, last, step, rounding};
}

}  // namespace ladder
