// SPDX-License-Identifier: Apache-2.0
#include "runtime/image_parts.h"

#include "base/integers.h"
#include "layout/weight_image.h"

namespace ladder {

ImageParts image_parts(const Linear& expr) {
  ImageParts out{.code_words = image_words(expr.n, expr.k, expr.bits)};
  std::int64_t bytes = 4 * out.code_words;
  const auto add = [&](std::optional<ImageParts::Part>& part, std::int64_t elements,
                       Scalar scalar) {
    bytes = round_up(bytes, kPartBytes);
    part = {bytes, elements, scalar};
    bytes += elements * bytes_of(scalar);
  };
  const std::int64_t per_group = expr.groups() * round_up(expr.n, kBlock);
  if (expr.scale) add(out.scales, per_group, *expr.scale);
  if (expr.stored_zero != Zero::none) add(out.zeros, per_group, expr.zero_scalar());
  if (expr.scale2) add(out.scale2, 1, Scalar::f32);
  if (expr.gather) add(out.gather, expr.k, Scalar::u32);
  out.words = round_up(bytes, kPartBytes) / 4;
  return out;
}

}  // namespace ladder
