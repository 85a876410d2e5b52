// SPDX-License-Identifier: Apache-2.0
//
// To add a device, add its row in rows/ (docs/new-device.md). Bandwidths and rates are the
// datasheet's unless the source says that they were measured.
#include <algorithm>
#include <array>
#include <sstream>

#include "base/error.h"
#include "device/device.h"
#include "device/rows/cdna.h"
#include "device/rows/nvidia.h"
#include "device/rows/rdna.h"
#include "device/rows/x86.h"

namespace ladder {
namespace {

constexpr auto kDevices = [] {
  std::array<Device, std::size(rows::kCdna) + std::size(rows::kNvidia) + std::size(rows::kRdna) +
                         std::size(rows::kX86)>
      all;
  auto at = std::ranges::copy(rows::kCdna, all.begin()).out;
  at = std::ranges::copy(rows::kNvidia, at).out;
  at = std::ranges::copy(rows::kRdna, at).out;
  std::ranges::copy(rows::kX86, at);
  std::ranges::sort(all, {}, &Device::name);
  return all;
}();

}  // namespace

std::span<const Device> devices() { return kDevices; }

const Device& device(std::string_view name) {
  const auto row = std::ranges::find(kDevices, name, &Device::name);
  if (row != std::end(kDevices)) return *row;
  std::ostringstream names;
  for (const Device& known : kDevices) names << ' ' << known.name;
  fail<InvalidArgument>("no device is called ", name, "; known:", names.str());
}

}  // namespace ladder
