// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels to functions of this process.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ladder::emulate {

struct Source {
  std::string text, name;  ///< of its one kernel
};

/// Calls the kernel, within run(), with its parameters: pointers as they are, others behind one.
using Kernel = std::function<void(void* const* parameters)>;

/// In which the kernels are written.
enum class Language { cuda, hip };

/// Compiles all of them at once with this machine's C++ compiler and loads them for good. Asm
/// statements of CUDA become calls of emulate::ptx (device.h); the rest stays as it is. Throws
/// InternalError with what the compiler says. `capability`: compute capability times ten, of CUDA.
std::vector<Kernel> load(const std::vector<Source>& sources, Language language = Language::cuda,
                         int capability = 90);

}  // namespace ladder::emulate
