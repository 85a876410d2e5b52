// SPDX-License-Identifier: Apache-2.0
// Runs the text of a tile program on CUDA tensors. Shapes are the caller's to check.
#include "base/error.h"
#include "binding/torch/tensors.h"
#include "codegen/driver.h"
#include "runtime/kernels.h"

namespace ladder::binding {
namespace {

/// `source` takes the addresses of `arguments` and the number of tokens. Compiled at the first call
/// for a device, from then on found by its text.
void run_program(std::string source, std::string name, std::int64_t grid_x, std::int64_t grid_y,
                 std::int64_t threads, std::int64_t shared_bytes, std::vector<Tensor> arguments,
                 std::int64_t tokens) {
  LADDER_REQUIRE(!arguments.empty(), "a program without arguments has no effect");
  const auto ordinal = arguments.front().get_device_index();
  std::vector<void*> addresses;
  for (const Tensor& argument : arguments) {
    LADDER_REQUIRE(
        argument.is_cuda() && argument.get_device_index() == ordinal && argument.is_contiguous(),
        "arguments are not contiguous on one CUDA device");
    addresses.push_back(const_cast<void*>(argument.const_data_ptr()));
  }
  void* const stream = current_stream(ordinal);
  const auto kernel = load_kernel(source, name, ordinal, static_cast<unsigned>(shared_bytes));
  keep_loaded(kernel);
  auto count = static_cast<std::uint32_t>(tokens);
  std::vector<void*> pointers;
  for (void*& address : addresses) pointers.push_back(&address);
  pointers.push_back(&count);
  const Launch launch{{static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y), 1},
                      static_cast<unsigned>(threads),
                      static_cast<unsigned>(shared_bytes),
                      false};
  if (!kernel->launch(launch, stream, pointers.data())) {
    fail<Unsupported>("the device has no room for ", name, ": blocks of ", threads, " threads and ",
                      shared_bytes, " bytes of shared memory");
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def(
      "run_program(str source, str name, int grid_x, int grid_y, int threads, int shared_bytes, "
      "Tensor(a!)[] arguments, int tokens) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) { m.impl("run_program", TORCH_BOX(&run_program)); }

}  // namespace ladder::binding
