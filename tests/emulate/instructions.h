// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of instructions that the language has no operator for, and what the lanes of a warp
// compute together. Fragments and encodings are those of the PTX ISA.
#pragma once

#include <cstdint>

namespace ladder::emulate {

float from_f16(std::uint32_t bits);
std::uint32_t to_f16(float value);
std::uint32_t to_bf16(float value);
/// The largest number for all beyond it.
std::uint32_t to_e4m3(float value);
/// Of the two e4m3 codes in the low half.
std::uint32_t halves_of_e4m3(std::uint32_t codes);
std::uint32_t fma_halves(std::uint32_t a, std::uint32_t b, std::uint32_t c, bool bf16);
/// Bit by bit what `table` has at 4 a + 2 b + c.
std::uint32_t logic_of_three(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                             std::uint32_t table);

std::uint32_t warp_max(std::uint32_t mine);
/// What the lane whose number differs in the bits of `mask` brings.
std::uint32_t warp_xor(std::uint32_t mine, std::uint32_t mask);
/// What the lane brings whose number is `step` less, or the lane itself.
std::uint32_t warp_up(std::uint32_t mine, std::uint32_t step);
/// Of a wave: what the lane of that number brings, counted from its first one.
std::uint32_t wave_exchange(std::uint32_t mine, std::uint32_t lane);
/// d += a b, 16 x 16 x 8 `words`, of 2 or 4 words: lane 16 t + i has row, or column, i of the
/// operands, k 2 `words` t and on, and of sums column i, rows 4 t to 4 t + 3 (AMD Matrix
/// Instruction Calculator).
void wave_product(float* d, const std::uint32_t* a, const std::uint32_t* b, int words, bool bf16);
/// 16 products of 4 x 4 x 4, the same calculator's: lane 4 c + i has row, or column, i of the
/// operands of product c, and of sums column i, all rows.
void block_products(float* d, const std::uint32_t* a, const std::uint32_t* b, bool bf16);
/// Of one lane: sum + a[0] b[0] + a[1] b[1].
float dot_of_halves(std::uint32_t a, std::uint32_t b, float sum, bool bf16);
/// d += a b, 16 x 16 x 16, by 32 lanes: lane 16 c + i has row, or column, i and k 4 c to 4 c + 3
/// and 8 + 4 c to 11 + 4 c, and rows 8 c to 8 c + 7 of d, column i; `twice` all k, which must be
/// the same in both halves of the lanes, and rows 2 j + c.
void wmma_product(float* d, const std::uint32_t* a, const std::uint32_t* b, bool bf16, bool twice);
/// The same of bytes in two's complement, 16 x 16 x 16 `words`: a lane has 4 `words` columns, of 1,
/// 2 or 4 words.
void wave_product_s8(int* d, const std::uint32_t* a, const std::uint32_t* b, int words);
/// The same by 32 lanes as wmma_product(): lane 16 c + i has k 8 c to 8 c + 7, or `twice` all.
void wmma_product_s8(int* d, const std::uint32_t* a, const std::uint32_t* b, bool twice);
/// The same of e4m3.
void wmma_product_e4m3(float* d, const std::uint32_t* a, const std::uint32_t* b);
/// As wave_product_s8() of floats, of two words: e4m3fnuz, or e4m3 of OCP, as Launch::fnuz says.
void wave_product_float_bytes(float* d, const std::uint32_t* a, const std::uint32_t* b);

/// 8 x 8 matrices of halves, `count` of them; lane 8 i + r has the address of row r of matrix i.
void load_matrices(std::uint32_t* const* to, int count, std::uint32_t address);
/// d += a b, m16n8k16, sums in f32.
void multiply_f16(float* d, const std::uint32_t* a, const std::uint32_t* b);
void multiply_bf16(float* d, const std::uint32_t* a, const std::uint32_t* b);
/// m16n8k32 of bytes; b is signed.
void multiply_u8(int* d, const std::uint32_t* a, const std::uint32_t* b);
void multiply_s8(int* d, const std::uint32_t* a, const std::uint32_t* b);

/// m16n8k8 of halves, and m8n8k16 of bytes, as sm_75 has them.
void multiply_half_f16(float* d, const std::uint32_t* a, const std::uint32_t* b);
void multiply_quarter_u8(int* d, std::uint32_t a, std::uint32_t b);
void multiply_quarter_s8(int* d, std::uint32_t a, std::uint32_t b);

/// Four products m8n8k4 at once, each by the lanes of a quad pair, as sm_70 has them.
void multiply_quad_pairs(float* d, const std::uint32_t* a, const std::uint32_t* b);

/// m16n8k32 of e4m3, sums in f32.
void multiply_e4m3(float* d, const std::uint32_t* a, const std::uint32_t* b);

/// What the operands of a product of a warpgroup are, 32 bytes of columns; of u8 only A.
enum class Operands { f16, bf16, u8, s8, e4m3 };
/// What product_begins() promises, of all lanes; `b` [tokens, 8 words].
void multiply_warpgroup(void* const* d, const std::uint32_t* const* a, const std::uint32_t* b,
                        int tokens, Operands of);

}  // namespace ladder::emulate
