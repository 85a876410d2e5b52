# SPDX-License-Identifier: Apache-2.0
# Builds for macOS on Apple silicon on another system, with the compiler that .ci/macos_build makes
# of zig and LLVM's linker: cmake -DCMAKE_TOOLCHAIN_FILE=cmake/macos.cmake
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_C_COMPILER macos-clang)
set(CMAKE_CXX_COMPILER macos-clang++)
set(CMAKE_INSTALL_NAME_TOOL /bin/false)  # CMake looks for one; nothing is renamed
