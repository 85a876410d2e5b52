// SPDX-License-Identifier: Apache-2.0
//
// How long NVRTC takes for the kernels that tuning tries, of every type. Needs no device.
//
//     ladder-compile-times DEVICE NVRTC_DIRECTORY [PART PARTS]
//
// A row of Markdown for each type of at most 8 bits (groups of 128 with float16 scales; MX and
// NVFP4 as they are; unsigned integers have the kernels of the signed ones): for float16 and
// bfloat16 activations, 8 and 16 tokens, 28672 x 8192, the median and the longest of the first
// eight schedules, in milliseconds of processor time of one compilation each. With two numbers,
// every PARTS-th type from PART on, so that processes can share the work: NVRTC compiles one kernel
// at a time in each.
#include <algorithm>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "expr/constructors.h"
#include "expr/decoding.h"
#include "pipelines/diversified.h"

namespace {

using namespace ladder;

constexpr std::int64_t kRows = 28672, kColumns = 8192;
constexpr int kCandidates = 8;

double processor_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

/// Each text is one that NVRTC has not seen: where there is a driver it keeps what it compiled.
double milliseconds(const std::string& source, const Device& device) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const auto fresh = source + "constexpr int at_" + std::to_string(now.tv_sec) + "_" +
                     std::to_string(now.tv_nsec) + " = 0;\n";
  const double start = processor_milliseconds();
  cuda::compile(fresh, device.architecture);
  return processor_milliseconds() - start;
}

std::vector<TType> types() {
  std::vector<TType> out;
  for (const Element* element : elements()) {
    const bool compiled =
        element->encoding != Encoding::exponent && element->encoding != Encoding::unsigned_integer;
    if (element->bits > 8 || !compiled) continue;
    out.push_back(ttype(std::string(element->name) + ",group=128,scale=float16"));
  }
  for (const NamedTType& named : named_ttypes()) out.push_back(ttype(named.name));
  return out;
}

/// "median / longest", or why there is none.
std::string cell(const TType& type, Scalar activation, int tokens, const Device& device) {
  std::vector<double> taken;
  try {
    const auto problem = linear_of(type, kRows, kColumns, activation, tokens);
    decoding_of(problem);
    const auto decisions = decide(problem, device);
    for (const auto& candidate : diversified(candidates(decisions), kCandidates)) {
      if (!candidate.dropped.empty() || taken.size() == kCandidates) break;
      taken.push_back(milliseconds(compile(decisions, candidate.schedule).source, device));
    }
  } catch (const Unsupported&) {
    return "no kernel";
  }
  if (taken.empty()) return "no kernel";
  std::sort(taken.begin(), taken.end());
  std::ostringstream out;
  out << std::fixed << std::setprecision(0) << taken[taken.size() / 2] << " / " << taken.back();
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 5) {
    std::cerr << "ladder-compile-times DEVICE NVRTC_DIRECTORY [PART PARTS]\n";
    return 2;
  }
  cuda::add_nvrtc_directory(argv[2]);
  const Device& device = ladder::device(argv[1]);
  const std::size_t part = argc == 5 ? std::stoul(argv[3]) : 0;
  const std::size_t parts = argc == 5 ? std::stoul(argv[4]) : 1;
  // What NVRTC does once, not for each kernel.
  cuda::compile("extern \"C\" __global__ void nothing() {}", device.architecture);
  const auto all = types();
  for (std::size_t i = part; i < all.size(); i += parts) {
    std::cout << "| " << to_string(all[i]);
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (int tokens : {8, 16}) std::cout << " | " << cell(all[i], activation, tokens, device);
    }
    std::cout << " |" << std::endl;
  }
  return 0;
}
