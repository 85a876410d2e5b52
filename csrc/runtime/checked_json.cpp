// SPDX-License-Identifier: Apache-2.0
#include "runtime/checked_json.h"

namespace ladder {

using nlohmann::json;

namespace {

constexpr int kDepth = 4;  // {"plans": {...}}

}  // namespace

const json* object_at(const json& in, const std::string& name) {
  const auto at = in.find(name);
  return at != in.end() && at->is_object() ? &*at : nullptr;
}

std::int64_t number_at(const json& object, const std::string& name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number_integer() ? at->get<std::int64_t>() : 0;
}

std::optional<std::string> text_at(const json& object, const std::string& name) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_string()) return std::nullopt;
  return at->get<std::string>();
}

json parsed_json(const std::optional<std::string>& text, int format) {
  if (!text) return {};
  // Copies of what is nested a million deep overflow the stack.
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= kDepth; };
  json value = json::parse(*text, shallow, /*allow_exceptions=*/false);
  if (!value.is_object() || number_at(value, "format") != format) return {};
  return value;
}

std::string written(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace ladder
