// SPDX-License-Identifier: Apache-2.0
//
// A driver for tests, as libcuda.so.1 (cuda_driver.cpp) and as libamdhip64.so.6 (hip_driver.cpp):
// found as ladder finds the real ones, with the rules of theirs that ladder must keep, and what a
// test sets and sees of it.
//
//   captures     what is unsafe beside one is refused and breaks it, unless the calling thread is
//                in relaxed mode; so is every use of the legacy stream (CUDA driver API, stream
//                management; HIP's follows it)
//   memory       holds garbage until a memset whose stream was waited for
//   user objects are destroyed with the last graph that has them, by a thread of the driver
//   handles      of destroyed streams come again, their ids do not
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fake {

struct Machine {
  std::string name = "NVIDIA H200", architecture;  ///< the latter of HIP's
  int capability = 90, multiprocessors = 132;
  double memory_bytes = 150.1e9;
  int clock_khz = 1980000, memory_khz = 3201000, bus_bits = 6144, l2_bytes = 60 << 20;
  int shared_bytes = 228 << 10, shared_per_block_bytes = 227 << 10, threads = 2048;
  int largest_cluster = 8;             ///< of blocks of any size
  bool fits_compiled_clusters = true;  ///< of kernels that were compiled for clusters
};
/// Eight machines, all the default one at first.
Machine& machine(int ordinal);

/// --- streams and graphs ---
void* new_stream();
void destroy_stream(void* stream);
/// While it is, nothing that was recorded on the stream has passed.
void set_busy(void* stream, bool busy);
/// In global mode. Returns the graph.
void* begin_capture(void* stream);
/// Whether nothing has broken the capture that `stream` records.
bool capture_holds(void* stream);
void end_capture(void* stream);
/// Lets it go, and what it alone keeps. An instantiated graph is one more that has what it keeps.
void* instantiate(void* graph);
void destroy_graph(void* graph);

/// --- modules and launches ---
struct Launched {
  std::string kernel;
  void* stream;
  bool captured;
  int device = 0;
  unsigned grid[3] = {}, threads = 0, shared_bytes = 0;
  std::vector<std::string> arguments = {};  ///< their bytes, as the test said how many
};
/// Bytes of each argument of the kernels that are launched from now on.
void set_argument_bytes(std::vector<std::size_t> bytes);
int loads();
int loaded_now();
/// Milliseconds that a load takes.
void set_load_time(int milliseconds);
/// The driver has no room for launches of the next `count` kernels; -1: of any.
void refuse_launches(int count);
std::vector<Launched> launches();
/// Launched from a module that was unloaded, and the like; empty: none.
std::string mistakes();

}  // namespace fake
