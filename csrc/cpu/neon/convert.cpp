// SPDX-License-Identifier: Apache-2.0
//
// Formats of activations, scales and zeros.
#include "cpu/neon/convert.h"

#include "cpu/neon/decode.h"

namespace ladder::cpu::neon {
namespace {

/// Rounded to nearest even in the upper halves; not a number stays one.
uint16x4_t to_bfloat16(float32x4_t value) {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(value, value), rounded, quiet), 16);
}

void narrow_lanes(const float* from, Scalar dtype, std::uint8_t* to) {
  const float32x4_t low = vld1q_f32(from), high = vld1q_f32(from + 4);
  if (dtype == Scalar::f32) {
    vst1q_u8(to, vreinterpretq_u8_f32(low));
    vst1q_u8(to + 16, vreinterpretq_u8_f32(high));
  } else if (dtype == Scalar::bf16) {
    vst1q_u8(to, vreinterpretq_u8_u16(vcombine_u16(to_bfloat16(low), to_bfloat16(high))));
  } else {
    vst1q_u8(to, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high)));
  }
}

template <class D>
void widen_all(const std::uint8_t* p, std::int64_t count, float* to) {
  for (; count >= kColumns; count -= kColumns, to += kColumns, p += D::kBytes) {
    const Weights values = D::values(p, {});
    for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, values.v[i]);
  }
  if (count == 0) return;
  std::uint8_t bytes[D::kBytes] = {};
  __builtin_memcpy(bytes, p, static_cast<std::size_t>(count * D::kBytes / kColumns));
  float last[kColumns];
  widen_all<D>(bytes, kColumns, last);
  __builtin_memcpy(to, last, static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace

void widen(const void* from, Scalar dtype, std::int64_t count, float* to) {
  const auto* p = static_cast<const std::uint8_t*>(from);
  if (dtype == Scalar::f32) return widen_all<Plain<Storage::float32>>(p, count, to);
  if (dtype == Scalar::f16) return widen_all<Plain<Storage::float16>>(p, count, to);
  widen_all<Plain<Storage::bfloat16>>(p, count, to);
}

void narrow(const float* from, std::int64_t count, Scalar dtype, void* to) {
  constexpr std::int64_t kLanes = 8;
  auto* p = static_cast<std::uint8_t*>(to);
  const std::int64_t size = dtype == Scalar::f32 ? 4 : 2;
  for (; count >= kLanes; count -= kLanes, from += kLanes, p += kLanes * size)
    narrow_lanes(from, dtype, p);
  if (count == 0) return;
  float last[kLanes] = {};
  std::uint8_t bytes[kLanes * 4];
  __builtin_memcpy(last, from, static_cast<std::size_t>(count) * sizeof(float));
  narrow_lanes(last, dtype, bytes);
  __builtin_memcpy(p, bytes, static_cast<std::size_t>(count * size));
}

}  // namespace ladder::cpu::neon
