// SPDX-License-Identifier: Apache-2.0
//
// A schedule is printed and read by one function of its pipeline, Spelling::spell(schedule, text):
// `text` writes what it is given, or reads into it.
#pragma once

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <variant>

#include "base/joined.h"

namespace ladder {

/// By the numbers of ScalePlace.
constexpr std::array<std::string_view, 5> kScalePlaces = {
    "", ", scaled sums", ", scaled operands", ", rounded operands", ", relative scales"};

struct Printer {
  std::string out;

  /// A number that equals `unspelled` is left out.
  void number(std::string_view before, int value, std::optional<int> unspelled = {}) {
    if (value != unspelled) out += joined(before, value);
  }
  template <class Name, std::size_t count>
  void name(std::string_view before, Name value, const std::array<std::string_view, count>& names) {
    out += joined(before, names[static_cast<std::size_t>(value)]);
  }
  void flag(std::string_view text, bool value) {
    if (value) out += text;
  }
  void literal(std::string_view text) { out += text; }
  /// The way that there is, by its own Ways::spell().
  template <class Ways, class... Way>
  void one_of(const std::variant<Way...>& value) {
    std::visit([this](const auto& way) { Ways::spell(way, *this); }, value);
  }
  void end(std::string_view text) { out += text; }
};

struct Reader {
  std::string_view rest;
  bool right = true;

  bool take(std::string_view text) {
    if (!rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  }
  void number(std::string_view before, int& value, std::optional<int> unspelled = {}) {
    value = unspelled.value_or(0);
    if (!take(before)) {
      right = right && unspelled;
      return;
    }
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    right = right && error == std::errc();
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  }
  /// The last of the names that comes next: the first may be empty.
  template <class Name, std::size_t count>
  void name(std::string_view before, Name& value,
            const std::array<std::string_view, count>& names) {
    right = right && take(before);
    for (std::size_t i = count; i-- > 0;) {
      if (!take(names[i])) continue;
      value = static_cast<Name>(i);
      return;
    }
    right = false;
  }
  void flag(std::string_view text, bool& value) { value = take(text); }
  void literal(std::string_view text) { right = right && take(text); }
  /// The way that reads the most of what comes next.
  template <class Ways, class... Way>
  void one_of(std::variant<Way...>& value) {
    std::optional<Reader> best;
    const auto attempt = [&](auto way) {
      Reader reader{rest};
      Ways::spell(way, reader);
      if (!reader.right || (best && best->rest.size() <= reader.rest.size())) return;
      best = reader, value = way;
    };
    (attempt(Way{}), ...);
    right = right && best;
    if (best) rest = best->rest;
  }
  void end(std::string_view text) { right = right && rest == text; }
};

/// What `Spelling` prints of a schedule.
template <class Spelling, class Schedule>
std::string spelled(const Schedule& schedule) {
  Printer printer;
  Spelling::spell(schedule, printer);
  return printer.out;
}
/// The schedule that is spelled so; nothing for other text. Every schedule has one spelling:
/// numbers have no zeros in front.
template <class Spelling, class Schedule>
std::optional<Schedule> read_schedule(std::string_view text) {
  Schedule schedule{};
  Reader reader{text};
  Spelling::spell(schedule, reader);
  if (!reader.right || spelled<Spelling>(schedule) != text) return std::nullopt;
  return schedule;
}

}  // namespace ladder
