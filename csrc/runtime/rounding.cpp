// SPDX-License-Identifier: Apache-2.0
#include "runtime/rounding.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "runtime/device_row.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"
#include "runtime/notices.h"

namespace ladder {
namespace {

struct ActivationType {
  std::string_view called;
  RoundedX rounded;
};
constexpr std::array kActivationTypes{
    ActivationType{"int8", Scalar::s8}, ActivationType{"float8_e4m3", Scalar::e4m3},
    ActivationType{"float8_e4m3,fast_accum", {Scalar::e4m3, true}}};

}  // namespace

std::optional<RoundedX> rounded_called(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const auto& [called, rounded] : kActivationTypes)
    if (called == name) return rounded;
  fail<InvalidArgument>("activation_type is \"", name,
                        "\", not int8, float8_e4m3 or float8_e4m3,fast_accum");
}

std::string_view activation_type_of(std::optional<RoundedX> rounded) {
  for (const auto& [called, each] : kActivationTypes)
    if (each == rounded) return called;
  return "";
}

bool RoundingKernel::start(void* stream, void* x, void* out, void* scales, std::int64_t tokens,
                           GivenScales given) const {
  auto count = static_cast<std::uint32_t>(tokens),
       pieces = static_cast<std::uint32_t>(k / kColumnsOfPiece), threads = plan.threads;
  // Kernels of scales of their own do not look at the last two.
  auto each = static_cast<std::uint32_t>(given.each);
  std::array<void*, 8> arguments{&x,      &out,     &scales, &count,
                                 &pieces, &threads, &each,   &given.scales};
  const Launch launch{{static_cast<unsigned>(ceil_div(tokens, std::int64_t{plan.tokens})), 1, 1},
                      plan.threads,
                      0,
                      waits};
  return kernel->launch(launch, stream, arguments.data());
}

RoundingKernel rounding_kernel(int ordinal, Scalar from, Scalar to, TokenScales whose,
                               std::int64_t k, InChain chain) {
  const Device& device = device_row(ordinal);
  const RoundingPlan plan = rounding_plan(k, device.warp);
  const auto* const row = tile_instruction(to, device);
  const Scalar read = row == nullptr ? to : operand_scalar(*row).value();
  const std::string source = rounding_kernels(gpus()).round_tokens(from, read, whose, plan, chain);
  return {load_kernel(source, "round_tokens", ordinal, 0), plan, k, chain.waits};
}

const RoundingKernel* rounding_kernel_alone(int ordinal, Scalar from, Scalar to, TokenScales whose,
                                            std::int64_t k, void* stream) {
  static std::mutex mutex;
  using Key = std::tuple<int, Scalar, Scalar, TokenScales, std::int64_t>;
  static auto& all = *new std::map<Key, std::optional<RoundingKernel>>;  // none: it failed
  const std::lock_guard lock(mutex);
  const Key key{ordinal, from, to, whose, k};
  auto found = all.find(key);
  if (found == all.end()) {
    if (gpus().driver.capturing(stream, ordinal)) {
      fail<Unsupported>("the kernel that rounds ", k,
                        " columns is not compiled, and a CUDA graph is being captured: call it "
                        "once before the capture");
    }
    std::optional<RoundingKernel> made;
    try {
      made = rounding_kernel(ordinal, from, to, whose, k, {.waits = false, .starts = false});
    } catch (const ToolchainError& error) {
      notice(joined("activations of ", k, " columns to ", activation_type_of(to), ": ",
                    first_line(error.what())));
    }
    found = all.emplace(key, std::move(made)).first;
  }
  return found->second ? &*found->second : nullptr;
}

}  // namespace ladder
