// SPDX-License-Identifier: Apache-2.0
// What a session compiles: kernels of the linear layer, and between the forms of a weight.
#include <utility>

#include "base/error.h"
#include "base/integers.h"
#include "compile.h"
#include "layout/weight_image.h"
#include "runtime/gpus.h"
#include "runtime/kernel_key.h"
#include "runtime/kernels.h"
#include "runtime/modules.h"
#include "runtime/notices.h"
#include "runtime/session.h"

namespace ladder {
namespace {

Operand operand_called(const std::string& name) {
  constexpr const char* kNames[] = {"weight", "scales",    "zeros",    "scale2",   "gather",
                                    "bias",   "x",         "x_scales", "residual", "y_scale",
                                    "y",      "workspace", "counters", "items"};
  static_assert(std::size(kNames) == kOperands);
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Operand>(i);
  }
  fail<Unsupported>("a kernel wants ", name, ", which a session has not");
}

}  // namespace

const LinearKernel* Session::owned(LinearKernel kernel) {
  return kernels_.emplace_back(std::make_unique<const LinearKernel>(std::move(kernel))).get();
}

const LinearKernel* Session::compile_linear(int ordinal, const Decisions& decisions,
                                            const Schedule& schedule, Purpose purpose) {
  return owned(compile_kernel(ordinal, decisions, schedule, purpose));
}

LinearKernel compile_kernel(int ordinal, const Decisions& decisions, const Schedule& schedule,
                            Session::Purpose purpose) {
  const Compiled compiled = unverified(decisions, schedule);
  const Program& program = compiled.program;
  const auto [splits, tiles] = program.grid();
  const auto shared = static_cast<unsigned>(program.shared_bytes());
  std::vector<Operand> operands;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.level == Level::global) operands.push_back(operand_called(buffer.name));
  }
  const int registers = program.roles ? program.roles->registers(program.threads) : 0;
  SharedKernel kernel = load_kernel(
      compiled.source, program.name, ordinal, shared, ceil_div(registers, program.block_threads()),
      [&] { verify(program, decisions.device->shared_per_block_bytes); });
  const Launch launch{{static_cast<unsigned>(splits), static_cast<unsigned>(tiles), 1},
                      static_cast<unsigned>(program.block_threads()),
                      shared,
                      program.dependent_launch};
  // The row knows what whole multiprocessors hold; of this very kernel only the driver does.
  if (program.cluster > 1 && kernel->resident_clusters(launch) == 0) {
    fail<Unsupported>(program.name, ": a cluster of ", program.cluster, " blocks with ", shared,
                      " bytes of shared memory fits nowhere on ", device_row(ordinal).name);
  }
  auto trial = purpose == Session::Purpose::measuring
                   ? std::make_unique<Trial>(std::exchange(kernel, nullptr), ordinal)
                   : nullptr;
  return {std::move(kernel),
          std::move(trial),
          launch,
          std::move(operands),
          workspace_of(decisions.problem, schedule),
          to_string(schedule),
          program.items ? program.items->together : 1};
}

Session::TransformText Session::text_of(Transform which) const {
  const ImageKernels& kernels = image_kernels(gpus());
  const int bits = type_.element->bits;
  const auto dequantize = [&](Scalar out) { return kernels.dequantize(Weight(type_), out); };
  TransformText out{"", "dequantize", kernels.dequantize_tile(bits)};
  switch (which) {
    case Transform::pack: out = {kernels.pack(bits), "pack", kernels.pack_tile(bits)}; break;
    case Transform::unpack: out = {kernels.unpack(bits), "unpack", kernels.pack_tile(bits)}; break;
    case Transform::permute:
      out = {kernels.permute(bits), "permute", out.tile};
      out.tile.threads = 256;
      out.columns = 256 * 32 / bits;  // what 256 words begin
      break;
    case Transform::dequantize_f16: out.source = dequantize(Scalar::f16); break;
    case Transform::dequantize_bf16: out.source = dequantize(Scalar::bf16); break;
    case Transform::dequantize_f32: out.source = dequantize(Scalar::f32); break;
  }
  if (out.columns == 0) out.columns = kBlock * out.tile.blocks;
  return out;
}

void Session::compile_transforms(int ordinal, std::span<const Transform> which) const {
  if (as_they_come_ != nullptr) return as_they_come_->compile_transforms(ordinal, which);
  if (has_residual()) return without_residual_->compile_transforms(ordinal, which);
  if (!device_failure(ordinal).empty()) return;
  std::vector<std::string> sources;
  for (const Transform each : which) {
    const Slot& slot = transforms_.at(ordinal)[static_cast<std::size_t>(each)];
    if (slot.load(std::memory_order_acquire) != nullptr) continue;
    auto source = text_of(each).source;
    if (!is_loaded(digest_of(source), ordinal)) sources.push_back(std::move(source));
  }
  compile_missing(sources, device_row(ordinal));
}

const LinearKernel* Session::compile_transform(int ordinal, Transform which) {
  const auto [source, name, tile, columns] = text_of(which);
  const auto tiles = [](std::int64_t extent, std::int64_t of) {
    return static_cast<unsigned>(ceil_div(extent, of));
  };
  return owned(
      {load_kernel(source, name, ordinal, 0),
       nullptr,
       {{tiles(k_, columns), tiles(n_, kBlock), 1}, static_cast<unsigned>(tile.threads), 0, false},
       {},
       {},
       name});
}

}  // namespace ladder
