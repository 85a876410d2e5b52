// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/prelude.h"

namespace ladder::cuda {

std::string_view role_prelude() {
  return R"(// Producers and consumers.
// Of a warpgroup: it gives registers back, or waits for those that others gave.
template <int Registers> DEVICE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(Registers) : "memory");
}
template <int Registers> DEVICE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(Registers) : "memory");
}
// Of the first so many threads.
template <int Threads> DEVICE void barrier_of() {
  asm volatile("barrier.sync.aligned 1, %0;" :: "n"(Threads) : "memory");
}
// A thread does not end before what it copies.
DEVICE void copies_end() { asm volatile("cp.async.wait_all;" ::: "memory"); }
)";
}

}  // namespace ladder::cuda
