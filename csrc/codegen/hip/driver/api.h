// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions and how they are called. For the files of this folder only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ladder::hip {

// As hip_runtime_api.h declares them, so that building needs no ROCm.
using Result = int;
using Stream = void*;

constexpr Result kSuccess = 0, kInvalidConfiguration = 9, kNotReady = 600, kOutOfResources = 701;

enum DeviceAttribute {
  kClockKHz = 5,
  kThreadsPerBlock = 56,
  kThreadsPerMultiprocessor = 57,
  kMultiprocessors = 63,
  kSharedPerBlock = 74,
};
enum CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum CaptureStatus { kNone = 0, kActive = 1, kInvalidated = 2 };
constexpr unsigned kNonBlocking = 1, kDisableTiming = 2;
constexpr unsigned kNoDestructorSync = 1, kMoveReference = 1;

/// hipDeviceProp_tR0600, of which the driver writes 1472 bytes: what of it is read.
struct DeviceProperties {
  char name[256];
  char between[32];
  std::size_t memory_bytes;  // at 288
  char more[864];
  char architecture[256];  // at 1160
  char room[2680];         // for what later releases append
};
static_assert(offsetof(DeviceProperties, memory_bytes) == 288);
static_assert(offsetof(DeviceProperties, architecture) == 1160);

struct Driver {
  Result (*init)(unsigned);
  const char* (*error_name)(Result);
  const char* (*error_text)(Result);
  /// Gives the thread's last error, and forgets it.
  Result (*last_error)();
  Result (*device_count)(int*);
  Result (*current)(int*);
  Result (*set_current)(int);
  Result (*device_attribute)(int*, int, int);
  Result (*device_properties)(DeviceProperties*, int);
  Result (*load)(void**, const void*);
  Result (*unload)(void*);
  Result (*function)(void**, void*, const char*);
  Result (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   Stream, void**, void**);
  Result (*exchange_mode)(int*);
  Result (*is_capturing)(Stream, int*);
  Result (*stream_create)(Stream*, unsigned);
  Result (*stream_wait)(Stream);
  Result (*stream_destroy)(Stream);
  Result (*event_create)(void**, unsigned);
  Result (*event_record)(void*, Stream);
  Result (*event_query)(void*);
  Result (*event_destroy)(void*);
  Result (*allocate)(void**, std::size_t);
  Result (*free)(void*);
  Result (*set_words)(void*, int, std::size_t, Stream);
  // Null in releases that have none.
  Result (*capture_info)(Stream, int*, unsigned long long*, void**, const void***, std::size_t*);
  Result (*object_create)(void**, void*, void (*)(void*), unsigned, unsigned);
  Result (*object_release)(void*, unsigned);
  Result (*graph_retain)(void*, void*, unsigned, unsigned);
  Result (*stream_id)(Stream, unsigned long long*);
};

/// Null without a driver or without a device.
const Driver* driver_or_null();
/// Throws Unsupported where driver_or_null() is null, with the reason.
const Driver& driver();
/// Forgets an error that was expected. Every call of HIP leaves its error with the thread, where
/// torch, which asks after each of its launches, would take it for its own.
void forget_error();
/// Throws ToolchainError, with the driver's words, unless `result` is kSuccess.
void check(Result result, const char* what);

/// Makes a device current for a scope.
class OnDevice {
 public:
  explicit OnDevice(int ordinal) {
    check(driver().current(&before_), "hipGetDevice");
    if (before_ == ordinal) return;
    check(driver().set_current(ordinal), "hipSetDevice");
    changed_ = true;
  }
  ~OnDevice() {
    if (changed_ && driver().set_current(before_) != kSuccess) forget_error();
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// Lets this thread call, for a scope, what would otherwise break the captures of other threads.
class Relaxed {
 public:
  Relaxed() { check(driver().exchange_mode(&mode_), "hipThreadExchangeStreamCaptureMode"); }
  ~Relaxed() { driver().exchange_mode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  int mode_ = kRelaxed;  // then that of before
};

}  // namespace ladder::hip
