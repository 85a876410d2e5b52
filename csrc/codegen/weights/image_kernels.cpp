// SPDX-License-Identifier: Apache-2.0
//
// The kernels here meet in shared memory with one code per byte: the canonical side works on runs
// of 32 codes, which are exactly `bits` words; the image side on the words of a lane. Neither side
// then has a code across its border, for any width. Widths whose rows and image exchange whole
// words are packed without that (image_words.h): fewer bits make the same work per code a greater
// part.
#include "codegen/weights/image_kernels.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "codegen/emit/literal.h"
#include "codegen/weights/image_tile.h"
#include "codegen/weights/image_words.h"
#include "layout/bit_plan.h"

namespace ladder::weights {
namespace {

constexpr int kRun = 32;  // codes of a run

std::string indexed(const char* name, int index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

/// c[0..7], four codes a word, from the words w[0..bits) of a run.
std::string codes_from_words(int bits) {
  std::ostringstream out;
  for (int q = 0; q < kRun / 4; ++q) {
    out << "    c[" << q << "] = 0";
    for (int i = 0; i < 4; ++i) {
      const int at = (4 * q + i) * bits, word = at / 32, shift = at % 32;
      const std::uint32_t mask = ((1u << bits) - 1) << 8 * i;
      const int low = std::min(bits, 32 - shift);  // bits of the code in its first word
      const std::uint32_t low_mask = ((1u << low) - 1) << 8 * i;
      out << " | " << shifted(indexed("w", word), shift - 8 * i) << " & " << hex(low_mask);
      if (low < bits) {
        out << " | " << shifted(indexed("w", word + 1), -low - 8 * i) << " & "
            << hex(mask & ~low_mask);
      }
    }
    out << ";\n";
  }
  return out.str();
}

/// The inverse: w[0..bits) from c[0..7].
std::string words_from_codes(int bits) {
  std::ostringstream out;
  for (int word = 0; word < bits; ++word) {
    out << "    w[" << word << "] = 0";
    for (int e = word * 32 / bits; e < kRun && e * bits < word * 32 + 32; ++e) {
      const int at = e * bits - word * 32;  // of bit 0 of the code, in this word; may be negative
      const int from = std::max(0, -at), to = std::min(bits, 32 - at);
      const std::uint32_t mask = ((1u << (to - from)) - 1) << (at + from);
      out << " | " << shifted(indexed("c", e / 4), 8 * (e % 4) - at) << " & " << hex(mask);
    }
    out << ";\n";
  }
  return out.str();
}

std::string pairs_to_image(int bits) {
  std::ostringstream out;
  for (int pair = 0; pair < kPairsPerUnit; ++pair) {
    const auto& places = bit_plan(bits).pairs[pair];
    out << "    { const u32 both = spread(*(const u16*)(" << place(pair) << "));\n";
    for (int i = 0; i < bits;) {
      int end = i + 1;  // a run of bits that stay together
      while (end < bits && places[end].word == places[i].word &&
             places[end].bit - end == places[i].bit - i) {
        ++end;
      }
      const std::uint32_t half = ((1u << (end - i)) - 1) << i;
      const bool whole = end - i == bits;
      const std::string part = whole ? "both" : "(both & " + hex(half | half << 16) + ")";
      out << "      words[kBits * u + " << places[i].word
          << "] |= " << shifted(part, i - places[i].bit) << ";\n";
      i = end;
    }
    out << "    }\n";
  }
  return out.str();
}

}  // namespace

ImageTile pack_tile(int bits) {
  return moves_words(bits) ? ImageTile{256, word_blocks_per_tile(bits)} : dequantize_tile(bits);
}

std::string pack_source(int bits, std::string_view prelude) {
  if (moves_words(bits)) return pack_words_source(bits, prelude);
  std::ostringstream out;
  out << tile_opening(bits, prelude, "pack",
                      "const u32* __restrict__ canonical, u32* __restrict__ image, u32 n, u32 k, "
                      "u32 pad, u32 flip")
      << R"(  const u32 row_words = (k * kBits + 31) / 32, flips = flip * 0x01010101u;
  const bool inside = row0 + 64 <= n && column0 + kColumns <= k;
  const bool vectors = kBits % 4 == 0 && row_words % 4 == 0;
  for (u32 i = threadIdx.x; i < 64 * 2 * kBlocks; i += kThreads) {
    const u32 row = i / (2 * kBlocks), run = i % (2 * kBlocks), column = column0 + 32 * run;
    const u32* const from = canonical + (u64)(row0 + row) * row_words;
    const u32 word = column / 32 * kBits;
    u32 w[kBits], c[8];
    if (inside && vectors) {
#pragma unroll
      for (u32 j = 0; j < kBits / 4; ++j) {
        const Words4 v = load_once((const Words4*)(from + word) + j);
        for (u32 e = 0; e < 4; ++e) w[4 * j + e] = v.w[e];
      }
    } else {
#pragma unroll
      for (u32 j = 0; j < kBits; ++j) {
        w[j] = row0 + row < n && word + j < row_words ? from[word + j] : 0;
      }
    }
)" << codes_from_words(bits)
      << R"(    for (u32 q = 0; q < 8; ++q) {
      c[q] ^= flips;
      if (!inside) {
        for (u32 e = 0; e < 4; ++e) {
          const bool there = row0 + row < n && column + 4 * q + e < k;
          if (!there) c[q] = c[q] & ~(0xffu << 8 * e) | pad << 8 * e;
        }
      }
      *(u32*)(codes + row * kPitch + 32 * run + 4 * q) = c[q];
    }
  }
  __syncthreads();
  if (k_block >= k_blocks) return;
  u32 words[4 * kBits] = {};
#pragma unroll
  for (u32 u = 0; u < 4; ++u) {
)" << pairs_to_image(bits)
      << R"(  }
#pragma unroll
  for (u32 i = 0; i < kBits; ++i) {
    *(Words4*)(image + first + 128 * i) =
        {{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}};
  }
}
)";
  return out.str();
}

// A thread's runs lie `bits` words apart, so that storing word by word would touch every sector
// `bits` times; through shared memory, whole rows leave in whole lines.
std::string unpack_source(int bits, std::string_view prelude) {
  if (moves_words(bits)) return unpack_words_source(bits, prelude);
  std::ostringstream out;
  out << tile_opening(bits, prelude, "unpack",
                      "const u32* __restrict__ image, u32* __restrict__ canonical, u32 n, u32 k, "
                      "u32 flip")
      << codes_of_image(bits)
      << R"(  const u32 row_words = (k * kBits + 31) / 32, flips = flip * 0x01010101u;
  u32 words[4][kBits];
#pragma unroll
  for (u32 part = 0; part < 4; ++part) {
    const u32 i = threadIdx.x + part * kThreads;
    const u32 row = i / (2 * kBlocks), run = i % (2 * kBlocks), column = column0 + 32 * run;
    u32 c[8], *const w = words[part];
#pragma unroll
    for (u32 q = 0; q < 8; ++q) {
      c[q] = *(const u32*)(codes + row * kPitch + 32 * run + 4 * q) ^ flips;
      if (column + 32 > k) {  // padding bits of a row are zero
        for (u32 e = 0; e < 4; ++e) {
          if (column + 4 * q + e >= k) c[q] &= ~(0xffu << 8 * e);
        }
      }
    }
)" << words_from_codes(bits)
      << R"(  }
  __syncthreads();
  u32* const staged = (u32*)codes;
#pragma unroll
  for (u32 part = 0; part < 4; ++part) {
#pragma unroll
    for (u32 j = 0; j < kBits; ++j) {
      staged[(threadIdx.x + part * kThreads) * kBits + j] = words[part][j];
    }
  }
  __syncthreads();
  constexpr u32 kRow = 2 * kBlocks * kBits;  // words of a row of the tile
  u32* const to = canonical + (u64)row0 * row_words + blockIdx.x * kRow;
  if (kRow % 4 == 0 && row_words % 4 == 0 && row0 + 64 <= n && column0 + kColumns <= k) {
#pragma unroll
    for (u32 part = 0; part < kBits; ++part) {
      const u32 i = threadIdx.x + part * kThreads, row = i / (kRow / 4), at = i % (kRow / 4);
      *(Words4*)(to + (u64)row * row_words + 4 * at) = ((const Words4*)staged)[i];
    }
    return;
  }
#pragma unroll
  for (u32 part = 0; part < 4 * kBits; ++part) {
    const u32 i = threadIdx.x + part * kThreads, row = i / kRow, at = i % kRow;
    if (row0 + row < n && blockIdx.x * kRow + at < row_words) {
      to[(u64)row * row_words + at] = staged[i];
    }
  }
}
)";
  return out.str();
}

}  // namespace ladder::weights
