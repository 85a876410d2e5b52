// SPDX-License-Identifier: Apache-2.0
#include "codegen/target.h"

#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/activations/rounding.h"
#include "codegen/activations/routing.h"
#include "codegen/cuda/driver.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/prelude.h"
#include "codegen/cuda/quantize.h"
#include "codegen/cuda/quantize_tensor.h"
#include "codegen/cuda/toolchain.h"
#include "codegen/hip/driver.h"
#include "codegen/hip/emit.h"
#include "codegen/hip/libraries.h"
#include "codegen/hip/prelude.h"
#include "codegen/hip/toolchain.h"
#include "codegen/weights/dequantize.h"
#include "codegen/weights/image_kernels.h"

namespace ladder {
namespace {

/// Kernels of images behind `prelude`, whose words are CUDA's; those that reorder columns need
/// only the words, from `words`.
template <std::string_view (*prelude)(), std::string_view (*words)()>
constexpr ImageKernels kImageKernels = {
    .pack_tile = &weights::pack_tile,
    .dequantize_tile = &weights::dequantize_tile,
    .pack = [](int bits) { return weights::pack_source(bits, prelude()); },
    .unpack = [](int bits) { return weights::unpack_source(bits, prelude()); },
    .permute = [](int bits) { return weights::permute_source(bits, words()); },
    .dequantize = [](const Weight& weight,
                     Scalar out) { return weights::dequantize_source(weight, out, prelude()); },
};
constexpr std::string_view no_words() { return {}; }
constexpr ImageKernels kCudaImage = kImageKernels<&cuda::prelude, &no_words>;
constexpr ImageKernels kHipImage = kImageKernels<&hip::words_prelude, &hip::words_prelude>;

constexpr QuantizeKernels kCudaQuantize = {
    .measure = &cuda::measure_source,
    .measure_rows = &cuda::measure_rows_source,
    .pack_rows = &cuda::pack_rows_source,
    .is_of_tensor = &cuda::is_of_tensor,
    .quantize_launch = &cuda::quantize_launch,
    .quantize = &cuda::quantize_source,
    .tensor_launch = &cuda::tensor_launch,
    .tensor_extent = &cuda::tensor_extent_source,
    .tensor_errors = &cuda::tensor_errors_source,
    .tensor_choose = &cuda::tensor_choose_source,
    .tensor_codes = &cuda::tensor_codes_source,
};

constexpr activations::Words kCudaWords = {.prelude = &cuda::prelude,
                                           .lanes = "32",
                                           .blocks_x = "gridDim.x",
                                           .blocks_y = "gridDim.y",
                                           .any_threads = true,
                                           .dependent_launch = true,
                                           .converts_e4m3 = true};
// Sizes of the grid are counted in threads there, and waves have as many lanes as the compiler
// says: one text is for all of AMD's devices.
constexpr activations::Words kHipWords = {.prelude = &hip::activation_prelude,
                                          .lanes = "wave_lanes()",
                                          .blocks_x = "(__builtin_amdgcn_grid_size_x() / THREADS)",
                                          .blocks_y = "__builtin_amdgcn_grid_size_y()",
                                          .any_threads = false,
                                          .dependent_launch = false,
                                          .converts_e4m3 = false};

template <const activations::Words& words>
constexpr RoutingKernels kRoutingKernels = {
    .route = [](RowKind rows) { return activations::route_source(rows, words); },
    .gated = [](Scalar scalar, Gated what,
                RowKind rows) { return activations::gated_source(scalar, what, rows, words); },
    .combine =
        [](Scalar scalar, Scalar weight, RowKind rows) {
          return activations::combine_source(scalar, weight, rows, words);
        },
};

template <const activations::Words& words>
constexpr RoundingKernels kRoundingKernels = {
    .round_tokens =
        [](Scalar from, Scalar to, TokenScales whose, const RoundingPlan& plan, InChain chain) {
          if (to == Scalar::e4m3fnuz && words.converts_e4m3) {
            fail<Unsupported>("no such device multiplies ", name_of(to));
          }
          return activations::round_tokens_source(from, to, whose, plan, chain, words);
        },
};

constexpr RoutingKernels kCudaRouting = kRoutingKernels<kCudaWords>;
constexpr RoutingKernels kHipRouting = kRoutingKernels<kHipWords>;
constexpr RoundingKernels kCudaRounding = kRoundingKernels<kCudaWords>;
constexpr RoundingKernels kHipRounding = kRoundingKernels<kHipWords>;

constexpr Toolchain kCudaToolchain = {
    .add_directory = &cuda::add_nvrtc_directory,
    .directories = &cuda::nvrtc_directories,
    .version = [](std::string_view) { return cuda::compiler_version(); },
    .architectures = &cuda::architectures,
    .objection = &cuda::compiler_objection,
    .flags = &cuda::target_for,
    .compile = &cuda::compile,
};

constexpr Driver kCudaDriver = {
    .name = "CUDA driver",
    .present = &cuda::driver_present,
    .properties = &cuda::properties,
    .load = &cuda::load,
    .capture_of = &cuda::capture_of,
    .keep_with = &cuda::keep_with,
    .stream_id = &cuda::stream_id,
    .event = &cuda::event,
    .zeroed_memory = &cuda::zeroed_memory,
};

constexpr Toolchain kHipToolchain = {
    .add_directory = &hip::add_directory,
    .directories = &hip::directories_for_others,
    .version = &hip::compiler_version,
    .architectures = &hip::architectures,
    .objection = &hip::compiler_objection,
    .flags = &hip::flags_for,
    .compile = &hip::compile,
};

constexpr Driver kHipDriver = {
    .name = "HIP driver",
    .present = &hip::driver_present,
    .properties = &hip::properties,
    .load = &hip::load,
    .capture_of = &hip::capture_of,
    .keep_with = &hip::keep_with,
    .stream_id = &hip::stream_id,
    .event = &hip::event,
    .zeroed_memory = &hip::zeroed_memory,
};

// To add one: its row, and a folder beside this file.
constexpr Target kTargets[] = {
    {.name = "CUDA",
     .family = Family::nvidia,
     .emit = &cuda::emit,
     .image = &kCudaImage,
     .quantize = &kCudaQuantize,
     .routing = &kCudaRouting,
     .rounding = &kCudaRounding,
     .toolchain = kCudaToolchain,
     .driver = kCudaDriver},
    {.name = "HIP",
     .family = Family::cdna,
     .emit = &hip::emit,
     .image = &kHipImage,
     .quantize = nullptr,
     .routing = &kHipRouting,
     .rounding = &kHipRounding,
     .toolchain = kHipToolchain,
     .driver = kHipDriver},
};

// RDNA is a family of AMD's whose kernels are HIP, too.
const Target* find(Family family) {
  if (is_amd(family)) family = Family::cdna;
  const auto found = std::ranges::find(kTargets, family, &Target::family);
  return found == std::end(kTargets) ? nullptr : &*found;
}

/// Of those that write kernels.
std::string names() {
  std::string out;
  for (const Target& target : kTargets) {
    if (target.emit != nullptr) out += joined(out.empty() ? "" : ", ", target.name);
  }
  return out;
}

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& target_called(std::string_view name) {
  std::string known;
  for (const Target& target : kTargets) {
    if (target.name == name) return target;
    known += joined(known.empty() ? "" : ", ", target.name);
  }
  fail<InvalidArgument>("no target is called ", name, "; there are ", known);
}

const Target& target_of(Family family) {
  const Target* const target = find(family);
  if (target == nullptr) fail<Unsupported>("no target is for such devices; there are ", names());
  return *target;
}

std::string no_target(const Device& device) {
  const auto why = [&](const auto&... rest) {
    return joined("no target writes kernels for ", device.name, " (", device.architecture,
                  ") yet: ", rest...);
  };
  const Target* const target = find(device.family);
  if (target == nullptr || target->emit == nullptr) return why("there is ", names(), " alone");
  if (!has_tile_programs(device)) {
    const MatrixInstruction& oldest = first_tile_instruction(device.family);
    return why("tile programs multiply by ", oldest.name, ", which needs sm_", oldest.architecture);
  }
  return {};
}

const Target& target_of(const Device& device) {
  if (const auto why_not = no_target(device); !why_not.empty()) fail<Unsupported>(why_not);
  return *find(device.family);
}

std::string emit(const Target& target, const Program& program) {
  if (target.emit == nullptr) fail<Unsupported>("no program is written in ", target.name, " yet");
  return target.emit(program);
}

const ImageKernels& image_kernels(const Target& target) {
  if (target.image == nullptr) fail<Unsupported>(target.name, " has no kernels of images yet");
  return *target.image;
}

const QuantizeKernels& quantize_kernels(const Target& target) {
  if (target.quantize == nullptr)
    fail<Unsupported>(target.name, " has no kernels that quantise yet");
  return *target.quantize;
}

const RoutingKernels& routing_kernels(const Target& target) {
  if (target.routing == nullptr) fail<Unsupported>(target.name, " has no kernels that route yet");
  return *target.routing;
}

const RoundingKernels& rounding_kernels(const Target& target) {
  if (target.rounding == nullptr) {
    fail<Unsupported>(target.name, " has no kernels that round activations yet");
  }
  return *target.rounding;
}

}  // namespace ladder
