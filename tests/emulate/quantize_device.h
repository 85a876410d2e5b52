// SPDX-License-Identifier: Apache-2.0
//
// Runs the kernels that quantise as the op does. Internal to tests/emulate.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codegen/cuda/quantize.h"
#include "codegen/cuda/quantize_tensor.h"
#include "cpu/quantize.h"
#include "guarded.h"
#include "machine.h"
#include "translate.h"
#include "types/weight.h"

namespace ladder::emulate {

using Bytes = std::vector<std::uint8_t>;

inline Guarded guarded(std::size_t bytes, const void* from = nullptr) {
  Bytes content(bytes);
  if (from != nullptr) std::memcpy(content.data(), from, bytes);
  return Guarded(content);
}

inline Bytes bytes_of(const Guarded& memory, std::size_t bytes) {
  const auto* first = static_cast<const std::uint8_t*>(memory.data());
  return {first, first + bytes};
}

/// Normal weights, some of them zero, in places all of a block.
inline std::vector<float> weight_of(std::int64_t n, std::int64_t k, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> weight(static_cast<std::size_t>(n * k));
  for (std::size_t i = 0; i < weight.size(); ++i)
    weight[i] = i % 7 == 0 || (i >= 32 && i < 64) ? 0.0f : normal(random);
  return weight;
}

/// Codes, scales, zeros and the second scale, one behind the other.
struct Sizes {
  Sizes(const TType& type, std::int64_t n, std::int64_t k)
      : blocks(static_cast<std::size_t>(type.block_rows(n) * type.groups(k))),
        words(static_cast<std::size_t>(n * row_words(k, type.element->bits))),
        scale_bytes(type.scale == nullptr
                        ? 0
                        : static_cast<std::size_t>(std::max(type.scale->bits / 8, 1))) {
    switch (type.zero) {
      case Zero::none:
      case Zero::midpoint: break;
      case Zero::integer: zeros = blocks; break;
      case Zero::quantized:
        zeros = 4 * static_cast<std::size_t>(type.block_rows(n) *
                                             row_words(type.groups(k), type.element->bits));
        break;
      case Zero::original:
      case Zero::rescale: zeros = blocks * scale_bytes; break;
    }
  }
  std::size_t blocks, words, scale_bytes, zeros = 0;
};

struct Parts {
  Bytes codes, scales, zeros;
  std::vector<float> scale2;
  bool operator==(const Parts&) const = default;
};

inline Parts of_processor(const std::vector<float>& weight, std::int64_t n, std::int64_t k,
                          const TType& type, bool search) {
  const Sizes sizes(type, n, k);
  Parts out{Bytes(4 * sizes.words), Bytes(sizes.blocks * sizes.scale_bytes), Bytes(sizes.zeros),
            std::vector<float>(static_cast<std::size_t>(second_scales(type, n)))};
  cpu::quantize(weight.data(), n, k, type, search ? cpu::Rounding::search : cpu::Rounding::nearest,
                {reinterpret_cast<std::uint32_t*>(out.codes.data()), out.scales.data(),
                 out.zeros.data(), out.scale2.data()},
                cpu::Isa::generic, serial);
  return out;
}

class QuantizeDevice {
 public:
  explicit QuantizeDevice(const std::vector<std::string>& types) {
    std::vector<Source> sources{{cuda::measure_source(), "measure"}};
    for (int bits = 1; bits <= 8; ++bits)
      sources.push_back({cuda::pack_rows_source(bits), "pack_rows"});
    sources.push_back({cuda::measure_rows_source(), "measure_rows"});
    for (const std::string& text : types) {
      const TType& type = ttype(text);
      first_.push_back(sources.size());
      if (cuda::is_of_tensor(type)) {
        sources.push_back({cuda::tensor_extent_source(), "extent"});
        sources.push_back({cuda::tensor_errors_source(type), "errors"});
        sources.push_back({cuda::tensor_choose_source(type), "choose"});
        sources.push_back({cuda::tensor_codes_source(type), "codes"});
      } else {
        sources.push_back({cuda::quantize_source(type), "quantize"});
      }
    }
    kernels_ = load(sources);
  }

  /// What measure() finds.
  std::uint32_t measured(const std::vector<float>& weight, unsigned n, unsigned k) const {
    const auto from = guarded(weight.size() * 4, weight.data()), found = guarded(4);
    void* parameters[] = {from.data(), found.data(), &n, &k};
    const auto blocks = static_cast<unsigned>((weight.size() + 255) / 256);
    EXPECT_EQ(run({{blocks, 1}, {1, 1}, 256, 0, 1}, [&] { kernels_[0](parameters); }), "");
    return *static_cast<const std::uint32_t*>(found.data());
  }

  /// `state`, where it is not null, is what the kernels of a whole matrix leave.
  Parts quantized(std::size_t which, const std::vector<float>& weight, std::int64_t n,
                  std::int64_t k, const TType& type, bool searches,
                  TensorState* state = nullptr) const {
    const Sizes sizes(type, n, k);
    const bool packed = type.zero == Zero::quantized;
    const unsigned height = static_cast<unsigned>(n), width = static_cast<unsigned>(k);
    const auto from = guarded(weight.size() * 4, weight.data());
    const auto found = guarded(type.scale2_of_rows ? 4 * weight.size() / width : 4);
    const std::uint32_t largest = measured(weight, height, width);
    if (type.scale2_of_rows) {
      auto rows = height, columns = width;
      void* parameters[] = {from.data(), found.data(), &rows, &columns};
      run_kernel(kMeasureRows, (height + 7) / 8, 256, parameters);
    } else {
      std::memcpy(found.data(), &largest, 4);
    }
    const auto codes = guarded(weight.size()), scales = guarded(sizes.blocks * sizes.scale_bytes),
               zeros = guarded(packed ? sizes.blocks : sizes.zeros),
               scale2 = guarded(static_cast<std::size_t>(4 * second_scales(type, n)));
    const Stores to{codes.data(), scales.data(), zeros.data(), scale2.data()};
    if (cuda::is_of_tensor(type))
      run_tensor_kernels(first_[which], cuda::tensor_launch(type, n, k, searches), from.data(),
                         found.data(), to, state);
    else
      run_quantize(first_[which], cuda::quantize_launch(type, n, k), from.data(), found.data(), to,
                   height, width, searches);
    Parts out;
    out.codes = rows_of(codes.data(), height, width, type.element->bits);
    out.scales = bytes_of(scales, sizes.blocks * sizes.scale_bytes);
    out.zeros = packed ? rows_of(zeros.data(), static_cast<unsigned>(type.block_rows(n)),
                                 static_cast<unsigned>(type.groups(k)), type.element->bits)
                       : bytes_of(zeros, sizes.zeros);
    out.scale2.resize(static_cast<std::size_t>(second_scales(type, n)));
    if (!out.scale2.empty()) std::memcpy(out.scale2.data(), scale2.data(), 4 * out.scale2.size());
    return out;
  }

 private:
  static constexpr std::size_t kMeasureRows = 9;  // behind pack_rows() of 1 to 8 bits

  struct Stores {
    void *codes, *scales, *zeros, *scale2;
  };

  void run_kernel(std::size_t kernel, unsigned blocks, unsigned threads, void** parameters) const {
    EXPECT_EQ(run({{blocks, 1}, {1, 1}, threads, 0, 1}, [&] { kernels_[kernel](parameters); }), "");
  }

  void run_quantize(std::size_t kernel, const QuantizeLaunch& launch, void* from, void* found,
                    Stores to, unsigned height, unsigned width, bool searches) const {
    unsigned search = searches ? 1 : 0, warps = launch.threads / 32;
    void* parameters[] = {from,      found,   to.codes, to.scales, to.zeros,
                          to.scale2, &height, &width,   &search,   &warps};
    run_kernel(kernel, static_cast<unsigned>(launch.blocks), launch.threads, parameters);
  }

  /// What the op starts, in its order (csrc/binding/torch/quantize.cpp).
  void run_tensor_kernels(std::size_t first_kernel, TensorLaunch launch, void* from, void* found,
                          Stores to, TensorState* left) const {
    const auto ends = guarded(8 * launch.parts), state = guarded(sizeof(TensorState)),
               sums = guarded(static_cast<std::size_t>(8 * launch.sums));
    void* of_extent[] = {from, ends.data(), &launch.count, &launch.parts};
    run_kernel(first_kernel, launch.parts, 256, of_extent);
    for (auto [first, last] : launch.phases) {
      unsigned segments = first < last ? launch.segments : 0;
      void* of_errors[] = {from,          found,         ends.data(), state.data(), sums.data(),
                           &launch.count, &launch.parts, &first,      &last};
      if (first < last) run_kernel(first_kernel + 1, launch.error_blocks, 256, of_errors);
      void* of_choose[] = {found,         ends.data(), sums.data(), state.data(),
                           &launch.parts, &segments,   &first,      &last};
      run_kernel(first_kernel + 2, 1, 32, of_choose);
    }
    void* of_codes[] = {from,     found,     state.data(),  to.codes,     to.scales,
                        to.zeros, to.scale2, &launch.count, &launch.parts};
    run_kernel(first_kernel + 3, launch.parts, 256, of_codes);
    if (left != nullptr) std::memcpy(left, state.data(), sizeof *left);
  }

  Bytes rows_of(void* codes, unsigned n, unsigned k, int bits) const {
    const auto words = static_cast<std::size_t>(row_words(k, bits));
    const auto out = guarded(4 * n * words);
    void* parameters[] = {codes, out.data(), &n, &k};
    const Launch grid{{static_cast<unsigned>((words + 255) / 256), n}, {1, 1}, 256, 0, 1};
    EXPECT_EQ(run(grid, [&] { kernels_[static_cast<std::size_t>(bits)](parameters); }), "");
    return bytes_of(out, 4 * n * words);
  }

  std::vector<Kernel> kernels_;
  std::vector<std::size_t> first_;  ///< kernel of each type
};

}  // namespace ladder::emulate
