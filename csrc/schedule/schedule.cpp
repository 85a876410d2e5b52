// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <system_error>

#include "base/integers.h"
#include "base/joined.h"
#include "expr/decoding.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

// By the numbers of the enumerators.
constexpr std::string_view kReductions[] = {"none", "cluster", "ordered"};
constexpr std::string_view kRoutes[] = {"multiply_add", "digits", "in_place"};
constexpr std::string_view kScalePlaces[] = {"", ", scaled sums", ", scaled operands"};

/// How a schedule is spelled, for the printer and the reader. A number that equals `unspelled` is
/// left out.
template <class Schedule, class Text>
void spell(Schedule& s, Text& text) {
  text.number("tokens ", s.tokens);
  text.number(", warps ", s.warps_n);
  text.number("x", s.warps_k);
  text.number(", blocks ", s.blocks_per_warp);
  text.number(", rounds ", s.rounds);
  text.number(", stages ", s.stages);
  text.name(", ", s.reduction, kReductions);
  text.name(", ", s.route, kRoutes);
  text.number(", units ", s.units, kUnits);
  text.number(", depth ", s.depth, 0);
  text.number(", sweeps ", s.sweeps, 1);
  text.number(", sum places ", s.sum_places, 1);
  text.number(", x rounds ", s.x_rounds, 0);
  text.number(", x slack ", s.x_slack, 0);
  text.number(", engine for ", s.sharers, 0);
  text.flag(", block by block", s.by_blocks);
  text.name("", s.scale_place, kScalePlaces);
  text.flag(", dependent launch", s.dependent_launch);
  text.number(", ", s.blocks_per_multiprocessor);
  text.end(" per multiprocessor");
}

struct Printer {
  std::string out;

  void number(std::string_view before, int value, std::optional<int> unspelled = {}) {
    if (value != unspelled) out += joined(before, value);
  }
  template <class Name, std::size_t count>
  void name(std::string_view before, Name value, const std::string_view (&names)[count]) {
    out += joined(before, names[static_cast<std::size_t>(value)]);
  }
  void flag(std::string_view text, bool value) {
    if (value) out += text;
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
  void name(std::string_view before, Name& value, const std::string_view (&names)[count]) {
    right = right && take(before);
    for (std::size_t i = count; i-- > 0;) {
      if (!take(names[i])) continue;
      value = static_cast<Name>(i);
      return;
    }
    right = false;
  }
  void flag(std::string_view text, bool& value) { value = take(text); }
  void end(std::string_view text) { right = right && rest == text; }
};

}  // namespace

std::int64_t Schedule::splits(std::int64_t k) const {
  return ceil_div(round_up(k, kBlock), block_columns());
}
std::int64_t Schedule::tiles(std::int64_t n) const {
  const auto rows = block_rows() * sweeps;
  // Whole blocks of the image, so that a tile has the same part of its block in every sweep.
  return round_up(ceil_div(round_up(n, kBlock), rows),
                  std::lcm(kUnits / units, std::max(sharers, 1)));
}

std::string to_string(const Schedule& s) {
  Printer printer;
  spell(s, printer);
  return printer.out;
}

std::optional<Schedule> schedule_of(std::string_view text) {
  Schedule s{};
  Reader reader{text};
  spell(s, reader);
  // Every schedule has one spelling: numbers have no zeros in front.
  if (!reader.right || to_string(s) != text) return std::nullopt;
  return s;
}

}  // namespace ladder
