// SPDX-License-Identifier: Apache-2.0
//
// The layouts of ImageFit for waves of 32 lanes: RDNA's, and Volta's warps. Internal to this
// folder.
#pragma once

#include "device/instructions.h"
#include "layout/layout.h"

namespace ladder::wave32 {

// Each over two waves, which have 128 rows of two blocks together; ImageFit says what of.
Layout a(const MatrixInstruction& row);
Layout b(const MatrixInstruction& row, std::int64_t tokens);
Layout sums(const MatrixInstruction& row, std::int64_t tokens);
Layout zero_row(const MatrixInstruction& row);
Layout zero_sum(const MatrixInstruction& row, std::int64_t tokens);
Layout zeros(const MatrixInstruction& row, std::int64_t copies);
Layout words(const MatrixInstruction& row, int bits);
Layout loaded(const MatrixInstruction& row, bool of_a);
Layout rows(const MatrixInstruction& row, bool of_a);

/// Row units of 16 that a wave has of each of its two blocks.
constexpr std::int64_t kUnitsOfWave = 2;

}  // namespace ladder::wave32
