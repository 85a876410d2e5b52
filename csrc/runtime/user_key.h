// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace ladder {

/// 64 hexadecimal digits that only this user has: the file `key` in `folder`, made when there is
/// none that is theirs alone (mode 0600, one name, in a folder that nobody else can write). Nothing
/// where there is neither such a folder nor room to make one.
///
/// Who can read it can write machine code that this user's processes load.
std::optional<std::string> user_key(const std::string& folder, long user);

}  // namespace ladder
