// SPDX-License-Identifier: Apache-2.0
//
// To add a device, add its row, in order of name. Bandwidths are the datasheet's unless the source
// says that they were measured.
#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "device/device.h"

namespace ladder {
namespace {

constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGB = 1e9, kTera = 1e12;

constexpr Memory dram(double gigabytes, double gigabytes_per_second) {
  return {"global", gigabytes * kGB, gigabytes_per_second * 1e9, 32};
}
constexpr Memory l2(double mebibytes) { return {"L2", mebibytes * kMiB, 0, 32}; }
constexpr Memory shared(double kibibytes) { return {"shared", kibibytes * kKiB, 0, 128}; }

constexpr Device kDevices[] = {
    {.name = "a100",
     .architecture = "sm_80",
     .capability = 80,
     .multiprocessors = 108,
     .global = dram(80, 2039),
     .l2 = l2(40),
     .shared = shared(164),
     .shared_per_block_bytes = 163 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f16_flops = 312 * kTera,
     .max_cluster = 1,
     .source = "A100 80GB SXM datasheet; CUDA C++ Programming Guide, table of capabilities"},
    {.name = "a6000",
     .architecture = "sm_86",
     .capability = 86,
     .multiprocessors = 84,
     .global = dram(48, 768),
     .l2 = l2(6),
     .shared = shared(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f16_flops = 154.8 * kTera,
     .max_cluster = 1,
     .source = "RTX A6000 datasheet; GA102 whitepaper; CUDA C++ Programming Guide"},
    {.name = "b200",
     .architecture = "sm_100a",
     .capability = 100,
     .multiprocessors = 148,
     .global = dram(180, 8000),
     .l2 = l2(126),
     .shared = shared(228),
     .shared_per_block_bytes = 227 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f16_flops = 2250 * kTera,
     .max_cluster = 8,
     .source = "DGX B200 datasheet, per GPU; CUDA C++ Programming Guide"},
    {.name = "h100",
     .architecture = "sm_90a",
     .capability = 90,
     .multiprocessors = 132,
     .global = dram(80, 3350),
     .l2 = l2(50),
     .shared = shared(228),
     .shared_per_block_bytes = 227 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f16_flops = 989.4 * kTera,
     .max_cluster = 8,
     .source = "H100 SXM datasheet; CUDA C++ Programming Guide"},
    {.name = "h200",
     .architecture = "sm_90a",
     .capability = 90,
     .multiprocessors = 132,
     .global = dram(141, 4530),
     .l2 = l2(60),
     .shared = shared(228),
     .shared_per_block_bytes = 227 * 1024,
     .registers = 65536,
     .threads = 2048,
     .f16_flops = 761 * kTera,
     .max_cluster = 8,
     .source = "bandwidth, L2 and rate measured on one (docs/performance.md; datasheet: 4.8 TB/s, "
               "989 TFLOP/s); CUDA C++ Programming Guide"},
    {.name = "l40s",
     .architecture = "sm_89",
     .capability = 89,
     .multiprocessors = 142,
     .global = dram(48, 864),
     .l2 = l2(96),
     .shared = shared(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f16_flops = 362 * kTera,
     .max_cluster = 1,
     .source = "L40S datasheet; CUDA C++ Programming Guide"},
    {.name = "rtx4090",
     .architecture = "sm_89",
     .capability = 89,
     .multiprocessors = 128,
     .global = dram(24, 1008),
     .l2 = l2(72),
     .shared = shared(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f16_flops = 165.2 * kTera,
     .max_cluster = 1,
     .source = "Ada architecture whitepaper; CUDA C++ Programming Guide"},
    {.name = "rtx5090",
     .architecture = "sm_120a",
     .capability = 120,
     .multiprocessors = 170,
     .global = dram(32, 1792),
     .l2 = l2(96),
     .shared = shared(100),
     .shared_per_block_bytes = 99 * 1024,
     .registers = 65536,
     .threads = 1536,
     .f16_flops = 209.5 * kTera,
     .max_cluster = 8,
     .source = "RTX Blackwell architecture whitepaper; CUDA C++ Programming Guide"},
};
static_assert(std::ranges::is_sorted(kDevices, {}, &Device::name));

}  // namespace

std::span<const Device> devices() { return kDevices; }

const Device& device(std::string_view name) {
  const auto row = std::ranges::find(kDevices, name, &Device::name);
  if (row != std::end(kDevices)) return *row;
  std::ostringstream names;
  for (const Device& known : kDevices) names << ' ' << known.name;
  fail<InvalidArgument>("no device is called ", name, "; known:", names.str());
}

std::string to_string(const Device& device) {
  std::ostringstream out;
  out << device.name << ": " << device.architecture << ", " << device.multiprocessors
      << " multiprocessors\n";
  for (const Memory* memory : {&device.global, &device.l2, &device.shared}) {
    out << "  " << memory->name << ": " << memory->capacity_bytes / kMiB << " MiB";
    if (memory->bytes_per_second > 0) {
      out << ", " << memory->bytes_per_second / kTera << " TB/s";
    }
    out << ", transactions of " << memory->transaction_bytes << " B\n";
  }
  out << "  f16: " << device.f16_flops / kTera << " TFLOP/s\n  clusters of up to "
      << device.max_cluster << "\n  source: " << device.source << '\n';
  return out.str();
}

}  // namespace ladder
