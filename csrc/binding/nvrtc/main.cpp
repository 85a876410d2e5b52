// SPDX-License-Identifier: Apache-2.0
// ladder-nvrtc STORE KEY_FOLDER TARGET FLAGS [DIRECTORY...] < kernel.cu: compiles one kernel, in
// the language TARGET, into a store. runtime/compile_ahead.cpp starts several at once.
#include <cstdio>

#include "runtime/compile_ahead.h"

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fputs("usage: ladder-nvrtc STORE KEY_FOLDER TARGET FLAGS [DIRECTORY...] < kernel.cu\n",
               stderr);
    return 2;
  }
  return ladder::compile_from_input(argv[1], argv[2], argv[3], argv[4], {argv + 5, argv + argc});
}
