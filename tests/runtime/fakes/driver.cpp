// SPDX-License-Identifier: Apache-2.0
#include "fakes/driver.h"

#include <algorithm>
#include <thread>

#include "fakes/driver_state.h"
#include "fakes/fakes.h"

FakeDriver fake_driver;

namespace fake {

std::recursive_mutex mutex;
State* const state = new State;  // ladder keeps what it has to the end

bool breaks_captures() {
  constexpr int kRelaxed = 2;
  bool any = false;
  for (auto& [handle, stream] : state->streams) {
    if (stream.graph == nullptr || capture_mode == kRelaxed) continue;
    stream.broken = any = true;
  }
  return any;
}

bool breaks_captures_as_legacy(void* stream) {
  bool any = false;
  if (stream != nullptr) return false;
  for (auto& [handle, each] : state->streams) {
    if (each.graph != nullptr) each.broken = any = true;
  }
  return any;
}

void release(UserObject* object) {
  if (--object->references > 0) return;
  std::thread([object] { object->destroy(object->data); }).join();
  delete object;
}

Machine& machine(int ordinal) { return state->machines.at(ordinal); }

void* new_stream() {
  const Lock lock(mutex);
  void* handle;
  if (state->free_handles.empty()) {
    handle = reinterpret_cast<void*>(state->next_handle += 0x10);
  } else {
    handle = state->free_handles.back();
    state->free_handles.pop_back();
  }
  state->streams[handle] = {state->next_id++};
  return handle;
}

void destroy_stream(void* stream) {
  const Lock lock(mutex);
  state->streams.erase(stream);
  state->free_handles.push_back(stream);
}

void set_busy(void* stream, bool busy) {
  const Lock lock(mutex);
  state->streams.at(stream).busy = busy;
}

void* begin_capture(void* handle) {
  const Lock lock(mutex);
  Stream& stream = state->streams.at(handle);
  stream.graph = &state->graphs.emplace_back();
  stream.broken = false;
  stream.capture = state->next_id++;
  return stream.graph;
}

bool capture_holds(void* stream) {
  const Lock lock(mutex);
  const Stream& each = state->streams.at(stream);
  return each.graph != nullptr && !each.broken;
}

void end_capture(void* stream) {
  const Lock lock(mutex);
  state->streams.at(stream).graph = nullptr;
}

void* instantiate(void* graph) {
  const Lock lock(mutex);
  Graph& made = state->graphs.emplace_back(*static_cast<Graph*>(graph));
  for (UserObject* object : made.objects) ++object->references;
  return &made;
}

void destroy_graph(void* graph) {
  std::vector<UserObject*> objects;
  {
    const Lock lock(mutex);
    objects.swap(static_cast<Graph*>(graph)->objects);
  }
  for (UserObject* object : objects) release(object);
}

int loads() {
  const Lock lock(mutex);
  return state->loads;
}

int loaded_now() {
  const Lock lock(mutex);
  return static_cast<int>(
      std::ranges::count_if(state->modules, [](const Module& m) { return !m.unloaded; }));
}

void set_load_time(int milliseconds) { state->load_time = milliseconds; }
void refuse_launches(int count) { state->refuse = count; }

void set_argument_bytes(std::vector<std::size_t> bytes) {
  const Lock lock(mutex);
  state->argument_bytes = std::move(bytes);
}

std::vector<Launched> launches() {
  const Lock lock(mutex);
  return state->launches;
}

std::string mistakes() {
  const Lock lock(mutex);
  return state->mistakes;
}

}  // namespace fake
