// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver (libcuda.so.1, 12 or later), as codegen/driver.h describes drivers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "codegen/driver.h"

namespace ladder::cuda {

/// Blocks of a cluster that every device with clusters has, some slices of one excepted: CUDA C++
/// Programming Guide, thread block clusters.
constexpr int kMostCluster = 8;

/// The name that nvcc gives to a capability, 90 for 9.0; architectures with instructions of their
/// own end in a.
std::string architecture_of(int capability);

bool driver_present();
Properties properties(int ordinal);
/// Into the primary context of the device. `code` is a cubin or PTX.
std::unique_ptr<const Kernel> load(const std::string& code, const std::string& name, int ordinal,
                                   unsigned shared_bytes);
std::optional<Capture> capture_of(void* stream, int ordinal);
void keep_with(void* graph, int ordinal, void* object, void (*let_go)(void*));
std::uint64_t stream_id(void* stream, int ordinal);
std::unique_ptr<Event> event(int ordinal);
void* zeroed_memory(std::size_t bytes, int ordinal);

}  // namespace ladder::cuda
