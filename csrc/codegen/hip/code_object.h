// SPDX-License-Identifier: Apache-2.0
//
// What a code object of AMD says of its kernels: the note NT_AMDGPU_METADATA of the ELF file, a
// MessagePack map (LLVM, User Guide for AMDGPU Backend, code object V3 to V6 metadata).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ladder::hip {

struct KernelResources {
  std::string name;
  std::int64_t vgprs, agprs, sgprs;       ///< of a lane; of a wave. vgprs count the agprs, too
  std::int64_t vgpr_spills, sgpr_spills;  ///< registers
  std::int64_t scratch_bytes;             ///< of a lane, spills included
  std::int64_t lds_bytes;                 ///< of a workgroup, beside what a launch asks for
  std::int64_t argument_bytes;            ///< parameters and hidden ones
  std::int64_t most_threads;              ///< of a workgroup
};

/// In order of the metadata; what it leaves out is 0. Throws ToolchainError for what is no code
/// object.
std::vector<KernelResources> kernels_of(std::string_view code_object);

}  // namespace ladder::hip
