// SPDX-License-Identifier: Apache-2.0
#include "matrix.h"

#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "codegen/target.h"
#include "expr/constructors.h"
#include "expr/decoding.h"

namespace ladder::testing {
namespace {

// Devices, one of an architecture, whose other types are compiled for every number of tokens. Of
// each other architecture they are compiled for one number of tokens in turn.
constexpr std::string_view kWhole[] = {"h200", "a100", "l40s", "b200"};
// One cell in so many is in the sample of a run: of plain integers, of other types, and of other
// types on the other architectures. Primes that divide no period of what cells are made of, so that
// a sample has all widths, activations, shapes and numbers of tokens. A type has 30 cells on a
// device of kWhole and 10 elsewhere: every sample has every type.
constexpr std::size_t kOfIntegers = 7, kOfTypes = 19, kOfTypesElsewhere = 11;

// N x K: where the scheduler has one round in a cluster, rounds in registers, one round of many
// blocks, long rows; and borders along both.
constexpr std::int64_t kShapes[][2] = {
    {4096, 4096}, {8192, 8192}, {28672, 8192}, {8192, 28672}, {1000, 1032}};

/// One token, whole instructions, and two of them side by side. The first two have one kernel but
/// where one token has digits or ranks schedules otherwise.
const std::vector<std::int64_t> kTokens = {1, 8, 16};
/// And those of a tile.
constexpr std::int64_t kTokensOfTile = 64;
/// Of plain integers those of both pipelines, and tiles of two numbers of tokens.
const std::vector<std::int64_t> kTokensOfIntegers = {1, 8, 16, 32, 64, 128};

/// Of 16 bits, those that the device multiplies.
std::vector<Scalar> activations_of(const Device& device) {
  std::vector<Scalar> out;
  for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
    if (tile_instruction(activation, device) != nullptr) out.push_back(activation);
  }
  return out;
}

std::vector<Cell> integers_of(const Device& device) {
  std::vector<Cell> out;
  if (device.family != Family::nvidia || !no_target(device).empty()) return out;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const Scalar activation : activations_of(device)) {
      const TType type{&element("uint" + std::to_string(bits)),
                       {1, 128},
                       &element_of(activation),
                       Zero::midpoint};
      for (const auto& [n, k] : kShapes) {
        out.push_back({&device, linear_of(type, n, k, activation, 1), kTokensOfIntegers});
      }
    }
  }
  return out;
}

/// Every other type: all elements with one group size, and each kind of scale and zero point.
std::vector<TType> types() {
  const double values[] = {-3.0, 0.25, 7.0, 1e-3, 5.0, -0.5, 0.0, 2.0};
  register_table("compiled_table", 3, values);
  register_float("compiled_float", 3, 2, Specials::ieee, 5);
  std::vector<TType> out;
  for (const Element* element : elements()) {
    const bool integer = element->encoding == Encoding::unsigned_integer ||
                         element->encoding == Encoding::signed_integer;
    if (element->bits > 8 || integer || element->encoding == Encoding::exponent) continue;
    out.push_back({element, {1, 64}, &ladder::element("float16")});
  }
  for (const NamedTType& named : named_ttypes()) out.push_back(ttype(named.name));
  for (const char* text :
       {"uint4,group=128,scale=float32", "uint4,group=64,scale=bfloat16",
        "uint4,group=32,scale=float16", "uint4,group=32,scale=float16,zero=integer",
        "uint2,group=32,scale=e8m0", "int8", "uint4", "uint4,group=128,scale=float16,zero=integer",
        "uint8,group=64,scale=bfloat16,zero=integer", "uint3,channel,scale=float16,zero=quantized",
        "uint1,group=128,scale=float16,zero=integer", "uint4,group=16,zero=integer",
        "uint4,group=128,scale=float16,zero=original", "uint2,group=64,scale=float32,zero=rescale",
        "int4,group=32,scale=bfloat16,zero=original",
        "uint4,group=128,scale=uint4,zero=midpoint,scale2=float32:channel"}) {
    out.push_back(ttype(text));
  }
  return out;
}

/// Every other type at every activation and shape, some with a bias, some permuted: a cell for each
/// number of tokens, or for one in turn. Behind them tiles, as many as of each number.
std::vector<Cell> others_of(const Device& device, bool every_number_of_tokens) {
  std::vector<Cell> out;
  if (device.family != Family::nvidia || !no_target(device).empty()) return out;
  const auto add = [&](Problem problem, std::int64_t tokens) {
    problem.set_bias(out.size() % 4 == 1);
    problem.permuted_columns = out.size() % 13 == 2;
    out.push_back({&device, std::move(problem), {tokens}});
  };
  for (const TType& type : types()) {
    for (const Scalar activation : activations_of(device)) {
      for (const auto& [n, k] : kShapes) {
        try {
          const Problem problem = linear_of(type, n, k, activation, 1);
          decoding_of(problem);
          if (!every_number_of_tokens) {
            add(problem, kTokens[out.size() % kTokens.size()]);
            continue;
          }
          for (const auto m : kTokens) add(problem, m);
        } catch (const Unsupported&) {
          continue;  // wider than float16: tests/core/problem says which
        }
      }
    }
  }
  const auto decode = out.size();
  for (std::size_t cell = 0; cell < decode; cell += kTokens.size()) {
    add(out[cell].problem, kTokensOfTile);
  }
  return out;
}

}  // namespace

void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.device->architecture << ": " << to_string(cell.problem);
}

/// Of compute capability times ten, that NVRTC 13 compiles for; volta_test.cpp has those before.
constexpr int kOldest = 75;

const std::vector<Stratum>& strata() {
  static const auto all = [] {
    std::vector<Stratum> out;
    std::set<std::string_view> seen;
    for (const std::string_view name : kWhole) {
      out.push_back({kOfIntegers, integers_of(device(name))});
      out.push_back({kOfTypes, others_of(device(name), true)});
      seen.insert(device(name).architecture);
    }
    for (const Device& other : devices()) {
      if (!seen.insert(other.architecture).second) continue;
      if (other.family == Family::nvidia && other.generation < kOldest) continue;
      out.push_back({kOfIntegers, integers_of(other)});
      out.push_back({kOfTypesElsewhere, others_of(other, false)});
    }
    return out;
  }();
  return all;
}

// Of each stratum the cells of one remainder, another one for each stratum.
std::vector<const Cell*> sample(std::size_t seed) {
  std::vector<const Cell*> out;
  for (std::size_t turn = 0; turn < strata().size(); ++turn) {
    const auto& [stride, cells] = strata()[turn];
    for (auto i = (seed + turn) % stride; i < cells.size(); i += stride) out.push_back(&cells[i]);
  }
  return out;
}

}  // namespace ladder::testing
