// SPDX-License-Identifier: Apache-2.0
#include "expr/windows_text.h"

#include <array>
#include <charconv>

#include "base/error.h"

namespace ladder {

Windows windows_from(std::string_view numbers) {
  std::array<std::int64_t, 11> n{};
  const char* at = numbers.data();
  const char* const end = at + numbers.size();
  for (std::size_t i = 0; i < n.size(); ++i) {
    const auto [stop, error] = std::from_chars(at, end, n[i]);
    const bool last = i + 1 == n.size();
    LADDER_REQUIRE(error == std::errc() && (last ? stop == end : stop != end && *stop == ','),
                   "windows are \"", numbers, "\", not ", n.size(), " numbers");
    at = stop + (last ? 0 : 1);
  }
  const Windows out{{n[0], n[1], n[2], n[3], n[4]}, {n[5], n[6], n[7], n[8], n[9]}, n[10]};
  check(out);
  return out;
}

}  // namespace ladder
