// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/joined.h"
#include "codegen/cuda/prelude.h"
#include "codegen/emit/plain_functions.h"
#include "expr/decoding.h"

namespace ladder::cuda {

std::string_view scale_prelude() {
  static const std::string text = joined(
      codegen::kPowerFunctions,
      R"(// The scale whose code is bits 23 to 30 of `shifted`, times 2 - 2^-23, or 1 - 2^-23 for code 0: a
// product with (1/2 + 2^-24) times a power of two rounds to that power times 2^(code - 127).
DEVICE float ones_e8m0(u32 shifted) { return fabsf(as_float(shifted | 0x007fffffu)); }
// The codes in the low or the high half of a word.
#if __CUDA_ARCH__ >= 890
DEVICE u32 low_e4m3(u32 codes) {
  u32 both;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(both) : "r"(codes));
  return both;
}
DEVICE u32 high_e4m3(u32 codes) {
  u32 both;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(both) : "r"(codes));
  return both;
}
#else
DEVICE u32 low_e4m3(u32 codes) {
  return fma_f16(halves_e4m3(__byte_perm(codes, 0u, 0x1404u)), 0x5c005c00u, 0x80008000u);
}
DEVICE u32 high_e4m3(u32 codes) {
  return fma_f16(halves_e4m3(__byte_perm(codes, 0u, 0x3424u)), 0x5c005c00u, 0x80008000u);
}
#endif
DEVICE u32 low_twice(u32 both) {
  u32 twice;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(twice) : "r"(both));
  return twice;
}
DEVICE u32 high_twice(u32 both) {
  u32 twice;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(twice) : "r"(both));
  return twice;
}
// Two f16 that bf16 holds.
DEVICE u32 bf16_of_f16(u32 both) { return pack_bf16(low_f16(both), high_f16(both)); }
// Two f16 times a factor.
DEVICE u32 scaled_bf16(u32 both, float factor) {
  return pack_bf16(low_f16(both) * factor, high_f16(both) * factor);
}
)");
  return text;
}

std::string_view code_prelude() {
  static const std::string text = joined(codegen::kBytesFunctions, R"(#if __CUDA_ARCH__ >= 890
DEVICE u32 codes_e4m3(float low, float high) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
#else
)",
                                         codegen::kFloatBytesFunctions, "#endif\n");
  return text;
}

// By the instruction, since __byte_perm masks its selector once more.
std::string_view relative_prelude() {
  static const std::string text =
      joined(R"(// The eight magnitudes of a code, by how far its scale is below the largest one.
struct RelativeEntry { u32 low, high; };
DEVICE RelativeEntry relative_entry(const u32* table, u32 largest, u32 scale) {
  return ((const RelativeEntry*)table)[min(largest - scale, )",
             kRelativeEntries - 1, R"(u)];
}
// Of the low 16 bits of `codes`, three each.
DEVICE u32 magnitudes(RelativeEntry of, u32 codes) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(of.low), "r"(of.high), "r"(codes));
  return bytes;
}
// Of the codes in the low or in the high halves of four bytes.
DEVICE u32 relative_low(RelativeEntry of, u32 codes) {
  const u32 each = codes & 0x77777777u;
  const u32 bytes = __byte_perm(magnitudes(of, each), magnitudes(of, each >> 16), 0x6420u);
  return bytes | (codes << 4 & 0x80808080u);
}
DEVICE u32 relative_high(RelativeEntry of, u32 codes) {
  const u32 each = codes & 0x77777777u;
  const u32 bytes = __byte_perm(magnitudes(of, each), magnitudes(of, each >> 16), 0x7531u);
  return bytes | (codes & 0x80808080u);
}
)");
  return text;
}

}  // namespace ladder::cuda
