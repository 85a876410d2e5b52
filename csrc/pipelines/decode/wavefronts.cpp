// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/wavefronts.h"

#include <algorithm>
#include <array>

#include "layout/conflicts.h"
#include "layout/weight_image.h"
#include "pipelines/decode/shared_memory.h"
#include "schedule/decoding_cost.h"

namespace ladder {
namespace {

constexpr std::int64_t kMatrix = 8,
                       kMatrixBytes = 16;  // what load-matrix reads at once: rows, bytes
constexpr std::int64_t kWavefrontBytes = std::int64_t{kBanks} * kBankBytes;

}  // namespace

std::int64_t shared_wavefronts(const DecodeSchedule& s, const Problem& problem) {
  const std::int64_t row_bytes = staged_columns(s) * staged_bytes(s, problem);
  const std::int64_t block_bytes = s.block_columns() * staged_bytes(s, problem);
  std::array<std::int64_t, kMatrix> rows;
  for (std::int64_t row = 0; row < kMatrix; ++row) {
    rows[row] = row * (row_bytes + kActivationPadBytes);
  }
  const auto matrices = block_bytes / kMatrixBytes * (s.tokens / kMatrix) * s.warps_n * s.sweeps;
  const auto ring = s.stages == 1 ? 0
                                  : 2 * s.block_rows() * s.block_columns() * problem.weight.bits /
                                        8 / kWavefrontBytes;
  const auto rows_staged = s.sharers > 0 ? std::min<std::int64_t>(s.tokens, problem.m) : s.tokens;
  const auto staged = rows_staged * block_bytes * (s.x_rounds > 0 ? s.sweeps : 1) / kWavefrontBytes;
  const auto pairs = s.block_rows() * s.sweeps * s.block_columns() / 2;
  return staged + matrices * shared_wavefronts(rows, 16) + ring +
         pairs / kLanes * lookups_per_pair(problem);
}

}  // namespace ladder
