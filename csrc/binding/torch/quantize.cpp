// SPDX-License-Identifier: Apache-2.0
// The op that quantises, on the CPU and on CUDA devices.
#include "cpu/quantize.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/joined.h"
#include "binding/torch/cuda.h"
#include "codegen/target.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"
#include "runtime/modules.h"
#include "runtime/notices.h"

namespace ladder::binding {
namespace {

/// The parts of a weight as the op returns them. An absent part is an empty tensor: the stable ABI
/// has no list of optional tensors.
struct Parts {
  Tensor qweight, scales, zeros, scale2;
  std::vector<Tensor> list() && {
    return {std::move(qweight), std::move(scales), std::move(zeros), std::move(scale2)};
  }
};

/// Uninitialised, on the device of `weight`. Throws InvalidArgument for a weight without elements.
Parts parts_of(const Tensor& weight, const TType& type) {
  const std::int64_t n = weight.size(0), k = weight.size(1);
  LADDER_REQUIRE(n > 0 && k > 0, "weight has shape [", n, ", ", k, "]: nothing to quantise");
  LADDER_REQUIRE(type.element->bits <= 8, "type ", type.element->name, " has ", type.element->bits,
                 " bits; weights are quantised to at most 8");
  if (type.superblock > 0) {
    fail<Unsupported>("type \"", to_string(type),
                      "\" has superblocks, whose scales ladder.quantize searches, not this op");
  }
  const std::int64_t rows = type.block_rows(n), groups = type.groups(k);
  const int bits = type.element->bits;
  const auto part = [&](bool there, std::int64_t height, std::int64_t width, ScalarType dtype) {
    return there ? stable::new_empty(weight, {height, width}, dtype)
                 : stable::new_empty(weight, {0}, ScalarType::Byte);
  };
  const auto zeros = [&] {
    switch (type.zero) {
      case Zero::none:
      case Zero::midpoint: break;
      case Zero::integer: return part(true, rows, groups, ScalarType::Byte);
      case Zero::quantized: return part(true, rows, row_words(groups, bits), ScalarType::Int);
      case Zero::original:
      case Zero::rescale: return part(true, rows, groups, storage_dtype(*type.scale));
    }
    return part(false, 0, 0, ScalarType::Byte);
  };
  return {part(true, n, row_words(k, bits), ScalarType::Int),
          part(type.scale != nullptr, rows, groups,
               type.scale != nullptr ? storage_dtype(*type.scale) : ScalarType::Byte),
          zeros(),
          stable::new_empty(weight, {second_scales(type, n)},
                            type.scale2 != nullptr ? ScalarType::Float : ScalarType::Byte)};
}

std::vector<Tensor> quantize_on_cpu(Tensor weight, std::string text, bool search) {
  const TType& type = ttype(text);
  require(weight, "weight", ScalarType::Float, 2);
  Parts parts = parts_of(weight, type);
  cpu::quantize(static_cast<const float*>(weight.const_data_ptr()), weight.size(0), weight.size(1),
                type, search ? cpu::Rounding::search : cpu::Rounding::nearest,
                {.codes = static_cast<std::uint32_t*>(parts.qweight.mutable_data_ptr()),
                 .scales = parts.scales.mutable_data_ptr(),
                 .zeros = parts.zeros.mutable_data_ptr(),
                 .scale2 = static_cast<float*>(parts.scale2.mutable_data_ptr())},
                cpu_isa(), torch_parallel);
  return std::move(parts).list();
}

void copy(const Tensor& to, const Tensor& from) {
  stable::call("aten::copy_", "",
               std::array{stable::from(to), stable::from(from), stable::from(false)});
}

/// A kernel that stays loaded: it may still run when the op returns.
SharedKernel loaded(const std::string& source, const char* name, std::int32_t ordinal) {
  SharedKernel kernel = load_kernel(source, name, ordinal, 0);
  keep_loaded(kernel);
  return kernel;
}

/// Starts `kernel` with pointers, then numbers. Throws Unsupported if the driver refuses it.
template <std::size_t Pointers, std::size_t Numbers>
void start(const SharedKernel& kernel, const Launch& launch, void* stream,
           std::array<void*, Pointers> pointers, std::array<std::uint32_t, Numbers> numbers) {
  std::array<void*, Pointers + Numbers> arguments;
  for (std::size_t i = 0; i < Pointers; ++i) arguments[i] = &pointers[i];
  for (std::size_t i = 0; i < Numbers; ++i) arguments[Pointers + i] = &numbers[i];
  if (!kernel->launch(launch, stream, arguments.data())) {
    fail<Unsupported>("the driver refused ", launch.threads, " threads a block");
  }
}

/// Codes, one per byte, into the rows of `words`.
void pack_rows(const Tensor& codes, const Tensor& words, int bits, std::int32_t ordinal,
               void* stream) {
  const std::int64_t n = words.size(0), width = words.size(1), k = codes.size(1);
  const auto kernel = loaded(quantize_kernels(gpus()).pack_rows(bits), "pack_rows", ordinal);
  const auto rows = static_cast<unsigned>(std::min(n, kMostRows));
  start<2, 2>(kernel, {{static_cast<unsigned>((width + 255) / 256), rows, 1}, 256, 0, false},
              stream, {address(codes), address(words)},
              {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(k)});
}

/// Where kernels put what they give: codes and zeros as QuantizeKernels do.
struct Stores {
  void *codes, *scales, *zeros, *scale2;
};

/// Kernels that quantise a weight, compiled, to be started behind measure().
class BlockKernel {
 public:
  BlockKernel(const TType& type, const Tensor& weight, bool search)
      : launch_(quantize_kernels(gpus()).quantize_launch(type, weight.size(0), weight.size(1))),
        search_(search),
        kernel_(loaded(quantize_kernels(gpus()).quantize(type), "quantize",
                       weight.get_device_index())) {}

  void start_on(void* stream, const Tensor& weight, const Tensor& found, const Stores& to) const {
    start<6, 4>(
        kernel_, {{static_cast<unsigned>(launch_.blocks), 1, 1}, launch_.threads, 0, false}, stream,
        {address(weight), address(found), to.codes, to.scales, to.zeros, to.scale2},
        {static_cast<std::uint32_t>(weight.size(0)), static_cast<std::uint32_t>(weight.size(1)),
         search_ ? 1u : 0u, launch_.threads / 32});
  }

 private:
  QuantizeLaunch launch_;
  bool search_;
  SharedKernel kernel_;
};

/// The same of types with one scale for the whole matrix.
class TensorKernels {
 public:
  TensorKernels(const TType& type, const Tensor& weight, bool search)
      : launch_(
            quantize_kernels(gpus()).tensor_launch(type, weight.size(0), weight.size(1), search)) {
    const auto ordinal = weight.get_device_index();
    const QuantizeKernels& sources = quantize_kernels(gpus());
    extent_ = loaded(sources.tensor_extent(), "extent", ordinal);
    if (launch_.sums > 0) errors_ = loaded(sources.tensor_errors(type), "errors", ordinal);
    choose_ = loaded(sources.tensor_choose(type), "choose", ordinal);
    codes_ = loaded(sources.tensor_codes(type), "codes", ordinal);
  }

  void start_on(void* stream, const Tensor& weight, const Tensor& found, const Stores& to) const {
    const auto space = [&](std::int64_t bytes) {
      return stable::new_empty(weight, {bytes}, ScalarType::Byte);
    };
    const Tensor ends = space(8 * static_cast<std::int64_t>(launch_.parts));
    const Tensor state = space(sizeof(TensorState)), sums = space(8 * launch_.sums);
    const Launch whole{{launch_.parts, 1, 1}, 256, 0, false};
    start<2, 2>(extent_, whole, stream, {address(weight), address(ends)},
                {launch_.count, launch_.parts});
    for (const auto& [first, last] : launch_.phases) {
      if (first < last)
        start<5, 4>(errors_, {{launch_.error_blocks, 1, 1}, 256, 0, false}, stream,
                    {address(weight), address(found), address(ends), address(state), address(sums)},
                    {launch_.count, launch_.parts, first, last});
      start<4, 4>(choose_, {{1, 1, 1}, 32, 0, false}, stream,
                  {address(found), address(ends), address(sums), address(state)},
                  {launch_.parts, first < last ? launch_.segments : 0, first, last});
    }
    start<7, 2>(
        codes_, whole, stream,
        {address(weight), address(found), address(state), to.codes, to.scales, to.zeros, to.scale2},
        {launch_.count, launch_.parts});
  }

 private:
  TensorLaunch launch_;
  SharedKernel extent_, errors_, choose_, codes_;
};

/// Whether measure() found finite weights only. Waits for the kernels.
bool is_finite(const Tensor& found) {
  const Tensor host = stable::empty({1}, ScalarType::Int);
  copy(host, found);
  return *static_cast<const std::uint32_t*>(host.const_data_ptr()) < 0x7f800000u;
}

/// What measure_rows() finds.
Tensor magnitudes_of_rows(const Tensor& weight, void* stream) {
  const std::int64_t n = weight.size(0);
  const auto kernel =
      loaded(quantize_kernels(gpus()).measure_rows(), "measure_rows", weight.get_device_index());
  Tensor found = stable::new_empty(weight, {n}, ScalarType::Int);
  start<2, 2>(kernel, {{static_cast<unsigned>((n + 7) / 8), 1, 1}, 256, 0, false}, stream,
              {address(weight), address(found)},
              {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(weight.size(1))});
  return found;
}

/// Nothing where a weight is not finite.
template <class Kernels>
std::optional<std::vector<Tensor>> quantize_by(const Tensor& weight, const TType& type,
                                               bool search) {
  const std::int64_t n = weight.size(0), k = weight.size(1), groups = type.groups(k);
  const int bits = type.element->bits;
  const auto ordinal = weight.get_device_index();
  const auto measure = loaded(quantize_kernels(gpus()).measure(), "measure", ordinal);
  const Kernels kernels(type, weight, search);
  void* const stream = current_stream(ordinal);

  Parts parts = parts_of(weight, type);
  const Tensor codes = stable::new_empty(weight, {n, k}, ScalarType::Byte);
  const bool packs_zeros = type.zero == Zero::quantized;
  const Tensor zeros =
      packs_zeros ? stable::new_empty(weight, {type.block_rows(n), groups}, ScalarType::Byte)
                  : parts.zeros;
  const Tensor found = stable::new_empty(weight, {1}, ScalarType::Int);
  stable::call("aten::zero_", "", std::array{stable::from(found)});

  const auto parts_measured =
      static_cast<unsigned>(std::min<std::int64_t>(kMeasureBlocks, (n * k + 255) / 256));
  start<2, 2>(measure, {{parts_measured, 1, 1}, 256, 0, false}, stream,
              {address(weight), address(found)},
              {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(k)});
  const Tensor of_rows = type.scale2_of_rows ? magnitudes_of_rows(weight, stream) : found;
  kernels.start_on(stream, weight, of_rows,
                   {.codes = address(codes),
                    .scales = address(parts.scales),
                    .zeros = address(zeros),
                    .scale2 = address(parts.scale2)});
  pack_rows(codes, parts.qweight, bits, ordinal, stream);
  if (packs_zeros) pack_rows(zeros, parts.zeros, bits, ordinal, stream);
  if (!is_finite(found)) return std::nullopt;
  return std::move(parts).list();
}

std::optional<std::vector<Tensor>> quantize_by_kernels(const Tensor& weight, const TType& type,
                                                       bool search) {
  return quantize_kernels(gpus()).is_of_tensor(type)
             ? quantize_by<TensorKernels>(weight, type, search)
             : quantize_by<BlockKernel>(weight, type, search);
}

/// On the CPU and back.
std::vector<Tensor> quantize_elsewhere(const Tensor& weight, const std::string& text, bool search) {
  const Tensor host = stable::empty({weight.size(0), weight.size(1)}, ScalarType::Float);
  copy(host, weight);
  std::vector<Tensor> parts = quantize_on_cpu(host, text, search);
  for (Tensor& part : parts) {
    std::vector<std::int64_t> shape;
    for (std::int64_t d = 0; d < part.dim(); ++d) shape.push_back(part.size(d));
    Tensor moved = stable::new_empty(weight, shape, part.scalar_type());
    copy(moved, part);
    part = std::move(moved);
  }
  return parts;
}

std::vector<Tensor> quantize_on_cuda(Tensor weight, std::string text, bool search) {
  const TType& type = ttype(text);
  LADDER_REQUIRE(
      weight.dim() == 2 && weight.scalar_type() == ScalarType::Float && weight.is_contiguous(),
      "weight has ", weight.dim(), " dimensions of ", name(weight.scalar_type()),
      ", not two of contiguous float32");
  const auto elsewhere = [&](const std::exception& why) {
    notice(joined("weights on cuda:", weight.get_device_index(),
                  " are quantised on the CPU: ", first_line(why.what())));
  };
  try {
    if (auto parts = quantize_by_kernels(weight, type, search)) return *std::move(parts);
  } catch (const Unsupported& error) {
    elsewhere(error);
  } catch (const ToolchainError& error) {
    elsewhere(error);
  }
  // Where a weight is not finite, this names its place.
  return quantize_elsewhere(weight, text, search);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("quantize(Tensor weight, str type, bool search) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CPU, m) { m.impl("quantize", TORCH_BOX(&quantize_on_cpu)); }
STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) { m.impl("quantize", TORCH_BOX(&quantize_on_cuda)); }

}  // namespace ladder::binding
