// SPDX-License-Identifier: Apache-2.0
#include "layout/image_parts.h"

#include "base/integers.h"
#include "layout/weight_image.h"

namespace ladder {

ImageParts image_parts(const Problem& problem) {
  ImageParts out{.code_words = image_words(problem.n, problem.k, problem.weight.bits)};
  std::int64_t bytes = 4 * out.code_words;
  const auto add = [&](std::optional<ImageParts::Part>& part, std::int64_t elements,
                       Scalar scalar) {
    bytes = round_up(bytes, kPartBytes);
    part = {bytes, elements, scalar};
    bytes += elements * bytes_of(scalar);
  };
  const std::int64_t per_group = problem.groups() * round_up(problem.n, kBlock);
  const Weight& weight = problem.weight;
  if (weight.scale) add(out.scales, per_group, weight.scale_in_memory());
  if (weight.stored_zero != Zero::none) add(out.zeros, per_group, weight.zero_in_memory());
  if (weight.superblocks) {
    const auto of_rows = problem.superblocks() * round_up(problem.n, kBlock);
    add(out.scale2, weight.seconds() * of_rows, weight.superblocks->seconds);
  } else if (problem.has_scale2()) {
    add(out.scale2, problem.weight.type.scale2_of_rows ? problem.n : 1, Scalar::f32);
  }
  if (problem.permuted_columns) add(out.gather, problem.k, Scalar::u32);
  out.words = round_up(bytes, kPartBytes) / 4;
  return out;
}

}  // namespace ladder
