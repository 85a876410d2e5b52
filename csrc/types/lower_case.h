// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace ladder {

/// A name with its ASCII letters in lower case, on the stack: "MXFP4" is "mxfp4". A name longer
/// than any of a type comes out as it is.
class LowerCase {
 public:
  explicit LowerCase(std::string_view name) noexcept : view_(name) {
    if (name.size() > letters_.size()) return;
    std::ranges::transform(name, letters_.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? char(c | 32) : c; });
    view_ = {letters_.data(), name.size()};
  }
  LowerCase(const LowerCase&) = delete;
  LowerCase& operator=(const LowerCase&) = delete;
  operator std::string_view() const noexcept { return view_; }

 private:
  std::array<char, 64> letters_;
  std::string_view view_;
};

}  // namespace ladder
