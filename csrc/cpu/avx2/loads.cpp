// SPDX-License-Identifier: Apache-2.0
//
// Tables of 6 to 8 bits for which look-ups of bytes take longer: a load for each weight. See
// decode.h.
//
// Loads bind, two floats a cycle, so everything else has to be cheap: the codes of two weights take
// three instructions (a byte of a register, the byte above it, a shift of 16 bits). This file is
// compiled without vectors of scalars, which take two instructions for each load: see
// csrc/CMakeLists.txt.
#include "cpu/avx2/loops.h"

namespace ladder::cpu::avx2 {
namespace {

/// Keeps g++ from taking every byte of a word by a copy and a shift of its own. The registers of Q
/// are those whose second byte has a name.
inline void keep(std::uint64_t& word) { asm("" : "+Q"(word)); }

/// Eight codes at p as bytes. kLast: they end at p + kBits, where a row may end; else 8 bytes are
/// read.
template <int kBits, bool kLast>
inline std::uint64_t code_word(const std::uint8_t* p) {
  constexpr int kBefore = kLast ? 8 - kBits : 0;
  std::uint64_t codes;
  __builtin_memcpy(&codes, p - kBefore, 8);
  codes >>= 8 * kBefore;
  if constexpr (kBits < 8) codes = _pdep_u64(codes, ((1 << kBits) - 1) * 0x0101010101010101);
  return codes;
}
/// The value of the code in byte 0 of `word`, and in byte 1.
inline const float* first(const float* values, std::uint64_t word) {
  return values + static_cast<std::uint8_t>(word);
}
inline const float* second(const float* values, std::uint64_t word) {
  std::uint64_t code;  // of the registers that instructions with a second byte can have
  asm("movzbl %h1, %k0" : "=R"(code) : "Q"(word));
  return values + code;
}
inline void next_two(std::uint64_t& word) {
  word >>= 16;
  keep(word);
}

/// Any values. The machine's own gathers take longer.
template <int kBits>
struct Loads {
  static constexpr int kVectors = 1, kSteps = 4;
  static constexpr Zeros kZeros = Zeros::none;
  static constexpr bool kFactor = false, kChecked = false;
  struct Table {
    const float* values;
  };
  static Table table(const Tables& t) { return {t.values}; }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
    out[0] = eight(code_word<kBits, false>(p), t.values);
    out[1] = eight(code_word<kBits, false>(p + kBits), t.values);
    out[2] = eight(code_word<kBits, false>(p + 2 * kBits), t.values);
    out[3] = eight(code_word<kBits, true>(p + 3 * kBits), t.values);
  }

 private:
  [[gnu::always_inline]] static __m256 eight(std::uint64_t word, const float* values) {
    float value[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      value[i] = *first(values, word);
      value[i + 1] = *second(values, word);
      if (i < 6) next_two(word);
    }
    return _mm256_setr_ps(value[0], value[1], value[2], value[3], value[4], value[5], value[6],
                          value[7]);
  }
};

/// Adds products of columns 8 kEight to 8 kEight + 7 of a step, at x, of kRows rows: a column of x
/// is in a register for all of them, and a value is an operand of its multiply-add.
template <int kBits, int kEight>
[[gnu::always_inline]] inline void add_eight(const std::uint8_t* const (&p)[kRows],
                                             const float* values, const float* x,
                                             float (&even)[kRows], float (&odd)[kRows]) {
  std::uint64_t words[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    words[r] = code_word<kBits, kEight == 3>(p[r] + kEight * kBits);
    keep(words[r]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m128 four = _mm_loadu_ps(x + 4 * half);
    const float columns[4] = {_mm_cvtss_f32(four), _mm_cvtss_f32(_mm_movehdup_ps(four)),
                              _mm_cvtss_f32(_mm_movehl_ps(four, four)),
                              _mm_cvtss_f32(_mm_permute_ps(four, 3))};
#pragma GCC unroll 2
    for (int two = 0; two < 4; two += 2)
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const float *a = first(values, words[r]), *b = second(values, words[r]);
        even[r] = __builtin_fmaf(*a, columns[two], even[r]);
        odd[r] = __builtin_fmaf(*b, columns[two + 1], odd[r]);
        if (half == 0 || two == 0) next_two(words[r]);
      }
  }
}

/// One token. kGroup: columns of a group where these are no more than a step, else 0.
template <int kBits, int kGroup>
void dot_loads(const Job& job, const Rows& rows, const float* x, float* out) {
  constexpr std::int64_t kColumns = kStep<Loads<kBits>>, kBytes = kColumns * kBits / 8;
  // The error of a sum grows with its products: after so many columns it is scaled.
  constexpr std::int64_t kMost = 128;
  const float* values = job.tables->values;
  const std::int64_t whole = job.row_bytes / kBytes * kColumns;  // columns of whole steps
  const std::uint8_t* p[kRows];
  std::uint8_t rest[kRows][kBlock];
  float totals[kRows], even[kRows], odd[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    p[r] = rows.codes[r];
    totals[r] = even[r] = odd[r] = 0;
  }
  const auto add = [&](std::int64_t group) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      totals[r] = __builtin_fmaf(even[r] + odd[r], rows.scales[r].scale[group], totals[r]);
      if constexpr (kGroup == 0) even[r] = odd[r] = 0;
    }
  };
  std::int64_t group = 0;
  std::int64_t group_end = job.group_columns;
  for (std::int64_t column = 0; column < job.padded_k;) {
    if (column == whole)  // the rest of a row is read from a copy with zeros behind
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t bytes = job.row_bytes - whole * kBits / 8;
        for (std::int64_t i = 0; i < kBlock; ++i) rest[r][i] = i < bytes ? p[r][i] : 0;
        p[r] = rest[r];
      }
    // Past the end of these rows are the next kRows, which lie behind them.
    const std::int64_t ahead = (column + kMost) * kBits / 8 + kAhead < job.row_bytes
                                   ? kAhead
                                   : kAhead + (kRows - 1) * job.row_bytes;
    std::int64_t stop = column + kMost;
    const auto before = [&](std::int64_t end) { stop = end < stop ? end : stop; };
    before(column < whole ? whole : job.padded_k);
    if constexpr (kGroup == 0) before(group_end);
    for (const float *at = x + column, *end = x + stop; at < end; at += kColumns) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        _mm_prefetch(reinterpret_cast<const char*>(p[r]) + ahead, _MM_HINT_T0);
      const auto eight = [&]<int kEight>() __attribute__((always_inline)) {
        constexpr int kBegin = 8 * kEight, kIn = kGroup != 0 ? kGroup : kColumns;
        // g++ copies codes about where products, not additions to zero, begin a sum.
        if constexpr (kGroup != 0 && kBegin % kIn == 0)
          for (int r = 0; r < kRows; ++r) even[r] = odd[r] = 0;
        add_eight<kBits, kEight>(p, values, at + kBegin, even, odd);
        if constexpr (kGroup != 0 && (kBegin + 8) % kIn == 0) add(group++);
      };
      eight.template operator()<0>();
      eight.template operator()<1>();
      eight.template operator()<2>();
      eight.template operator()<3>();
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) p[r] += kBytes;
    }
    column = stop;
    if constexpr (kGroup != 0) continue;
    add(group);
    if (column == group_end) {
      ++group;
      group_end += job.group_columns;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) out[r] = totals[r];
}

/// Loops of Loads, of which those for one token multiply kRows rows at once.
template <int kBits, int kGroup, class D = Loads<kBits>,
          bool kByLane = (kGroup != 0 && kGroup < 32)>
inline constexpr Loops kLoads = {
    D::kVectors,
    {dot_loads<kBits, kGroup>, dot_sums<D, kByLane, false, 2>, dot_sums<D, kByLane, false, 4>},
    decode_rows<D, kByLane ? Grouping::lanes : Grouping::blocks>};

template <int kBits>
const Loops& loops(const Job& job) {
  if (job.grouping == Grouping::columns) return loops_of<Loads<kBits>>(job);
  switch (job.group_columns) {
    case 8: return kLoads<kBits, 8>;
    case 16: return kLoads<kBits, 16>;
    case 32: return kLoads<kBits, 32>;
    default: return kLoads<kBits, 0>;
  }
}

}  // namespace

const Loops& loads_loops(const Job& job) {
  switch (job.bits) {
    case 6: return loops<6>(job);
    case 7: return loops<7>(job);
    default: return loops<8>(job);
  }
}

}  // namespace ladder::cpu::avx2
