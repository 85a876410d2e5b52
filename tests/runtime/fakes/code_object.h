// SPDX-License-Identifier: Apache-2.0
// Code objects of AMD for tests: an ELF file that has nothing but the metadata of kernels.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace fake {

/// Values of MessagePack, in the shortest form of each but for numbers, which have 8 bytes from
/// 2^16 on, 2 from 128 on.
inline std::string packed(std::uint64_t number) {
  std::string out;
  const auto big_endian = [&](char tag, int bytes) {
    out = tag;
    for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(number >> 8 * i);
  };
  if (number < 128) {
    out = static_cast<char>(number);
  } else if (number < 1 << 16) {
    big_endian('\xcd', 2);
  } else {
    big_endian('\xcf', 8);
  }
  return out;
}
inline std::string packed(const std::string& text) {
  if (text.size() < 32) return static_cast<char>(0xa0 | text.size()) + text;
  return std::string{'\xd9', static_cast<char>(text.size())} + text;
}
inline std::string array_of(const std::vector<std::string>& elements) {
  std::string out{'\xdc', static_cast<char>(elements.size() >> 8),
                  static_cast<char>(elements.size())};
  for (const auto& each : elements) out += each;
  return out;
}
/// Of keys and packed values.
inline std::string map_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string out(1, static_cast<char>(0x80 | pairs.size()));
  for (const auto& [key, value] : pairs) out += packed(key) + value;
  return out;
}

struct FakeKernel {
  std::string name = "kernel";
  std::uint64_t vgprs = 40, agprs = 0, sgprs = 16, vgpr_spills = 0, sgpr_spills = 0;
  std::uint64_t scratch_bytes = 0, lds_bytes = 0, argument_bytes = 60, threads = 256;
};

inline std::string metadata_of(const std::vector<FakeKernel>& kernels) {
  std::vector<std::string> maps;
  for (const FakeKernel& k : kernels) {
    maps.push_back(map_of({
        {".agpr_count", packed(k.agprs)},
        {".args", array_of({map_of({{".offset", packed(0)}, {".size", packed(8)}})})},
        {".group_segment_fixed_size", packed(k.lds_bytes)},
        {".kernarg_segment_size", packed(k.argument_bytes)},
        {".max_flat_workgroup_size", packed(k.threads)},
        {".name", packed(k.name)},
        {".private_segment_fixed_size", packed(k.scratch_bytes)},
        {".sgpr_count", packed(k.sgprs)},
        {".sgpr_spill_count", packed(k.sgpr_spills)},
        {".uses_dynamic_stack", "\xc2"},
        {".vgpr_count", packed(k.vgprs)},
        {".vgpr_spill_count", packed(k.vgpr_spills)},
    }));
  }
  return map_of({{"amdhsa.target", packed("amdgcn-amd-amdhsa--gfx942")},
                 {"amdhsa.kernels", array_of(maps)},
                 {"amdhsa.version", array_of({packed(1), packed(2)})}});
}

/// With `metadata` as its note, the second of a section, and `rest` behind all.
inline std::string code_object(const std::string& metadata, const std::string& rest = {}) {
  const auto bytes_of = [](const auto& value) {
    std::string out(sizeof value, '\0');
    std::memcpy(out.data(), &value, sizeof value);
    return out;
  };
  const auto note = [&](const std::string& name, std::uint32_t type, std::string text) {
    const auto size = static_cast<Elf64_Word>(text.size());
    text.resize((text.size() + 3) / 4 * 4);
    std::string owner = name + '\0';
    const Elf64_Nhdr header{static_cast<Elf64_Word>(owner.size()), size, type};
    owner.resize((owner.size() + 3) / 4 * 4);
    return bytes_of(header) + owner + text;
  };
  const std::string notes = note("GNU", 3, "a build") + note("AMDGPU", 32, metadata);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = sizeof header + notes.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  Elf64_Shdr none{}, section{};
  section.sh_type = SHT_NOTE;
  section.sh_offset = sizeof header;
  section.sh_size = notes.size();
  return bytes_of(header) + notes + bytes_of(none) + bytes_of(section) + rest;
}

}  // namespace fake
