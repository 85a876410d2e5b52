// SPDX-License-Identifier: Apache-2.0
//
// Where ROCm's libraries and programs are. For the files of this folder only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ladder::hip {

/// A directory that is searched first. torch's wheels bundle ROCm's libraries beside their own.
void add_directory(std::string directory);
std::vector<std::string> directories();
/// The same behind that of the driver that this process has loaded: for a process that has none, so
/// that it finds the same compilers.
std::vector<std::string> directories_for_others();

/// Roots of installed ROCm: ROCM_PATH, then /opt/rocm.
std::vector<std::string> roots();

/// The path of the library that this process has loaded whose file name begins with `name`,
/// "libamdhip64"; empty: it has none.
std::string loaded(std::string_view name);

/// The library that this process has loaded, else the first that is found of `name`.so and the
/// releases behind it (7, 6, 5): in `beside`, the directories that were added, the loader's own and
/// the roots. Null: none.
void* open_library(const std::string& name, const std::string& beside = {});

}  // namespace ladder::hip
