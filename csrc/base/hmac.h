// SPDX-License-Identifier: Apache-2.0
//
// A message authentication code: who has not the key can neither make the code of a message nor
// alter the message and keep its code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ladder {

using Sha256 = std::array<std::uint8_t, 32>;

/// SHA-256 of FIPS 180-4.
Sha256 sha256(std::string_view bytes);

/// HMAC-SHA-256 of RFC 2104, as 64 hexadecimal digits. Any length of `key`; 32 bytes are its
/// strength.
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Whether `a` and `b` are equal, in a time that does not tell where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace ladder
