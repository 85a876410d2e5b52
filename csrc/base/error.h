// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ladder {

// Destructors are in error.cpp, and with them, once in a process, what a `catch` compares. macOS on
// ARM compares addresses, so a library with a copy of its own would not catch what another throws.

/// The caller broke a documented precondition. Python: ValueError.
struct InvalidArgument final : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
  ~InvalidArgument() override;
};

/// The request is legal but this device or target cannot serve it. Python: NotImplementedError
/// of ladder._C; RuntimeError of torch's ops, which know the standard exceptions only.
struct Unsupported final : std::runtime_error {
  using std::runtime_error::runtime_error;
  ~Unsupported() override;
};

/// A compiler or driver refused our output; the text carries its log. Python: RuntimeError.
struct ToolchainError final : std::runtime_error {
  using std::runtime_error::runtime_error;
  ~ToolchainError() override;
};

/// A bug in ladder. Python: RuntimeError.
struct InternalError final : std::logic_error {
  using std::logic_error::logic_error;
  ~InternalError() override;
};

/// Throws `E` with the parts joined into one sentence: lower case, no full stop, both values.
template <class E, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw E(text.str());
}

}  // namespace ladder

/// Throws InvalidArgument unless `condition`. A macro so that the message is built on failure only.
#define LADDER_REQUIRE(condition, ...)                        \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::ladder::fail<::ladder::InvalidArgument>(__VA_ARGS__); \
  } while (false)

/// Throws InternalError unless `condition`: an invariant of ours, never the caller's fault.
#define LADDER_CHECK(condition, ...)                        \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      ::ladder::fail<::ladder::InternalError>(__VA_ARGS__); \
  } while (false)
