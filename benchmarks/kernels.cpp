// SPDX-License-Identifier: Apache-2.0
//
// Compiles kernels without a device, for benchmarks/linear.py to run where there is one.
//
//     ladder-kernels OUT DEVICE NVRTC_DIRECTORY < requests
//
// A request is a line of words: bits zero group activation max_m n k, where activation is f16 or
// bf16, and with :s8, :e4m3 or :e4m3,fast_accum behind it comes rounded, e4m3 beside floats of 8, 6
// and 4 bits, and a group of 0 is all of K; then either `guess I dependent`, which is number I,
// from 0 on, of the eight that tuning would measure, or `schedule` and a schedule as it prints, of
// whose two reduction buffers one is left where there is no room. For each that no line before
// asked for, OUT gets I.cubin and one object in manifest.json; for each width, positions_B.i32: the
// bit of a block's 512 B bytes at which bit b of code (row, column) lies, in order
// [row][column][b].
#include <chrono>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "expr/constructors.h"
#include "layout/weight_image.h"
#include "pipelines/diversified.h"
#include "pipelines/lower.h"

namespace {

using namespace ladder;

constexpr std::size_t kMeasured = 8;  // as ladder/cuda/tune.py has it

Schedule read_schedule(std::istream& in, const Problem& problem, const Device& device) {
  std::string word;
  in >> word;
  if (word == "guess") {
    std::size_t number = 0;
    bool dependent = false;
    in >> number >> dependent;
    const auto measured = diversified(candidates(decide(problem, device), dependent), kMeasured);
    const Candidate& guess = measured.at(number);
    if (!guess.dropped.empty()) fail<Unsupported>(guess.dropped);
    return guess.schedule;
  }
  LADDER_REQUIRE(word == "schedule", "\"", word, "\" is neither guess nor schedule");
  std::string text;
  std::getline(in >> std::ws, text);
  auto schedule = schedule_of(text);
  if (!schedule) fail<InvalidArgument>("no schedule prints as \"", text, "\"");
  auto* decode = std::get_if<DecodeSchedule>(&*schedule);
  auto* stages =
      decode == nullptr ? nullptr : std::get_if<weights::RegisterStages>(&decode->weights);
  if (stages != nullptr && !objection(*schedule, decide(problem, device)).empty()) {
    stages->reduction_buffers = 1;
  }
  return *schedule;
}

void write(const std::string& path, const void* data, std::size_t size) {
  std::ofstream(path, std::ios::binary).write(static_cast<const char*>(data), size);
}

void write_positions(const std::string& out, int bits) {
  std::vector<std::int32_t> positions;
  for (int row = 0; row < kBlock; ++row) {
    for (int column = 0; column < kBlock; ++column) {
      for (int bit = 0; bit < bits; ++bit) {
        const auto at = image_place(kBlock, bits, row, column, bit);
        positions.push_back(static_cast<std::int32_t>(at.word * 32 + at.bit));
      }
    }
  }
  write(out + "/positions_" + std::to_string(bits) + ".i32", positions.data(),
        positions.size() * 4);
}

const Element& float_of(int bits) {
  return element(bits == 8 ? "float8_e4m3" : bits == 6 ? "float6_e3m2" : "float4_e2m1");
}

std::optional<RoundedX> rounded_x(const std::string& name) {
  if (name == "e4m3,fast_accum") return RoundedX(Scalar::e4m3, true);
  const auto scalar = scalar_called(name);
  return scalar ? std::optional<RoundedX>(*scalar) : std::nullopt;
}

/// What the codes mean, as JSON; null: no number.
std::string values_of(const Problem& problem) {
  std::ostringstream out;
  out << std::setprecision(17) << "[";
  for (std::uint32_t code = 0; code < 1u << problem.weight.bits; ++code) {
    const double value = value_of(problem.weight, code);
    out << (code > 0 ? ", " : "");
    std::isfinite(value) ? out << value : out << "null";
  }
  out << "]";
  return out.str();
}

int run(const std::string& out, const Device& device) {
  std::ofstream manifest(out + "/manifest.json");
  manifest << "[";
  std::set<int> widths;
  std::set<std::string> known;
  std::string line;
  int number = 0;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    int bits, zero;
    std::int64_t group, m, n, k;
    std::string activation;
    if (!(in >> bits >> zero >> group >> activation >> m >> n >> k)) continue;
    const auto colon = activation.find(':');
    const Scalar scalar = activation.starts_with("bf16") ? Scalar::bf16 : Scalar::f16;
    const auto rounded = rounded_x(colon == std::string::npos ? "" : activation.substr(colon + 1));
    LADDER_REQUIRE(zero == 0 || zero == 1 << (bits - 1), "a zero point of ", zero,
                   ", neither 0 nor the middle of ", bits, " bits");
    const bool floats = rounded && rounded->scalar == Scalar::e4m3;
    const Element& codes = floats ? float_of(bits) : element("uint" + std::to_string(bits));
    const TType type{
        &codes, {1, group}, &element_of(scalar), zero != 0 ? Zero::midpoint : Zero::none};
    Problem problem = linear_of(type, n, k, scalar, m);
    problem.round_x(rounded);
    try {
      const auto schedule = read_schedule(in, problem, device);
      if (!known.insert(to_string(problem) + to_string(schedule)).second) continue;
      const auto start = std::chrono::steady_clock::now();
      const auto compiled = compile(decide(problem, device), schedule);
      const auto binary = cuda::compile(compiled.source, device.architecture);
      const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
      std::cerr << number << ": " << to_string(problem) << "\n  " << to_string(schedule) << "\n  "
                << binary.registers << " registers, " << binary.spill_bytes << " spilled, "
                << compiled.program.shared_bytes() << " shared, " << ms.count() << " ms\n";
      if (binary.spill_bytes > 0 || binary.stack_bytes > 0) {
        std::cerr << "  rejected: spills\n";
        continue;
      }
      const auto path = out + "/" + std::to_string(number);
      write(path + ".cubin", binary.bytes.data(), binary.bytes.size());
      write(path + ".cu", compiled.source.data(), compiled.source.size());
      const auto workspace = workspace_of(problem, schedule);
      if (widths.insert(problem.weight.bits).second) write_positions(out, problem.weight.bits);
      manifest << (number ? ",\n" : "\n") << "{\"id\": " << number << ", \"name\": \""
               << compiled.program.name << "\", \"bits\": " << problem.weight.bits
               << ", \"zero\": " << problem.weight.zero << ", \"values\": " << values_of(problem)
               << ", \"group\": " << problem.group_size() << ", \"activation\": \"" << activation
               << "\", \"max_m\": " << problem.m << ", \"n\": " << problem.n
               << ", \"k\": " << problem.k << ", \"schedule\": \"" << to_string(schedule)
               << "\", \"registers\": " << binary.registers << ", \"grid\": ["
               << compiled.program.grid()[0] << ", " << compiled.program.grid()[1]
               << "], \"threads\": " << compiled.program.block_threads()
               << ", \"shared\": " << compiled.program.shared_bytes()
               << ", \"dependent\": " << (compiled.program.dependent_launch ? "true" : "false")
               << ", \"floats\": " << workspace.floats << ", \"counters\": " << workspace.counters
               << "}";
      ++number;
    } catch (const std::exception& error) {
      std::cerr << "refused: " << line << "\n  " << error.what() << '\n';
    }
  }
  manifest << "\n]\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "ladder-kernels OUT DEVICE NVRTC_DIRECTORY < requests\n";
    return 2;
  }
  ladder::cuda::add_nvrtc_directory(argv[3]);
  return run(argv[1], ladder::device(argv[2]));
}
