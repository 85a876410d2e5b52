// SPDX-License-Identifier: Apache-2.0
#include "device/hint.h"

#include <functional>
#include <numeric>
#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

std::int64_t count(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// The widest load that fills registers from the level next to them; of several the table's last.
const CopyInstruction& register_load(const Device& device) {
  const CopyInstruction* best = nullptr;
  for (const CopyInstruction* row : copies(device)) {
    if (row->to != "registers" || row->from != "shared") continue;
    if (best == nullptr || row->granule_bytes >= best->granule_bytes) best = row;
  }
  LADDER_CHECK(best != nullptr, device.name, " has no load from shared memory");
  return *best;
}

}  // namespace

std::vector<HintLayer> hint_layers(const Device& device, const MatrixInstruction& instruction) {
  const int operand_bytes = instruction.operand_bits() / 8;
  // Where k is one element, B is stored along n.
  const std::vector<std::int64_t> b = instruction.k == 1
                                          ? std::vector<std::int64_t>{1, instruction.n}
                                          : std::vector<std::int64_t>{instruction.n, instruction.k};
  const CopyInstruction& load = register_load(device);
  return {{"A of " + std::string(instruction.name), operand_bytes, {instruction.m, instruction.k}},
          {"B of " + std::string(instruction.name), operand_bytes, b},
          {std::string(load.name), load.granule_bytes, {load.rows, load.columns}},
          {std::string(device.shared.name), device.shared.bank_bytes, {device.shared.banks}},
          {std::string(device.global.name), 1, {device.global.transaction_bytes}}};
}

Hint hint(const Device& device, const MatrixInstruction& instruction) {
  const auto layers = hint_layers(device, instruction);
  int granularity = 1;
  for (const HintLayer& layer : layers) granularity = std::lcm(granularity, layer.granule_bytes);
  std::int64_t inner = 1, total = 1;
  for (const HintLayer& layer : layers) {
    auto shape = layer.shape;
    const std::int64_t bytes = layer.granule_bytes * count(shape);
    if (bytes < granularity) continue;
    const std::int64_t run = layer.granule_bytes * shape.back();
    if (run % granularity == 0) {
      shape.back() = run / granularity;
    } else {
      // Rows shorter than a granule follow each other in it.
      LADDER_CHECK(bytes % granularity == 0, layer.name, " has ", bytes, " bytes in granules of ",
                   granularity);
      shape = {bytes / granularity, 1};
    }
    inner = std::lcm(inner, shape.back());
    total = std::lcm(total, count(shape));
  }
  return {granularity, {total / inner, inner}};
}

std::string to_string(const Hint& hint) {
  std::ostringstream out;
  out << "granularity " << hint.granularity_bytes << " B, shape [" << hint.shape[0] << ", "
      << hint.shape[1] << "]: runs of " << hint.run_bytes() << " B";
  return out.str();
}

}  // namespace ladder
