// SPDX-License-Identifier: Apache-2.0
//
// What the text of a HIP kernel finds when it is compiled for this processor: clang's builtins of
// AMD's devices. Attributes that the host does not know mean nothing here.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "instructions.h"
#include "machine.h"

#define __HIP_MEMORY_SCOPE_WORKGROUP 3
#define __HIP_MEMORY_SCOPE_AGENT 4

namespace ladder::emulate {

inline unsigned __builtin_amdgcn_workitem_id_x() { return thread_index(); }
inline unsigned __builtin_amdgcn_workgroup_id_x() { return block_index(0); }
inline unsigned __builtin_amdgcn_workgroup_id_y() { return block_index(1); }
inline unsigned __builtin_amdgcn_workgroup_id_z() { return block_index(2); }
inline unsigned __builtin_amdgcn_wavefrontsize() { return warp_lanes(); }
/// In threads.
inline unsigned __builtin_amdgcn_grid_size_x() { return block_count(0) * thread_count(); }
inline unsigned __builtin_amdgcn_grid_size_y() { return block_count(1); }

template <class T>
T __builtin_nontemporal_load(const T* from) {
  return *static_cast<const T*>(aligned(from, sizeof(T)));
}
/// An access of shared memory by address, as a pointer of another address space makes it.
template <class T>
T* in_shared_memory(std::uint32_t address) {
  return reinterpret_cast<T*>(at(own(address), sizeof(T)));
}

inline void __builtin_amdgcn_fence(int order, std::string_view scope) {
  fence(order == __ATOMIC_RELEASE, scope == "agent");
}
inline void __builtin_amdgcn_s_barrier() { fenced_barrier(); }
inline void __builtin_amdgcn_s_setprio(int level) { set_priority(level > 0); }
inline void __builtin_amdgcn_sched_barrier(int) {}
inline float __builtin_amdgcn_rcpf(float x) { return 1.0f / x; }
template <class T>
T __hip_atomic_fetch_add(T* to, T value, int, int scope) {
  const T before = *to;
  *to += value;
  if (scope == __HIP_MEMORY_SCOPE_WORKGROUP) return before;
  if (scope != __HIP_MEMORY_SCOPE_AGENT) wrong("a counter of other workgroups, not of the agent");
  if constexpr (sizeof(T) == 4 && T(0.5) == 0) took_ticket();
  return before;
}
template <class T>
void __hip_atomic_store(T* to, T value, int, int) {
  *to = value;
  came_last();
}

/// Bytes 0 to 3 of `selector` pick those of `low`, 4 to 7 of `high`.
inline std::uint32_t __builtin_amdgcn_perm(std::uint32_t high, std::uint32_t low,
                                           std::uint32_t selector) {
  const std::uint64_t both = low | static_cast<std::uint64_t>(high) << 32;
  if ((selector & 0xf8f8f8f8u) != 0) wrong("a selector of perm that names no byte");
  std::uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= (static_cast<std::uint32_t>(both >> 8 * (selector >> 8 * i & 7)) & 0xff) << 8 * i;
  }
  return out;
}
inline std::uint32_t __builtin_amdgcn_udot4(std::uint32_t a, std::uint32_t b, std::uint32_t sum,
                                            bool) {
  for (int i = 0; i < 4; ++i) sum += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
  return sum;
}
template <class Halves>
std::uint32_t __builtin_amdgcn_udot2(Halves a, Halves b, std::uint32_t sum, bool) {
  return sum + std::uint32_t{a[0]} * b[0] + std::uint32_t{a[1]} * b[1];
}
template <class V>
V __builtin_elementwise_fma(V a, V b, V c) {
  V out;
  if constexpr (sizeof a == 4) {
    const auto bits = fma_halves(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b),
                                 std::bit_cast<std::uint32_t>(c), false);
    std::memcpy(&out, &bits, 4);
  } else {
    for (int i = 0; i < 2; ++i) out[i] = std::fma(a[i], b[i], c[i]);
  }
  return out;
}
inline std::uint32_t __builtin_amdgcn_ds_bpermute(std::uint32_t byte, std::uint32_t mine) {
  return wave_exchange(mine, byte / 4);
}

inline int __builtin_amdgcn_readfirstlane(int mine) {
  return static_cast<int>(wave_exchange(static_cast<std::uint32_t>(mine), 0));
}

/// `product(d, a, b)` of a lane's words.
template <class Sum, class Operand, class Sums, class Product>
Sums multiplied(const Operand& a, const Operand& b, Sums sums, const Product& product) {
  Sum d[sizeof sums / sizeof(Sum)];
  std::uint32_t x[sizeof a / 4], y[sizeof b / 4];
  std::memcpy(d, &sums, sizeof d);
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  product(d, x, y);
  std::memcpy(&sums, d, sizeof d);
  return sums;
}
template <class Operand, class Sums>
Sums multiply_wave(Operand a, Operand b, Sums sums, bool bf16) {
  return multiplied<float>(a, b, sums, [&](auto* d, const auto* x, const auto* y) {
    wave_product(d, x, y, sizeof a / 4, bf16);
  });
}
#define LADDER_WAVE(NAME, BF16)                               \
  template <class Operand, class Sums>                        \
  Sums NAME(Operand a, Operand b, Sums sums, int, int, int) { \
    return multiply_wave(a, b, sums, BF16);                   \
  }
LADDER_WAVE(__builtin_amdgcn_mfma_f32_16x16x16f16, false)
LADDER_WAVE(__builtin_amdgcn_mfma_f32_16x16x16bf16_1k, true)
LADDER_WAVE(__builtin_amdgcn_mfma_f32_16x16x32_f16, false)
LADDER_WAVE(__builtin_amdgcn_mfma_f32_16x16x32_bf16, true)
#undef LADDER_WAVE
template <class Operand, class Sums>
Sums __builtin_amdgcn_mfma_f32_4x4x4f16(Operand a, Operand b, Sums sums, int, int, int) {
  return multiplied<float>(a, b, sums, [](auto... at) { block_products(at..., false); });
}
template <class Operand, class Sums>
Sums __builtin_amdgcn_mfma_f32_4x4x4bf16_1k(Operand a, Operand b, Sums sums, int, int, int) {
  return multiplied<float>(a, b, sums, [](auto... at) { block_products(at..., true); });
}
template <class Pair>
float __builtin_amdgcn_fdot2(Pair a, Pair b, float sum, bool clamp) {
  if (clamp) wrong("a clamped sum");
  return dot_of_halves(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b), sum,
                       false);
}
template <class Pair>
float __builtin_amdgcn_fdot2_f32_bf16(Pair a, Pair b, float sum, bool clamp) {
  if (clamp) wrong("a clamped sum");
  return dot_of_halves(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b), sum, true);
}
template <class Operand, class Sums>
Sums multiply_wmma(Operand a, Operand b, Sums sums, bool bf16) {
  return multiplied<float>(a, b, sums, [&](auto* d, const auto* x, const auto* y) {
    wmma_product(d, x, y, bf16, sizeof a == 32);
  });
}
#define LADDER_WMMA_OF(NAME, BF16)             \
  template <class Operand, class Sums>         \
  Sums NAME(Operand a, Operand b, Sums sums) { \
    return multiply_wmma(a, b, sums, BF16);    \
  }
LADDER_WMMA_OF(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32, false)
LADDER_WMMA_OF(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, true)
LADDER_WMMA_OF(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, false)
LADDER_WMMA_OF(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, true)
#undef LADDER_WMMA_OF
template <class Operand, class Sums>
Sums multiply_wmma_s8(bool signed_a, Operand a, bool signed_b, Operand b, Sums sums, bool clamp) {
  if (!signed_a || !signed_b || clamp) wrong("a product of bytes without a sign, or clamped");
  return multiplied<int>(a, b, sums, [&](auto* d, const auto* x, const auto* y) {
    wmma_product_s8(d, x, y, sizeof a == 16);
  });
}
template <class Operand, class Sums>
Sums __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(bool signed_a, Operand a, bool signed_b, Operand b,
                                                Sums sums, bool clamp) {
  return multiply_wmma_s8(signed_a, a, signed_b, b, sums, clamp);
}
template <class Operand, class Sums>
Sums __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(bool signed_a, Operand a, bool signed_b,
                                                      Operand b, Sums sums, bool clamp) {
  return multiply_wmma_s8(signed_a, a, signed_b, b, sums, clamp);
}
template <class Operand, class Sums>
Sums __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(Operand a, Operand b, Sums sums) {
  return multiplied<float>(a, b, sums, [](auto... at) { wmma_product_e4m3(at...); });
}
template <class Operand, class Sums>
Sums multiply_wave_s8(Operand a, Operand b, Sums sums) {
  return multiplied<int>(a, b, sums, [&](auto* d, const auto* x, const auto* y) {
    wave_product_s8(d, x, y, sizeof a / 4);
  });
}
template <class Sums>
Sums __builtin_amdgcn_mfma_i32_16x16x16i8(int a, int b, Sums sums, int, int, int) {
  return multiply_wave_s8(a, b, sums);
}
template <class Sums>
Sums __builtin_amdgcn_mfma_i32_16x16x32_i8(long a, long b, Sums sums, int, int, int) {
  return multiply_wave_s8(a, b, sums);
}
template <class Operand, class Sums>
Sums __builtin_amdgcn_mfma_i32_16x16x64_i8(Operand a, Operand b, Sums sums, int, int, int) {
  return multiply_wave_s8(a, b, sums);
}
template <class Sums>
Sums __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(long a, long b, Sums sums, int, int, int) {
  return multiplied<float>(a, b, sums, [](auto... at) { wave_product_float_bytes(at...); });
}

}  // namespace ladder::emulate
