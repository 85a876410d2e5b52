// SPDX-License-Identifier: Apache-2.0
#include "codegen/weights/image_tile.h"

#include <algorithm>
#include <sstream>

#include "codegen/emit/literal.h"
#include "codegen/weights/image_kernels.h"
#include "layout/bit_plan.h"

namespace ladder::weights {

std::string shifted(const std::string& text, int right) {
  if (right == 0) return text;
  return "(" + text + (right > 0 ? " >> " : " << ") + std::to_string(right > 0 ? right : -right) +
         ")";
}

std::string place(int pair) {
  const int step = pair / 4, reg = pair % 4;
  std::ostringstream out;
  out << "mine + (16 * u + " << 8 * (reg & 1) << ") * kPitch + " << 16 * step + 8 * (reg >> 1);
  return out.str();
}

namespace {

std::string image_to_pairs(int bits) {
  const UnpackPlan plan = unpack_plan(bits, kFloat16Window);
  std::ostringstream out;
  for (int pair = 0; pair < kPairsPerUnit; ++pair) {
    out << "    { const u32 both = (0";
    for (const auto& piece : plan.pairs[pair].pieces) {
      out << " | " << shifted("words[kBits * u + " + std::to_string(piece.word) + "]", piece.shift)
          << " & " << hex(piece.mask);
    }
    out << ") >> " << plan.pairs[pair].offset << ";\n      *(u16*)(" << place(pair)
        << ") = gather(both); }\n";
  }
  return out.str();
}

}  // namespace

// Eight blocks of one or two bits are a line of the memory system, or half of one. Fewer threads
// wait for each other at the barriers with four: at 3 bits five pack 8 % faster, but their rows do
// not end at 16 bytes, so that unpacking is 16 % slower; eight are the slowest.
ImageTile dequantize_tile(int bits) {
  const int blocks = bits < 3 ? 8 : 4;
  return {32 * blocks, blocks};
}

std::string tile_opening(int bits, std::string_view prelude, const std::string& name,
                         const std::string& parameters) {
  const int blocks = dequantize_tile(bits).blocks;
  std::ostringstream out;
  out << prelude << R"(
// Two codes in a 16-bit word, and in the two halves of a 32-bit one.
DEVICE u32 spread(u32 pair) { return __byte_perm(pair, 0, 0x4140); }
DEVICE u16 gather(u32 both) { return (u16)__byte_perm(both, 0, 0x4420); }
constexpr u32 kBits = )"
      << bits << ", kBlocks = " << blocks << R"(, kThreads = 32 * kBlocks;
constexpr u32 kColumns = 64 * kBlocks, kPitch = kColumns + 4;  // bytes; rows start in other banks
extern "C" __global__ void __launch_bounds__(kThreads) )"
      << name << '(' << parameters << R"() {
  __shared__ __align__(16) unsigned char codes[64 * kPitch];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 row0 = blockIdx.y * 64, column0 = blockIdx.x * kColumns;
  const u32 k_blocks = (k + 63) / 64, k_block = blockIdx.x * kBlocks + warp;
  unsigned char* const mine = codes + lane / 4 * kPitch + 64 * warp + 2 * (lane % 4);
  const u64 first = ((u64)blockIdx.y * k_blocks + k_block) * 128 * kBits + lane * 4;
)";
  return out.str();
}

std::string codes_of_image(int bits) {
  std::ostringstream out;
  out << R"(  if (k_block < k_blocks) {
    u32 words[4 * kBits];
#pragma unroll
    for (u32 i = 0; i < kBits; ++i) {
      const Words4 v = load_once((const Words4*)(image + first + 128 * i));
      for (u32 j = 0; j < 4; ++j) words[4 * i + j] = v.w[j];
    }
#pragma unroll
    for (u32 u = 0; u < 4; ++u) {
)" << image_to_pairs(bits)
      << R"(    }
  }
  __syncthreads();
)";
  return out.str();
}

}  // namespace ladder::weights
