// SPDX-License-Identifier: Apache-2.0
#include "codegen/hip/code_object.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/integers.h"

namespace ladder::hip {
namespace {

// Of ELF files, as <elf.h> has them where there is one: macOS has none.
// Source: System V Application Binary Interface, "Object Files", for 64 bits.
constexpr std::string_view kMagic = "\177ELF";
struct Header {
  char before_sections[40];
  std::uint64_t sections;  ///< where their headers are
  std::uint32_t flags;
  std::uint16_t own_bytes, segment_bytes, segment_count, section_bytes, section_count, names;
};
struct Section {
  std::uint32_t name, type;
  std::uint64_t flags, address, offset, bytes;
  std::uint32_t link, info;
  std::uint64_t alignment, entry_bytes;
};
struct Note {
  std::uint32_t name_bytes, bytes, type;
};
static_assert(sizeof(Header) == 64 && sizeof(Section) == 64 && sizeof(Note) == 12);
constexpr std::uint32_t kNotes = 7;          // SHT_NOTE
constexpr std::uint32_t kMetadataNote = 32;  // NT_AMDGPU_METADATA

/// Bytes from the front, never beyond the end.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::uint64_t left() const { return rest_.size(); }
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) fail<ToolchainError>("the code object ends within its metadata");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  /// As the machine has it: ELF files of AMD are little-endian.
  template <class T>
  T value() {
    static_assert(std::endian::native == std::endian::little);
    T out;
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  /// Most significant byte first.
  std::uint64_t number(int bytes) {
    std::uint64_t out = 0;
    for (const char c : take(bytes)) out = out << 8 | static_cast<unsigned char>(c);
    return out;
  }

 private:
  std::string_view rest_;
};

/// A value of MessagePack, its elements left to the reader.
struct Token {
  enum Kind { number, text, array, map, other } kind;
  std::int64_t value = 0;       ///< of a number; elements of an array, pairs of a map
  std::string_view bytes = {};  ///< of a text
};

Token next(Reader& in) {
  const int tag = static_cast<int>(in.number(1));
  const auto text = [&](std::uint64_t length) { return Token{Token::text, 0, in.take(length)}; };
  const auto counted = [](Token::Kind kind, std::uint64_t count) {
    return Token{kind, static_cast<std::int64_t>(count)};
  };
  if (tag <= 0x7f) return {Token::number, tag};
  if (tag >= 0xe0) return {Token::number, tag - 0x100};
  if (tag <= 0x8f) return counted(Token::map, tag & 15);
  if (tag <= 0x9f) return counted(Token::array, tag & 15);
  if (tag <= 0xbf) return text(tag & 31);
  switch (tag) {
    case 0xc0:                         // nil
    case 0xc2:                         // false
    case 0xc3: return {Token::other};  // true
    case 0xc4:
    case 0xc5:
    case 0xc6: return in.take(in.number(1 << (tag - 0xc4))), Token{Token::other};  // bytes
    case 0xca: return in.take(4), Token{Token::other};                             // float32
    case 0xcb: return in.take(8), Token{Token::other};                             // float64
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf: return counted(Token::number, in.number(1 << (tag - 0xcc)));
    case 0xd0: return {Token::number, static_cast<std::int8_t>(in.number(1))};
    case 0xd1: return {Token::number, static_cast<std::int16_t>(in.number(2))};
    case 0xd2: return {Token::number, static_cast<std::int32_t>(in.number(4))};
    case 0xd3: return {Token::number, static_cast<std::int64_t>(in.number(8))};
    case 0xd9:
    case 0xda:
    case 0xdb: return text(in.number(1 << (tag - 0xd9)));
    case 0xdc: return counted(Token::array, in.number(2));
    case 0xdd: return counted(Token::array, in.number(4));
    case 0xde: return counted(Token::map, in.number(2));
    case 0xdf: return counted(Token::map, in.number(4));
    default: fail<ToolchainError>("the code object's metadata has a value of kind ", tag);
  }
}

/// Reads the elements of `token`, and theirs.
void skip(Reader& in, const Token& token) {
  std::int64_t left = 0;
  const auto add = [&](const Token& each) {
    if (each.kind == Token::array) left += each.value;
    if (each.kind == Token::map) left += 2 * each.value;
  };
  for (add(token); left > 0; --left) add(next(in));
}

KernelResources kernel(Reader& in, const Token& map) {
  KernelResources out{};
  struct Field {
    std::string_view key;
    std::int64_t KernelResources::*number;
  };
  constexpr Field kFields[] = {
      {".vgpr_count", &KernelResources::vgprs},
      {".agpr_count", &KernelResources::agprs},
      {".sgpr_count", &KernelResources::sgprs},
      {".vgpr_spill_count", &KernelResources::vgpr_spills},
      {".sgpr_spill_count", &KernelResources::sgpr_spills},
      {".private_segment_fixed_size", &KernelResources::scratch_bytes},
      {".group_segment_fixed_size", &KernelResources::lds_bytes},
      {".kernarg_segment_size", &KernelResources::argument_bytes},
      {".max_flat_workgroup_size", &KernelResources::most_threads},
  };
  for (std::int64_t i = 0; i < map.value; ++i) {
    const Token key = next(in), value = next(in);
    if (key.bytes == ".name" && value.kind == Token::text) out.name = value.bytes;
    for (const Field& field : kFields) {
      if (key.bytes == field.key && value.kind == Token::number) out.*field.number = value.value;
    }
    skip(in, value);
  }
  return out;
}

std::vector<KernelResources> kernels_in(std::string_view metadata) {
  Reader in(metadata);
  const Token all = next(in);
  std::vector<KernelResources> kernels;
  if (all.kind != Token::map) fail<ToolchainError>("the code object's metadata is no map");
  for (std::int64_t i = 0; i < all.value; ++i) {
    const Token key = next(in), value = next(in);
    if (key.bytes != "amdhsa.kernels" || value.kind != Token::array) {
      skip(in, value);
      continue;
    }
    for (std::int64_t each = 0; each < value.value; ++each) {
      const Token map = next(in);
      if (map.kind == Token::map) kernels.push_back(kernel(in, map));
      if (map.kind == Token::array) skip(in, map);
    }
  }
  return kernels;
}

/// The metadata in a section of notes, if it is there.
std::optional<std::string_view> metadata_in(std::string_view notes) {
  Reader in(notes);
  while (!in.empty()) {
    const auto note = in.value<Note>();
    const auto name = in.take(static_cast<std::uint64_t>(round_up(note.name_bytes, 4)));
    const auto padded = static_cast<std::uint64_t>(round_up(note.bytes, 4));
    // The last one of a section may not be padded.
    const auto bytes = in.take(std::min<std::uint64_t>(padded, in.left()));
    if (note.type == kMetadataNote && name.starts_with(std::string_view("AMDGPU\0", 7))) {
      return bytes.substr(0, note.bytes);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<KernelResources> kernels_of(std::string_view code_object) {
  if (!code_object.starts_with(kMagic) || code_object.size() < sizeof(Header)) {
    fail<ToolchainError>("what the compiler made is no ELF file");
  }
  const auto at = [&](std::uint64_t offset) {
    Reader in(code_object);
    in.take(offset);
    return in;
  };
  const auto header = at(0).value<Header>();
  for (std::uint64_t i = 0; i < header.section_count; ++i) {
    const auto section = at(header.sections + i * header.section_bytes).value<Section>();
    if (section.type != kNotes) continue;
    const auto found = metadata_in(at(section.offset).take(section.bytes));
    if (found) return kernels_in(*found);
  }
  fail<ToolchainError>("the code object has no metadata of kernels");
}

}  // namespace ladder::hip
