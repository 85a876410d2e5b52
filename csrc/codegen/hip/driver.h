// SPDX-License-Identifier: Apache-2.0
//
// AMD's driver (libamdhip64 of ROCm 6 or later), as codegen/driver.h describes drivers. The copy
// that this process has loaded, torch's, is taken before any other: a second one would know nothing
// of its streams.
//
// There are no contexts: a thread has a current device, which these functions put back. There are
// neither clusters nor dependent launches. Releases of ROCm differ in what they have:
//
//   hipGraphRetainUserObject, hipStreamGetCaptureInfo_v2   without: what is kept with a graph is
//                                                          kept for ever
//   hipStreamGetId   without: a stream is its handle, which is safe for torch's, who destroys none
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "codegen/driver.h"

namespace ladder::hip {

/// With a device.
bool driver_present();
/// Of the L2 and the rate of the memory nothing is told: the driver counts the cache of a die, and
/// half of the transfers.
Properties properties(int ordinal);
/// `code` is a code object.
std::unique_ptr<const Kernel> load(const std::string& code, const std::string& name, int ordinal,
                                   unsigned shared_bytes);
std::optional<Capture> capture_of(void* stream, int ordinal);
void keep_with(void* graph, int ordinal, void* object, void (*let_go)(void*));
std::uint64_t stream_id(void* stream, int ordinal);
std::unique_ptr<Event> event(int ordinal);
void* zeroed_memory(std::size_t bytes, int ordinal);

}  // namespace ladder::hip
