// SPDX-License-Identifier: Apache-2.0
//
// JSON that anybody may have written: nothing here throws for what a file says.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace ladder {

/// An object whose "format" is `format`; null for everything else, and for what is nested deeper
/// than any file of ladder's.
nlohmann::json parsed_json(const std::optional<std::string>& text, int format);

/// The object called `name`; null where `in` has none.
const nlohmann::json* object_at(const nlohmann::json& in, const std::string& name);
/// 0 where the object says something else.
std::int64_t number_at(const nlohmann::json& object, const std::string& name);
/// Nothing where the object says something else.
std::optional<std::string> text_at(const nlohmann::json& object, const std::string& name);

/// Indented. What is not UTF-8, as a compiler's log may quote it, is replaced.
std::string written(const nlohmann::json& value);

}  // namespace ladder
