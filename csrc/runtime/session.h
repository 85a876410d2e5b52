// SPDX-License-Identifier: Apache-2.0
//
// From a request to a kernel that is ready to start. A session is all that ladder knows of the
// weights of one type and shape and order of columns, and of what activations are rounded to; for
// every device and dtype of activations it has a short table of intervals of M, so that choosing is
// a branch. What is missing is compiled on first use.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/weight_kernels.h"
#include "expr/constructors.h"
#include "layout/image_parts.h"
#include "pipelines/lower.h"
#include "runtime/device_row.h"
#include "runtime/modules.h"
#include "runtime/plan.h"
#include "runtime/rounding.h"
#include "runtime/trial.h"
#include "schedule/placement.h"
#include "types/ttype.h"

namespace ladder {

/// Largest M of each interval that a kernel may serve. More tokens than the last are passes. Where
/// the compiler declines, the weight is dequantised for a dense product.
constexpr std::array<std::int64_t, 24> kTokenIntervals{
    1,   8,   16,  32,  48,  64,   96,   128,  192,  256,  320,  384,
    448, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 3072, 4096, 8192};

static_assert(kTokenIntervals.back() == kMostTokens);

/// The same where activations are of 8 bits: up to kMostTokensAsTheyCome only of x that is codes.
constexpr std::array<std::int64_t, 17> kRoundedIntervals{
    32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192};
constexpr std::size_t kMostIntervals = std::max(kTokenIntervals.size(), kRoundedIntervals.size());
/// So many tokens are not rounded: weights are what such calls wait for, and one more launch would
/// take longer than products of bytes save (benchmarks/results/activations.md).
constexpr std::int64_t kMostTokensAsTheyCome = 48;

constexpr std::span<const std::int64_t> intervals_of(std::optional<RoundedX> rounded) {
  if (rounded) return kRoundedIntervals;
  return kTokenIntervals;
}

/// Where in intervals_of() `m` tokens are served; its size where there is no such interval.
std::size_t interval_of(std::int64_t m, std::optional<RoundedX> rounded = std::nullopt);
/// The most tokens that the kernel for a call of `m` serves, or that each of its passes has.
std::int64_t tokens_of_kernel(std::int64_t m, std::optional<RoundedX> rounded);

/// The most tokens that go through the kernels of fewer, pass by pass, where the compiler has none
/// for as many. Each pass reads the weight; a dense product writes and reads it in 16 bits a code
/// first (benchmarks/results/cuda_runtime.md has where they meet).
constexpr std::int64_t kMostTokensInPasses = 64;

/// Tokens of a pass, the first for which there is a kernel.
constexpr std::array<std::int64_t, 2> kTokensOfPasses{32, 16};

/// What a kernel takes, in the order of its parameters; the number of tokens comes last.
enum class Operand {
  weight,
  scales,
  zeros,
  scale2,
  gather,
  bias,
  x,
  x_scales,
  residual,
  y_scale,
  y,
  workspace,
  counters,
  items,
};
constexpr std::size_t kOperands = 14;

/// A kernel of the linear layer on one device.
struct LinearKernel {
  SharedKernel kernel;           ///< null for a candidate
  std::unique_ptr<Trial> trial;  ///< of a candidate
  Launch launch;                 ///< of one item, where there are such
  std::vector<Operand> operands;
  Workspace workspace;
  std::string schedule;
  std::int64_t items_together = 1;  ///< of one index in the grid's third dimension

  /// False, and nothing started: Session::instead_of has another.
  [[nodiscard]] bool start(void* stream, void** arguments) const {
    return trial == nullptr ? kernel->launch(launch, stream, arguments)
                            : trial->launch(launch, stream, arguments);
  }
};

class Session {
 public:
  /// `gather`: the columns of the image are a permutation of the weight's, which it holds too.
  /// `dependent_launch`: its kernels are those of layers in a chain, where the device has them.
  /// They read the image, not the bias, before the preceding kernels of the stream have ended, so
  /// those must not write it.
  /// `rounded`: activations are rounded to it, but for few tokens; `as_they_come` is then the
  /// session of the same weight that multiplies those, and all else that images need.
  /// `wide`: of rounded activations, y and bias are float32.
  /// `gating`: rows of the weight alternate (kGateRows), and y is the product of gate and up.
  /// `function`: y is that activation function of the sums.
  /// `without_residual`: y has a residual added, and that is the session of the same weight whose y
  /// have none, which does all else that images need.
  /// `quantised`: of rounded activations, y are codes of it, by a scale that the call gives; a bias
  /// is float32 where that is `wide`, else of the dtype of activations.
  /// `alike`: the session of the same weight whose kernels end otherwise, without a residual or in
  /// other numbers, and whose plans serve where this one has none.
  Session(const TType& type, std::int64_t n, std::int64_t k, bool gather, bool dependent_launch,
          std::optional<RoundedX> rounded = std::nullopt, Session* as_they_come = nullptr,
          bool wide = false, const std::optional<Gating>& gating = std::nullopt,
          std::optional<Gated> function = std::nullopt, Session* without_residual = nullptr,
          std::optional<Scalar> quantised = std::nullopt, Session* alike = nullptr);

  const TType& type() const { return type_; }
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  bool gather() const { return gather_; }
  bool dependent_launch() const { return dependent_launch_; }
  std::optional<RoundedX> rounded() const { return rounded_; }
  const std::optional<Gating>& gating() const { return gating_; }
  std::optional<Gated> function() const { return function_; }
  std::int64_t columns_of_y() const { return gating_ ? n_ / 2 : n_; }
  /// The session whose kernels serve a call of `m` tokens: this one, or that of activations as they
  /// come. All functions below take tokens of calls that this session serves itself.
  Session& serving(std::int64_t m) {
    return as_they_come_ != nullptr && m <= kMostTokensAsTheyCome ? *as_they_come_ : *this;
  }
  /// Whether the bias is float32, and y where it is not quantised, not of the dtype of activations.
  bool has_wide_y() const { return wide_; }
  /// The session of the same weight whose y are so, opened by the first call. Of rounded ones.
  Session& wide();
  /// The session of the same weight and bias whose y are codes of s8 or e4m3, opened by the first
  /// call. Of rounded ones.
  Session& quantised(Scalar to);
  std::optional<Scalar> quantised() const { return quantised_; }
  /// Of one element.
  std::int64_t bytes_of_y() const { return quantised_ ? 1 : wide_ ? 4 : 2; }
  /// The session of the same weight whose kernels add a residual, opened by the first call. Throws
  /// Unsupported of a weight of gate and up in turn.
  Session& with_residual();
  bool has_residual() const { return without_residual_ != nullptr; }
  /// Where the image has what.
  const ImageParts& parts() const { return parts_; }

  /// The kernel for `m` tokens, or null when they are to be multiplied densely.
  /// Throws Unsupported when it would have to be compiled while `stream` captures a graph.
  /// Compilers and drivers that fail are a notice (runtime/notices.h), and the dense way.
  const LinearKernel* linear(int ordinal, Scalar activation, std::int64_t m, void* stream);
  /// The kernels of all passes over `m` tokens, or none when they are to be multiplied densely; as
  /// linear().
  struct Passes {
    const LinearKernel* most = nullptr;        ///< of every pass but the last; null: there are none
    const LinearKernel* last = nullptr;        ///< of m % step tokens, where there are any
    std::int64_t step = 0;                     ///< tokens of a pass
    const RoundingKernel* rounding = nullptr;  ///< before them; null: x goes as it comes
  };
  /// What is not `numbers` is for sessions of rounded activations, which serve any number of tokens
  /// of it themselves; `activation` is then that of y.
  Passes passes(int ordinal, Scalar activation, std::int64_t m, void* stream,
                Incoming incoming = Incoming::numbers);
  /// The same for a call that `kernel` did not start: what has taken its place, or, where the
  /// driver refused it, the scheduler's next choice from now on.
  const LinearKernel* instead_of(const LinearKernel& kernel, int ordinal, Scalar activation,
                                 std::int64_t m, void* stream);

  /// Schedules of the interval of `m` that are worth measuring, the best guess first, as
  /// schedules_to_measure (runtime/plan.h) finds and compiles them.
  std::vector<std::string> schedules(int ordinal, Scalar activation, std::int64_t m,
                                     std::size_t count, Deadline deadline = never()) const;
  /// From now on the interval of `m` has the kernel of this schedule, compiled if need be. What it
  /// had before is unloaded, when it has ended and no graph has it, if it was there to be measured.
  /// Throws Unsupported when it is none of the scheduler's, spills, or fits nowhere on the device.
  enum class Purpose { measuring, good };
  void use(int ordinal, Scalar activation, std::int64_t m, const std::string& schedule,
           Purpose purpose);
  /// The schedule that this process or a store has for the interval as the fastest of `measured`
  /// or more, of any number for 0; nothing where there is none.
  std::optional<Schedule> plan(int ordinal, Scalar activation, std::int64_t m,
                               std::int64_t measured = 0);
  /// Has a store hold its kernel, compiled in a process of its own if need be.
  void compile_ahead(int ordinal, Scalar activation, std::int64_t m,
                     const Schedule& schedule) const;
  /// Keeps the fastest of `measured` schedules, here and in a store.
  /// Throws Unsupported when it is none of the scheduler's.
  void keep(int ordinal, Scalar activation, std::int64_t m, const std::string& schedule,
            std::int64_t measured);

  /// Kernels between the canonical form, the image and dense values; arguments as
  /// codegen/weight_kernels.h says. Where compiler or driver refuse one, the
  /// device has failed (runtime/notices.h): ToolchainError, then and for every other.
  enum class Transform { pack, unpack, permute, dequantize_f16, dequantize_bf16, dequantize_f32 };
  const LinearKernel& transform(int ordinal, Transform which, void* stream);
  /// Has a store hold those of `which` that are not loaded, compiled side by side.
  void compile_transforms(int ordinal, std::span<const Transform> which) const;

  /// XORed to codes on their way into the image.
  std::uint32_t flip() const { return flip_of(*type_.element); }
  /// What the image holds beyond n and k: a finite number in every format, since activations are 0
  /// there.
  std::uint32_t pad() const { return 0; }

 private:
  static constexpr int kTransforms = 6;
  using Slot = std::atomic<const LinearKernel*>;

  Slot& slot(int ordinal, Scalar activation, std::int64_t m) {
    return linear_.at(ordinal)[activation == Scalar::bf16][interval_of(m, rounded_)];
  }
  /// The kernel that rounds activations of a call of `m` tokens, or null where compiler or driver
  /// fail: a notice. As linear().
  const RoundingKernel* rounding(int ordinal, Scalar activation, std::int64_t m, void* stream,
                                 Incoming incoming);
  Passes rounded_passes(int ordinal, Scalar activation, std::int64_t m, void* stream,
                        Incoming incoming);
  /// The plan of this process, else a store's, else that of kernels that only end otherwise, which
  /// changes little. `compiling_` is held.
  std::optional<Plan> known_plan(int ordinal, Scalar activation, std::int64_t m);
  /// Products are dependent launches: of a layer in a chain, and of rounded x, which begin beside
  /// the kernel that rounds. That one begins when all before it has ended, so that reading the
  /// image early is safe whatever was before.
  bool in_chain() const { return dependent_launch_ || rounded_.has_value(); }
  /// Of the plan, else of the first choice of the scheduler that compiles without spills and that
  /// the driver does not refuse; declined where there is none.
  const LinearKernel* first_kernel(int ordinal, Scalar activation, std::int64_t m);
  [[noreturn]] void refuse_in_capture(std::int64_t m) const;
  /// For the interval of `m` tokens; throws as expression() does.
  Decisions decided(int ordinal, Scalar activation, std::int64_t m) const;
  const LinearKernel* compile_linear(int ordinal, const Decisions& decisions,
                                     const Schedule& schedule, Purpose purpose);
  /// A kernel of a transform: its text, and what a CTA of it has of the weight.
  struct TransformText {
    std::string source, name;
    ImageTile tile;
    std::int64_t columns = 0;
  };
  TransformText text_of(Transform which) const;
  const LinearKernel* compile_transform(int ordinal, Transform which);
  const LinearKernel* owned(LinearKernel kernel);

  const TType& type_;
  std::int64_t n_, k_;
  bool gather_, dependent_launch_;
  std::optional<RoundedX> rounded_;
  Session* as_they_come_;
  bool wide_;
  std::optional<Gating> gating_;
  std::optional<Gated> function_;
  Session* without_residual_;
  std::optional<Scalar> quantised_;
  Session* alike_;
  std::atomic<Session*> wide_session_{nullptr}, residual_session_{nullptr};
  std::array<std::atomic<Session*>, 2> quantised_sessions_{};  // s8, e4m3
  ImageParts parts_;
  using Interval = std::tuple<int, Scalar, std::size_t>;
  std::mutex compiling_;
  // Never freed: a call may hold one that a slot had a moment ago. Modules go before that
  // (trial.h).
  std::vector<std::unique_ptr<const LinearKernel>> kernels_;
  std::map<Interval, Plan> plans_;
  std::map<Interval, std::set<std::string>> refused_;                    // schedules, by the driver
  std::vector<std::unique_ptr<const RoundingKernel>> rounding_kernels_;  // nor these
  std::array<std::array<std::array<Slot, kMostIntervals>, 2>, kMaxDevices> linear_{};
  using RoundingSlots = std::array<std::array<std::atomic<const RoundingKernel*>, kIncoming>, 2>;
  std::array<RoundingSlots, kMaxDevices> rounding_{};
  std::array<std::array<Slot, kTransforms>, kMaxDevices> transforms_{};
};

/// The kernel of a schedule. Throws Unsupported where it is rejected or fits nowhere on the device,
/// ToolchainError where compiler or driver fail.
LinearKernel compile_kernel(int ordinal, const Decisions& decisions, const Schedule& schedule,
                            Session::Purpose purpose);

/// What the compiler is asked for: the expression of the type, with a bias that may be null, for
/// the interval of `m` tokens. Throws Unsupported with the reason when no kernel multiplies such
/// codes.
Problem expression(const TType& type, std::int64_t n, std::int64_t k, bool gather,
                   Scalar activation, std::int64_t m,
                   std::optional<RoundedX> rounded = std::nullopt, bool wide = false,
                   const std::optional<Gating>& gating = std::nullopt,
                   std::optional<Gated> function = std::nullopt, bool residual = false,
                   std::optional<Scalar> quantised = std::nullopt);

/// Why weights of this type and shape have no kernels on `device` for activations rounded so,
/// whatever their dtype; empty when at least one dtype has.
std::string no_kernels(const TType& type, std::int64_t n, std::int64_t k, bool gather,
                       const Device& device, std::optional<RoundedX> rounded = std::nullopt);
/// The same where no device of the table has kernels, so that none is worth trying.
std::string no_device_rounds(const TType& type, std::int64_t n, std::int64_t k, RoundedX rounded);
/// Throws Unsupported where rounded activations have no schedule on `device`: with what is wrong
/// with the codes, else with what most schedules lack, a property of the type or the device too.
void require_rounded(const Problem& problem, const Device& device);

/// A number that names (type, n, k, gather, dependent_launch, rounded, wide, gating, function,
/// residual, quantised), the same in every process, and its session. Images are the same with and
/// without the last seven.
/// Throws InvalidArgument where activations are rounded for a weight that has no such expression,
/// Unsupported where kernels add no residual to its y.
std::int64_t open_session(const TType& type, std::int64_t n, std::int64_t k, bool gather = false,
                          bool dependent_launch = false,
                          std::optional<RoundedX> rounded = std::nullopt, bool wide = false,
                          const std::optional<Gating>& gating = std::nullopt,
                          std::optional<Gated> function = std::nullopt, bool residual = false,
                          std::optional<Scalar> quantised = std::nullopt);
/// Throws InvalidArgument for a number that this process has not opened.
Session& session(std::int64_t number);

}  // namespace ladder
