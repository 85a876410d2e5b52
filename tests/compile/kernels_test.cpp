// SPDX-License-Identifier: Apache-2.0
//
// The compile matrix: for every type, activation and kind of shape, on every architecture of the
// device table, the scheduler's first choices must compile, without the warnings by which the
// assembler says that it gave up an optimisation, and one of them without spills: whoever compiles
// drops a schedule that spills and takes the next, since only the compiler knows. Needs libnvrtc,
// without which all fail, and no GPU.
//
// Plain integers are compiled for every number of tokens in kTokens, other types for one in turn,
// so that each type has all of them at some shape. `make compile-matrix` compiles all of them for
// all types: disabled here, since it takes longer than all that is compiled here otherwise.
//
// NVRTC compiles one kernel at a time in a process, so run several:
//     GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=0 compile_tests     (`make compile-test` does)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "base/error.h"
#include "codegen/cuda/toolchain.h"
#include "codegen/target.h"
#include "compile.h"
#include "expr/decoding.h"
#include "expr/of_ttype.h"
#include "schedule/spread.h"

namespace ladder {
namespace {

// Devices, one of an architecture, whose every cell is compiled. Of each other architecture, one
// cell of plain integers in kSample, a prime, so that the sample runs through all widths,
// activations and shapes, with another start for each; and one cell of each other type.
constexpr std::string_view kWhole[] = {"h200", "a100", "l40s", "b200"};
constexpr std::size_t kSample = 7;
// Candidates that are compiled before a cell counts as one that has no kernel.
constexpr int kTries = 8;

// N x K: where the scheduler has one round in a cluster, rounds in registers, one round of many
// blocks, long rows; and borders along both.
constexpr std::int64_t kShapes[][2] = {
    {4096, 4096}, {8192, 8192}, {28672, 8192}, {8192, 28672}, {1000, 1032}};

/// One token, whole instructions, and two of them side by side. The first two have one kernel but
/// where one token has digits or ranks schedules otherwise.
using Tokens = std::vector<std::int64_t>;
const Tokens kTokens = {1, 8, 16};
Tokens in_turn(std::size_t turn) { return {kTokens[turn % kTokens.size()]}; }

struct Cell {
  const Device* device;
  Linear expr;  ///< for any number of tokens
  Tokens tokens;
};

void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.device->architecture << ": " << to_string(cell.expr);
}

/// Letters and digits only, as names of tests want.
std::string name_of(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [device, expr, tokens] = info.param;
  std::ostringstream name;
  name << device->architecture << '_'
       << (expr.element != nullptr ? std::string(expr.element->name)
                                   : "u" + std::to_string(expr.bits))
       << '_' << ladder::name_of(expr.activation) << '_' << expr.n << 'x' << expr.k << '_'
       << info.index;
  return name.str();
}

std::vector<Cell> integers_of(const Device& device) {
  std::vector<Cell> out;
  if (!no_target(device).empty()) return out;
  for (int bits = 1; bits <= 8; ++bits) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (const auto& [n, k] : kShapes) {
        out.push_back(
            {&device, {bits, 1 << (bits - 1), 128, activation, 1, n, k, activation}, kTokens});
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
        "int4,group=32,scale=bfloat16,zero=original"}) {
    out.push_back(ttype(text));
  }
  return out;
}

/// Every other type at every activation and shape, for any number of tokens.
std::vector<Cell> others_of(const Device& device) {
  std::vector<Cell> out;
  if (!no_target(device).empty()) return out;
  for (const TType& type : types()) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (const auto& [n, k] : kShapes) {
        try {
          const Linear expr = linear_of(type, n, k, activation, 1);
          decoding_of(expr);
          out.push_back({&device, expr, kTokens});
        } catch (const Unsupported&) {
          continue;  // wider than float16: tests/core/expr says which
        }
      }
    }
  }
  return out;
}

/// With one number of tokens in turn, some with a bias, some permuted.
std::vector<Cell> in_turn(std::vector<Cell> cells, std::size_t turn) {
  for (Cell& cell : cells) {
    cell.tokens = in_turn(turn);
    cell.expr.bias = turn % 4 == 1;
    cell.expr.gather = turn % 11 == 2;
    ++turn;
  }
  return cells;
}

std::vector<Cell> every(std::size_t stride, std::size_t first, const std::vector<Cell>& cells) {
  std::vector<Cell> out;
  for (auto i = first % stride; i < cells.size(); i += stride) out.push_back(cells[i]);
  return out;
}

std::vector<Cell> matrix() {
  std::vector<Cell> out;
  const auto add = [&](const std::vector<Cell>& cells) {
    out.insert(out.end(), cells.begin(), cells.end());
  };
  std::set<std::string_view> seen;
  for (const std::string_view name : kWhole) {
    add(integers_of(device(name)));
    add(in_turn(others_of(device(name)), seen.size()));
    seen.insert(device(name).architecture);
  }
  for (const Device& other : devices()) {
    if (!seen.insert(other.architecture).second) continue;
    const auto turn = seen.size();
    add(in_turn(every(kSample, turn, integers_of(other)), turn));
    // Those of a type follow each other, five for each activation: another one of each.
    add(in_turn(every(2 * std::size(kShapes) + 1, turn, others_of(other)), turn));
  }
  return out;
}

/// All numbers of tokens of what has one in turn.
std::vector<Cell> whole_matrix() {
  std::vector<Cell> out;
  for (const std::string_view name : kWhole) {
    for (Cell& cell : others_of(device(name))) out.push_back(std::move(cell));
  }
  return out;
}

class Kernels : public ::testing::TestWithParam<Cell> {};

TEST_P(Kernels, of_the_first_choices_one_compiles_without_spills) {
  auto [device, expr, tokens] = GetParam();
  std::set<std::string> without_spills;  // texts: numbers of tokens may share them
  for (const auto m : tokens) {
    expr.max_m = m;
    const auto choices = spread(candidates(expr, *device), kTries);
    std::string spilled;
    bool found = false;
    for (int i = 0; i < kTries && choices[i].dropped.empty() && !found; ++i) {
      const auto& schedule = choices[i].schedule;
      const auto source = compile(expr, schedule, *device).source;
      found = without_spills.contains(source);
      if (found) break;
      const auto binary = cuda::compile(source, device->architecture);
      EXPECT_EQ(binary.warning, "") << m << " tokens: " << to_string(schedule);
      found = binary.spill_bytes == 0 && binary.stack_bytes == 0;
      if (found) without_spills.insert(source);
      spilled += "\n  " + std::to_string(binary.spill_bytes) + " bytes: " + to_string(schedule);
    }
    EXPECT_TRUE(found) << m << " tokens: all spill:" << spilled;
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, Kernels, ::testing::ValuesIn(matrix()), name_of);
// `make compile-matrix` runs it.
INSTANTIATE_TEST_SUITE_P(DISABLED_Whole, Kernels, ::testing::ValuesIn(whole_matrix()), name_of);

}  // namespace
}  // namespace ladder
