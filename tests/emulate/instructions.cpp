// SPDX-License-Identifier: Apache-2.0
#include "instructions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "machine.h"
#include "operands.h"
#include "types/scalar.h"

namespace ladder::emulate {
namespace {

constexpr int kLanes = 32;

double number(Scalar scalar, std::uint32_t bits) {
  return (scalar == Scalar::f16 ? numbers<Scalar::f16>() : numbers<Scalar::bf16>())[bits & 0xffff];
}

struct Exchange {
  std::uint32_t mine, mask, out;
};

struct Rows {
  std::uint32_t* const* to;
  std::uint32_t address;
};

template <int Count>
void load_together(void* const* lanes) {
  for (int matrix = 0; matrix < Count; ++matrix) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto* row = static_cast<const Rows*>(lanes[8 * matrix + lane / 4]);
      std::memcpy(static_cast<const Rows*>(lanes[lane])->to[matrix],
                  at(row->address, 16) + lane % 4 * 4, 4);
    }
  }
}

/// Element (row, k) of A and (k, column) of B by the fragments of m16n8k16, or k32 of bytes: lane
/// 4 g + t has in one register two halves, or four bytes, of row g (the odd registers: g + 8) from
/// column 2 t, or 4 t, on (registers 2 and 3: the second half of the columns). The same of
/// instructions of eight rows, or of half of the columns.
template <class Sum, int Elements, int Rows = 16, int Halves = 2, class ReadA, class ReadB>
void multiply_together(void* const* lanes, const ReadA& read_a, const ReadB& read_b) {
  constexpr int kHalf = 4 * Elements, kDepth = kHalf * Halves, kBits = 32 / Elements;
  constexpr int kRegisters = Rows / 8;  // of half of the columns
  const auto of = [&](int lane) { return static_cast<const Product<Sum>*>(lanes[lane]); };
  double a[Rows][kDepth], b[kDepth][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < kRegisters * Halves; ++r) {
      for (int e = 0; e < Elements; ++e) {
        const int k = r / kRegisters * kHalf + lane % 4 * Elements + e;
        a[lane / 4 + r % kRegisters * 8][k] = read_a(of(lane)->a[r] >> kBits * e);
        if (r < Halves) {
          const int row = r * kHalf + lane % 4 * Elements + e;
          b[row][lane / 4] = read_b(of(lane)->b[r] >> kBits * e);
        }
      }
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < Rows / 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = of(lane)->d[i];
      for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[k][column];
      of(lane)->d[i] = static_cast<Sum>(sum);
    }
  }
}

/// The lowest element of `bits`.
double element_of(std::uint32_t bits, Operands of) {
  switch (of) {
    case Operands::f16: return numbers<Scalar::f16>()[bits & 0xffff];
    case Operands::bf16: return numbers<Scalar::bf16>()[bits & 0xffff];
    case Operands::u8: return static_cast<std::uint8_t>(bits);
    case Operands::s8: return static_cast<std::int8_t>(bits);
    case Operands::e4m3: return to_number(Scalar::e4m3, bits & 0xff);
  }
  return 0;
}

template <Scalar S, int Halves = 2>
void halves_together(void* const* lanes) {
  const auto read = [&all = numbers<S>()](std::uint32_t bits) { return all[bits & 0xffff]; };
  multiply_together<float, 2, 16, Halves>(lanes, read, read);
}

template <class A, int Rows = 16, int Halves = 2>
void bytes_together(void* const* lanes) {
  multiply_together<int, 4, Rows, Halves>(
      lanes, [](std::uint32_t bits) { return static_cast<A>(bits); },
      [](std::uint32_t bits) { return static_cast<std::int8_t>(bits); });
}

/// Lanes 4 q to 4 q + 3 and 16 more have rows, or columns, 0 to 3 and 4 to 7 of product q, four
/// values of k each; of sums a lane has two rows and four columns (PTX ISA, m8n8k4).
void quad_pairs_together(void* const* lanes) {
  const auto of = [&](int lane) { return static_cast<const Product<float>*>(lanes[lane]); };
  double a[4][8][4], b[4][8][4];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int q = lane % 16 / 4, i = lane % 4 + lane / 16 * 4;
    for (int k = 0; k < 4; ++k) {
      a[q][i][k] = number(Scalar::f16, of(lane)->a[k / 2] >> 16 * (k % 2));
      b[q][i][k] = number(Scalar::f16, of(lane)->b[k / 2] >> 16 * (k % 2));
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const int q = lane % 16 / 4;
    for (int i = 0; i < 8; ++i) {
      const int row = lane % 2 + (i & 2) + lane / 16 * 4, column = (i & 4) + (lane & 2) + i % 2;
      double sum = of(lane)->d[i];
      for (int k = 0; k < 4; ++k) sum += a[q][row][k] * b[q][column][k];
      of(lane)->d[i] = static_cast<float>(sum);
    }
  }
}

}  // namespace

float from_f16(std::uint32_t bits) { return static_cast<float>(number(Scalar::f16, bits)); }
std::uint32_t to_f16(float value) { return to_bits(Scalar::f16, value); }
std::uint32_t to_bf16(float value) { return to_bits(Scalar::bf16, value); }
std::uint32_t to_e4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  return to_bits(Scalar::e4m3, std::clamp(value, -448.0f, 448.0f));
}

std::uint32_t halves_of_e4m3(std::uint32_t codes) {
  const auto half = [](std::uint32_t code) {
    return to_bits(Scalar::f16, to_number(Scalar::e4m3, code & 0xff));
  };
  return half(codes) | half(codes >> 8) << 16;
}

std::uint32_t fma_halves(std::uint32_t a, std::uint32_t b, std::uint32_t c, bool bf16) {
  const Scalar scalar = bf16 ? Scalar::bf16 : Scalar::f16;
  const auto half = [&](int shift) {
    return to_bits(scalar, std::fma(number(scalar, a >> shift), number(scalar, b >> shift),
                                    number(scalar, c >> shift)));
  };
  return half(0) | half(16) << 16;
}

std::uint32_t logic_of_three(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                             std::uint32_t table) {
  std::uint32_t out = 0;
  for (int i = 0; i < 8; ++i) {
    if ((table >> i & 1) == 0) continue;
    out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return out;
}

std::uint32_t warp_max(std::uint32_t mine) {
  Exchange here{mine, 0, 0};
  with_warp(&here, [](void* const* lanes) {
    std::uint32_t most = 0;
    for (int i = 0; i < kLanes; ++i) most = std::max(most, static_cast<Exchange*>(lanes[i])->mine);
    for (int i = 0; i < kLanes; ++i) static_cast<Exchange*>(lanes[i])->out = most;
  });
  return here.out;
}

std::uint32_t warp_xor(std::uint32_t mine, std::uint32_t mask) {
  Exchange here{mine, mask, 0};
  with_warp(&here, [](void* const* lanes) {
    for (int i = 0; i < kLanes; ++i) {
      auto* lane = static_cast<Exchange*>(lanes[i]);
      lane->out = static_cast<Exchange*>(lanes[i ^ static_cast<int>(lane->mask & 31)])->mine;
    }
  });
  return here.out;
}

std::uint32_t warp_up(std::uint32_t mine, std::uint32_t step) {
  Exchange here{mine, step, 0};
  with_warp(&here, [](void* const* lanes) {
    for (int i = 0; i < kLanes; ++i) {
      auto* lane = static_cast<Exchange*>(lanes[i]);
      const int from = i - static_cast<int>(lane->mask);
      lane->out = static_cast<Exchange*>(lanes[from < 0 ? i : from])->mine;
    }
  });
  return here.out;
}

std::uint32_t wave_exchange(std::uint32_t mine, std::uint32_t lane) {
  Exchange here{mine, lane, 0};
  with_warp(&here, [](void* const* lanes) {
    const unsigned count = warp_lanes();
    for (unsigned i = 0; i < count; ++i) {
      auto* to = static_cast<Exchange*>(lanes[i]);
      to->out = static_cast<Exchange*>(lanes[to->mask % count])->mine;
    }
  });
  return here.out;
}

void load_matrices(std::uint32_t* const* to, int count, std::uint32_t address) {
  Rows here{to, address};
  with_warp(&here, count == 4 ? load_together<4> : load_together<2>);
}

void multiply_f16(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<float> here{d, a, b};
  with_warp(&here, halves_together<Scalar::f16>);
}
void multiply_bf16(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<float> here{d, a, b};
  with_warp(&here, halves_together<Scalar::bf16>);
}
void multiply_u8(int* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<int> here{d, a, b};
  with_warp(&here, bytes_together<std::uint8_t>);
}
void multiply_s8(int* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<int> here{d, a, b};
  with_warp(&here, bytes_together<std::int8_t>);
}

void multiply_half_f16(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<float> here{d, a, b};
  with_warp(&here, halves_together<Scalar::f16, 1>);
}
void multiply_quarter_u8(int* d, std::uint32_t a, std::uint32_t b) {
  Product<int> here{d, &a, &b};
  with_warp(&here, bytes_together<std::uint8_t, 8, 1>);
}
void multiply_quarter_s8(int* d, std::uint32_t a, std::uint32_t b) {
  Product<int> here{d, &a, &b};
  with_warp(&here, bytes_together<std::int8_t, 8, 1>);
}

void multiply_quad_pairs(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<float> here{d, a, b};
  with_warp(&here, quad_pairs_together);
}

void multiply_e4m3(float* d, const std::uint32_t* a, const std::uint32_t* b) {
  Product<float> here{d, a, b};
  with_warp(&here, [](void* const* lanes) {
    const auto read = [](std::uint32_t bits) { return element_of(bits, Operands::e4m3); };
    multiply_together<float, 4>(lanes, read, read);
  });
}

void multiply_warpgroup(void* const* d, const std::uint32_t* const* a, const std::uint32_t* b,
                        int tokens, Operands of) {
  const int of_word = of == Operands::f16 || of == Operands::bf16 ? 2 : 4, bits = 32 / of_word;
  const int depth = 8 * of_word;
  const Operands of_b = of == Operands::u8 ? Operands::s8 : of;
  std::vector<double> rows(64 * depth), columns(tokens * depth);
  for (int lane = 0; lane < 128; ++lane) {
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < of_word; ++e) {
        const int row = lane / 32 * 16 + lane % 32 / 4 + r % 2 * 8;
        const int k = r / 2 * (depth / 2) + lane % 4 * of_word + e;
        rows[row * depth + k] = element_of(a[lane][r] >> bits * e, of);
      }
    }
  }
  for (int i = 0; i < tokens * depth; ++i) {
    columns[i] = element_of(b[i / of_word] >> i % of_word * bits, of_b);
  }
  const bool whole = of == Operands::u8 || of == Operands::s8;
  for (int lane = 0; lane < 128; ++lane) {
    for (int i = 0; i < tokens / 2; ++i) {
      const int row = lane / 32 * 16 + lane % 32 / 4 + i / 2 % 2 * 8;
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      auto* const f32 = static_cast<float*>(d[lane]) + i;
      auto* const s32 = static_cast<int*>(d[lane]) + i;
      double sum = whole ? static_cast<double>(*s32) : *f32;
      for (int k = 0; k < depth; ++k) sum += rows[row * depth + k] * columns[token * depth + k];
      whole ? void(*s32 = static_cast<int>(sum)) : void(*f32 = static_cast<float>(sum));
    }
  }
}

}  // namespace ladder::emulate
