# SPDX-License-Identifier: Apache-2.0
# LADDER_GLIBC=2.28 links for systems from that glibc on, on a machine with a younger one: with
# stand-ins of that age for the C and C++ libraries, and out of libstdc++.a what is younger. The
# container of manylinux_2_28 needs none of it, since its linker does the same.
set(LADDER_GLIBC "" CACHE STRING "oldest glibc to run with, 2.28; empty: this machine's")

if(LADDER_GLIBC)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(loader ld-linux-x86-64.so.2)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
    set(loader ld-linux-aarch64.so.1)
  else()
    message(FATAL_ERROR "LADDER_GLIBC knows x86-64 and aarch64, not ${CMAKE_SYSTEM_PROCESSOR}: "
                        "build in the container of manylinux_2_28 without it")
  endif()
  enable_language(C)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(old ${CMAKE_BINARY_DIR}/glibc-${LADDER_GLIBC})
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/stub_libraries.py ${old}
                          ${LADDER_GLIBC} ${CMAKE_C_COMPILER} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a
                  OUTPUT_VARIABLE static OUTPUT_STRIP_TRAILING_WHITESPACE)
  add_library(ladder_younger OBJECT ${CMAKE_CURRENT_LIST_DIR}/younger.c)
endif()

# Links the target for the oldest system that was asked for.
function(ladder_for_old_glibc target)
  if(LADDER_GLIBC)
    # Undefined in shared libraries: what this machine's libgcc_s takes from its glibc.
    target_link_options(${target} PRIVATE -nodefaultlibs -Wl,--exclude-libs,libstdc++.a
                        -Wl,--allow-shlib-undefined)
    # Of glibc 2.28 these have functions that younger ones have in libc.so.6.
    target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:ladder_younger>
      ${old}/libstdc++.so.6 ${static} ${old}/libm.so.6 ${old}/libc.so.6 -lgcc_s -lgcc
      -l:${loader} -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0 -Wl,--as-needed)
  endif()
endfunction()
