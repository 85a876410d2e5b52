// SPDX-License-Identifier: Apache-2.0
// Streams, what they record, and memory.
#include <memory>

#include "base/error.h"
#include "codegen/cuda/driver.h"
#include "codegen/cuda/driver/api.h"
#include "codegen/kept.h"

namespace ladder::cuda {

std::optional<Capture> capture_of(void* stream, int ordinal) {
  const Current current(any_context(ordinal));
  int status = kNone;
  Capture capture{};
  check(driver().capture_info(stream, &status, &capture.id, &capture.graph, nullptr, nullptr),
        "cuStreamGetCaptureInfo");
  if (status == kNone) [[likely]]
    return std::nullopt;
  if (status == kInvalidated) {
    fail<ToolchainError>("the stream's capture was invalidated by an earlier call");
  }
  return capture;
}

void keep_with(void* graph, int ordinal, void* object, void (*let_go)(void*)) {
  const Driver& api = driver();
  const Current current(any_context(ordinal));
  auto kept = std::make_unique<Kept>(Kept{object, let_go});
  void* user = nullptr;
  check(api.object_create(&user, kept.get(), Kept::destroyed, 1, kNoDestructorSync),
        "cuUserObjectCreate");
  Kept* const given = kept.release();
  if (const Result result = api.graph_retain(graph, user, 1, kMoveReference); result != kSuccess) {
    given->let_go = nullptr;
    api.object_release(user, 1);
    check(result, "cuGraphRetainUserObject");
  }
}

std::uint64_t stream_id(void* stream, int ordinal) {
  const Current current(any_context(ordinal));
  unsigned long long id = 0;
  check(driver().stream_id(stream, &id), "cuStreamGetId");
  return id;
}

namespace {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int ordinal) : ordinal_(ordinal) {
    const Current current(primary_context(ordinal));
    check(driver().event_create(&event_, kDisableTiming), "cuEventCreate");
  }
  ~CudaEvent() override { driver().event_destroy(event_); }

  void record(void* stream) override {
    const Current current(primary_context(ordinal_));
    check(driver().event_record(event_, stream), "cuEventRecord");
  }

  bool passed() const override {
    const Current current(primary_context(ordinal_));
    const Relaxed relaxed;
    const Result result = driver().event_query(event_);
    if (result == kNotReady) return false;
    check(result, "cuEventQuery");
    return true;
  }

 private:
  int ordinal_;
  void* event_ = nullptr;
};

}  // namespace

std::unique_ptr<Event> event(int ordinal) { return std::make_unique<CudaEvent>(ordinal); }

// The legacy stream would wait for other streams and break what they capture; one that blocks for
// nobody is waited for by us.
void* zeroed_memory(std::size_t bytes, int ordinal) {
  const Driver& api = driver();
  const Current current(primary_context(ordinal));
  const Relaxed relaxed;
  std::uintptr_t memory = 0;
  check(api.allocate(&memory, bytes), "cuMemAlloc");
  Stream stream = nullptr;
  Result result = api.stream_create(&stream, kNonBlocking);
  if (result == kSuccess) {
    result = api.set_words(memory, 0, bytes / 4, stream);
    if (result == kSuccess) result = api.stream_wait(stream);
    api.stream_destroy(stream);
  }
  if (result != kSuccess) api.free(memory);
  check(result, "cuMemsetD32Async");
  return reinterpret_cast<void*>(memory);
}

}  // namespace ladder::cuda
