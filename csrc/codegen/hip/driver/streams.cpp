// SPDX-License-Identifier: Apache-2.0
// Streams, what they record, and memory.
#include <atomic>
#include <functional>
#include <thread>

#include "base/error.h"
#include "codegen/hip/driver.h"
#include "codegen/hip/driver/api.h"
#include "codegen/kept.h"

namespace ladder::hip {

std::optional<Capture> capture_of(void* stream, int ordinal) {
  const Driver& api = driver();
  const OnDevice here(ordinal);
  int status = kNone;
  Capture capture{};
  unsigned long long id = 0;
  if (api.capture_info != nullptr) {
    check(api.capture_info(stream, &status, &id, &capture.graph, nullptr, nullptr),
          "hipStreamGetCaptureInfo_v2");
  } else {
    check(api.is_capturing(stream, &status), "hipStreamIsCapturing");
    // Each launch is taken for that of a capture of its own: nothing is thought to be kept already.
    static std::atomic<unsigned long long> next = 0;
    id = ++next;
  }
  if (status == kNone) [[likely]]
    return std::nullopt;
  if (status == kInvalidated) {
    fail<ToolchainError>("the stream's capture was invalidated by an earlier call");
  }
  capture.id = id;
  return capture;
}

void keep_with(void* graph, int ordinal, void* object, void (*let_go)(void*)) {
  const Driver& api = driver();
  if (graph == nullptr || api.graph_retain == nullptr) return;  // for ever
  const OnDevice here(ordinal);
  auto kept = std::make_unique<Kept>(Kept{object, let_go});
  void* user = nullptr;
  check(api.object_create(&user, kept.get(), Kept::destroyed, 1, kNoDestructorSync),
        "hipUserObjectCreate");
  Kept* const given = kept.release();
  if (const Result result = api.graph_retain(graph, user, 1, kMoveReference); result != kSuccess) {
    given->let_go = nullptr;
    api.object_release(user, 1);
    check(result, "hipGraphRetainUserObject");
  }
}

std::uint64_t stream_id(void* stream, int ordinal) {
  const Driver& api = driver();
  if (api.stream_id != nullptr) {
    const OnDevice here(ordinal);
    unsigned long long id = 0;
    check(api.stream_id(stream, &id), "hipStreamGetId");
    return id;
  }
  const auto handle = reinterpret_cast<std::uintptr_t>(stream);
  // hipStreamPerThread is one handle for the streams of all threads.
  constexpr std::uintptr_t kPerThread = 2;
  if (handle != kPerThread) return handle;
  return std::hash<std::thread::id>{}(std::this_thread::get_id()) | 1;
}

namespace {

class HipEvent final : public Event {
 public:
  explicit HipEvent(int ordinal) : ordinal_(ordinal) {
    const OnDevice here(ordinal);
    check(driver().event_create(&event_, kDisableTiming), "hipEventCreateWithFlags");
  }
  ~HipEvent() override {
    if (driver().event_destroy(event_) != kSuccess) forget_error();
  }

  void record(void* stream) override {
    const OnDevice here(ordinal_);
    check(driver().event_record(event_, stream), "hipEventRecord");
  }

  bool passed() const override {
    const OnDevice here(ordinal_);
    const Relaxed relaxed;
    const Result result = driver().event_query(event_);
    if (result == kNotReady) {
      forget_error();
      return false;
    }
    check(result, "hipEventQuery");
    return true;
  }

 private:
  int ordinal_;
  void* event_ = nullptr;
};

}  // namespace

std::unique_ptr<Event> event(int ordinal) { return std::make_unique<HipEvent>(ordinal); }

// The legacy stream would wait for other streams and break what they capture; one that blocks for
// nobody is waited for by us.
void* zeroed_memory(std::size_t bytes, int ordinal) {
  const Driver& api = driver();
  const OnDevice here(ordinal);
  const Relaxed relaxed;
  void* memory = nullptr;
  check(api.allocate(&memory, bytes), "hipMalloc");
  Stream stream = nullptr;
  Result result = api.stream_create(&stream, kNonBlocking);
  if (result == kSuccess) {
    result = api.set_words(memory, 0, bytes / 4, stream);
    if (result == kSuccess) result = api.stream_wait(stream);
    api.stream_destroy(stream);
  }
  if (result != kSuccess) api.free(memory);
  check(result, "hipMemsetD32Async");
  return memory;
}

}  // namespace ladder::hip
