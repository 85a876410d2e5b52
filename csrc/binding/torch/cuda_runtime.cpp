// SPDX-License-Identifier: Apache-2.0
// Ops that decide, compile and keep kernels before they are called.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/joined.h"
#include "binding/torch/cuda.h"
#include "codegen/target.h"
#include "layout/weight_image.h"
#include "runtime/compile_ahead.h"
#include "runtime/device_row.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"
#include "runtime/notices.h"

namespace ladder::binding {
namespace {

/// Why no weight has kernels on a device, whatever its type, said once; empty: some may.
std::string device_objection(int ordinal) {
  try {
    const Device& row = device_row(ordinal);
    if (auto why = target_of(row.family).toolchain.objection(row.architecture); !why.empty()) {
      report_failure(ordinal, why);
      return why;
    }
    if (const auto why = no_target(row); !why.empty()) fail<Unsupported>(why);
    image_kernels(gpus());
    return {};
  } catch (const Unsupported& error) {
    // No driver, no row, or nothing is written for such devices: nothing has failed.
    notice(no_kernels_on(ordinal, error.what()));
    return error.what();
  }
}

std::string objection_to(std::string type, std::int64_t n, std::int64_t k, bool gather,
                         std::int64_t device, std::string activation_type) {
  if (n < 1 || k < 1) return "the weight is empty";
  const auto ordinal = static_cast<int>(device);
  try {
    if (auto why = device_failure(ordinal); !why.empty()) return why;
    if (auto why = device_objection(ordinal); !why.empty()) return why;
    return no_kernels(ttype(type), n, k, gather, device_row(ordinal),
                      rounded_called(activation_type));
  } catch (const Unsupported& error) {
    return error.what();
  } catch (const ToolchainError& error) {
    report_failure(ordinal, error.what());
    return error.what();
  }
}

/// Compiles and loads what brings a weight into its image, out of it, and to dense values of
/// `dtype`, so that nothing is brought where it cannot be got out again. Why that fails, or "".
std::string load_transforms(std::int64_t weight, std::int64_t device, ScalarType dtype) {
  Session& session = ladder::session(weight);
  const auto ordinal = static_cast<std::int32_t>(device);
  const Transform dense = activation_of(dtype).dense;
  try {
    void* const stream = current_stream(ordinal);
    const Transform all[] = {Transform::pack, Transform::unpack, dense};
    session.compile_transforms(ordinal, all);
    for (const Transform which : all) {
      session.transform(ordinal, which, stream);
    }
  } catch (const Unsupported& error) {
    return error.what();
  } catch (const ToolchainError& error) {
    return error.what();
  }
  return {};
}

std::string failure_of(std::int64_t device) { return device_failure(static_cast<int>(device)); }

std::int64_t open_weight(std::string type, std::int64_t n, std::int64_t k, bool gather,
                         bool dependent_launch, std::string activation_type, std::string gate,
                         double limit, double alpha, std::string function) {
  const auto applied = function.empty() ? std::nullopt : gated_called(function);
  LADDER_REQUIRE(function.empty() || applied.has_value(), "the activation is \"", function,
                 "\", none that kernels have");
  return open_session(ttype(type), n, k, gather, dependent_launch, rounded_called(activation_type),
                      false, gating_of(gate, limit, alpha), applied);
}

/// What the weight's activations are rounded to, as rounded_called() has it; "": not.
std::string activation_type(std::int64_t weight) {
  return std::string(activation_type_of(ladder::session(weight).rounded()));
}

/// Why no GPU that ladder knows multiplies activations rounded so by such weights; "": some do.
std::string rounding_objection(std::string type, std::int64_t k, std::string activation_type) {
  const auto rounded = rounded_called(activation_type);
  if (!rounded) return {};
  try {
    return no_device_rounds(ttype(type), kBlock, k, *rounded);
  } catch (const Unsupported& error) {  // of any activations
    return error.what();
  }
}

/// Compiles what `m` tokens need, of calls with a residual or without. The schedule of their kernel
/// (of their first pass, where there are several), or "" when they go the dense way.
std::string warm_up(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m,
                    bool residual) {
  Session& of_weight = ladder::session(weight);
  Session& session = (residual ? of_weight.with_residual() : of_weight).serving(m);
  const auto ordinal = static_cast<std::int32_t>(device);
  const Activation as = activation_of(dtype);
  void* const stream = current_stream(ordinal);
  const auto passes = session.passes(ordinal, as.scalar, m, stream);
  if (passes.most != nullptr) return passes.most->schedule;
  session.transform(ordinal, as.dense, stream);
  return {};
}

/// Compiles the kernel that rounds by given scales, and what `m` tokens of it need, of a weight
/// whose activations are rounded.
void warm_scaled(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m) {
  Session& session = ladder::session(weight).serving(m);
  const auto ordinal = static_cast<std::int32_t>(device);
  if (session.rounded()) {
    session.passes(ordinal, activation_of(dtype).scalar, m, current_stream(ordinal),
                   Incoming::scaled_numbers);
  }
}

/// The schedule that this process or a store has for `m` tokens as the fastest of `measured` or
/// more, or ""; a store then has its kernel.
std::string plan(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m,
                 std::int64_t measured) {
  Session& session = ladder::session(weight).serving(m);
  const auto ordinal = static_cast<int>(device);
  const Scalar activation = activation_of(dtype).scalar;
  const auto found = session.plan(ordinal, activation, m, measured);
  if (!found) return {};
  session.compile_ahead(ordinal, activation, m, *found);
  return to_string(*found);
}

/// Schedules worth measuring for `m` tokens, one a line. A store has their kernels, if it can and
/// as far as they were begun within `seconds`; negative: without a limit.
std::string schedules(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m,
                      std::int64_t count, double seconds) {
  Deadline deadline = never();
  if (seconds >= 0) {
    const auto limit = std::chrono::duration<double>(std::min(seconds, 86400.0));
    deadline = std::chrono::steady_clock::now() +
               std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit);
  }
  const auto all = ladder::session(weight).serving(m).schedules(
      static_cast<int>(device), activation_of(dtype).scalar, m, static_cast<std::size_t>(count),
      deadline);
  std::string lines;
  for (const auto& schedule : all) lines += (lines.empty() ? "" : "\n") + schedule;
  return lines;
}

/// Takes the kernel of `schedule` for `m` tokens: to be measured, and unloaded when another takes
/// its place; or with `keep` for good, as the plan, the fastest of `measured`.
void use_schedule(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m,
                  std::string schedule, bool keep, std::int64_t measured) {
  Session& session = ladder::session(weight).serving(m);
  const Scalar activation = activation_of(dtype).scalar;
  session.use(static_cast<int>(device), activation, m, schedule,
              keep ? Session::Purpose::good : Session::Purpose::measuring);
  if (keep) session.keep(static_cast<int>(device), activation, m, schedule, measured);
}

std::int64_t token_interval(std::int64_t m, std::string activation_type) {
  return tokens_of_kernel(m, rounded_called(activation_type));
}

void stop_compiling() { stop_compiling_ahead(); }
/// Where the compiler of the language `target` may be.
void search_directory(std::string target, std::string directory) {
  target_called(target).toolchain.add_directory(std::move(directory));
}

void use_store_folder(std::string folder, bool trust) { use_store(folder, trust); }
std::string notices() { return take_notices(); }

/// Of the user's cache: what is left and gone, "kernels bytes kernels bytes".
std::string clean(std::int64_t unused_seconds, bool all) {
  KernelStore::Cleaning what;
  if (unused_seconds >= 0) what.unused_seconds = unused_seconds;
  if (all) what.unused_seconds = 0;
  what.plans = all;
  const KernelStore::Cleaned done = clean_cache(what);
  return joined(done.kept_kernels, " ", done.kept_bytes, " ", done.removed_kernels, " ",
                done.removed_bytes);
}

std::string cache_folder() { return user_cache_folder(); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def(
      "image_objection(str type, int n, int k, bool gather, int device, "
      "str activation_type=\"\") -> str");
  m.def(
      "open_weight(str type, int n, int k, bool gather, bool dependent_launch, "
      "str activation_type=\"\", str gate=\"\", float limit=0., float alpha=0., "
      "str function=\"\") -> int");
  m.def("activation_type(int weight) -> str");
  m.def("rounding_objection(str type, int k, str activation_type) -> str");
  m.def("warm_up(int weight, int device, ScalarType dtype, int m, bool residual=False) -> str");
  m.def("warm_scaled(int weight, int device, ScalarType dtype, int m) -> ()");
  m.def("plan(int weight, int device, ScalarType dtype, int m, int measured) -> str");
  m.def(
      "schedules(int weight, int device, ScalarType dtype, int m, int count, "
      "float seconds=-1) -> str");
  m.def("stop_compiling_ahead() -> ()");
  m.def(
      "use_schedule(int weight, int device, ScalarType dtype, int m, str schedule, bool keep, "
      "int measured=0) -> ()");
  m.def("token_interval(int m, str activation_type=\"\") -> int");
  m.def("add_compiler_directory(str target, str directory) -> ()");
  m.def("use_store(str folder, bool trust_kernels) -> ()");
  m.def("take_notices() -> str");
  m.def("load_transforms(int weight, int device, ScalarType dtype) -> str");
  m.def("device_failure(int device) -> str");
  m.def("clean_cache(int unused_seconds, bool all) -> str");
  m.def("cache_folder() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("image_objection", TORCH_BOX(&objection_to));
  m.impl("open_weight", TORCH_BOX(&open_weight));
  m.impl("activation_type", TORCH_BOX(&activation_type));
  m.impl("rounding_objection", TORCH_BOX(&rounding_objection));
  m.impl("warm_up", TORCH_BOX(&warm_up));
  m.impl("warm_scaled", TORCH_BOX(&warm_scaled));
  m.impl("plan", TORCH_BOX(&plan));
  m.impl("schedules", TORCH_BOX(&schedules));
  m.impl("stop_compiling_ahead", TORCH_BOX(&stop_compiling));
  m.impl("use_schedule", TORCH_BOX(&use_schedule));
  m.impl("token_interval", TORCH_BOX(&token_interval));
  m.impl("add_compiler_directory", TORCH_BOX(&search_directory));
  m.impl("use_store", TORCH_BOX(&use_store_folder));
  m.impl("take_notices", TORCH_BOX(&notices));
  m.impl("load_transforms", TORCH_BOX(&load_transforms));
  m.impl("device_failure", TORCH_BOX(&failure_of));
  m.impl("clean_cache", TORCH_BOX(&clean));
  m.impl("cache_folder", TORCH_BOX(&cache_folder));
}

}  // namespace ladder::binding
