// SPDX-License-Identifier: Apache-2.0
//
// What the fake driver (driver.h) knows: tests set and see it in driver.cpp, ladder's calls come in
// cuda_driver.cpp and hip_driver.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fakes/driver.h"

namespace fake {

struct UserObject {
  void* data;
  void (*destroy)(void*);
  int references;
};
struct Graph {
  std::vector<UserObject*> objects;
};
struct Stream {
  std::uint64_t id;
  bool busy = false;
  Graph* graph = nullptr;  // that it records
  bool broken = false;
  std::uint64_t capture = 0;
  std::vector<std::pair<std::uint32_t*, std::size_t>> zeroing;  // words that are not yet zero
};
struct Module {
  std::string name = {};
  int device = 0;
  bool unloaded = false;
};

struct State {
  std::array<Machine, 8> machines;
  std::map<void*, Stream> streams;
  std::vector<void*> free_handles;
  std::uintptr_t next_handle = 0x1000;
  std::uint64_t next_id = 1;
  std::list<Graph> graphs;
  std::list<Module> modules;
  std::map<void*, void*> events;  // the stream on which it was recorded
  std::vector<Launched> launches;
  std::vector<std::size_t> argument_bytes;
  std::string mistakes;
  int loads = 0, load_time = 0, refuse = 0;
};

extern std::recursive_mutex mutex;
extern State* const state;
using Lock = std::lock_guard<std::recursive_mutex>;

/// Of the calling thread.
inline thread_local int capture_mode = 0;
/// What an unsafe call of this thread does to captures; whether there was one.
bool breaks_captures();
/// What the legacy stream does to them, in every mode.
bool breaks_captures_as_legacy(void* stream);

/// One reference less; the last one has a thread of the driver destroy the object.
void release(UserObject* object);

}  // namespace fake
