// SPDX-License-Identifier: Apache-2.0
// Ops into and out of weight images.
#include <sstream>

#include "base/error.h"
#include "base/joined.h"
#include "binding/torch/cuda.h"
#include "types/weight.h"

namespace ladder::binding {

Tensor empty(std::span<const std::int64_t> shape, std::int32_t dtype, std::int32_t ordinal) {
  return stable::empty(shape, dtype, aoti_torch_device_type_cuda(), ordinal);
}

Activation activation_of(ScalarType dtype) {
  const Scalar scalar = float_kind(dtype, "x");
  return {scalar, stable::number_of(dtype),
          scalar == Scalar::f16    ? Transform::dequantize_f16
          : scalar == Scalar::bf16 ? Transform::dequantize_bf16
                                   : Transform::dequantize_f32};
}

void require_image(const Tensor& image, const Session& session) {
  const auto words = session.parts().words;
  const auto weight = [&] {
    return joined("a weight of ", to_string(session.type()), " [", session.n(), ", ", session.k(),
                  "]");
  };
  LADDER_REQUIRE(image.scalar_type() == ScalarType::Int, "image has dtype ",
                 name(image.scalar_type()), ", not int32");
  LADDER_REQUIRE(image.numel() == words, "image has ", image.numel(), " words; ", weight(), " has ",
                 words);
  LADDER_REQUIRE(image.is_contiguous(), "image of shape ", shape(image), " is not contiguous");
  LADDER_REQUIRE(image.is_cuda(), "image is on ", image.is_cpu() ? "the cpu" : "another device",
                 ", not on cuda");
}

void refused(const std::string& kernel) {
  fail<ToolchainError>("the device has no room for the kernel ", kernel);
}

namespace {

std::array<std::uint32_t, 2> shape_of(const Session& session) {
  return {static_cast<std::uint32_t>(session.n()), static_cast<std::uint32_t>(session.k())};
}

}  // namespace

Tensor dense(const Tensor& image, Session& session, const Activation& as) {
  const auto ordinal = image.get_device_index();
  Tensor values = empty_of(as.dtype, ordinal, session.n(), session.k());
  const ImageParts& parts = session.parts();
  void* const first = address(image);
  const auto [n, k] = shape_of(session);
  transform<6, 2>(session, ordinal, as.dense,
                  {first, part_of(first, parts.scales), part_of(first, parts.zeros),
                   part_of(first, parts.scale2), part_of(first, parts.gather), address(values)},
                  {n, k});
  return values;
}

namespace {

void require_codes(const Tensor& qweight, const Session& session) {
  const auto words = row_words(session.k(), session.type().element->bits);
  LADDER_REQUIRE(qweight.dim() == 2 && qweight.size(0) == session.n() && qweight.size(1) == words &&
                     qweight.scalar_type() == ScalarType::Int && qweight.is_contiguous(),
                 "qweight is not [", session.n(), ", ", words, "] contiguous int32");
}

void pack(Tensor qweight, Tensor image, std::int64_t weight) {
  Session& session = ladder::session(weight);
  require_codes(qweight, session);
  require_image(image, session);
  const auto [n, k] = shape_of(session);
  transform<2, 4>(session, qweight.get_device_index(), Transform::pack,
                  {address(qweight), address(image)}, {n, k, session.pad(), session.flip()});
}

Tensor unpack(Tensor image, std::int64_t weight, std::int64_t rows, std::int64_t words) {
  Session& session = ladder::session(weight);
  require_image(image, session);
  LADDER_REQUIRE(
      rows == session.n() && words == row_words(session.k(), session.type().element->bits),
      "the weight has not ", rows, " rows of ", words, " words");
  const auto ordinal = image.get_device_index();
  Tensor qweight = empty_of(aoti_torch_dtype_int32(), ordinal, rows, words);
  const auto [n, k] = shape_of(session);
  transform<2, 3>(session, ordinal, Transform::unpack, {address(image), address(qweight)},
                  {n, k, session.flip()});
  return qweight;
}

Tensor permute(Tensor qweight, Tensor columns, std::int64_t weight) {
  Session& session = ladder::session(weight);
  require_codes(qweight, session);
  LADDER_REQUIRE(columns.is_cuda() && columns.scalar_type() == ScalarType::Int &&
                     columns.numel() == session.k() && columns.is_contiguous(),
                 "columns are ", columns.numel(), ", not ", session.k(),
                 " contiguous int32 on cuda");
  const auto ordinal = qweight.get_device_index();
  Tensor out = empty_of(aoti_torch_dtype_int32(), ordinal, qweight.size(0), qweight.size(1));
  const auto [n, k] = shape_of(session);
  transform<3, 2>(session, ordinal, Transform::permute,
                  {address(qweight), address(out), address(columns)}, {n, k});
  return out;
}

Tensor dequantize(Tensor image, std::int64_t weight, std::int64_t n, std::int64_t k,
                  ScalarType dtype) {
  Session& session = ladder::session(weight);
  require_image(image, session);
  LADDER_REQUIRE(n == session.n() && k == session.k(), "the weight is not [", n, ", ", k, "]");
  return dense(image, session, activation_of(dtype));
}

/// One line "name offset_bytes elements scalar" for each part behind the codes; the first line has
/// the words of the codes and of all.
std::string image_parts_of(std::int64_t weight) {
  const ImageParts& parts = ladder::session(weight).parts();
  std::ostringstream out;
  out << parts.code_words << ' ' << parts.words;
  const auto line = [&](const char* name, const std::optional<ImageParts::Part>& part) {
    if (!part) return;
    out << '\n'
        << name << ' ' << part->offset_bytes << ' ' << part->elements << ' '
        << name_of(part->scalar);
  };
  line("scales", parts.scales);
  line("zeros", parts.zeros);
  line("scale2", parts.scale2);
  line("gather", parts.gather);
  return out.str();
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("pack_image(Tensor qweight, Tensor(a!) image, int weight) -> ()");
  m.def("unpack_image(Tensor image, int weight, int n, int words) -> Tensor");
  m.def("permute_codes(Tensor qweight, Tensor columns, int weight) -> Tensor");
  m.def("dequantize_image(Tensor image, int weight, int n, int k, ScalarType dtype) -> Tensor");
  m.def("image_parts(int weight) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("pack_image", TORCH_BOX(&pack));
  m.impl("unpack_image", TORCH_BOX(&unpack));
  m.impl("permute_codes", TORCH_BOX(&permute));
  m.impl("dequantize_image", TORCH_BOX(&dequantize));
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("image_parts", TORCH_BOX(&image_parts_of));
}

}  // namespace ladder::binding
