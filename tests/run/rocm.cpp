// SPDX-License-Identifier: Apache-2.0
// What test_rocm.py builds beside the fake driver of tests/runtime: a machine of AMD's.
#include "fakes/driver.h"

extern "C" {

void become_mi300x() {
  fake::Machine& m = fake::machine(0);
  m.name = "AMD Instinct MI300X";
  m.architecture = "gfx942:sramecc+:xnack-";
  m.multiprocessors = 304;
  m.clock_khz = 2100000;
  m.memory_bytes = 206.1e9;
}

}  // extern "C"
