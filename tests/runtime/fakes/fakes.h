// SPDX-License-Identifier: Apache-2.0
// What the fake compiler and driver are told, and what they count. The compiler is told by the
// environment too, which helper processes have: LADDER_FAKE_COMPILED, a file that gets a line for
// each compilation, and LADDER_FAKE_COMPILE_MS.
#pragma once

#include <atomic>

struct FakeCompiler {
  int major = 13, minor = 0;
  int architectures[16] = {75, 80, 86, 89, 90, 100, 120};
  int count = 7;
  int result = 0;  ///< of compiling; 0 is success
  int compile_ms = 0;
  std::atomic<int> compiled = 0;
};
extern "C" FakeCompiler fake_nvrtc;
extern "C" FakeCompiler fake_hiprtc;

struct FakeDriver {
  int load_result = 0;    ///< of loading a module
  int device_result = 0;  ///< of asking for a device
  // Of HIP's alone.
  int init_result = 0, function_result = 0, retain_result = 0, allocate_result = 0;
  int devices = 8;
  std::atomic<int> loaded = 0;
};
extern "C" FakeDriver fake_driver;
