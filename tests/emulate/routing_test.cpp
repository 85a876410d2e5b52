// SPDX-License-Identifier: Apache-2.0
//
// The text of the kernels around the products of experts, run on this processor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/integers.h"
#include "base/joined.h"
#include "codegen/routing_kernels.h"
#include "codegen/target.h"
#include "guarded.h"
#include "machine.h"
#include "translate.h"

namespace ladder {
namespace {

using Words = std::vector<std::uint32_t>;
using Halves = std::vector<std::uint16_t>;
constexpr std::uint32_t kNobody = 0xffffffff;

/// The kernels of a target, as its texts.
struct Language {
  const char* target;
  emulate::Language language;
  unsigned lanes;
};
constexpr Language kLanguages[] = {{"CUDA", emulate::Language::cuda, 32},
                                   {"HIP", emulate::Language::hip, 64},
                                   {"HIP", emulate::Language::hip, 32}};

void PrintTo(const Language& language, std::ostream* out) {
  *out << language.target << language.lanes;
}

class EmulatedRouting : public ::testing::TestWithParam<Language> {
 protected:
  static const RoutingKernels& kernels() {
    return routing_kernels(target_called(GetParam().target));
  }
  static emulate::Kernel load(const std::string& text, const char* name) {
    return emulate::load({{text, name}}, GetParam().language, 90).front();
  }
  static void run(const emulate::Kernel& kernel, unsigned columns, unsigned rows,
                  std::vector<void*> pointers, Words numbers) {
    for (std::uint32_t& number : numbers) pointers.push_back(&number);
    const emulate::Launch launch{{columns, rows}, {1, 1},          kRoutingThreads, 0, 7,
                                 nullptr,         GetParam().lanes};
    EXPECT_EQ(emulate::run(launch, [&] { kernel(pointers.data()); }), "");
  }
  template <class T>
  static emulate::Guarded guarded(const std::vector<T>& content) {
    std::vector<std::uint8_t> bytes(content.size() * sizeof(T));
    std::memcpy(bytes.data(), content.data(), bytes.size());
    return emulate::Guarded(bytes);
  }
  template <class T>
  static std::vector<T> read(const emulate::Guarded& memory, std::size_t count) {
    std::vector<T> out(count);
    std::memcpy(out.data(), memory.data(), count * sizeof(T));
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, EmulatedRouting, ::testing::ValuesIn(kLanguages),
                         [](const auto& info) {
                           return joined(info.param.target, info.param.lanes);
                         });

/// What route() says, by sorting.
struct Routed {
  Words places, items;
};
Routed sorted_by_expert(const Words& experts, std::uint32_t count, std::uint32_t tile,
                        std::size_t slots) {
  Routed out{Words(experts.size(), kNobody), {}};
  std::uint32_t row = 0;
  for (std::uint32_t e = 0; e < count; ++e) {
    const std::uint32_t first = row;
    for (std::size_t c = 0; c < experts.size(); ++c) {
      if (experts[c] == e) out.places[c] = row++;
    }
    for (std::uint32_t at = first; at < row; at += tile) {
      out.items.insert(out.items.end(), {e, at, std::min(tile, row - at)});
    }
  }
  out.items.resize(3 * slots);
  return out;
}

// More experts than lanes and fewer, choices of nobody, rows of whole pieces and not, indices of 64
// bits, more choices than a block has at once.
TEST_P(EmulatedRouting, brings_rows_into_the_order_of_their_experts) {
  struct Case {
    std::uint32_t tokens, of_token, count, tile, k, blocks;
    bool wide;
  };
  for (const Case& c : {Case{5, 2, 3, 2, 16, 4, false}, Case{37, 3, 100, 4, 24, 7, true},
                        Case{40, 4, 1000, 8, 5, 3, false}, Case{300, 1, 2, 64, 8, 1, true},
                        Case{1, 1, 1, 8, 8, 1, false}}) {
    std::mt19937 random(c.tokens);
    const std::size_t choices = c.tokens * c.of_token;
    Words experts(choices), words;
    for (std::uint32_t& expert : experts) expert = random() % (c.count + 1);
    for (const std::uint32_t expert : experts) {
      // An index that 32 bits do not hold is nobody's, whatever its lower half.
      const bool far = c.wide && expert == c.count;
      words.push_back(far ? 0 : expert);
      if (c.wide) words.push_back(far ? 1 : 0);
    }
    Halves x(c.tokens * c.k);
    for (std::uint16_t& each : x) each = static_cast<std::uint16_t>(random());
    const std::size_t slots = choices + 2;
    const bool whole = c.k % 8 == 0;
    Words scales(c.tokens);  // bits of f32
    for (std::uint32_t& scale : scales) scale = static_cast<std::uint32_t>(random());
    for (const bool scaled : {false, true}) {
      const auto from = guarded(words), in = guarded(x), rows = guarded(Halves(choices * c.k)),
                 of_tokens = guarded(scales), of_rows = guarded(Words(choices)),
                 items = guarded(Words(3 * slots, 77)), places = guarded(Words(choices));
      std::vector<void*> pointers{from.data(), in.data(), rows.data()};
      if (scaled) pointers.insert(pointers.end(), {of_tokens.data(), of_rows.data()});
      pointers.insert(pointers.end(), {items.data(), places.data()});
      run(load(kernels().route({whole, false, scaled}), "route"), c.blocks, 1, pointers,
          {static_cast<std::uint32_t>(choices), c.of_token, c.wide, c.count, c.tile,
           whole ? c.k / 8 : c.k, static_cast<std::uint32_t>(slots)});
      const Routed wanted = sorted_by_expert(experts, c.count, c.tile, slots);
      const auto what = joined(c.tokens, " tokens, ", c.count, " experts");
      EXPECT_EQ(read<std::uint32_t>(places, choices), wanted.places) << what;
      EXPECT_EQ(read<std::uint32_t>(items, 3 * slots), wanted.items) << what;
      const auto moved = read<std::uint16_t>(rows, choices * c.k);
      const auto moved_scales = read<std::uint32_t>(of_rows, choices);
      for (std::size_t choice = 0; choice < choices; ++choice) {
        const std::size_t place = wanted.places[choice], token = choice / c.of_token;
        if (place == kNobody) continue;
        const auto* row = x.data() + token * c.k;
        EXPECT_TRUE(std::equal(row, row + c.k, moved.data() + place * c.k)) << what;
        EXPECT_EQ(moved_scales[place], scaled ? scales[token] : 0) << what;
      }
    }
  }
}

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }
double gate_of(Gated what, double gate, double up, double alpha) {
  switch (what) {
    case Gated::gelu: return gate / 2 * (1 + std::erf(gate / std::sqrt(2.0))) * up;
    case Gated::gelu_tanh:
      return gate / 2 *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case Gated::linear: return gate * up;
    case Gated::mish: return gate * std::tanh(std::log1p(std::exp(gate))) * up;
    case Gated::quick_gelu: return gate * sigmoid(1.702 * gate) * up;
    case Gated::relu: return std::max(gate, 0.0) * up;
    case Gated::relu2: return std::max(gate, 0.0) * std::max(gate, 0.0) * up;
    case Gated::sigmoid: return sigmoid(gate) * up;
    case Gated::silu: return gate * sigmoid(gate) * up;
    case Gated::swiglu_oai: return gate * sigmoid(alpha * gate) * (up + 1);
    case Gated::tanh: return std::tanh(gate) * up;
  }
  return NAN;
}

// Gates from where they vanish to where they no longer bend, with both signs; the limits cut some.
TEST_P(EmulatedRouting, multiplies_the_function_of_the_gate_by_up) {
  constexpr std::uint32_t kRows = 3, kColumns = 2056;
  constexpr float kLimit = 24, kAlpha = 1.5;
  std::vector<std::pair<Gated, const char*>> all;
  for (const char* name : {"gelu", "gelu_pytorch_tanh", "linear", "mish", "quick_gelu", "relu",
                           "relu2", "sigmoid", "silu", "swigluoai", "tanh"}) {
    all.emplace_back(gated_called(name).value(), name);
  }
  std::vector<emulate::Source> sources;
  for (const Scalar scalar : {Scalar::f16, Scalar::bf16}) {
    for (const auto& each : all) {
      sources.push_back({kernels().gated(scalar, each.first, {true, false}), "gated"});
    }
  }
  const auto loaded = emulate::load(sources, GetParam().language, 90);
  for (const Scalar scalar : {Scalar::f16, Scalar::bf16}) {
    Halves x(kRows * 2 * kColumns);
    for (std::uint32_t i = 0; i < x.size(); ++i) {
      const std::uint32_t row = i / (2 * kColumns), column = i % (2 * kColumns);
      const double place = column % kColumns / double{kColumns} - 0.5;
      const double value = column < kColumns ? place * (row == 0   ? 0.25
                                                        : row == 1 ? 4
                                                                   : 64)
                                             : 1 + place;
      x[i] = static_cast<std::uint16_t>(to_bits(scalar, value));
    }
    const auto value = [&](std::uint32_t row, std::uint32_t column) {
      return to_number(scalar, x[row * 2 * kColumns + column]);
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& [what, name] = all[i];
      const auto in = guarded(x), out = guarded(Halves(kRows * kColumns));
      // Two rows of blocks: the first goes on to the third row.
      run(loaded[i + (scalar == Scalar::bf16 ? all.size() : 0)], 2, 2, {in.data(), out.data()},
          {kRows, kColumns / 8, std::bit_cast<std::uint32_t>(kLimit),
           std::bit_cast<std::uint32_t>(kAlpha)});
      const auto y = read<std::uint16_t>(out, kRows * kColumns);
      // y is rounded once, which takes half an ulp; what came before is of f32, with functions that
      // are right to some ulps of f32 of the largest term they add up.
      const double half_ulp = scalar == Scalar::f16 ? 0x1p-11 : 0x1p-8;
      for (std::uint32_t row = 0; row < kRows; ++row) {
        for (std::uint32_t c = 0; c < kColumns; ++c) {
          const double gate = std::min<double>(value(row, c), kLimit);
          const double up = std::clamp<double>(value(row, c + kColumns), -kLimit, kLimit);
          const double wanted = gate_of(what, gate, up, kAlpha);
          const double got = to_number(scalar, y[row * kColumns + c]);
          const double bound = std::abs(wanted) * (half_ulp + 0x1p-20) +
                               std::abs(gate * (up + 1)) * 0x1p-22 + 0x1p-24;
          ASSERT_NEAR(got, wanted, bound) << name << " of " << gate << " and " << up;
        }
      }
    }
  }
}

TEST_P(EmulatedRouting, adds_up_the_rows_of_a_token_by_their_weights) {
  constexpr std::uint32_t kTokens = 5, kOfToken = 3, kColumns = 264, kChoices = kTokens * kOfToken;
  std::mt19937 random(1);
  Words places(kChoices);
  for (std::uint32_t i = 0; i < kChoices; ++i) places[i] = i % 4 == 1 ? kNobody : kChoices - 1 - i;
  for (const Scalar scalar : {Scalar::f16, Scalar::bf16}) {
    for (const Scalar weight : {scalar, Scalar::f32}) {
      // Small integers, and weights that are powers of two: sums are exact.
      Halves rows(kChoices * kColumns), y(kTokens * kColumns);
      std::vector<double> numbers(rows.size()), weights(kChoices);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        numbers[i] = static_cast<double>(random() % 31) - 15;
        rows[i] = static_cast<std::uint16_t>(to_bits(scalar, numbers[i]));
      }
      std::vector<float> wide;
      Halves narrow;
      for (double& each : weights) {
        each = std::exp2(static_cast<int>(random() % 3));
        wide.push_back(static_cast<float>(each));
        narrow.push_back(static_cast<std::uint16_t>(to_bits(scalar, each)));
      }
      for (const bool whole : {true, false}) {
        const auto in = guarded(rows), at = guarded(places), out = guarded(y),
                   by = weight == Scalar::f32 ? guarded(wide) : guarded(narrow);
        const std::uint32_t pieces = whole ? kColumns / 8 : kColumns;
        run(load(kernels().combine(scalar, weight, {whole, false}), "combine"),
            ceil_div(pieces, kRoutingThreads), 2, {in.data(), at.data(), by.data(), out.data()},
            {kTokens, kOfToken, pieces});
        const auto got = read<std::uint16_t>(out, y.size());
        for (std::uint32_t token = 0; token < kTokens; ++token) {
          for (std::uint32_t c = 0; c < kColumns; ++c) {
            double sum = 0;
            for (std::uint32_t j = token * kOfToken; j < (token + 1) * kOfToken; ++j) {
              if (places[j] != kNobody) sum += weights[j] * numbers[places[j] * kColumns + c];
            }
            ASSERT_EQ(to_number(scalar, got[token * kColumns + c]), sum) << token << " " << c;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ladder
