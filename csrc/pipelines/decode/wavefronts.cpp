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
  const std::int64_t cta_bytes = s.cta_columns() * staged_bytes(s, problem);
  std::array<std::int64_t, kMatrix> rows;
  for (std::int64_t row = 0; row < kMatrix; ++row) {
    rows[row] = row * (row_bytes + kActivationPadBytes);
  }
  const auto matrices =
      cta_bytes / kMatrixBytes * (s.tokens / kMatrix) * s.warps_n * s.tiles_per_cta();
  const auto ring = s.ring() == nullptr ? 0
                                        : 2 * s.tile_rows() * s.cta_columns() *
                                              problem.weight.bits / 8 / kWavefrontBytes;
  const auto rows_staged =
      s.bulk_copy() != nullptr ? std::min<std::int64_t>(s.tokens, problem.m) : s.tokens;
  const auto times_staged = s.activation_stages() > 0 ? s.tiles_per_cta() : 1;
  const auto staged = rows_staged * cta_bytes * times_staged / kWavefrontBytes;
  const auto pairs = s.tile_rows() * s.tiles_per_cta() * s.cta_columns() / 2;
  return staged + matrices * shared_wavefronts(rows, 16) + ring +
         pairs / kLanes * lookups_per_pair(problem);
}

}  // namespace ladder
