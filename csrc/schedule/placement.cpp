// SPDX-License-Identifier: Apache-2.0
#include "schedule/placement.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "layout/bit_plan.h"

namespace ladder {
namespace {

double per_second(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

}  // namespace

std::string_view name_of(ConvertPlace place) {
  switch (place) {
    case ConvertPlace::once: return "once in global memory";
    case ConvertPlace::global_to_shared: return "from global to shared memory";
    case ConvertPlace::shared_to_registers: return "from shared memory to registers";
  }
  return "?";
}

std::string no_kernel(ConvertPlace place, std::int64_t m) {
  switch (place) {
    case ConvertPlace::once: return {};  // and a dense product
    case ConvertPlace::global_to_shared: return "no kernel does";
    case ConvertPlace::shared_to_registers:
      return m <= kMostTokens ? ""
                              : joined("kernels that do serve at most ", kMostTokens, " tokens");
  }
  return "?";
}

std::vector<ConvertCost> convert_costs(const Device& device, const ConvertWork& w) {
  LADDER_REQUIRE(
      w.m >= 1 && w.n >= 1 && w.k >= 1 && w.block_m >= 1 && w.block_n >= 1 && w.warps_m >= 1,
      "a matmul of ", w.m, " x ", w.n, " x ", w.k, " in blocks of ", w.block_m, " x ", w.block_n,
      " with ", w.warps_m, " warps along m");
  const double weights = static_cast<double>(w.n) * static_cast<double>(w.k);
  const double code_bytes = w.weight_bits / 8.0, operand_bytes = w.operand_bits / 8.0;
  const double times = static_cast<double>(ceil_div(w.m, w.block_m));
  const double others = static_cast<double>(w.m) * static_cast<double>(w.n + w.k) * operand_bytes;
  // One instruction a lane and cycle.
  const double alu = device.f32_lanes * device.multiprocessors * device.clock();
  std::vector<ConvertCost> all;
  for (const ConvertPlace place :
       {ConvertPlace::shared_to_registers, ConvertPlace::global_to_shared, ConvertPlace::once}) {
    ConvertCost c{};
    c.place = place;
    const bool once = place == ConvertPlace::once;
    c.global_bytes = weights * (once ? operand_bytes : code_bytes);
    const bool packed = place == ConvertPlace::shared_to_registers;
    c.shared_bytes = 2 * weights * times * (packed ? code_bytes : operand_bytes);
    c.conversions = once ? 0 : weights * times * (packed ? static_cast<double>(w.warps_m) : 1);
    c.workspace_bytes = once ? weights * operand_bytes : 0;
    c.global_seconds = (c.global_bytes + others) / device.global.bytes_per_second;
    c.shared_seconds = per_second(c.shared_bytes, device.shared_bytes_per_second());
    const double rate = once && w.dense_rate > 0 ? w.dense_rate : w.operations_rate;
    c.arithmetic_seconds = per_second(2.0 * static_cast<double>(w.m) * weights, rate) +
                           c.conversions * w.instructions / alu;
    if (once) {
      c.before_seconds =
          std::max(weights * (code_bytes + operand_bytes) / device.global.bytes_per_second,
                   weights * w.instructions / alu);
    }
    c.seconds =
        std::max({c.global_seconds, c.shared_seconds, c.arithmetic_seconds}) + c.before_seconds;
    all.push_back(c);
  }
  std::ranges::stable_sort(all, {}, &ConvertCost::seconds);
  return all;
}

std::string to_string(const ConvertCost& cost) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << name_of(cost.place) << ": weights "
      << cost.global_bytes / 1e6 << " MB global, " << cost.shared_bytes / 1e6 << " MB shared, "
      << cost.conversions / 1e6 << " M conversions; global " << 1e6 * cost.global_seconds
      << " us, shared " << 1e6 * cost.shared_seconds << " us, arithmetic "
      << 1e6 * cost.arithmetic_seconds << " us, before " << 1e6 * cost.before_seconds << " us";
  if (cost.workspace_bytes > 0) out << ", workspace " << cost.workspace_bytes / 1e6 << " MB";
  out << ": " << 1e6 * cost.seconds << " us";
  return out.str();
}

double instructions_per_weight(int bits, int window) {
  const auto plan = unpack_plan(bits, window);
  return (plan.mask_count() + plan.shift_count() + kPairsPerUnit) / (2.0 * kPairsPerUnit);
}

}  // namespace ladder
