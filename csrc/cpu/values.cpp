// SPDX-License-Identifier: Apache-2.0
#include "cpu/values.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "types/encoder.h"

namespace ladder::cpu {
namespace {

constexpr std::size_t kFew = 16;

Values::Kind kind_of(const Element& element, std::size_t values) {
  if (element.encoding == Encoding::unsigned_integer ||
      element.encoding == Encoding::signed_integer) {
    return Values::Kind::integer;
  }
  if (float_rounding(element)) return Values::Kind::floating;
  return values <= kFew ? Values::Kind::few : Values::Kind::many;
}

}  // namespace

Values values_of(const Element& element) {
  const Encoder encoder(element);
  const auto codes = encoder.codes();
  const auto below = encoder.below();
  Values out{.kind = kind_of(element, codes.size()),
             .low = encoder.value(codes.front()),
             .high = encoder.value(codes.back()),
             .code_mask = (1 << element.bits) - 1,
             .sign_shift = element.bits - 1,
             .zero_code = encoder(0.0f),
             .count = static_cast<std::int32_t>(below.size())};
  if (const auto rounding = float_rounding(element)) {
    out.smallest_normal = rounding->smallest_normal;
    out.subnormal = rounding->subnormal;
    out.shift = rounding->shift;
    out.half = rounding->half;
    out.mask = rounding->mask;
    out.flip = rounding->flip;
    out.rebias = rounding->rebias;
  }
  std::ranges::fill(out.borders, std::numeric_limits<float>::infinity());
  std::ranges::copy(below, out.borders);
  for (std::size_t row = 0; row < 16; ++row) out.row_begins[row] = out.borders[16 * row];
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    out.by_rank[rank] = encoder.value(codes[rank]);
    out.codes[rank] = codes[rank];
  }
  if (codes.size() <= kFew) {
    for (std::size_t rank = 1; rank < codes.size(); ++rank)
      out.steps[rank - 1] = std::bit_cast<std::uint32_t>(out.by_rank[rank]) -
                            std::bit_cast<std::uint32_t>(out.by_rank[rank - 1]);
  }
  return out;
}

const QuantizeKernels& quantize_kernels_of(Isa isa) {
  const auto isas = available_isas();
  LADDER_REQUIRE(std::ranges::find(isas, isa) != isas.end(), "this machine cannot run the ",
                 name(isa), " kernels");
#if defined(LADDER_X86)
  if (isa == Isa::avx2 || isa == Isa::avx_vnni) return avx2_quantize_kernels();
  if (isa == Isa::avx512 || isa == Isa::avx512_bf16 || isa == Isa::amx)
    return avx512_quantize_kernels();
#endif
  return generic_quantize_kernels();
}

}  // namespace ladder::cpu
