// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels that make, read and reorder images, run on this processor: to the bit what
// the host's functions do.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "codegen/target.h"
#include "expr/constructors.h"
#include "guarded.h"
#include "layout/weight_image.h"
#include "machine.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "translate.h"

namespace ladder {
namespace {

using Words = std::vector<std::uint32_t>;
using testing::LinearCase;

constexpr std::int64_t kShapes[][2] = {{64, 512}, {100, 328}, {130, 1000}};

emulate::Guarded guarded(const Words& words) {
  std::vector<std::uint8_t> bytes(words.size() * 4);
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), bytes.size());
  return emulate::Guarded(bytes);
}

Words words_of(const emulate::Guarded& memory, std::size_t count) {
  const auto* first = static_cast<const std::uint32_t*>(memory.data());
  return {first, first + count};
}

/// Blocks for an [n, k] weight of which each takes 64 rows by so many blocks of 64 columns.
emulate::Launch launch_of(const Target& target, std::int64_t n, std::int64_t k, ImageTile tile) {
  const auto tiles = [](std::int64_t extent, std::int64_t of) {
    return static_cast<unsigned>((extent + of - 1) / of);
  };
  return {{tiles(k, kBlock * tile.blocks), tiles(n, kBlock)},
          {1, 1},
          static_cast<unsigned>(tile.threads),
          0,
          1,
          nullptr,
          target.family == Family::cdna ? 64U : 32U};
}

/// Canonical rows of random codes, zero behind them.
Words random_rows(std::int64_t n, std::int64_t k, int bits) {
  std::mt19937 random(static_cast<unsigned>(n * k));
  const auto row = (k * bits + 31) / 32;
  Words out(n * row);
  for (std::int64_t i = 0; i < n * row; ++i) {
    const auto left = k * bits - i % row * 32;
    out[i] = static_cast<std::uint32_t>(random()) & (left < 32 ? (1u << left) - 1 : ~0u);
  }
  return out;
}

emulate::Language language_of(const Target& target) {
  return target.family == Family::cdna ? emulate::Language::hip : emulate::Language::cuda;
}

/// Those that have kernels of images.
std::vector<const Target*> targets_of_images() {
  std::vector<const Target*> out;
  for (const Target& target : targets()) {
    if (target.image != nullptr) out.push_back(&target);
  }
  return out;
}

class EmulatedImages : public ::testing::TestWithParam<const Target*> {};
INSTANTIATE_TEST_SUITE_P(Targets, EmulatedImages, ::testing::ValuesIn(targets_of_images()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(EmulatedImages, are_packed_and_unpacked_as_on_the_host) {
  const Target& target = *GetParam();
  const ImageKernels& of_image = image_kernels(target);
  std::vector<emulate::Source> sources;
  for (int bits = 1; bits <= 8; ++bits) {
    sources.push_back({of_image.pack(bits), "pack"});
    sources.push_back({of_image.unpack(bits), "unpack"});
    sources.push_back({of_image.permute(bits), "permute"});
  }
  const auto kernels = emulate::load(sources, language_of(target));
  for (int bits = 1; bits <= 8; ++bits) {
    for (auto [n, k] : kShapes) {
      SCOPED_TRACE(std::to_string(bits) + " bits, " + std::to_string(n) + " x " +
                   std::to_string(k));
      const Words rows = random_rows(n, k, bits);
      Words wanted(image_words(n, k, bits));
      pack_image(rows.data(), n, k, bits, 1, wanted.data());

      const auto canonical = guarded(rows), image = guarded(Words(wanted.size())),
                 back = guarded(Words(rows.size())), moved = guarded(Words(rows.size()));
      void *from = canonical.data(), *to = image.data(), *again = back.data();
      unsigned height = n, width = k, pad = 1, flip = 0;
      const auto launch = launch_of(target, n, k, of_image.pack_tile(bits));
      void* pack[] = {from, to, &height, &width, &pad, &flip};
      ASSERT_EQ(emulate::run(launch, [&] { kernels[3 * (bits - 1)](pack); }), "");
      EXPECT_EQ(words_of(image, wanted.size()), wanted);
      void* unpack[] = {to, again, &height, &width, &flip};
      ASSERT_EQ(emulate::run(launch, [&] { kernels[3 * (bits - 1) + 1](unpack); }), "");
      EXPECT_EQ(words_of(back, rows.size()), rows);

      // Columns from last to first, twice.
      Words order(k);
      std::iota(order.rbegin(), order.rend(), 0);
      const auto columns = guarded(order);
      const auto permuted =
          launch_of(target, n, k, {256, static_cast<int>(256 * 32 / bits / kBlock)});
      for (int turn = 0; turn < 2; ++turn) {
        void* permute[] = {turn == 0 ? from : moved.data(), turn == 0 ? moved.data() : again,
                           columns.data(), &height, &width};
        ASSERT_EQ(emulate::run(permuted, [&] { kernels[3 * (bits - 1) + 2](permute); }), "");
        EXPECT_EQ(words_of(turn == 0 ? moved : back, rows.size()) == rows, turn == 1);
      }
    }
  }
}

/// Element [n, k] of the weight, each step rounded to f32 (docs/format.md).
float weight_at(const LinearCase& c, std::int64_t row, std::int64_t column) {
  const Problem& problem = c.problem;
  const auto group = column / (problem.weight.group == 0 ? problem.k : problem.weight.group);
  const auto at = row * problem.groups() + group;
  const auto second = [&](bool of_zeros) {
    return static_cast<float>(c.data.second_of_group(problem, row, group, of_zeros));
  };
  auto value = static_cast<float>(value_of(problem.weight, c.data.codes[row * problem.k + column]));
  const auto zero = [&] {
    const auto stored = to_number(problem.weight.zero_in_memory(), c.data.zeros[at]);
    return static_cast<float>(stored) * (problem.weight.seconds() > 1 ? second(true) : 1.0f);
  };
  if (problem.weight.stored_zero == Zero::integer || problem.weight.stored_zero == Zero::original)
    value -= zero();
  if (problem.weight.scale)
    value *= static_cast<float>(to_number(problem.weight.scale_in_memory(), c.data.scales[at])) *
             second(false);
  if (problem.weight.stored_zero == Zero::rescale) value -= zero();
  return value * c.data.second_scale(problem, row);
}

void expect_values(const Target& target, int capability) {
  const std::int64_t n = 100, k = 328;
  std::vector<emulate::Source> sources;
  std::vector<std::pair<Problem, Scalar>> cases;
  for (const char* type : testing::kKindsOfTypes) {
    const Problem problem = linear_of(ttype(type), n, k, Scalar::f16, 1);
    const Scalar out = std::array{Scalar::f16, Scalar::bf16, Scalar::f32}[cases.size() % 3];
    sources.push_back({image_kernels(target).dequantize(problem.weight, out), "dequantize"});
    cases.emplace_back(problem, out);
  }
  const auto kernels = emulate::load(sources, language_of(target), capability);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [problem, out] = cases[i];
    SCOPED_TRACE(to_string(problem));
    const auto data = LinearCase::reals(problem, 1, static_cast<unsigned>(i + 1));
    const auto part = [&](const char* name, bool there) {
      return emulate::Guarded(there ? data.argument(name, {}).bytes : std::vector<std::uint8_t>());
    };
    const auto image = part("weight", true),
               scales = part("scales", problem.weight.scale.has_value()),
               zeros = part("zeros", problem.weight.stored_zero != Zero::none),
               scale2 = part("scale2", problem.has_scale2() || problem.weight.superblocks),
               values = emulate::Guarded(std::vector<std::uint8_t>(n * k * bytes_of(out), 0xff));
    unsigned height = n, width = k;
    void* parameters[] = {image.data(), scales.data(), zeros.data(), scale2.data(),
                          nullptr,      values.data(), &height,      &width};
    const auto launch =
        launch_of(target, n, k, image_kernels(target).dequantize_tile(problem.weight.bits));
    ASSERT_EQ(emulate::run(launch, [&] { kernels[i](parameters); }), "");
    for (std::int64_t e = 0; e < n * k; ++e) {
      std::uint32_t found = 0;
      std::memcpy(&found, static_cast<char*>(values.data()) + e * bytes_of(out), bytes_of(out));
      ASSERT_EQ(to_number(out, found), to_number(out, to_bits(out, weight_at(data, e / k, e % k))))
          << "[" << e / k << ", " << e % k << "]";
    }
  }
}

TEST_P(EmulatedImages, have_the_values_of_the_format) { expect_values(*GetParam(), 90); }

// Which rounds to bfloat16 by integers.
TEST(EmulatedImagesOfTuring, have_the_values_of_the_format) {
  expect_values(target_called("CUDA"), 75);
}

}  // namespace
}  // namespace ladder
