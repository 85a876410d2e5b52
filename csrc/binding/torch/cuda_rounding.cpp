// SPDX-License-Identifier: Apache-2.0
// What linear layers do with activations of 8 bits before their products, by itself: for tests and
// measurements.
#include <string>
#include <vector>

#include "base/error.h"
#include "binding/torch/cuda.h"
#include "binding/torch/cuda_passes.h"
#include "runtime/notices.h"
#include "runtime/rounding.h"

namespace ladder::binding {
namespace {

/// Codes [m, k], columns in the order of digit_place, and scales [m]; nothing where compiler or
/// driver have failed at the kernel. With scales, x may be codes.
std::vector<Tensor> rounded_codes(Tensor x, std::string activation_type,
                                  std::optional<Tensor> x_scale) {
  const auto to = rounded_called(activation_type);
  LADDER_REQUIRE(to.has_value(), "activation_type is empty, and x stays as it comes");
  const bool given_codes = x_scale.has_value() && (x.scalar_type() == ScalarType::Char ||
                                                   x.scalar_type() == ScalarType::Float8E4M3);
  const Scalar from = given_codes ? to->scalar : half_of(x, "x");
  require_matrix(x, "x");
  const std::int64_t m = x.size(0), k = x.size(1);
  const auto ordinal = x.get_device_index();
  const Tensor rows = readable(x);
  const GivenScales given = given_scales(x_scale, m, ordinal);
  const auto whose = x_scale.has_value() ? TokenScales::given : TokenScales::own;
  Tensor codes = empty_of(aoti_torch_dtype_uint8(), ordinal, m, k);
  Tensor scales = empty_of(aoti_torch_dtype_float32(), ordinal, m);
  if (m > 0) {
    void* const stream = current_stream(ordinal);
    const RoundingKernel* const kernel =
        rounding_kernel_alone(ordinal, from, to->scalar, whose, k, stream);
    if (notices_pending()) log_notices();
    if (kernel == nullptr) return {};
    if (!kernel->start(stream, address(rows), address(codes), address(scales), m, given)) {
      refused("that rounds tokens");
    }
  }
  return {codes, scales};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("rounded_codes(Tensor x, str activation_type, Tensor? x_scale=None) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) { m.impl("rounded_codes", TORCH_BOX(&rounded_codes)); }

}  // namespace ladder::binding
