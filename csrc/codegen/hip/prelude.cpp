// SPDX-License-Identifier: Apache-2.0
//
// Copies to shared memory go through registers at once: they are there before their wait. The
// compiler counts what is on its way from memory and waits for the registers that are used.
#include "codegen/hip/prelude.h"

#include <string>

#include "base/joined.h"
#include "codegen/emit/plain_functions.h"

namespace ladder::hip {

std::string_view prelude() {
  static const std::string text = joined(
      R"(typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
typedef _Float16 f16;
typedef u32 u32x2 __attribute__((vector_size(8)));
typedef u32 u32x4 __attribute__((vector_size(16)));
typedef u16 u16x2 __attribute__((vector_size(4)));
typedef short s16x2 __attribute__((vector_size(4)));
typedef short s16x4 __attribute__((vector_size(8)));
typedef f16 f16x2 __attribute__((vector_size(4)));
typedef f16 f16x4 __attribute__((vector_size(8)));
typedef float f32x2 __attribute__((vector_size(8)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef u32 u32x8 __attribute__((vector_size(32)));
typedef short s16x8 __attribute__((vector_size(16)));
typedef short s16x16 __attribute__((vector_size(32)));
typedef f16 f16x8 __attribute__((vector_size(16)));
typedef f16 f16x16 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));
#define DEVICE static __attribute__((device)) __attribute__((always_inline)) inline
#define SHARED __attribute__((shared)) __attribute__((aligned(128)))
#define LDS __attribute__((address_space(3)))
#define KERNEL(THREADS, WAVES) \
  extern "C" __attribute__((global)) \
  __attribute__((amdgpu_flat_work_group_size(THREADS, THREADS))) \
  __attribute__((amdgpu_waves_per_eu(WAVES)))
struct __attribute__((aligned(16))) Words4 { u32 w[4]; };
struct __attribute__((aligned(8))) Words2 { u32 w[2]; };
struct __attribute__((aligned(4))) Words1 { u32 w[1]; };

DEVICE u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
// Of a wave: 64, or 32 on RDNA. A constant where the compiler knows the device.
DEVICE u32 wave_lanes() { return __builtin_amdgcn_wavefrontsize(); }
DEVICE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }

// Global memory. What is read once is not kept.
DEVICE Words4 load_once(const Words4* p) {
  const u32x4 v = __builtin_nontemporal_load((const u32x4*)p);
  return {{v[0], v[1], v[2], v[3]}};
}
template <class T> DEVICE T load_once(const T* p) { return *p; }
template <class T> DEVICE T load_now(const T* p) { return load_once(p); }
DEVICE void keep_order() {}
template <class T> DEVICE T load_constant(const T* p) { return *p; }
// Written by other blocks of this kernel, behind the fence of a ticket.
template <class T> DEVICE T load_fresh(const T* p) { return *p; }
DEVICE u32 load_element(const u16* p) { return *p; }

// Shared memory.
DEVICE u32 shared_address(const void* p) { return (u32)(LDS const u8*)p; }
DEVICE u32 anew(u32 value) { return value; }
DEVICE void copy_async(u32 to, const void* from, u32 bytes) {
  Words4 v = {};
  if (bytes != 0) v = *(const Words4*)from;
  *(LDS u32x4*)to = u32x4{v.w[0], v.w[1], v.w[2], v.w[3]};
}
DEVICE void copy_async_8(u32 to, const void* from, u32 bytes) {
  Words2 v = {};
  if (bytes != 0) v = *(const Words2*)from;
  *(LDS u32x2*)to = u32x2{v.w[0], v.w[1]};
}
DEVICE void copy_commit() {}
template <int Pending> DEVICE void copy_wait() {}

// Ordering. Loads to registers stay on their way.
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// How many blocks came before; the last one of `expected` leaves the counter at zero. The fences
// are of the whole device, whose dies have caches of their own.
DEVICE u32 ticket(u32* counter, u32 expected, u32* shared_result) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  barrier();
  if (thread_id() == 0) {
    const u32 before =
        __hip_atomic_fetch_add(counter, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    if (before == expected - 1) {
      __hip_atomic_store(counter, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
    *shared_result = before;
  }
  barrier();
  const u32 before = *shared_result;
  if (before == expected - 1) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  return before;
}

// Operands.
// Byte i of the result is byte `selector >> 4 i & 7` of both words, low first.
DEVICE u32 byte_perm(u32 low, u32 high, u32 selector) {
  const u32 bytes = (selector & 7u) | (selector >> 4 & 7u) << 8 | (selector >> 8 & 7u) << 16 |
                    (selector >> 12 & 7u) << 24;
  return __builtin_amdgcn_perm(high, low, bytes);
}
// Codes of 2 bits, every 3 made 1.
DEVICE u32 three_values(u32 word) { return word & ~(word << 1 & 0xaaaaaaaau); }
// One operation where the compiler does not see that these are constants.
DEVICE u32 and_or(u32 a, u32 mask, u32 b) {
  asm("" : "+s"(mask));
  asm("" : "+v"(b));
  return (a & mask) | b;
}
// Bits of `b` where `mask` is set, of `a` elsewhere.
DEVICE u32 select_bits(u32 a, u32 b, u32 mask) { return (a & ~mask) | (b & mask); }
DEVICE u32 fma_f16(u32 a, u32 b, u32 c) {
  return __builtin_bit_cast(
      u32, __builtin_elementwise_fma(__builtin_bit_cast(f16x2, a), __builtin_bit_cast(f16x2, b),
                                     __builtin_bit_cast(f16x2, c)));
}
// Halves of magnitudes whose top exponent is one of numbers: an exponent less, or the bits one to
// the right, whichever is more.
DEVICE u32 halved_f16(u32 magnitudes) {
  const s16x2 less = __builtin_bit_cast(s16x2, magnitudes) - (short)0x0400;
  const s16x2 right = __builtin_bit_cast(s16x2, magnitudes >> 1);
  const s16x2 more = less > right ? less : right;
  return __builtin_bit_cast(u32, more);
}
DEVICE float as_float(u32 bits) { return __builtin_bit_cast(float, bits); }
DEVICE u32 as_bits(float f) { return __builtin_bit_cast(u32, f); }
DEVICE float low_bf16(u32 both) { return as_float(both << 16); }
DEVICE float high_bf16(u32 both) { return as_float(both & 0xffff0000u); }
// Of results that are numbers of bf16: no rounding.
DEVICE u32 fma_bf16(u32 a, u32 b, u32 c) {
  const f32x2 x = {low_bf16(a), high_bf16(a)}, y = {low_bf16(b), high_bf16(b)};
  const f32x2 z = {low_bf16(c), high_bf16(c)};
  const f32x2 sum = __builtin_elementwise_fma(x, y, z);
  const float low = sum[0], high = sum[1];
  return byte_perm(as_bits(low), as_bits(high), 0x7632u);
}
// Sums of products of bytes, or of halves and the lowest two bytes, plus c: addresses of entries.
DEVICE u32 dot_bytes(u32 a, u32 b, u32 c) { return __builtin_amdgcn_udot4(a, b, c, false); }
DEVICE u32 dot_halves(u32 a, u32 b, u32 c) {
#if defined(__GFX11__) || defined(__GFX12__)
  return (a & 0xffffu) * (b & 0xffu) + (a >> 16) * (b >> 8 & 0xffu) + c;
#else
  const u32 bytes = (b & 0xffu) | (b & 0xff00u) << 8;
  return __builtin_amdgcn_udot2(__builtin_bit_cast(u16x2, a), __builtin_bit_cast(u16x2, bytes), c,
                                false);
#endif
}
DEVICE u32 table_entry(u32 address) { return *(LDS const u32*)address; }
DEVICE u32 low_halves(u32 low, u32 high) { return byte_perm(low, high, 0x5410u); }
DEVICE u32x2 four_halves(const u32* a) { return u32x2{a[0], a[1]}; }
DEVICE u32x4 eight_halves(const u32* a) { return u32x4{a[0], a[1], a[2], a[3]}; }
#define LADDER_MFMA(NAME, BUILTIN, OPERAND, WORDS) \
  DEVICE void NAME(float* d, const u32* a, const u32* b) { \
    const auto x = WORDS(a), y = WORDS(b); \
    const f32x4 before = {d[0], d[1], d[2], d[3]}; \
    const f32x4 sum = BUILTIN(__builtin_bit_cast(OPERAND, x), __builtin_bit_cast(OPERAND, y), \
                              before, 0, 0, 0); \
    for (int i = 0; i < 4; ++i) d[i] = sum[i]; \
  }
// Dot products of a lane's own four columns of one row and one token.
#define LADDER_DOT(NAME, BUILTIN, OPERAND) \
  DEVICE void NAME(float* d, const u32* a, const u32* b) { \
    for (int i = 0; i < 2; ++i) { \
      const u32 x = a[i], y = b[i]; \
      d[0] = BUILTIN(__builtin_bit_cast(OPERAND, x), __builtin_bit_cast(OPERAND, y), d[0], false); \
    } \
  }
#if !defined(__GFX11__) && !defined(__GFX12__)
// d[16, 16] += a[16 rows, 16] b[16 tokens, 16]: a lane has four columns of one row or token, and
// four rows of one token.
LADDER_MFMA(mma_f16, __builtin_amdgcn_mfma_f32_16x16x16f16, f16x4, four_halves)
LADDER_MFMA(mma_bf16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, s16x4, four_halves)
// 16 products of 4 rows by 4 tokens, each by four lanes, which have as much.
LADDER_MFMA(mma_blocks_f16, __builtin_amdgcn_mfma_f32_4x4x4f16, f16x4, four_halves)
LADDER_MFMA(mma_blocks_bf16, __builtin_amdgcn_mfma_f32_4x4x4bf16_1k, s16x4, four_halves)
LADDER_DOT(dot_f16, __builtin_amdgcn_fdot2, f16x2)
#endif
#if defined(__gfx950__) || !defined(__AMDGCN__)
#if defined(__gfx950__)
typedef __bf16 bf16x2 __attribute__((vector_size(4)));
typedef __bf16 bf16x8 __attribute__((vector_size(16)));
#else
typedef s16x2 bf16x2;
typedef s16x8 bf16x8;
#endif
LADDER_DOT(dot_bf16, __builtin_amdgcn_fdot2_f32_bf16, bf16x2)
// d[16, 16] += a[16 rows, 32] b[16 tokens, 32]: a lane has eight columns.
LADDER_MFMA(mma_f16_k32, __builtin_amdgcn_mfma_f32_16x16x32_f16, f16x8, eight_halves)
LADDER_MFMA(mma_bf16_k32, __builtin_amdgcn_mfma_f32_16x16x32_bf16, bf16x8, eight_halves)
#endif
// The same by 32 lanes of RDNA 4, which have eight columns and eight rows each; and by those of
// RDNA 3, which have all 16 columns, in both halves of a wave, and every other row.
DEVICE f32x8 eight_sums(const float* d) {
  return f32x8{d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
}
DEVICE u32x8 sixteen_halves(const u32* a) {
  return u32x8{a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]};
}
#define LADDER_WMMA(NAME, BUILTIN, OPERAND, WORDS) \
  DEVICE void NAME(float* d, const u32* a, const u32* b) { \
    const auto x = WORDS(a), y = WORDS(b); \
    const f32x8 sum = BUILTIN(__builtin_bit_cast(OPERAND, x), __builtin_bit_cast(OPERAND, y), \
                              eight_sums(d)); \
    for (int i = 0; i < 8; ++i) d[i] = sum[i]; \
  }
#if defined(__GFX12__) || !defined(__AMDGCN__)
LADDER_WMMA(wmma_f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, f16x8, eight_halves)
LADDER_WMMA(wmma_bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, s16x8, eight_halves)
#endif
#if defined(__GFX11__) || !defined(__AMDGCN__)
LADDER_WMMA(wmma_twice_f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32, f16x16, sixteen_halves)
LADDER_WMMA(wmma_twice_bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, s16x16, sixteen_halves)
#endif

// Numbers.
DEVICE float low_f16(u32 both) { return (float)__builtin_bit_cast(f16, (u16)both); }
DEVICE float high_f16(u32 both) { return (float)__builtin_bit_cast(f16, (u16)(both >> 16)); }
)",
      codegen::kScaleFunctions, codegen::kMagnitudeFunctions,
      R"(DEVICE u32 halves_at_least(u32 both, u32 least) { return at_least_by_sums(both, least); }
DEVICE u32 pack_f16(float low, float high) {
  const u32 first = __builtin_bit_cast(u16, (f16)low), second = __builtin_bit_cast(u16, (f16)high);
  return first | second << 16;
}
// To nearest, ties to even.
DEVICE u32 bits_of_bf16(float value) {
  const u32 bits = as_bits(value);
  return value != value ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u);
}
DEVICE u32 pack_bf16(float low, float high) {
  return byte_perm(bits_of_bf16(low), bits_of_bf16(high), 0x7632u);
}
)");
  return text;
}

std::string_view scale_prelude() {
  static const std::string text = joined(
      codegen::kPowerFunctions,
      R"(// The scale whose code is bits 23 to 30 of `shifted`, times 2 - 2^-23, or 1 - 2^-23 for code 0: a
// product with (1/2 + 2^-24) times a power of two rounds to that power times 2^(code - 127).
DEVICE float ones_e8m0(u32 shifted) { return __builtin_fabsf(as_float(shifted | 0x007fffffu)); }
// The codes in the low or the high half of a word. Those of a die may be of another format than
// its neighbour's: no conversion of the machine.
DEVICE u32 low_e4m3(u32 codes) {
  return fma_f16(halves_e4m3(byte_perm(codes, 0u, 0x1404u)), 0x5c005c00u, 0x80008000u);
}
DEVICE u32 high_e4m3(u32 codes) {
  return fma_f16(halves_e4m3(byte_perm(codes, 0u, 0x3424u)), 0x5c005c00u, 0x80008000u);
}
DEVICE u32 low_twice(u32 both) { return byte_perm(both, both, 0x1010u); }
DEVICE u32 high_twice(u32 both) { return byte_perm(both, both, 0x3232u); }
// Two f16 times a factor.
DEVICE u32 scaled_bf16(u32 both, float factor) {
  return pack_bf16(low_f16(both) * factor, high_f16(both) * factor);
}
)");
  return text;
}

std::string_view tile_prelude() {
  static const std::string text = joined(
      R"(// Element by element. Products are never contracted with sums: each is an expression of its own.
DEVICE float negate_f32(float a) { return -a; }
DEVICE float absolute_f32(float a) { return __builtin_fabsf(a); }
DEVICE float reciprocal_f32(float a) { return 1.0f / a; }
DEVICE float square_root_f32(float a) { return __builtin_sqrtf(a); }
DEVICE float round_to_even_f32(float a) { return __builtin_rintf(a); }
DEVICE float add_f32(float a, float b) { return a + b; }
DEVICE float subtract_f32(float a, float b) { return a - b; }
DEVICE float multiply_f32(float a, float b) { return a * b; }
DEVICE float divide_f32(float a, float b) { return a / b; }
DEVICE float minimum_f32(float a, float b) { return __builtin_fminf(a, b); }
DEVICE float maximum_f32(float a, float b) { return __builtin_fmaxf(a, b); }
)",
      codegen::kIntegerFunctions, R"(// Towards zero, into the range of u32, NaN as 0.
DEVICE u32 to_integer(float a) {
  return !(a > 0.0f) ? 0u : a >= 4294967296.0f ? 0xffffffffu : (u32)a;
}
DEVICE float shuffle_xor(float a, u32 mask) {
  return as_float(__builtin_amdgcn_ds_bpermute((thread_id() % wave_lanes() ^ mask) * 4u, as_bits(a)));
}
DEVICE void atomic_add_f32(float* to, float value) {
  __hip_atomic_fetch_add(to, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
)");
  return text;
}

std::string_view phase_prelude() {
  return R"(// Halves of a workgroup that alternate. The compiler moves nothing from phase to phase.
DEVICE void phase_barrier() {
  __builtin_amdgcn_sched_barrier(0);
  barrier();
  __builtin_amdgcn_sched_barrier(0);
}
// Nor products, which have no effect but their sums, and which it puts in an order before it looks
// at that: they begin with what is known here, and their sums are there at the end.
template <int Words> DEVICE void hold(u32* words) {
  if constexpr (Words > 0) {
    hold<Words - 1>(words);
    asm volatile("" : "+v"(words[Words - 1]));
  }
}
template <int Sums, class T> DEVICE void hold_sums(T* sums) {
  typedef T Four __attribute__((vector_size(16)));
  if constexpr (Sums > 0) {
    hold_sums<Sums - 4>(sums);
    T* const last = sums + Sums - 4;
    Four four = {last[0], last[1], last[2], last[3]};
    asm volatile("" : "+v"(four));
    for (int i = 0; i < 4; ++i) last[i] = four[i];
  }
}
// Behind the last of them: else clang keeps what it made of the number all the time in registers.
DEVICE u32 thread_anew() {
  u32 thread = thread_id();
  asm("" : "+v"(thread));
  return thread;
}
template <int Level> DEVICE void priority() { __builtin_amdgcn_s_setprio(Level); }
// In a scalar register: a wave of the other half branches past what is not its own, where without
// lanes it would still meet a barrier.
DEVICE bool in_second_half(u32 threads) {
  return (u32)__builtin_amdgcn_readfirstlane((int)thread_id()) >= threads / 2u;
}
)";
}

}  // namespace ladder::hip
