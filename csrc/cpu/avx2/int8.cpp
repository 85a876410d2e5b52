// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by vpmaddubsw, whose sums of two products of a number of 0 to 255 and
// one of -128 to 127 saturate at 16 bits. None does here, whatever x and the codes are:
//   u up to 63     4 products are at most 4 * 63 * 127 = 32004
//   u up to 127    2 products are at most 2 * 127 * 127 = 32258
//   above          |u - 128| is at most 128, its sign goes to x: 2 * 128 * 127 = 32512
#include "cpu/int8/x86_256.h"

namespace ladder::cpu::int8 {
namespace {

constexpr int kMostSum = 32767, kMostX = 127;

/// 8 sums of 2 to 4 sums of 2.
inline __m256i pairs_to_fours(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

/// Codes up to 63: sums of products stay in 16 bits for a while.
struct Small : V256 {
  static constexpr int kTokens = 4, kVectors = 2;

  static Int dot(Int acc, Int u, Int x) {
    return add(acc, pairs_to_fours(_mm256_maddubs_epi16(u, x)));
  }
  static Int dot(Int acc, Int u1, Int x1, Int u2, Int x2) {
    return add(acc, pairs_to_fours(_mm256_add_epi16(_mm256_maddubs_epi16(u1, x1),
                                                    _mm256_maddubs_epi16(u2, x2))));
  }
  static constexpr bool kRuns = true;
  static std::int64_t run(const Job& job) { return kMostSum / (2 * kMostX * job.codes->most); }
  static void step(Int& sum, Int u, Int x) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(u, x));
  }
  static Int end(Int acc, Int sum) { return add(acc, pairs_to_fours(sum)); }
};

/// Codes up to 127.
struct Middle : V256 {
  static constexpr int kTokens = 4, kVectors = 2;

  static Int dot(Int acc, Int u, Int x) { return Small::dot(acc, u, x); }
  static Int dot(Int acc, Int u1, Int x1, Int u2, Int x2) { return dot(dot(acc, u1, x1), u2, x2); }
  static constexpr bool kRuns = false;
  static std::int64_t run(const Job&) { return 0; }
  static void step(Int& sum, Int u, Int x) { sum = dot(sum, u, x); }
};

/// The others, as u - 128.
struct Signed : V256 {
  static constexpr int kTokens = 4, kVectors = 2;

  static Int dot(Int acc, Int u, Int x) {
    return Small::dot(acc, _mm256_abs_epi8(u), _mm256_sign_epi8(x, u));
  }
  static Int dot(Int acc, Int u1, Int x1, Int u2, Int x2) { return dot(dot(acc, u1, x1), u2, x2); }
  static constexpr bool kRuns = false;
  static std::int64_t run(const Job&) { return 0; }
  static void step(Int& sum, Int u, Int x) { sum = dot(sum, u, x); }
};

enum class Size { small, middle, large };
Size size_of(const Job& job) {
  return job.codes->most <= 63 ? Size::small : job.codes->most <= 127 ? Size::middle : Size::large;
}

template <int kBits, Codes::Kind kKind>
const Loops& loops_of_size(Size size) {
  using Kind = Codes::Kind;
  if constexpr (kKind == Kind::table) {
    if (size == Size::small) return kLoops<Small, D256<kBits, kKind, false>>;
    if constexpr (kBits > 5)  // few tables: those of fewer bits have the slower way
      if (size == Size::middle) return kLoops<Middle, D256<kBits, kKind, false>>;
    return kLoops<Signed, D256<kBits, kKind, true>>;
  } else if constexpr (kBits <= 6) {
    return kLoops<Small, D256<kBits, kKind, false>>;
  } else if constexpr (kBits == 7) {
    return kLoops<Middle, D256<kBits, kKind, false>>;
  } else {
    return kLoops<Signed, D256<kBits, kKind, true>>;
  }
}

/// Whether decoders give u - 128.
bool is_signed(const Job& job) {
  const Size size = size_of(job);
  if (job.codes->kind != Codes::Kind::table) return job.bits == 8;
  return size == Size::large || (size == Size::middle && job.bits <= 5);
}

template <int kBits>
const Loops& loops_with(const Job& job) {
  switch (job.codes->kind) {
    case Codes::Kind::identity: return loops_of_size<kBits, Codes::Kind::identity>(size_of(job));
    case Codes::Kind::flip: return loops_of_size<kBits, Codes::Kind::flip>(size_of(job));
    case Codes::Kind::table: break;
  }
  return loops_of_size<kBits, Codes::Kind::table>(size_of(job));
}

const Loops& loops(const Job& job) {
  using Of = const Loops& (*)(const Job&);
  static constexpr Of kOf[] = {loops_with<1>, loops_with<2>, loops_with<3>, loops_with<4>,
                               loops_with<5>, loops_with<6>, loops_with<7>, loops_with<8>};
  return kOf[job.bits - 1](job);
}

void multiply_any(const Job& job, void* tile, const void* x, std::int64_t tokens, float* y,
                  std::int64_t y_stride) {
  if (is_signed(job)) return multiply<Signed>(job, tile, x, tokens, y, y_stride);
  if (size_of(job) == Size::middle) return multiply<Middle>(job, tile, x, tokens, y, y_stride);
  multiply<Small>(job, tile, x, tokens, y, y_stride);
}

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels = [] {
    Kernels some = kKernels<Small, loops, 4>;
    some.less = [](const Job& job) { return is_signed(job) ? 128 : 0; };
    some.multiply = multiply_any;
    return some;
  }();
  return kernels;
}

}  // namespace ladder::cpu::int8
