// SPDX-License-Identifier: Apache-2.0
// Which GPUs torch has, and the stream that it uses now. A device of torch's type "cuda" is AMD's
// where torch was built for ROCm, which calls everything by CUDA's names.
#include <dlfcn.h>

#include "base/error.h"
#include "binding/torch/tensors.h"
#include "runtime/gpus.h"

namespace ladder::binding {
namespace {

/// Torch's library for the GPUs of a target. It is never linked: it is there or not.
struct TorchLibrary {
  const char *target, *file;
};
constexpr TorchLibrary kLibraries[] = {{"CUDA", "libtorch_cuda.so"}, {"HIP", "libtorch_hip.so"}};

struct OfTorch {
  const TorchLibrary* library = nullptr;
  void* handle = nullptr;
};

OfTorch of_torch() {
  for (const TorchLibrary& each : kLibraries) {
    if (void* handle = dlopen(each.file, RTLD_NOLOAD | RTLD_NOW)) return {&each, handle};
  }
  return {};
}

// When this library is loaded, torch is, and nobody has asked for a device yet.
[[maybe_unused]] const bool kChosen = [] {
  const OfTorch found = of_torch();
  if (found.library != nullptr) use_gpus_of(target_called(found.library->target));
  return true;
}();

using Get = AOTITorchError (*)(std::int32_t, void**);

/// By Python, which knows the stream of every torch (ladder/_library.py).
AOTITorchError stream_of_python(std::int32_t ordinal, void** stream) {
  std::array stack{stable::from(std::int64_t{ordinal})};
  const auto error =
      torch_call_dispatcher("ladder::current_stream", "", stack.data(), stable::kAbiVersion);
  if (error == 0) *stream = reinterpret_cast<void*>(stable::to<std::int64_t>(stack[0]));
  return error;
}

void use_gpus(std::string target) { use_gpus_of(target_called(target)); }
std::string gpus_of() { return std::string(gpus().name); }

}  // namespace

void* current_stream(std::int32_t ordinal) {
  static const Get get = []() -> Get {
    const OfTorch found = of_torch();
    if (found.handle == nullptr) return nullptr;
    const auto function =
        reinterpret_cast<Get>(dlsym(found.handle, "aoti_torch_get_current_cuda_stream"));
    return function != nullptr ? function : &stream_of_python;
  }();
  if (get == nullptr) fail<Unsupported>("this torch was built without CUDA");
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(get(ordinal, &stream));
  return stream;
}

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("use_gpus_of(str target) -> ()");
  m.def("gpus_of() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("use_gpus_of", TORCH_BOX(&use_gpus));
  m.impl("gpus_of", TORCH_BOX(&gpus_of));
}

}  // namespace ladder::binding
