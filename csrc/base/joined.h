// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <sstream>
#include <string>
#include <string_view>

namespace ladder {

/// `part` as a stream writes it, at the end of `out`. Text and integers go without a stream: the
/// scheduler says of thousands of schedules why it drops them.
template <class Part>
void append(std::string& out, const Part& part) {
  constexpr bool is_character = std::same_as<Part, char> || std::same_as<Part, signed char> ||
                                std::same_as<Part, unsigned char> || std::same_as<Part, bool>;
  if constexpr (std::convertible_to<const Part&, std::string_view>) {
    out += std::string_view(part);
  } else if constexpr (std::integral<Part> && !is_character) {
    char digits[24];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, part).ptr);
  } else {
    std::ostringstream stream;
    stream << part;
    out += stream.str();
  }
}

/// The parts written one after the other.
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

}  // namespace ladder
