// SPDX-License-Identifier: Apache-2.0
#include "types/ttype.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "types/lower_case.h"
#include "types/table.h"

namespace ladder {
namespace {

constexpr std::string_view kMx = "OCP Microscaling Formats (MX) 1.0";
constexpr std::string_view kGgml = "block structs of ggml-common.h, llama.cpp";
constexpr NamedTType kNamed[] = {
    {"mxfp4", "float4_e2m1,group=32,scale=e8m0", kMx},
    {"mxfp6_e2m3", "float6_e2m3,group=32,scale=e8m0", kMx},
    {"mxfp6_e3m2", "float6_e3m2,group=32,scale=e8m0", kMx},
    {"mxfp8_e4m3", "float8_e4m3,group=32,scale=e8m0", kMx},
    {"mxfp8_e5m2", "float8_e5m2,group=32,scale=e8m0", kMx},
    {"mxint8", "fixed8_6,group=32,scale=e8m0", kMx},
    {"nvfp4", "float4_e2m1,group=16,scale=float8_e4m3,scale2=float32", "NVIDIA Blackwell NVFP4"},
    {"q2_k", "uint2,group=16,scale=uint4,zero=rescale,scale2=float16:256", kGgml},
    {"q3_k", "uint3,group=16,scale=int6,zero=midpoint,scale2=float16:256", kGgml},
    {"q4_k", "uint4,group=32,scale=uint6,zero=rescale,scale2=float16:256", kGgml},
    {"q5_k", "uint5,group=32,scale=uint6,zero=rescale,scale2=float16:256", kGgml},
    {"q6_k", "uint6,group=16,scale=int8,zero=midpoint,scale2=float16:256", kGgml},
};
static_assert(std::ranges::is_sorted(kNamed, {}, &NamedTType::name));

// A width alone is the element that an alias of csrc/types/table.cpp takes for it.
constexpr Alias kNamedAliases[] = {
    {"mxfp4_e2m1", "mxfp4"},
    {"mxfp6", "mxfp6_e3m2"},
    {"mxfp8", "mxfp8_e4m3"},
};
static_assert(std::ranges::is_sorted(kNamedAliases, {}, &Alias::name));

constexpr std::array<std::string_view, 6> kZeroNames = {"none",      "midpoint", "integer",
                                                        "quantized", "original", "rescale"};

std::int64_t parse_positive(std::string_view text, std::string_view field, std::string_view whole) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LADDER_REQUIRE(error == std::errc{} && end == text.data() + text.size() && value > 0, field,
                 " is \"", text, "\" in type \"", whole, "\", not a positive integer");
  return value;
}

Zero parse_zero(std::string_view text, std::string_view whole) {
  const auto found = std::ranges::find(kZeroNames, text);
  LADDER_REQUIRE(found != kZeroNames.end(), "zero is \"", text, "\" in type \"", whole,
                 "\", not none, midpoint, integer, quantized, original or rescale");
  return static_cast<Zero>(found - kZeroNames.begin());
}

/// Reads one field into `type`. Returns what the field decides: two that decide the same would
/// contradict each other or say it twice.
std::string_view parse_field(std::string_view field, std::string_view whole, TType& type) {
  const std::size_t equals = field.find('=');
  const std::string_view key = field.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view{} : field.substr(equals + 1);
  if (field == "channel") {
    type.block = {1, 0};
  } else if (field == "tensor") {
    type.block = {0, 0};
  } else if (key == "group") {
    if (value == "channel")
      type.block = {1, 0};
    else if (value == "tensor")
      type.block = {0, 0};
    else
      type.block = {1, parse_positive(value, "group", whole)};
  } else if (key == "block") {
    const std::size_t x = value.find('x');
    LADDER_REQUIRE(x != std::string_view::npos, "block is \"", value, "\" in type \"", whole,
                   "\", not ROWSxCOLUMNS");
    type.block = {parse_positive(value.substr(0, x), "block", whole),
                  parse_positive(value.substr(x + 1), "block", whole)};
  } else if (key == "scale") {
    type.scale = value == "none" ? nullptr : &element(value);
    return "scale";
  } else if (key == "scale2") {
    const std::size_t colon = value.find(':');
    const std::string_view name = value.substr(0, colon);
    const std::string_view of =
        colon == std::string_view::npos ? "tensor" : value.substr(colon + 1);
    const bool counts = !of.empty() && of.find_first_not_of("0123456789") == of.npos;
    LADDER_REQUIRE(of == "tensor" || of == "channel" || counts, "scale2 is \"", value,
                   "\" in type \"", whole,
                   "\", not float32, float32:tensor, float32:channel or float16:COLUMNS");
    type.scale2 = name == "none" ? nullptr : &element(name);
    type.scale2_of_rows = type.scale2 != nullptr && of == "channel";
    type.superblock = type.scale2 != nullptr && counts ? parse_positive(of, "scale2", whole) : 0;
    return "scale2";
  } else if (key == "zero") {
    type.zero = parse_zero(value, whole);
    return "zero";
  } else {
    fail<InvalidArgument>("field \"", field, "\" of type \"", whole,
                          "\" is not group=, block=, channel, tensor, scale=, zero= or scale2=");
  }
  return "block";
}

std::string spell(const TType& type) {
  std::string text(type.element->name);
  if (type.block == Block{0, 0})
    text += ",tensor";
  else if (type.block.rows == 1 && type.block.columns > 0)
    text += ",group=" + std::to_string(type.block.columns);
  else if (type.block.rows != 1)
    text += ",block=" + std::to_string(type.block.rows) + "x" + std::to_string(type.block.columns);
  if (type.scale != nullptr) text += ",scale=" + std::string(type.scale->name);
  if (type.zero != Zero::none)
    text += ",zero=" + std::string(kZeroNames[static_cast<std::size_t>(type.zero)]);
  if (type.scale2 != nullptr) text += ",scale2=" + std::string(type.scale2->name);
  if (type.scale2_of_rows) text += ":channel";
  if (type.superblock > 0) text += ":" + std::to_string(type.superblock);
  return text;
}

bool is_scale_format(const Element& e) {
  return e.encoding == Encoding::floating || e.encoding == Encoding::exponent ||
         e.encoding == Encoding::unsigned_integer;
}

void check_superblocks(const TType& type, const std::string& text) {
  const bool whole = type.scale != nullptr && (type.scale->encoding == Encoding::signed_integer ||
                                               type.scale->encoding == Encoding::unsigned_integer);
  LADDER_REQUIRE(whole && type.scale->bits <= 8, "type \"", text,
                 "\" has superblocks, whose scales are integers of up to 8 bits, and its scale is ",
                 type.scale == nullptr ? "none" : type.scale->name);
  LADDER_REQUIRE(type.scale2->encoding == Encoding::floating && type.scale2->bits >= 16, "type \"",
                 text, "\": scale2 of superblocks is ", type.scale2->name,
                 ", not a float of 16 or 32 bits");
  LADDER_REQUIRE(type.block.rows == 1, "type \"", text,
                 "\" has superblocks of each row, and scales that rows share");
  LADDER_REQUIRE(type.block.columns > 0, "type \"", text, "\" has superblocks of ", type.superblock,
                 " columns, and one scale for a whole row: groups (group=G) are parts of them");
  LADDER_REQUIRE(type.superblock % type.block.columns == 0, "type \"", text,
                 "\" has superblocks of ", type.superblock,
                 " columns, which are no whole groups of ", type.block.columns);
  LADDER_REQUIRE(type.superblock % 8 == 0, "type \"", text, "\" has superblocks of ",
                 type.superblock, " columns, no multiple of 8");
}

}  // namespace

std::int64_t TType::groups(std::int64_t k) const {
  return block.columns == 0 ? 1 : ceil_div(k, block.columns);
}

std::int64_t TType::block_rows(std::int64_t n) const {
  return block.rows == 0 ? 1 : ceil_div(n, block.rows);
}

std::int64_t TType::superblocks(std::int64_t k) const {
  return superblock == 0 ? 0 : ceil_div(k, superblock);
}

double TType::bits_per_weight(std::int64_t n, std::int64_t k) const {
  const double blocks = static_cast<double>(block_rows(n)) * static_cast<double>(groups(k));
  double per_block = scale != nullptr ? std::max(scale->bits, 8) : 0;
  if (zero == Zero::integer) per_block += 8;
  if (zero == Zero::quantized) per_block += element->bits;
  if (zero == Zero::original || zero == Zero::rescale) per_block += std::max(scale->bits, 8);
  const auto seconds = static_cast<double>(second_scales_of_row(k));
  const double of_rows = seconds > 0 ? static_cast<double>(n) * seconds * scale2->bits : 0;
  return element->bits +
         (blocks * per_block + of_rows) / (static_cast<double>(n) * static_cast<double>(k));
}

void check(const TType& type) {
  const Element& e = *type.element;
  const std::string text = spell(type);
  LADDER_REQUIRE(e.encoding != Encoding::exponent, "type \"", text, "\": ", e.name,
                 " is a scale format, not an element format");
  LADDER_REQUIRE(type.block.columns == 0 || type.block.columns >= 8, "type \"", text,
                 "\" has groups of ", type.block.columns, ", fewer than 8");
  if (type.superblock > 0) check_superblocks(type, text);
  const bool settled = type.superblock > 0 || type.scale == nullptr;
  LADDER_REQUIRE(settled || is_scale_format(*type.scale), "type \"", text, "\": scale ",
                 type.scale->name, " is neither a floating format nor an unsigned integer");
  const bool whole = type.has_integer_scales();
  LADDER_REQUIRE(settled || whole || type.scale->bits == 8 || type.scale->bits >= 16, "type \"",
                 text, "\": scale ", type.scale->name, " has ", type.scale->bits,
                 " bits, not 8, 16 or 32");
  LADDER_REQUIRE(!whole || type.scale2 != nullptr, "type \"", text, "\" has scales of ",
                 type.scale->name, ", which are integers, and no scale2 to multiply them by");
  LADDER_REQUIRE(!type.has_scale_of_sums() || type.scale2->name == "float32", "type \"", text,
                 "\": scale2 is ", type.scale2->name,
                 ", not float32: others are of superblocks, as scale2=float16:256 has them");
  LADDER_REQUIRE(type.scale2 == nullptr || type.scale != nullptr, "type \"", text,
                 "\" has a scale2 but no scale");
  LADDER_REQUIRE(!type.scale2_of_rows || type.block.rows == 1, "type \"", text,
                 "\" has a scale2 of each row, and scales that rows share");
  const bool is_unsigned = e.encoding == Encoding::unsigned_integer;
  const bool is_integer = is_unsigned || e.encoding == Encoding::signed_integer;
  switch (type.zero) {
    case Zero::none: break;
    case Zero::midpoint:
    case Zero::integer:
    case Zero::quantized:
      LADDER_REQUIRE(is_unsigned, "type \"", text, "\": zero ",
                     kZeroNames[static_cast<std::size_t>(type.zero)],
                     " needs an unsigned integer, and ", e.name, " is none");
      break;
    case Zero::original:
    case Zero::rescale:
      LADDER_REQUIRE(is_integer, "type \"", text, "\": zero ",
                     kZeroNames[static_cast<std::size_t>(type.zero)],
                     " needs an integer format, and ", e.name, " is none");
      if (type.superblock > 0 && type.zero == Zero::rescale) break;
      LADDER_REQUIRE(type.scale != nullptr && type.scale->bits >= 16, "type \"", text,
                     "\": a float zero needs a scale of 16 or 32 bits, and the scale is ",
                     type.scale == nullptr ? "none" : type.scale->name);
      break;
  }
}

TType parse_ttype(std::string_view text) {
  const std::string_view whole = text;
  const std::size_t comma = text.find(',');
  const std::string_view head = text.substr(0, comma);
  TType type;
  if (const NamedTType* named = find_named_ttype(head)) {
    LADDER_REQUIRE(comma == std::string_view::npos, "type \"", whole, "\": ", head,
                   " fixes every field, so none may follow it");
    return parse_ttype(named->spelling);
  }
  type.element = &element(head);
  std::vector<std::string_view> decided;
  while (text.find(',') != std::string_view::npos) {
    text.remove_prefix(text.find(',') + 1);
    const std::string_view field = text.substr(0, text.find(','));
    const std::string_view what = parse_field(field, whole, type);
    LADDER_REQUIRE(std::ranges::find(decided, what) == decided.end(), "field \"", field,
                   "\" of type \"", whole, "\" says the ", what, " a second time");
    decided.push_back(what);
  }
  check(type);
  return type;
}

const TType& ttype(std::string_view text) {
  static std::shared_mutex mutex;
  static std::map<std::string, std::unique_ptr<TType>, std::less<>> parsed;
  {
    const std::shared_lock lock(mutex);
    const auto found = parsed.find(text);
    if (found != parsed.end()) return *found->second;
  }
  auto type = std::make_unique<TType>(parse_ttype(text));
  const std::unique_lock lock(mutex);
  return *parsed.try_emplace(std::string(text), std::move(type)).first->second;
}

std::string to_string(const TType& type) {
  const std::string text = spell(type);
  for (const NamedTType& named : kNamed)
    if (named.spelling == text) return std::string(named.name);
  return text;
}

std::span<const NamedTType> named_ttypes() { return kNamed; }

const NamedTType* find_named_ttype(std::string_view spelled) noexcept {
  const LowerCase lower(spelled);
  std::string_view name = lower;
  const auto alias = std::ranges::lower_bound(kNamedAliases, name, {}, &Alias::name);
  if (alias != std::end(kNamedAliases) && alias->name == name) name = alias->element;
  const auto row = std::ranges::lower_bound(kNamed, name, {}, &NamedTType::name);
  return row != std::end(kNamed) && row->name == name ? &*row : nullptr;
}

}  // namespace ladder
