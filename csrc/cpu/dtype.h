// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ladder::cpu {

/// Dtypes of activations, and of weights and scales that are stored as such.
enum class Float { float32, float16, bfloat16 };

}  // namespace ladder::cpu
