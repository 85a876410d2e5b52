// SPDX-License-Identifier: Apache-2.0
//
// Names to formats: the built-in table and what the user added. User rows are never removed or
// moved, so a pointer to a row stays good and equal pointers mean equal formats.
#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "base/error.h"
#include "types/element.h"
#include "types/lower_case.h"
#include "types/table.h"
#include "types/ttype.h"

namespace ladder {
namespace {

struct UserRow {
  std::string name;
  std::vector<double> values;
  Element element;
};

struct Registry {
  std::shared_mutex mutex;
  std::deque<UserRow> rows;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

const Element* find_builtin(std::string_view spelled) noexcept {
  const LowerCase lower(spelled);
  std::string_view name = lower;
  const auto alias = std::ranges::lower_bound(aliases(), name, {}, &Alias::name);
  if (alias != aliases().end() && alias->name == name) name = alias->element;
  const auto row = std::ranges::lower_bound(builtin_elements(), name, {}, &Element::name);
  return row != builtin_elements().end() && row->name == name ? &*row : nullptr;
}

const Element* find_user(const Registry& all, std::string_view name) noexcept {
  for (const UserRow& row : all.rows)
    if (row.name == name) return &row.element;
  return nullptr;
}

/// Number of single-character edits from `a` to `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

bool same_meaning(const Element& a, const Element& b) {
  return a.encoding == b.encoding && a.bits == b.bits && a.exponent_bits == b.exponent_bits &&
         a.mantissa_bits == b.mantissa_bits && a.bias == b.bias && a.specials == b.specials &&
         std::ranges::equal(a.values, b.values);
}

bool is_identifier(std::string_view name) {
  const auto letter = [](char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; };
  return !name.empty() && name.size() <= 64 && letter(name[0]) &&
         std::ranges::all_of(
             name, [&](char c) { return letter(c) || c == '_' || (c >= '0' && c <= '9'); });
}

const Element& register_row(Element element, std::vector<double> values) {
  LADDER_REQUIRE(is_identifier(element.name), "type name \"", element.name,
                 "\" is not letters, digits and underscores after a letter, 64 at most");
  const NamedTType* named = find_named_ttype(element.name);
  LADDER_REQUIRE(named == nullptr, "type ", element.name,
                 " already means something else: ", named->spelling);
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  element.values = values;
  const Element* existing = find_builtin(element.name);
  if (existing == nullptr) existing = find_user(all, element.name);
  if (existing != nullptr) {
    LADDER_REQUIRE(same_meaning(*existing, element), "type ", element.name,
                   " already means something else: ", existing->bits, " bits, ", existing->source,
                   "; the new meaning has ", element.bits, " bits");
    return *existing;
  }
  UserRow& row = all.rows.emplace_back(
      UserRow{.name = std::string(element.name), .values = std::move(values), .element = element});
  row.element.name = row.name;
  row.element.values = row.values;
  return row.element;
}

}  // namespace

std::vector<const Element*> elements() {
  std::vector<const Element*> all;
  for (const Element& row : builtin_elements()) all.push_back(&row);
  {
    const std::shared_lock lock(registry().mutex);
    for (const UserRow& row : registry().rows) all.push_back(&row.element);
  }
  std::ranges::sort(all, {}, &Element::name);
  return all;
}

const Element* find_element(std::string_view name) noexcept {
  if (const Element* row = find_builtin(name)) return row;
  const std::shared_lock lock(registry().mutex);
  return find_user(registry(), name);
}

const Element& element(std::string_view name) {
  if (const Element* row = find_element(name)) return *row;
  auto known = elements();
  std::ranges::stable_sort(known, {},
                           [&](const Element* e) { return edit_distance(e->name, name); });
  fail<InvalidArgument>("unknown type \"", name, "\"; the nearest known names are ", known[0]->name,
                        ", ", known[1]->name, " and ", known[2]->name);
}

const Element& register_table(std::string_view name, int bits, std::span<const double> values) {
  LADDER_REQUIRE(bits >= 1 && bits <= 8, "type ", name, " has ", bits, " bits; a table has 1 to 8");
  LADDER_REQUIRE(values.size() == std::size_t{1} << bits, "type ", name, " has ", values.size(),
                 " values; ", bits, " bits need ", 1 << bits);
  std::vector<double> rounded;
  for (std::size_t code = 0; code < values.size(); ++code) {
    const double value = static_cast<float>(values[code]);
    LADDER_REQUIRE(std::isfinite(value), "type ", name, ": value ", values[code], " of code ", code,
                   " is not a finite float32");
    for (std::size_t other = 0; other < code; ++other)
      LADDER_REQUIRE(rounded[other] != value, "type ", name, ": codes ", other, " and ", code,
                     " share the value ", value);
    rounded.push_back(value);
  }
  return register_row(
      {.name = name, .encoding = Encoding::table, .bits = bits, .source = "registered by the user"},
      std::move(rounded));
}

const Element& register_float(std::string_view name, int exponent_bits, int mantissa_bits,
                              Specials specials) {
  LADDER_REQUIRE(exponent_bits >= 1 && exponent_bits <= 7, "type ", name, " has ", exponent_bits,
                 " exponent bits; a float has 1 to 7");
  return register_float(name, exponent_bits, mantissa_bits, specials, ieee_bias(exponent_bits));
}

const Element& register_float(std::string_view name, int exponent_bits, int mantissa_bits,
                              Specials specials, int bias) {
  const int bits = 1 + exponent_bits + mantissa_bits;
  LADDER_REQUIRE(exponent_bits >= 1 && exponent_bits <= 7, "type ", name, " has ", exponent_bits,
                 " exponent bits; a float has 1 to 7");
  LADDER_REQUIRE(mantissa_bits >= 0 && bits >= 3 && bits <= 8, "type ", name, " has ", bits,
                 " bits (1 sign, ", exponent_bits, " exponent, ", mantissa_bits,
                 " mantissa); a float has 3 to 8");
  LADDER_REQUIRE(specials != Specials::ieee || mantissa_bits >= 1, "type ", name,
                 " has 0 mantissa bits; infinity and nan of ieee need 1");
  const Element row{.name = name,
                    .encoding = Encoding::floating,
                    .bits = bits,
                    .exponent_bits = exponent_bits,
                    .mantissa_bits = mantissa_bits,
                    .bias = bias,
                    .specials = specials,
                    .source = "registered by the user"};
  LADDER_REQUIRE(std::isfinite(static_cast<float>(max_value(row))) && bias <= 127, "type ", name,
                 " with bias ", bias, " has values beyond float32, whose bias is 127");
  return register_row(row, {});
}

}  // namespace ladder
