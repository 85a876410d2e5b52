// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions and how they are called. For the files of this folder only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ladder::cuda {

// As cuda.h declares them, so that building needs no CUDA toolkit.
using Result = int;
using Context = void*;
using Stream = void*;

constexpr Result kSuccess = 0, kNotReady = 600, kOutOfResources = 701, kInvalidCluster = 912;

enum DeviceAttribute {
  kClockKHz = 13,
  kMultiprocessors = 16,
  kMemoryClockKHz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kThreadsPerMultiprocessor = 39,
  kMajor = 75,
  kMinor = 76,
  kSharedPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kSharedPerBlockOptin = 97,
  kClusterLaunch = 120,
};
enum FunctionAttribute { kMaxDynamicShared = 8, kSharedCarveout = 9 };
enum LaunchAttributeId { kClusterDimension = 4, kProgrammaticStreamSerialization = 6 };
enum CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum CaptureStatus { kNone = 0, kActive = 1, kInvalidated = 2 };
constexpr unsigned kNonBlocking = 1, kDisableTiming = 2;
constexpr unsigned kNoDestructorSync = 1, kMoveReference = 1;

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int number;
    unsigned cluster[3];
  } value;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  Result (*init)(unsigned);
  Result (*error_name)(Result, const char**);
  Result (*error_text)(Result, const char**);
  Result (*version)(int*);
  Result (*device)(int*, int);
  Result (*device_name)(char*, int, int);
  Result (*device_attribute)(int*, int, int);
  Result (*device_memory)(std::size_t*, int);
  Result (*retain)(Context*, int);
  Result (*current)(Context*);
  Result (*push)(Context);
  Result (*pop)(Context*);
  Result (*load)(void**, const void*);
  Result (*unload)(void*);
  Result (*function)(void**, void*, const char*);
  Result (*set_attribute)(void*, int, int);
  Result (*launch)(const LaunchConfig*, void*, void**, void**);
  Result (*clusters)(int*, void*, const LaunchConfig*);
  Result (*exchange_mode)(int*);
  Result (*capture_info)(Stream, int*, std::uint64_t*, void**, const void***, std::size_t*);
  Result (*object_create)(void**, void*, void (*)(void*), unsigned, unsigned);
  Result (*object_release)(void*, unsigned);
  Result (*graph_retain)(void*, void*, unsigned, unsigned);
  Result (*stream_id)(Stream, unsigned long long*);
  Result (*stream_create)(Stream*, unsigned);
  Result (*stream_wait)(Stream);
  Result (*stream_destroy)(Stream);
  Result (*event_create)(void**, unsigned);
  Result (*event_record)(void*, Stream);
  Result (*event_query)(void*);
  Result (*event_destroy)(void*);
  Result (*allocate)(std::uintptr_t*, std::size_t);
  Result (*free)(std::uintptr_t);
  Result (*set_words)(std::uintptr_t, unsigned, std::size_t, Stream);
};

/// Null without a driver.
const Driver* driver_or_null();
/// Throws Unsupported without a driver.
const Driver& driver();
/// Throws ToolchainError, with the driver's words, unless `result` is kSuccess.
void check(Result result, const char* what);

int device_of(int ordinal);
Context primary_context(int ordinal);

/// Makes `context` current for a scope. Torch has usually done so already; a thread that has
/// called nothing of CUDA yet has none.
class Current {
 public:
  explicit Current(Context context) {
    Context now = nullptr;
    check(driver().current(&now), "cuCtxGetCurrent");
    if (now == context) return;
    check(driver().push(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~Current() {
    Context ignored;
    if (pushed_) driver().pop(&ignored);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pushed_ = false;
};

/// For what works in any context of the device, streams say: the one that is current, else the
/// primary one. A thread of autograd may have none yet.
Context any_context(int ordinal);

/// Lets this thread call, for a scope, what would otherwise break the captures of other threads.
class Relaxed {
 public:
  Relaxed() { check(driver().exchange_mode(&mode_), "cuThreadExchangeStreamCaptureMode"); }
  ~Relaxed() { driver().exchange_mode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  int mode_ = kRelaxed;  // then that of before
};

}  // namespace ladder::cuda
