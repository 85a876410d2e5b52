// SPDX-License-Identifier: Apache-2.0
//
// Matrix instructions of AMD's devices: MFMA by 64 lanes, WMMA by 32.
#include <cmath>

#include "instructions.h"
#include "machine.h"
#include "operands.h"

namespace ladder::emulate {
namespace {

/// A half of a word, as the instructions of CDNA read it.
template <Scalar S>
double operand_half(std::uint32_t word, int half) {
  const double least = std::ldexp(1.0, S == Scalar::f16 ? -14 : -126);
  const double value = numbers<S>()[word >> 16 * half & 0xffff];
  return subnormals_multiply() || !(std::fabs(value) < least) ? value : 0.0;
}

template <Scalar S, int Words>
void wave_together(void* const* lanes) {
  constexpr int kColumns = 8 * Words;
  const auto of = [&](int lane) { return static_cast<const Product<float>*>(lanes[lane]); };
  double a[16][kColumns], b[16][kColumns];
  for (int lane = 0; lane < 64; ++lane) {
    for (int slot = 0; slot < 2 * Words; ++slot) {
      const int k = lane / 16 * 2 * Words + slot;
      a[lane % 16][k] = operand_half<S>(of(lane)->a[slot / 2], slot % 2);
      b[lane % 16][k] = operand_half<S>(of(lane)->b[slot / 2], slot % 2);
    }
  }
  for (int lane = 0; lane < 64; ++lane) {
    for (int slot = 0; slot < 4; ++slot) {
      double sum = of(lane)->d[slot];
      for (int k = 0; k < kColumns; ++k) sum += a[lane / 16 * 4 + slot][k] * b[lane % 16][k];
      of(lane)->d[slot] = static_cast<float>(sum);
    }
  }
}

/// 16 products of 4 x 4 x 4, each by four lanes.
template <Scalar S>
void blocks_together(void* const* lanes) {
  const auto of = [&](int lane) { return static_cast<const Product<float>*>(lanes[lane]); };
  for (int lane = 0; lane < 64; ++lane) {
    for (int row = 0; row < 4; ++row) {
      const auto* of_row = of(lane / 4 * 4 + row);
      double sum = of(lane)->d[row];
      for (int k = 0; k < 4; ++k) {
        sum +=
            operand_half<S>(of_row->a[k / 2], k % 2) * operand_half<S>(of(lane)->b[k / 2], k % 2);
      }
      of(lane)->d[row] = static_cast<float>(sum);
    }
  }
}

/// Operands of `Bits`, of which `number` makes numbers. A half of the lanes has runs of `Run`
/// columns.
template <class Sum, int Bits, int Run, bool Twice, class Number>
void wmma_together(void* const* lanes, const Number& number) {
  constexpr int kOfWord = 32 / Bits;
  const auto of = [&](int lane) { return static_cast<const Product<Sum>*>(lanes[lane]); };
  double a[16][16], b[16][16];
  for (int lane = 0; lane < 32; ++lane) {
    const int i = lane % 16, c = lane / 16;
    for (int slot = 0; slot < (Twice ? 16 : 8); ++slot) {
      const int k = Twice ? slot : slot / Run * 2 * Run + c * Run + slot % Run;
      const int word = slot / kOfWord, shift = Bits * (slot % kOfWord);
      const auto word_a = of(lane)->a[word], word_b = of(lane)->b[word];
      if (Twice && (word_a != of(i)->a[word] || word_b != of(i)->b[word])) {
        wrong("halves of a wave with other operands");
      }
      constexpr std::uint32_t kMask = (1U << Bits) - 1;
      a[i][k] = number(word_a >> shift & kMask);
      b[i][k] = number(word_b >> shift & kMask);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int c = lane / 16;
    for (int slot = 0; slot < 8; ++slot) {
      const int row = Twice ? 2 * slot + c : 8 * c + slot;
      double sum = of(lane)->d[slot];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[lane % 16][k];
      of(lane)->d[slot] = static_cast<Sum>(sum);
    }
  }
}
template <Scalar S, bool Twice>
void wmma_halves_together(void* const* lanes) {
  wmma_together<float, 16, 4, Twice>(
      lanes, [&all = numbers<S>()](std::uint32_t bits) { return all[bits]; });
}
template <bool Twice>
void wmma_s8_together(void* const* lanes) {
  wmma_together<int, 8, 8, Twice>(
      lanes, [](std::uint32_t bits) { return static_cast<std::int8_t>(bits); });
}
void wmma_e4m3_together(void* const* lanes) {
  wmma_together<float, 8, 8, false>(
      lanes, [](std::uint32_t bits) { return to_number(Scalar::e4m3, bits); });
}

/// With `Words` of four bytes a lane, each the number that `number` makes of it.
template <class Sum, int Words, class Number>
void wave_bytes_together(void* const* lanes, const Number& number) {
  constexpr int kOfLane = 4 * Words, kDepth = 4 * kOfLane;
  const auto of = [&](int lane) { return static_cast<const Product<Sum>*>(lanes[lane]); };
  const auto read = [&](const std::uint32_t* words, int slot) {
    return number(words[slot / 4] >> 8 * (slot % 4) & 0xff);
  };
  double a[16][kDepth], b[16][kDepth];
  for (int lane = 0; lane < 64; ++lane) {
    for (int slot = 0; slot < kOfLane; ++slot) {
      const int k = lane / 16 * kOfLane + slot;
      a[lane % 16][k] = read(of(lane)->a, slot);
      b[lane % 16][k] = read(of(lane)->b, slot);
    }
  }
  for (int lane = 0; lane < 64; ++lane) {
    for (int slot = 0; slot < 4; ++slot) {
      double sum = of(lane)->d[slot];
      for (int k = 0; k < kDepth; ++k) sum += a[lane / 16 * 4 + slot][k] * b[lane % 16][k];
      of(lane)->d[slot] = static_cast<Sum>(sum);
    }
  }
}
template <int Words>
void wave_s8_together(void* const* lanes) {
  wave_bytes_together<int, Words>(
      lanes, [](std::uint32_t bits) { return static_cast<std::int8_t>(bits); });
}
void wave_float_bytes_together(void* const* lanes) {
  const Scalar scalar = reads_fnuz() ? Scalar::e4m3fnuz : Scalar::e4m3;
  wave_bytes_together<float, 2>(lanes, [&](std::uint32_t bits) { return to_number(scalar, bits); });
}

}  // namespace

void wave_product(float* d, const std::uint32_t* a, const std::uint32_t* b, int words, bool bf16) {
  Product<float> here{d, a, b};
  with_warp(&here, words == 2
                       ? (bf16 ? wave_together<Scalar::bf16, 2> : wave_together<Scalar::f16, 2>)
                       : (bf16 ? wave_together<Scalar::bf16, 4> : wave_together<Scalar::f16, 4>));
}

void block_products(float* d, const std::uint32_t* a, const std::uint32_t* b, bool bf16) {
  Product<float> here{d, a, b};
  with_warp(&here, bf16 ? blocks_together<Scalar::bf16> : blocks_together<Scalar::f16>);
}

float dot_of_halves(std::uint32_t a, std::uint32_t b, float sum, bool bf16) {
  auto* const read = bf16 ? operand_half<Scalar::bf16> : operand_half<Scalar::f16>;
  double out = sum;
  for (int half = 0; half < 2; ++half) out += read(a, half) * read(b, half);
  return static_cast<float>(out);
}

void wmma_product(float* d, const std::uint32_t* a, const std::uint32_t* b, bool bf16, bool twice) {
  Product<float> here{d, a, b};
  with_warp(&here, twice ? (bf16 ? wmma_halves_together<Scalar::bf16, true>
                                 : wmma_halves_together<Scalar::f16, true>)
                         : (bf16 ? wmma_halves_together<Scalar::bf16, false>
                                 : wmma_halves_together<Scalar::f16, false>));
}

void wmma_product_s8(int* d, const std::uint32_t* a, const std::uint32_t* b, bool twice) {
  Product<int> here{d, a, b};
  with_warp(&here, twice ? wmma_s8_together<true> : wmma_s8_together<false>);
}

void wmma_product_e4m3(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<float> here{d, a, b};
  with_warp(&here, wmma_e4m3_together);
}

void wave_product_s8(int* d, const std::uint32_t* a, const std::uint32_t* b, int words) {
  Product<int> here{d, a, b};
  with_warp(&here, words == 1   ? wave_s8_together<1>
                   : words == 2 ? wave_s8_together<2>
                                : wave_s8_together<4>);
}

void wave_product_float_bytes(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<float> here{d, a, b};
  with_warp(&here, wave_float_bytes_together);
}

}  // namespace ladder::emulate
