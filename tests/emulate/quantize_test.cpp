// SPDX-License-Identifier: Apache-2.0
//
// The text of the kernels that quantise, run on this processor: to the bit what cpu/quantize.h
// gives.
#include "codegen/cuda/quantize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/quantize.h"
#include "guarded.h"
#include "machine.h"
#include "translate.h"
#include "types/quantizable.h"
#include "types/scale_search.h"
#include "types/weight.h"

namespace ladder {
namespace {

using Bytes = std::vector<std::uint8_t>;

emulate::Guarded guarded(std::size_t bytes, const void* from = nullptr) {
  Bytes content(bytes);
  if (from != nullptr) std::memcpy(content.data(), from, bytes);
  return emulate::Guarded(content);
}

Bytes bytes_of(const emulate::Guarded& memory, std::size_t bytes) {
  const auto* first = static_cast<const std::uint8_t*>(memory.data());
  return {first, first + bytes};
}

/// Normal weights, some of them zero, in places all of a block.
std::vector<float> weight_of(std::int64_t n, std::int64_t k, unsigned seed) {
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
        scale_bytes(type.scale == nullptr ? 0 : static_cast<std::size_t>(type.scale->bits) / 8) {
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
  float scale2 = 0;
  bool operator==(const Parts&) const = default;
};

Parts of_processor(const std::vector<float>& weight, std::int64_t n, std::int64_t k,
                   const TType& type, bool search) {
  const Sizes sizes(type, n, k);
  Parts out{Bytes(4 * sizes.words), Bytes(sizes.blocks * sizes.scale_bytes), Bytes(sizes.zeros)};
  cpu::quantize(weight.data(), n, k, type, search ? cpu::Rounding::search : cpu::Rounding::nearest,
                {reinterpret_cast<std::uint32_t*>(out.codes.data()), out.scales.data(),
                 out.zeros.data(), &out.scale2},
                cpu::Isa::generic, serial);
  return out;
}

class Device {
 public:
  explicit Device(const std::vector<std::string>& types) {
    std::vector<emulate::Source> sources{{cuda::measure_source(), "measure"}};
    for (int bits = 1; bits <= 8; ++bits)
      sources.push_back({cuda::pack_rows_source(bits), "pack_rows"});
    for (const std::string& type : types)
      sources.push_back({cuda::quantize_source(ttype(type)), "quantize"});
    kernels_ = emulate::load(sources);
  }

  /// What measure() finds.
  std::uint32_t measured(const std::vector<float>& weight,
                                                             unsigned n, unsigned k) const {
    const auto from = guarded(weight.size() * 4, weight.data()), found = guarded(4);
    void* parameters[] = {from.data(), found.data(), &n, &k};
    const auto blocks = static_cast<unsigned>((weight.size() + 255) / 256);
    EXPECT_EQ(emulate::run({{blocks, 1}, {1, 1}, 256, 0, 1}, [&] { kernels_[0](parameters); }), "");
    return *static_cast<const std::uint32_t*>(found.data());
  }

  Parts quantized(std::size_t which, const std::vector<float>& weight, std::int64_t n,
                  std::int64_t k, const TType& type, bool searches) const {
    const Sizes sizes(type, n, k);
    const bool packed = type.zero == Zero::quantized;
    const auto from = guarded(weight.size() * 4, weight.data()), found = guarded(4);
    unsigned height = static_cast<unsigned>(n), width = static_cast<unsigned>(k);
    const std::uint32_t largest = measured(weight, height, width);
    std::memcpy(found.data(), &largest, 4);
    const auto codes = guarded(weight.size()),
               scales = guarded(sizes.blocks * sizes.scale_bytes),
               zeros = guarded(packed ? sizes.blocks : sizes.zeros), scale2 = guarded(4);
    const auto launch = cuda::quantize_launch(type, n, k);
    unsigned search = searches ? 1 : 0, warps = launch.threads / 32;
    void* parameters[] = {from.data(),   found.data(), codes.data(), scales.data(), zeros.data(),
                          scale2.data(), &height,      &width,       &search,       &warps};
    const emulate::Launch grid{{static_cast<unsigned>(launch.blocks), 1}, {1, 1}, launch.threads,
                               0, 1};
    EXPECT_EQ(emulate::run(grid, [&] { kernels_[9 + which](parameters); }), "");
    Parts out;
    out.codes = rows_of(codes.data(), height, width, type.element->bits);
    out.scales = bytes_of(scales, sizes.blocks * sizes.scale_bytes);
    out.zeros = packed ? rows_of(zeros.data(), static_cast<unsigned>(type.block_rows(n)),
                                 static_cast<unsigned>(type.groups(k)), type.element->bits)
                       : bytes_of(zeros, sizes.zeros);
    std::memcpy(&out.scale2, scale2.data(), 4);
    return out;
  }

 private:
  Bytes rows_of(void* codes, unsigned n, unsigned k, int bits) const {
    const auto words = static_cast<std::size_t>(row_words(k, bits));
    const auto out = guarded(4 * n * words);
    void* parameters[] = {codes, out.data(), &n, &k};
    const emulate::Launch grid{{static_cast<unsigned>((words + 255) / 256), n}, {1, 1}, 256, 0, 1};
    EXPECT_EQ(emulate::run(grid, [&] { kernels_[static_cast<std::size_t>(bits)](parameters); }), "");
    return bytes_of(out, 4 * n * words);
  }

  std::vector<emulate::Kernel> kernels_;
};

TEST(EmulatedQuantize, gives_what_the_processor_gives_for_every_type) {
  const auto types = testing::quantizable(",group=40");
  const Device device(types);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const TType& type = ttype(types[i]);
    // The last group is shorter, rows end within words, and blocks of rows beyond the matrix.
    const std::int64_t n = 2, k = 97;
    const auto weight = weight_of(n, k, static_cast<unsigned>(i));
    for (const bool search : {false, true})
      EXPECT_EQ(device.quantized(i, weight, n, k, type, search),
                of_processor(weight, n, k, type, search))
          << types[i] << (search ? " search" : " nearest");
  }
}

TEST(EmulatedQuantize, adds_segments_of_a_long_block_as_the_processor_does) {
  const std::vector<std::string> types{"int4,channel,scale=float32",
                                       "uint4,tensor,scale=float32,zero=integer"};
  const Device device(types);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::int64_t n = 2, k = 2 * kSegmentWeights + 77;
    const auto weight = weight_of(n, k, static_cast<unsigned>(i));
    EXPECT_EQ(device.quantized(i, weight, n, k, ttype(types[i]), true),
              of_processor(weight, n, k, ttype(types[i]), true))
        << types[i];
  }
}

TEST(EmulatedQuantize, finds_the_greatest_magnitude_and_what_is_not_finite) {
  const Device device({});
  std::vector<float> weight(3 * 700, 0.5f);
  weight[1040] = -2.0f;
  EXPECT_EQ(device.measured(weight, 3, 700), 0x40000000u);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    weight[2099] = bad;
    EXPECT_GE(device.measured(weight, 3, 700), 0x7f800000u);
  }
}

}  // namespace
}  // namespace ladder
