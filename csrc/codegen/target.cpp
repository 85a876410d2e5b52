// SPDX-License-Identifier: Apache-2.0
#include "codegen/target.h"

#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/cuda/emit.h"

namespace ladder {
namespace {

// To add one: its row, and a folder beside this file.
constexpr Target kTargets[] = {
    {"CUDA", Family::nvidia, &cuda::emit},
};

const Target* find(Family family) {
  const auto found = std::ranges::find(kTargets, family, &Target::family);
  return found == std::end(kTargets) ? nullptr : &*found;
}

std::string names() {
  std::string out;
  for (const Target& target : kTargets) out += joined(out.empty() ? "" : ", ", target.name);
  return out;
}

}  // namespace

std::string no_target(const Device& device) {
  const auto why = [&](const auto&... rest) {
    return joined("no target writes kernels for ", device.name, " (", device.architecture,
                  ") yet: ", rest...);
  };
  if (find(device.family) == nullptr) return why("there is ", names(), " alone");
  if (!has_tile_programs(device)) {
    const MatrixInstruction& oldest = *tile_instruction(Scalar::f16);
    return why("tile programs multiply by ", oldest.name, ", which needs sm_", oldest.architecture);
  }
  return {};
}

const Target& target_of(const Device& device) {
  if (const auto why_not = no_target(device); !why_not.empty()) fail<Unsupported>(why_not);
  return *find(device.family);
}

}  // namespace ladder
