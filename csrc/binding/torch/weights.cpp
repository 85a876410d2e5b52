// SPDX-License-Identifier: Apache-2.0
// Ops that make and read packed weights.
#include "base/error.h"
#include "binding/torch/tensors.h"
#include "layout/weight_image.h"
#include "types/encoder.h"

namespace ladder::binding {
namespace {

constexpr std::int64_t kGrainWeights =
    1 << 14;  // below this a second thread costs more than it gives

std::int64_t grain_rows(std::int64_t k) {
  return std::max<std::int64_t>(1, kGrainWeights / std::max<std::int64_t>(1, k));
}

Tensor pack(Tensor codes, std::int64_t bits) {
  LADDER_REQUIRE(bits >= 1 && bits <= 8, "bits is ", bits, ", not 1 to 8");
  require(codes, "codes", ScalarType::Byte, 2);
  const std::int64_t n = codes.size(0), k = codes.size(1);
  const std::int64_t width = row_words(k, static_cast<int>(bits));
  Tensor words = stable::new_empty(codes, {n, width}, ScalarType::Int);
  const auto* from = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  auto* to = static_cast<std::uint32_t*>(words.mutable_data_ptr());
  torch_parallel(n, grain_rows(k), [&](std::int64_t begin, std::int64_t end) {
    pack_codes(from + begin * k, end - begin, k, static_cast<int>(bits), to + begin * width);
  });
  return words;
}

Tensor unpack(Tensor qweight, std::int64_t k, std::int64_t bits) {
  LADDER_REQUIRE(bits >= 1 && bits <= 8, "bits is ", bits, ", not 1 to 8");
  require(qweight, "qweight", ScalarType::Int, 2);
  const std::int64_t n = qweight.size(0), width = qweight.size(1);
  LADDER_REQUIRE(k >= 0 && width == row_words(k, static_cast<int>(bits)), "qweight has ", width,
                 " words a row; ", k, " columns of ", bits, " bits need ",
                 row_words(k, static_cast<int>(bits)));
  Tensor codes = stable::new_empty(qweight, {n, k}, ScalarType::Byte);
  const auto* from = static_cast<const std::uint32_t*>(qweight.const_data_ptr());
  auto* to = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  torch_parallel(n, grain_rows(k), [&](std::int64_t begin, std::int64_t end) {
    unpack_codes(from + begin * width, end - begin, k, static_cast<int>(bits), to + begin * k);
  });
  return codes;
}

/// The weight image as the core packs it: what devices are compared with.
Tensor pack_image_host(Tensor qweight, std::int64_t k, std::int64_t bits) {
  require(qweight, "qweight", ScalarType::Int, 2);
  const std::int64_t n = qweight.size(0);
  const int b = static_cast<int>(bits);
  LADDER_REQUIRE(1 <= bits && bits <= 8 && qweight.size(1) == row_words(k, b), "qweight has ",
                 qweight.size(1), " words a row, which are not ", k, " columns of ", bits, " bits");
  Tensor image = stable::new_empty(qweight, {image_words(n, k, b)}, ScalarType::Int);
  pack_image(static_cast<const std::uint32_t*>(qweight.const_data_ptr()), n, k, b, 0,
             static_cast<std::uint32_t*>(image.mutable_data_ptr()));
  return image;
}

Tensor dequantize(Tensor qweight, std::optional<Tensor> scales, std::optional<Tensor> zeros,
                  std::optional<Tensor> scale2, std::optional<Tensor> g_idx, std::string type,
                  std::int64_t k) {
  const WeightView view = view_weight({qweight, scales, zeros, scale2, g_idx}, ttype(type), k);
  check_g_idx(view);
  Tensor values = stable::new_empty(qweight, {view.n, k}, ScalarType::Float);
  auto* to = static_cast<float*>(values.mutable_data_ptr());
  torch_parallel(view.n, grain_rows(k), [&](std::int64_t begin, std::int64_t end) {
    dequantize_rows(view, begin, end, to + begin * k);
  });
  return values;
}

Tensor encode_values(Tensor values, std::string name) {
  require(values, "values", ScalarType::Float, 1);
  const Encoder encoder(element(name));
  Tensor codes = stable::new_empty(values, {values.size(0)}, ScalarType::Byte);
  const auto* from = static_cast<const float*>(values.const_data_ptr());
  auto* to = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  torch_parallel(values.size(0), kGrainWeights, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = encoder(from[i]);
  });
  return codes;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("pack(Tensor codes, int bits) -> Tensor");
  m.def("unpack(Tensor qweight, int k, int bits) -> Tensor");
  m.def("pack_image_host(Tensor qweight, int k, int bits) -> Tensor");
  m.def(
      "dequantize(Tensor qweight, Tensor? scales, Tensor? zeros, Tensor? scale2, Tensor? g_idx, "
      "str type, int k) -> Tensor");
  m.def("encode(Tensor values, str element) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CPU, m) {
  m.impl("pack", TORCH_BOX(&pack));
  m.impl("unpack", TORCH_BOX(&unpack));
  m.impl("pack_image_host", TORCH_BOX(&pack_image_host));
  m.impl("dequantize", TORCH_BOX(&dequantize));
  m.impl("encode", TORCH_BOX(&encode_values));
}

}  // namespace ladder::binding
