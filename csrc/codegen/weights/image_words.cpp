// SPDX-License-Identifier: Apache-2.0
#include "codegen/weights/image_words.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string_view>

#include "codegen/emit/literal.h"
#include "layout/pack_plan.h"

namespace ladder::weights {
namespace {

constexpr int kPieces = 8;  // lanes along K

/// Words of one row that a thread has: 16 bytes or a block, whichever is more.
int row_words_of(int bits) { return std::max(4, 2 * bits); }

/// The step for all words w[0..words).
std::string exchange(const ExchangeBits& step, int words) {
  std::ostringstream out;
  const int low = 1 << step.low;
  const auto keep = clear_bits(step.low);
  for (int i = 0; i < words; ++i) {
    if (step.high < kWordBits) {
      const int by = (1 << step.high) - low;
      out << "    ";
      if (step.low == 3) {  // the two bytes in the middle
        out << "w[" << i << "] = __byte_perm(w[" << i << "], 0, 0x3120);\n";
      } else {
        out << "w[" << i << "] = exchanged<" << by << ", " << hex(~keep & clear_bits(step.high))
            << ">(w[" << i << "]);\n";
      }
      continue;
    }
    const int other = i | 1 << (step.high - kWordBits);
    if (other == i) continue;
    out << "    { const u32 a = w[" << i << "], b = w[" << other << "];\n      ";
    if (step.low >= 3) {
      const bool halves = step.low == 4;
      out << "w[" << i << "] = __byte_perm(a, b, " << (halves ? "0x5410" : "0x6240") << "); w["
          << other << "] = __byte_perm(a, b, " << (halves ? "0x7632" : "0x7351") << "); }\n";
    } else {
      out << "w[" << i << "] = (a & " << hex(keep) << ") | ((b << " << low << ") & " << hex(~keep)
          << "); w[" << other << "] = ((a >> " << low << ") & " << hex(keep) << ") | (b & "
          << hex(~keep) << "); }\n";
    }
  }
  return out.str();
}

/// v = w or w = v, in the order of the words of the image.
std::string renamed(const WordPermutation& plan, bool back) {
  std::ostringstream out;
  for (int i = 0; i < plan.words(); ++i) {
    const int at = plan.order[i];
    out << "    ";
    if (back) {
      out << "w[" << at << "] = v[" << i << "];\n";
    } else {
      out << "v[" << i << "] = w[" << at << "];\n";
    }
  }
  return out.str();
}

/// `image_of` and `rows_of`: the words of two rows of a block and those of four lanes.
std::string permutations(int bits) {
  const auto plan = image_permutation(bits);
  std::ostringstream out;
  out << R"(// Exchanges the bits in UP with those BY above.
template <u32 BY, u32 UP> DEVICE u32 exchanged(u32 w) {
  const u32 differ = ((w >> BY) ^ w) & UP;
  return w ^ differ ^ (differ << BY);
}
DEVICE void image_of(u32* v, u32* w) {
)";
  for (const auto& step : plan.steps) out << exchange(step, plan.words());
  out << renamed(plan, false) << "}\nDEVICE void rows_of(u32* w, const u32* v) {\n"
      << renamed(plan, true);
  for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
    out << exchange(*step, plan.words());
  }
  out << "}\n";
  return out.str();
}

std::string opening(int bits, std::string_view prelude, std::string_view name,
                    std::string_view parameters) {
  std::ostringstream out;
  out << prelude << permutations(bits) << "constexpr u32 kBits = " << bits
      << ", kRow = " << row_words_of(bits) << ", kBlocks = " << word_blocks_per_tile(bits)
      << R"(;  // kRow: words of one row that a thread has
constexpr u32 kOwn = kRow / (2 * kBits);  // blocks that a thread has a part of
// Lane u of four gives lane t its words of lane t, and gets those of unit t.
DEVICE void exchange_units(u32* v, u32 lane) {
#pragma unroll
  for (u32 bit = 1; bit < 4; bit *= 2) {
    const bool odd = lane & bit;
#pragma unroll
    for (u32 i = 0; i < 4 * kBits; ++i) {
      if (i / kBits & bit) continue;
      const u32 j = i + bit * kBits;
      const u32 got = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[j], bit);
      v[i] = odd ? got : v[i];
      v[j] = odd ? v[j] : got;
    }
  }
}
extern "C" __global__ void __launch_bounds__(256) )"
      << name << '(' << parameters << R"() {
  const u32 lane = threadIdx.x % 32, g = threadIdx.x / 32, piece = lane / 4;
  const u32 first_row = blockIdx.y * 64 + lane % 4 * 16 + g;
  const u32 k_blocks = (k + 63) / 64, row_words = (k * kBits + 31) / 32;
  const u32 first_block = blockIdx.x * kBlocks + piece * kOwn;
  const u32 word = first_block * 2 * kBits, column = first_block * 64;
  const u64 first = ((u64)blockIdx.y * k_blocks + first_block) * 128 * kBits + (g * 4 + lane % 4) * 4;
  const u32 flips = flip * (0xffffffffu / ((1u << kBits) - 1));
  const bool whole = first_row + 8 < n && column + 64 * kOwn <= k && row_words % 4 == 0;
  u32 rows[2][kRow];
)";
  return out.str();
}

}  // namespace

bool moves_words(int bits) { return bits == 1 || bits == 2 || bits == 4; }

int word_blocks_per_tile(int bits) { return kPieces * row_words_of(bits) / (2 * bits); }

std::string pack_words_source(int bits, std::string_view prelude) {
  std::ostringstream out;
  out << opening(bits, prelude, "pack",
                 "const u32* __restrict__ canonical, u32* __restrict__ image, u32 n, u32 k, "
                 "u32 pad, u32 flip")
      << R"(#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    const u32 row = first_row + 8 * r;
    const u32* const from = canonical + (u64)row * row_words + word;
    if (whole) {
#pragma unroll
      for (u32 j = 0; j < kRow / 4; ++j) {
        const Words4 q = load_once((const Words4*)from + j);
        for (u32 e = 0; e < 4; ++e) rows[r][4 * j + e] = q.w[e] ^ flips;
      }
    } else {
      const u32 pads = pad * (0xffffffffu / ((1u << kBits) - 1));
#pragma unroll
      for (u32 j = 0; j < kRow; ++j) {
        const u32 begin = column + 32 / kBits * j;  // column of the word's first code
        const u32 codes = row < n && begin < k ? k - begin : 0;
        const u32 mask = codes * kBits >= 32 || codes >= 32 ? ~0u : (1u << codes * kBits) - 1;
        const u32 w = codes > 0 ? from[j] ^ flips : 0;
        rows[r][j] = (w & mask) | (pads & ~mask);
      }
    }
  }
#pragma unroll
  for (u32 o = 0; o < kOwn; ++o) {
    u32 w[4 * kBits], v[4 * kBits];
#pragma unroll
    for (u32 i = 0; i < 4 * kBits; ++i) {
      w[i] = rows[i / (2 * kBits)][2 * kBits * o + i % (2 * kBits)];
    }
    image_of(v, w);
    exchange_units(v, lane);
    if (first_block + o < k_blocks) {
#pragma unroll
      for (u32 c = 0; c < kBits; ++c) {
        *(Words4*)(image + first + o * 128 * kBits + c * 128) =
            {{v[4 * c], v[4 * c + 1], v[4 * c + 2], v[4 * c + 3]}};
      }
    }
  }
}
)";
  return out.str();
}

std::string unpack_words_source(int bits, std::string_view prelude) {
  std::ostringstream out;
  out << opening(bits, prelude, "unpack",
                 "const u32* __restrict__ image, u32* __restrict__ canonical, u32 n, u32 k, "
                 "u32 flip")
      << R"(#pragma unroll
  for (u32 o = 0; o < kOwn; ++o) {
    u32 w[4 * kBits], v[4 * kBits] = {};
    if (first_block + o < k_blocks) {
#pragma unroll
      for (u32 c = 0; c < kBits; ++c) {
        const Words4 q = load_once((const Words4*)(image + first + o * 128 * kBits + c * 128));
        for (u32 e = 0; e < 4; ++e) v[4 * c + e] = q.w[e];
      }
    }
    exchange_units(v, lane);
    rows_of(w, v);
#pragma unroll
    for (u32 i = 0; i < 4 * kBits; ++i) {
      rows[i / (2 * kBits)][2 * kBits * o + i % (2 * kBits)] = w[i] ^ flips;
    }
  }
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    const u32 row = first_row + 8 * r;
    u32* const to = canonical + (u64)row * row_words + word;
    if (whole) {
#pragma unroll
      for (u32 j = 0; j < kRow / 4; ++j) {
        ((Words4*)to)[j] = {{rows[r][4 * j], rows[r][4 * j + 1], rows[r][4 * j + 2],
                             rows[r][4 * j + 3]}};
      }
    } else if (row < n) {
#pragma unroll
      for (u32 j = 0; j < kRow; ++j) {
        const u32 begin = column + 32 / kBits * j;
        const u32 codes = begin < k ? k - begin : 0;  // padding bits of a row are zero
        const u32 mask = codes * kBits >= 32 || codes >= 32 ? ~0u : (1u << codes * kBits) - 1;
        if (codes > 0) to[j] = rows[r][j] & mask;
      }
    }
  }
}
)";
  return out.str();
}

}  // namespace ladder::weights
