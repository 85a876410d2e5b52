// SPDX-License-Identifier: Apache-2.0
//
// What the text of a kernel finds when it is compiled for this processor: words of CUDA, its
// built-in functions, and in place of each asm statement ptx<text>(outputs..., inputs...).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "instructions.h"
#include "machine.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __expf(x) std::exp(x)  // libm has a function of that name
#define __fdividef(a, b) ((a) / (b))

namespace ladder::emulate {

struct Threads {
  struct X {
    operator unsigned() const { return thread_index(); }
  } x;
};
template <int D>
struct BlockIndex {
  operator unsigned() const { return block_index(D); }
};
struct Blocks {
  BlockIndex<0> x;
  BlockIndex<1> y;
  BlockIndex<2> z;
};
struct GridSize {
  struct X {
    operator unsigned() const { return block_count(0); }
  } x;
  struct Y {
    operator unsigned() const { return block_count(1); }
  } y;
};
inline constexpr Threads threadIdx;
inline constexpr GridSize gridDim;
inline constexpr Blocks blockIdx;

inline std::uint32_t __cvta_generic_to_shared(const void* p) { return address_of(p); }
inline std::uint64_t __cvta_generic_to_global(const void* p) {
  return reinterpret_cast<std::uint64_t>(p);
}
inline std::uint32_t __byte_perm(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t both = a | static_cast<std::uint64_t>(b) << 32;
  if ((selector & 0x8888) != 0) wrong("a selector of __byte_perm that names no byte");
  std::uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= (static_cast<std::uint32_t>(both >> 8 * (selector >> 4 * i & 7)) & 0xff) << 8 * i;
  }
  return out;
}
inline void __syncthreads() { block_barrier(); }
inline int __syncthreads_and(int mine) { return block_and(mine != 0); }
inline std::uint32_t __reduce_max_sync(std::uint32_t, std::uint32_t mine) { return warp_max(mine); }
template <class T>
T __shfl_xor_sync(std::uint32_t, T mine, std::uint32_t mask) {
  return std::bit_cast<T>(warp_xor(std::bit_cast<std::uint32_t>(mine), mask));
}
template <class T>
T __shfl_up_sync(std::uint32_t, T mine, std::uint32_t step) {
  return std::bit_cast<T>(warp_up(std::bit_cast<std::uint32_t>(mine), step));
}
inline void atomicAdd(std::uint32_t* to, std::uint32_t value) { *to += value; }
inline void atomicMax(std::uint32_t* to, std::uint32_t value) { *to = std::max(*to, value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline int __double2hiint(double value) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 32);
}
inline int __double2loint(double value) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(value));
}
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32 |
                               static_cast<std::uint32_t>(low));
}
using std::max;
using std::min;

template <std::size_t N>
struct Text {
  char letters[N];
  consteval Text(const char (&text)[N]) { std::copy_n(text, N, letters); }
  constexpr std::string_view view() const { return {letters, N - 1}; }
  constexpr bool has(std::string_view part) const { return view().find(part) != view().npos; }
  constexpr bool begins(std::string_view part) const { return view().starts_with(part); }
  /// Whether it first names each of `count` operands, %0 to the last, in their order.
  constexpr bool in_order(std::size_t count) const {
    std::size_t next = 0;
    for (std::size_t i = 0; i + 1 < view().size(); ++i) {
      if (view()[i] != '%' || view()[i + 1] < '0' || view()[i + 1] > '9') continue;
      std::size_t named = 0;
      for (auto at = i + 1; view()[at] >= '0' && view()[at] <= '9'; ++at) {
        named = 10 * named + static_cast<std::size_t>(view()[at] - '0');
      }
      if (named > next) return false;
      next += named == next;
    }
    return next == count;
  }
  /// The number behind the last comma.
  constexpr std::uint32_t last() const {
    auto digits = view().substr(view().rfind(',') + 2);
    std::uint32_t out = 0;
    if (digits.starts_with("0x")) {
      for (char c : digits.substr(2)) {
        if (c == ';') break;
        out = out * 16 + static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
      }
    } else {
      for (char c : digits) {
        if (c < '0' || c > '9') break;
        out = out * 10 + static_cast<std::uint32_t>(c - '0');
      }
    }
    return out;
  }
};

/// Outputs from consecutive elements at the last operand.
template <class Element, class... A>
void load(const void* from, A&... to) {
  auto* element = static_cast<const unsigned char*>(from);
  const auto next = [&] {
    Element out;
    std::memcpy(&out, element, sizeof out);
    element += sizeof out;
    return out;
  };
  ((to = next()), ...);
}

template <Text T, class... A>
void ptx(A&&... operands) {
  const auto all = std::forward_as_tuple(operands...);
  [[maybe_unused]] const auto o =
      [&]<std::size_t I>(std::integral_constant<std::size_t, I>) -> decltype(auto) {
    return std::get<I>(all);
  };
#define O(i) o(std::integral_constant<std::size_t, i>())
  constexpr auto kCount = sizeof...(A);
  const auto outputs = [&]<std::size_t... I>(std::index_sequence<I...>, auto element,
                                             const void* from) {
    load<decltype(element)>(from, const_cast<std::remove_cvref_t<decltype(O(I))>&>(O(I))...);
  };
  using Outputs = std::make_index_sequence<kCount == 0 ? 0 : kCount - 1>;
  using Word = std::uint32_t;
  // What begins as below then has its operands where they are expected; blocks are compared whole.
  static_assert(T.in_order(kCount) || T.begins("{.reg ") || T.view().empty(),
                "operands in another order");
  // For the compiler.
  if constexpr (T.view().empty()) {
    // Memory.
  } else if constexpr (T.begins("ld.global.u16 ")) {
    outputs(Outputs(), std::uint16_t{}, aligned(O(1), 2));
  } else if constexpr (T.view() == "st.shared.u32 [%0], %1;") {
    store_shared(O(0), O(1));
  } else if constexpr (T.view() == "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ||
                       T.view() == "st.shared.v2.u32 [%0], {%1, %2};") {
    const auto store = [&]<std::size_t... I>(std::index_sequence<I...>) {
      const Word words[] = {O(I + 1)...};
      std::memcpy(at(own(O(0)), sizeof words), words, sizeof words);
    };
    store(Outputs());
  } else if constexpr (T.begins("ld.global")) {
    outputs(Outputs(), Word{}, aligned(O(kCount - 1), 4 * (kCount - 1)));
  } else if constexpr (T.begins("ld.shared::cluster")) {
    outputs(Outputs(), Word{}, at(O(kCount - 1), 4 * (kCount - 1)));
  } else if constexpr (T.begins("ld.shared")) {
    outputs(Outputs(), Word{}, at(own(O(kCount - 1)), 4 * (kCount - 1)));
  } else if constexpr (T.begins("mapa.shared::cluster.u32 ")) {
    O(0) = address_in(O(1), O(2));
  } else if constexpr (T.begins("atom.acq_rel.gpu.global.add.u32 ") && T.last() == 1) {
    O(0) = (*O(1))++;
  } else if constexpr (T.begins("red.global.add.f32 ")) {
    *O(0) += O(1);
    // Asynchronous copies.
  } else if constexpr (T.view() == "cp.async.cg.shared.global [%0], [%1], 16, %2;") {
    copy_async(O(0), O(1), 16, O(2));
  } else if constexpr (T.view() == "cp.async.ca.shared.global [%0], [%1], 8, %2;") {
    copy_async(O(0), O(1), 8, O(2));
  } else if constexpr (T.view() == "cp.async.commit_group;") {
    copy_commit();
  } else if constexpr (T.view() == "cp.async.wait_group %0;") {
    copy_wait(O(0));
  } else if constexpr (T.begins("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                                "[%0]")) {
    copy_bulk(O(0), reinterpret_cast<const void*>(O(1)), O(2), O(3), 1u << rank_in_cluster());
  } else if constexpr (T.begins("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                                ".multicast::cluster [%0]")) {
    copy_bulk(O(0), reinterpret_cast<const void*>(O(1)), O(2), O(3), O(4));
    // Order.
  } else if constexpr (T.view() == "barrier.sync.aligned 0;") {
    block_barrier();
  } else if constexpr (T.view() == "barrier.sync.aligned 1, %0;") {
    barrier_of(operands...);
  } else if constexpr (T.view() == "cp.async.wait_all;") {
    copy_wait_all();
  } else if constexpr (T.begins("setmaxnreg.")) {
    with_warpgroup(nullptr, [](void* const*) {});
  } else if constexpr (T.view() ==
                           "barrier.cluster.arrive.release.aligned;\n"
                           "barrier.cluster.wait.acquire.aligned;" ||
                       T.view() ==
                           "barrier.cluster.arrive.relaxed.aligned;\n"
                           "barrier.cluster.wait.acquire.aligned;") {
    cluster_barrier();
  } else if constexpr (T.begins("bar.warp.sync ")) {
    warp_max(0);
  } else if constexpr (T.view() == "griddepcontrol.wait;") {
    wait_for_preceding();
  } else if constexpr (T.view() == "fence.proxy.async.shared::cta;") {
    matrix_fence();
  } else if constexpr (T.view() == "griddepcontrol.launch_dependents;" || T.begins("fence.")) {
  } else if constexpr (T.begins("mbarrier.init.shared::cta.b64 ")) {
    signal_init(O(0), O(1));
  } else if constexpr (T.begins("mbarrier.arrive.expect_tx.shared::cta.b64 ")) {
    signal_arrive(O(0), O(1));
  } else if constexpr (T.begins("mbarrier.arrive.shared::cta.b64 ")) {
    signal_arrive(O(0), 0);
  } else if constexpr (T.begins("cp.async.mbarrier.arrive.noinc.shared::cta.b64 ")) {
    signal_arrive_after_copies(O(0));
  } else if constexpr (T.has("mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;")) {
    O(0) = signal_over(O(1), O(2));
    // Moves.
  } else if constexpr (T.view() == "mov.u32 %0, %%cluster_ctarank;") {
    O(0) = rank_in_cluster();
  } else if constexpr (T.view() == "rcp.approx.ftz.f64 %0, %1;") {
    // As few bits as it promises, of every double.
    O(0) = std::bit_cast<double>(std::bit_cast<std::uint64_t>(1.0 / O(1)) >> 32 << 32);
  } else if constexpr (T.view() == "mov.u32 %0, 0xffffffff;") {
    O(0) = 0xffffffff;
  } else if constexpr (T.view() == "mov.u32 %0, %1;") {
    O(0) = O(1);
  } else if constexpr (T.view() == "mov.b32 %0, %1;") {
    O(0) = std::bit_cast<std::remove_cvref_t<decltype(O(0))>>(O(1));
  } else if constexpr (T.begins("{.reg .b16 l, h; mov.b32 {l, h}, %1; ")) {
    const Word low = O(1) & 0xffff, high = O(1) >> 16;
    constexpr auto rest = T.view().substr(T.view().find("%1; ") + 4);
    if constexpr (rest == "cvt.f32.f16 %0, l;}")
      O(0) = from_f16(low);
    else if constexpr (rest == "cvt.f32.f16 %0, h;}")
      O(0) = from_f16(high);
    else if constexpr (rest == "cvt.rn.f16x2.e4m3x2 %0, l;}")
      O(0) = halves_of_e4m3(low);
    else if constexpr (rest == "cvt.rn.f16x2.e4m3x2 %0, h;}")
      O(0) = halves_of_e4m3(high);
    else if constexpr (rest == "mov.b32 %0, {l, l};}")
      O(0) = low * 0x10001u;
    else if constexpr (rest == "mov.b32 %0, {h, h};}")
      O(0) = high * 0x10001u;
    else
      static_assert(T.begins(" "), "an instruction that tests/emulate does not know");
    // Arithmetic.
  } else if constexpr (T.begins("lop3.b32 %0, %1, %2, %3, ")) {
    O(0) = logic_of_three(O(1), O(2), O(3), T.last());
  } else if constexpr (T.view() == "prmt.b32 %0, %1, %2, %3;") {
    O(0) = __byte_perm(O(1), O(2), O(3) & 0xffff);
  } else if constexpr (T.view() == "vabsdiff4.u32.u32.u32 %0, %1, %2, %3;") {
    O(0) = O(3);  // added to each byte, which no kernel of ladder has other than zero
    for (int at = 0; at < 32; at += 8) {
      const Word a = O(1) >> at & 0xff, b = O(2) >> at & 0xff;
      O(0) += (a > b ? a - b : b - a) << at;
    }
  } else if constexpr (T.view() == "fma.rn.f16x2 %0, %1, %2, %3;") {
    O(0) = fma_halves(O(1), O(2), O(3), false);
  } else if constexpr (T.view() == "fma.rn.bf16x2 %0, %1, %2, %3;") {
    O(0) = fma_halves(O(1), O(2), O(3), true);
  } else if constexpr (T.view() == "abs.bf16x2 %0, %1;") {
    O(0) = O(1) & 0x7fff7fff;
  } else if constexpr (T.view() == "set.ge.u32.bf16x2 %0, %1, %2;") {
    O(0) = 0;
    for (int at = 0; at < 32; at += 16) {
      const float a = std::bit_cast<float>(O(1) >> at << 16),
                  b = std::bit_cast<float>(O(2) >> at << 16);
      if (a >= b) O(0) |= 0xffffu << at;
    }
  } else if constexpr (T.view() == "add.s16x2 %0, %1, %2;") {
    O(0) = ((O(1) + O(2)) & 0xffff) | (((O(1) >> 16) + (O(2) >> 16)) << 16);
  } else if constexpr (T.view() == "max.s16x2 %0, %1, %2;") {
    const auto larger = [&](int shift) {
      const auto a = static_cast<std::int16_t>(O(1) >> shift);
      const auto b = static_cast<std::int16_t>(O(2) >> shift);
      return static_cast<Word>(static_cast<std::uint16_t>(std::max(a, b))) << shift;
    };
    O(0) = larger(0) | larger(16);
  } else if constexpr (T.begins("dp4a.u32.u32 ") || T.begins("dp2a.lo.u32.u32 ")) {
    constexpr int kWidth = T.begins("dp4a") ? 8 : 16;
    Word sum = O(3);
    for (int i = 0; i < 32 / kWidth; ++i) {
      sum += (O(1) >> kWidth * i & ((1u << kWidth) - 1)) * (O(2) >> 8 * i & 0xff);
    }
    O(0) = sum;
  } else if constexpr (T.view() == "cvt.rn.f16x2.f32 %0, %1, %2;") {
    O(0) = to_f16(O(1)) << 16 | to_f16(O(2));
  } else if constexpr (T.view() ==
                       "{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; "
                       "mov.b32 %0, {l, h};}") {
    O(0) = to_f16(O(2)) << 16 | to_f16(O(1));
  } else if constexpr (T.view() == "cvt.rn.bf16x2.f32 %0, %1, %2;") {
    O(0) = to_bf16(O(1)) << 16 | to_bf16(O(2));
  } else if constexpr (T.view() == "cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;") {
    O(0) = static_cast<std::uint16_t>(to_e4m3(O(1)) << 8 | to_e4m3(O(2)));
  } else if constexpr (T.view() == "cvt.rzi.u32.f32 %0, %1;") {
    O(0) = !(O(1) > 0) ? 0 : O(1) >= 0x1p32f ? ~Word{0} : static_cast<Word>(O(1));
  } else if constexpr (T.view() == "neg.f32 %0, %1;") {
    O(0) = -O(1);
  } else if constexpr (T.view() == "abs.f32 %0, %1;") {
    O(0) = std::fabs(O(1));
  } else if constexpr (T.view() == "rcp.rn.f32 %0, %1;") {
    O(0) = 1 / O(1);
  } else if constexpr (T.view() == "sqrt.rn.f32 %0, %1;") {
    O(0) = std::sqrt(O(1));
  } else if constexpr (T.view() == "cvt.rni.f32.f32 %0, %1;") {
    O(0) = std::nearbyint(O(1));
  } else if constexpr (T.view() == "add.rn.f32 %0, %1, %2;") {
    O(0) = O(1) + O(2);
  } else if constexpr (T.view() == "sub.rn.f32 %0, %1, %2;") {
    O(0) = O(1) - O(2);
  } else if constexpr (T.view() == "mul.rn.f32 %0, %1, %2;") {
    O(0) = O(1) * O(2);
  } else if constexpr (T.view() == "div.rn.f32 %0, %1, %2;") {
    O(0) = O(1) / O(2);
  } else if constexpr (T.view() == "min.f32 %0, %1, %2;") {
    O(0) = std::fmin(O(1), O(2));
  } else if constexpr (T.view() == "max.f32 %0, %1, %2;") {
    O(0) = std::fmax(O(1), O(2));
    // Of warps and warpgroups.
  } else if constexpr (T.view() == "wgmma.fence.sync.aligned;") {
    products_fence();
  } else if constexpr (T.view() == "wgmma.commit_group.sync.aligned;") {
    products_commit();
  } else if constexpr (T.view() == "wgmma.wait_group.sync.aligned %0;") {
    products_wait(O(0));
    // Tensor memory.
  } else if constexpr (T.view() ==
                       "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;") {
    tensor_alloc(O(0), O(1));
  } else if constexpr (T.view() == "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;") {
    warp_max(0);
  } else if constexpr (T.view() == "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;") {
    tensor_free(O(0), O(1));
  } else if constexpr (T.view() == "tcgen05.fence::before_thread_sync;") {
    tensor_fence(false);
  } else if constexpr (T.view() == "tcgen05.fence::after_thread_sync;") {
    tensor_fence(true);
  } else if constexpr (T.view() ==
                       "tcgen05.st.sync.aligned.16x128b.x2.b32 [%0], {%1, %2, %3, %4};") {
    const Word words[] = {O(1), O(2), O(3), O(4)};
    tensor_store(O(0), words);
  } else if constexpr (T.view() == "tcgen05.wait::st.sync.aligned;") {
    tensor_wait();
  } else if constexpr (T.view() ==
                       "{.reg .pred p; setp.ne.b32 p, %4, 0;\n"
                       "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;}") {
    tensor_product(O(0), O(1), O(2), O(3), O(4) != 0);
  } else if constexpr (T.view() ==
                       "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 "
                       "[%0];") {
    tensor_commit(O(0));
  } else if constexpr (T.begins("tcgen05.ld.sync.aligned.16x256b.x")) {
    static_assert(T.has(kCount == 9    ? ".x2.b32 {%0, "
                        : kCount == 17 ? ".x4.b32 {%0, "
                                       : ".x8.b32 {%0, ") &&
                      (kCount == 9 || kCount == 17 || kCount == 33) &&
                      T.has("];\ntcgen05.wait::ld.sync.aligned;"),
                  "an unknown load");
    tensor_load(&O(0), kCount - 1, O(kCount - 1));
  } else if constexpr (T.begins("{.reg .pred p; setp.ne.b32 p, 1, "
                                "0;\nwgmma.mma_async.sync.aligned.m64n") ||
                       T.begins("{.reg .pred p; setp.ne.b32 p, 0, "
                                "0;\nwgmma.mma_async.sync.aligned.m64n")) {
    constexpr bool halves = T.has(".f16.f16 ") || T.has(".bf16.bf16 ");
    constexpr bool whole = T.has(".s32.u8.s8 ") || T.has(".s32.s8.s8 ");
    static_assert(T.has(halves  ? "k16.f32."
                        : whole ? "k32.s32."
                                : "k32.f32.e4m3.e4m3 ") &&
                      T.has(halves  ? ", p, 1, 1, 0;}"
                            : whole ? ", p;}"
                                    : ", p, 1, 1;}") &&
                      T.in_order(kCount),
                  "an unknown product");
    constexpr auto of = T.has(".bf16.bf16 ") ? Operands::bf16
                        : halves             ? Operands::f16
                        : T.has(".s32.u8.")  ? Operands::u8
                        : whole              ? Operands::s8
                                             : Operands::e4m3;
    // Without the predicate the sums are the product.
    if constexpr (T.has("p, 0, 0;")) std::fill_n(&O(0), kCount - 5, 0);
    product_begins(&O(0), &O(kCount - 5), O(kCount - 1), 2 * (kCount - 5), of);
  } else if constexpr (T.view() == "shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;") {
    O(0) = std::bit_cast<float>(warp_xor(std::bit_cast<Word>(O(1)), O(2)));
  } else if constexpr (T.begins("ldmatrix.sync.aligned.m8n8.x4.shared.b16 ")) {
    Word* to[] = {&O(0), &O(1), &O(2), &O(3)};
    load_matrices(to, 4, own(O(4)));
  } else if constexpr (T.begins("ldmatrix.sync.aligned.m8n8.x2.shared.b16 ")) {
    Word* to[] = {&O(0), &O(1)};
    load_matrices(to, 2, own(O(2)));
  } else if constexpr (T.begins("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 ")) {
    const Word a[] = {O(4), O(5)}, b[] = {O(6)};
    multiply_half_f16(&O(0), a, b);
  } else if constexpr (T.begins("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 ")) {
    const Word a[] = {O(8), O(9)}, b[] = {O(10), O(11)};
    multiply_quad_pairs(&O(0), a, b);
  } else if constexpr (T.begins("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 ")) {
    multiply_quarter_u8(&O(0), O(2), O(3));
  } else if constexpr (T.begins("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 ")) {
    multiply_quarter_s8(&O(0), O(2), O(3));
  } else if constexpr (T.begins("mma.sync.aligned.m16n8k")) {
    auto* d = &O(0);  // the four sums lie side by side, as do the operands
    const Word a[] = {O(4), O(5), O(6), O(7)}, b[] = {O(8), O(9)};
    if constexpr (T.has("m16n8k16.row.col.f32.f16.f16.f32 "))
      multiply_f16(d, a, b);
    else if constexpr (T.has("m16n8k16.row.col.f32.bf16.bf16.f32 "))
      multiply_bf16(d, a, b);
    else if constexpr (T.has("m16n8k32.row.col.s32.u8.s8.s32 "))
      multiply_u8(d, a, b);
    else if constexpr (T.has("m16n8k32.row.col.s32.s8.s8.s32 "))
      multiply_s8(d, a, b);
    else if constexpr (T.has("m16n8k32.row.col.f32.e4m3.e4m3.f32 "))
      multiply_e4m3(d, a, b);
    else
      static_assert(T.begins(" "), "an instruction that tests/emulate does not know");
  } else {
    static_assert(T.begins(" "), "an instruction that tests/emulate does not know");
  }
#undef O
}

}  // namespace ladder::emulate
