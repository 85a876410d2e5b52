// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ladder {

/// Everything that decides the bytes of a compiled kernel, and nothing else. A change to any
/// emitter changes `source`, so a stale kernel has a name that nobody asks for.
struct KernelKey {
  std::string source;    ///< complete text, prelude included
  std::string compiler;  ///< "nvrtc 13.0"
  std::string flags;     ///< "sm_90a"
  bool operator==(const KernelKey&) const = default;

  /// 32 hexadecimal digits of XXH3-128.
  std::string digest() const;
};

/// 32 hexadecimal digits that stand for `bytes`.
std::string digest_of(std::string_view bytes);

/// A number in [0, 2^63) that stands for `bytes`, the same in every process.
std::int64_t number_of(std::string_view bytes);

}  // namespace ladder
