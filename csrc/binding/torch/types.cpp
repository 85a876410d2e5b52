// SPDX-License-Identifier: Apache-2.0
// The table of formats for Python, through torch ops.
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "binding/torch/tensors.h"

namespace ladder::binding {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string_view name(Encoding encoding) {
  switch (encoding) {
    case Encoding::unsigned_integer: return "unsigned_integer";
    case Encoding::signed_integer: return "signed_integer";
    case Encoding::floating: return "floating";
    case Encoding::exponent: return "exponent";
    case Encoding::table: return "table";
  }
  fail<InternalError>("encoding without a name");
}

constexpr std::string_view kSpecials[] = {"none", "ieee", "nan_only", "fnuz"};

Specials specials_called(const std::string& text) {
  for (std::size_t i = 0; i < std::size(kSpecials); ++i)
    if (kSpecials[i] == text) return static_cast<Specials>(i);
  fail<InvalidArgument>("specials is \"", text, "\", not none, ieee, nan_only or fnuz");
}

std::string_view zero_name(Zero zero) {
  constexpr std::string_view kNames[] = {"none",      "midpoint", "integer",
                                         "quantized", "original", "rescale"};
  return kNames[static_cast<std::size_t>(zero)];
}

std::string element_json(const Element& e) {
  std::ostringstream out;
  out << "{\"name\": " << quoted(e.name) << ", \"bits\": " << e.bits
      << ", \"encoding\": " << quoted(name(e.encoding))
      << ", \"exponent_bits\": " << e.exponent_bits << ", \"mantissa_bits\": " << e.mantissa_bits
      << ", \"bias\": " << e.bias
      << ", \"specials\": " << quoted(kSpecials[static_cast<std::size_t>(e.specials)])
      << ", \"source\": " << quoted(e.source) << "}";
  return out.str();
}

std::string element_info(std::string text) { return element_json(element(text)); }

std::string type_info(std::string text) {
  const TType& type = ttype(text);
  std::ostringstream out;
  const auto optional = [](const Element* e) { return e ? quoted(e->name) : std::string("null"); };
  out << "{\"spelling\": " << quoted(to_string(type))
      << ", \"element\": " << element_json(*type.element) << ", \"rows\": " << type.block.rows
      << ", \"columns\": " << type.block.columns << ", \"scale\": " << optional(type.scale)
      << ", \"zero\": " << quoted(zero_name(type.zero)) << ", \"scale2\": " << optional(type.scale2)
      << ", \"scale2_of_rows\": " << (type.scale2_of_rows ? "true" : "false")
      << ", \"superblock\": " << type.superblock << "}";
  return out.str();
}

std::string element_names() {
  std::string names;
  for (const Element* e : elements()) names += (names.empty() ? "" : " ") + std::string(e->name);
  return names;
}

std::string named_types() {
  std::string names;
  for (const NamedTType& named : named_ttypes())
    names += (names.empty() ? "" : " ") + std::string(named.name);
  return names;
}

std::string exact_target_names(std::string text) {
  std::string names;
  for (const Element* e : exact_targets(element(text)))
    names += (names.empty() ? "" : " ") + std::string(e->name);
  return names;
}

std::vector<double> element_values(std::string text) {
  const Element& e = element(text);
  LADDER_REQUIRE(e.bits <= 16, "type ", e.name, " has ", e.bits, " bits: too many values to list");
  std::vector<double> values(static_cast<std::size_t>(e.code_count()));
  for (std::size_t c = 0; c < values.size(); ++c)
    values[c] = decode(e, static_cast<std::uint32_t>(c));
  return values;
}

Tensor decode_table_tensor(std::string text) {
  const std::vector<double> values = element_values(text);
  Tensor table = stable::empty({static_cast<std::int64_t>(values.size())}, ScalarType::Double);
  std::copy(values.begin(), values.end(), static_cast<double*>(table.mutable_data_ptr()));
  return table;
}

void register_table_type(std::string name, std::int64_t bits, std::vector<double> values) {
  register_table(name, static_cast<int>(bits), values);
}

void register_float_type(std::string name, std::int64_t exponent, std::int64_t mantissa,
                         std::string specials, std::optional<std::int64_t> bias) {
  const int e = static_cast<int>(exponent), m = static_cast<int>(mantissa);
  if (bias.has_value())
    register_float(name, e, m, specials_called(specials), static_cast<int>(*bias));
  else
    register_float(name, e, m, specials_called(specials));
}

std::int64_t encode_one(std::string name, double value, bool saturate) {
  return encode(element(name), value, saturate ? Overflow::saturate : Overflow::special);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("element_info(str name) -> str");
  m.def("element_names() -> str");
  m.def("element_table(str name) -> Tensor");
  m.def("encode_one(str name, float value, bool saturate) -> int");
  m.def("exact_targets(str name) -> str");
  m.def("named_types() -> str");
  m.def("register_float(str name, int exponent, int mantissa, str specials, int? bias) -> ()");
  m.def("register_table(str name, int bits, float[] values) -> ()");
  m.def("type_info(str text) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("element_info", TORCH_BOX(&element_info));
  m.impl("element_names", TORCH_BOX(&element_names));
  m.impl("element_table", TORCH_BOX(&decode_table_tensor));
  m.impl("encode_one", TORCH_BOX(&encode_one));
  m.impl("exact_targets", TORCH_BOX(&exact_target_names));
  m.impl("named_types", TORCH_BOX(&named_types));
  m.impl("register_float", TORCH_BOX(&register_float_type));
  m.impl("register_table", TORCH_BOX(&register_table_type));
  m.impl("type_info", TORCH_BOX(&type_info));
}

}  // namespace ladder::binding
