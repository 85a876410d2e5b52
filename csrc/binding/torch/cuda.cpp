// SPDX-License-Identifier: Apache-2.0
// Ops on weight images: the linear layer and the ways into and out of the image, on CUDA.
#include <dlfcn.h>

#include <array>

#include "base/error.h"
#include "binding/torch/tensors.h"
#include "codegen/cuda/toolchain.h"
#include "layout/weight_image.h"
#include "runtime/counters.h"
#include "runtime/device_row.h"
#include "runtime/kernels.h"
#include "runtime/session.h"

namespace ladder::binding {

void* current_stream(std::int32_t ordinal) {
  using Get = AOTITorchError (*)(std::int32_t, void**);
  static const Get get = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_NOW);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<Get>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (get == nullptr) fail<Unsupported>("this torch was built without CUDA");
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(get(ordinal, &stream));
  return stream;
}

namespace {

using Transform = Session::Transform;

/// An uninitialised tensor, without the dispatcher: this is on the path of every call.
Tensor empty(const std::vector<std::int64_t>& shape, std::int32_t dtype, std::int32_t ordinal) {
  std::array<std::int64_t, 16> strides;
  LADDER_REQUIRE(shape.size() <= strides.size(), "x has ", shape.size(), " dimensions, more than ",
                 strides.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<std::int64_t>(shape.size()), shape.data(), strides.data(), dtype,
      aoti_torch_device_type_cuda(), ordinal, &handle));
  return Tensor(handle);
}

struct Activation {
  Scalar scalar;
  std::int32_t dtype;  ///< torch's number of it
  Transform dense;
};
Activation activation_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Half:
      return {Scalar::f16, aoti_torch_dtype_float16(), Transform::dequantize_f16};
    case ScalarType::BFloat16:
      return {Scalar::bf16, aoti_torch_dtype_bfloat16(), Transform::dequantize_bf16};
    case ScalarType::Float:
      return {Scalar::f32, aoti_torch_dtype_float32(), Transform::dequantize_f32};
    default:
      fail<InvalidArgument>("x has dtype ", name(dtype), ", not float32, float16 or bfloat16");
  }
}

void* address(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

/// Starts one of the kernels between canonical, image and dense: pointers, then numbers.
template <std::size_t Pointers, std::size_t Numbers>
void transform(Session& session, std::int32_t ordinal, Transform which,
               std::array<void*, Pointers> pointers, std::array<std::uint32_t, Numbers> numbers) {
  void* const stream = current_stream(ordinal);
  const LinearKernel& kernel = session.transform(ordinal, which, stream);
  std::array<void*, Pointers + Numbers> arguments;
  for (std::size_t i = 0; i < Pointers; ++i) arguments[i] = &pointers[i];
  for (std::size_t i = 0; i < Numbers; ++i) arguments[Pointers + i] = &numbers[i];
  kernel.kernel.launch(kernel.launch, stream, arguments.data());
}

void require_image(const Tensor& image, const Session& session) {
  const auto words = image_words(session.n(), session.k(), session.type().element->bits);
  LADDER_REQUIRE(image.is_cuda() && image.numel() == words, "image has ", image.numel(),
                 " words on ", image.is_cuda() ? "cuda" : "another device", "; a weight of ",
                 to_string(session.type()), " [", session.n(), ", ", session.k(), "] has ", words);
}

const void* scales_of(const std::optional<Tensor>& scales, const Session& session) {
  const TType& type = session.type();
  const std::int64_t wanted =
      type.scale == nullptr ? 0 : type.groups(session.k()) * round_up(session.n(), kBlock);
  const std::int64_t given = scales.has_value() ? scales->numel() : 0;
  LADDER_REQUIRE(given == wanted, "scales of the image are ", given, ", not ", wanted);
  return scales.has_value() ? scales->const_data_ptr() : nullptr;
}

Tensor pack(Tensor qweight, std::int64_t weight) {
  Session& session = ladder::session(weight);
  const int bits = session.type().element->bits;
  const auto words = row_words(session.k(), bits);
  LADDER_REQUIRE(qweight.dim() == 2 && qweight.size(0) == session.n() && qweight.size(1) == words &&
                     qweight.scalar_type() == ScalarType::Int && qweight.is_contiguous(),
                 "qweight is not [", session.n(), ", ", words, "] contiguous int32");
  const auto ordinal = qweight.get_device_index();
  Tensor image =
      empty({image_words(session.n(), session.k(), bits)}, aoti_torch_dtype_int32(), ordinal);
  transform<2, 4>(session, ordinal, Transform::pack, {address(qweight), address(image)},
                  {static_cast<std::uint32_t>(session.n()), static_cast<std::uint32_t>(session.k()),
                   session.pad(), session.flip()});
  return image;
}

Tensor unpack(Tensor image, std::int64_t weight, std::int64_t n, std::int64_t words) {
  Session& session = ladder::session(weight);
  require_image(image, session);
  LADDER_REQUIRE(n == session.n() && words == row_words(session.k(), session.type().element->bits),
                 "the weight has not ", n, " rows of ", words, " words");
  const auto ordinal = image.get_device_index();
  Tensor qweight = empty({n, words}, aoti_torch_dtype_int32(), ordinal);
  transform<2, 3>(
      session, ordinal, Transform::unpack, {address(image), address(qweight)},
      {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(session.k()), session.flip()});
  return qweight;
}

Tensor dense(const Tensor& image, const std::optional<Tensor>& scales, Session& session,
             const Activation& as) {
  const auto ordinal = image.get_device_index();
  Tensor values = empty({session.n(), session.k()}, as.dtype, ordinal);
  transform<3, 3>(session, ordinal, as.dense,
                  {address(image), const_cast<void*>(scales_of(scales, session)), address(values)},
                  {static_cast<std::uint32_t>(session.n()), static_cast<std::uint32_t>(session.k()),
                   session.flip()});
  return values;
}

Tensor dequantize(Tensor image, std::optional<Tensor> scales, std::int64_t weight, std::int64_t n,
                  std::int64_t k, ScalarType dtype) {
  Session& session = ladder::session(weight);
  require_image(image, session);
  LADDER_REQUIRE(n == session.n() && k == session.k(), "the weight is not [", n, ", ", k, "]");
  return dense(image, scales, session, activation_of(dtype));
}

Tensor call(const char* op, const char* overload, std::array<StableIValue, 3> stack) {
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher(op, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor linear(Tensor x, Tensor image, std::optional<Tensor> scales, std::optional<Tensor> bias,
              std::int64_t weight, std::int64_t n) {
  using torch::stable::detail::from;
  Session& session = ladder::session(weight);
  const std::int64_t dimensions = x.dim(), k = session.k();
  LADDER_REQUIRE(dimensions >= 1, "x has no dimension; its last one must be the ", k, " columns");
  LADDER_REQUIRE(x.size(dimensions - 1) == k, "x has ", x.size(dimensions - 1),
                 " columns; the weight has ", k);
  LADDER_REQUIRE(n == session.n(), "n is ", n, ", not ", session.n());
  require_image(image, session);
  const auto ordinal = image.get_device_index();
  LADDER_REQUIRE(x.is_cuda() && x.get_device_index() == ordinal,
                 "x is not on the device of the weight");
  const Activation as = activation_of(x.scalar_type());
  const std::int64_t m = x.numel() / k;
  std::vector<std::int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = n;
  if (m == 0) return empty(shape, as.dtype, ordinal);

  void* const stream = current_stream(ordinal);
  const LinearKernel* kernel = session.linear(ordinal, as.scalar, m, stream);
  if (kernel == nullptr) {
    const Tensor values = dense(image, scales, session, as);
    return call("aten::linear", "", {from(x), from(values), from(bias)});
  }
  // Kernels copy rows of activations in pieces of 16 bytes.
  if (!x.is_contiguous()) x = torch::stable::contiguous(x);
  if (reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 != 0) x = torch::stable::clone(x);
  Tensor y = empty(shape, as.dtype, ordinal);
  std::optional<Tensor> workspace;
  std::array<void*, 6> pointers{};
  pointers[static_cast<int>(Operand::weight)] = address(image);
  pointers[static_cast<int>(Operand::scales)] = const_cast<void*>(scales_of(scales, session));
  pointers[static_cast<int>(Operand::x)] = address(x);
  pointers[static_cast<int>(Operand::y)] = address(y);
  if (kernel->workspace.floats > 0) {
    workspace = empty({kernel->workspace.floats}, aoti_torch_dtype_float32(), ordinal);
    pointers[static_cast<int>(Operand::workspace)] = address(*workspace);
  }
  if (kernel->workspace.counters > 0) {
    pointers[static_cast<int>(Operand::counters)] =
        take_counters(ordinal, kernel->workspace.counters, stream);
  }
  auto tokens = static_cast<std::uint32_t>(m);
  std::array<void*, 7> arguments;
  std::size_t count = 0;
  for (const Operand operand : kernel->operands) {
    arguments[count++] = &pointers[static_cast<std::size_t>(operand)];
  }
  arguments[count] = &tokens;
  kernel->kernel.launch(kernel->launch, stream, arguments.data());
  if (bias.has_value()) {
    // Kernels have no epilogue of their own yet: one more rounding to the dtype of y.
    y = torch::stable::subtract(y, *bias, -1.0);
  }
  return y;
}

std::string objection_to(std::string type, std::int64_t n, std::int64_t k, std::int64_t device) {
  if (n < 1 || k < 1) return "the weight is empty";
  try {
    return objection(ttype(type), n, k, device_row(static_cast<int>(device)));
  } catch (const Unsupported& error) {
    return error.what();
  }
}

std::int64_t open_weight(std::string type, std::int64_t n, std::int64_t k) {
  return open_session(ttype(type), n, k);
}

/// Compiles what `m` tokens need. The schedule of their kernel, or "" when they go the dense way.
std::string warm_up(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m) {
  Session& session = ladder::session(weight);
  const auto ordinal = static_cast<std::int32_t>(device);
  const Activation as = activation_of(dtype);
  void* const stream = current_stream(ordinal);
  const LinearKernel* kernel = session.linear(ordinal, as.scalar, m, stream);
  if (kernel != nullptr) return kernel->schedule;
  session.transform(ordinal, as.dense, stream);
  return {};
}

/// Schedules worth measuring for `m` tokens, one a line; only the measured one where a store has
/// it.
std::string schedules(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m,
                      std::int64_t count) {
  Session& session = ladder::session(weight);
  const auto ordinal = static_cast<int>(device);
  const Scalar activation = activation_of(dtype).scalar;
  if (const auto plan = session.plan(ordinal, activation, m); !plan.empty()) return plan;
  std::string lines;
  for (const auto& schedule :
       session.schedules(ordinal, activation, m, static_cast<std::size_t>(count))) {
    lines += (lines.empty() ? "" : "\n") + schedule;
  }
  return lines;
}

/// Takes the kernel of `schedule` for `m` tokens, and keeps it as the plan with `keep`.
void use_schedule(std::int64_t weight, std::int64_t device, ScalarType dtype, std::int64_t m,
                  std::string schedule, bool keep) {
  Session& session = ladder::session(weight);
  const Scalar activation = activation_of(dtype).scalar;
  session.use(static_cast<int>(device), activation, m, schedule);
  if (keep) session.keep(static_cast<int>(device), activation, m, schedule);
}

/// The most tokens that the kernel for `m` serves; 0 when they are multiplied densely.
std::int64_t token_interval(std::int64_t m) {
  const auto interval = interval_of(m);
  return interval == kTokenIntervals.size() ? 0 : kTokenIntervals[interval];
}

void search_directory(std::string directory) { cuda::add_nvrtc_directory(std::move(directory)); }
void use_store_folder(std::string folder, bool trust) { use_store(folder, trust); }
std::string notices() { return take_notices(); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def(
      "linear_image(Tensor x, Tensor image, Tensor? scales, Tensor? bias, int weight, int n) "
      "-> Tensor");
  m.def(
      "linear_image_no_grad(Tensor x, Tensor image, Tensor? scales, Tensor? bias, int weight, "
      "int n) -> Tensor");
  m.def("pack_image(Tensor qweight, int weight) -> Tensor");
  m.def("unpack_image(Tensor image, int weight, int n, int words) -> Tensor");
  m.def(
      "dequantize_image(Tensor image, Tensor? scales, int weight, int n, int k, "
      "ScalarType dtype) -> Tensor");
  m.def("image_objection(str type, int n, int k, int device) -> str");
  m.def("open_weight(str type, int n, int k) -> int");
  m.def("warm_up(int weight, int device, ScalarType dtype, int m) -> str");
  m.def("schedules(int weight, int device, ScalarType dtype, int m, int count) -> str");
  m.def(
      "use_schedule(int weight, int device, ScalarType dtype, int m, str schedule, bool keep) "
      "-> ()");
  m.def("token_interval(int m) -> int");
  m.def("add_nvrtc_directory(str directory) -> ()");
  m.def("use_store(str folder, bool trust_kernels) -> ()");
  m.def("take_notices() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("linear_image", TORCH_BOX(&linear));
  m.impl("linear_image_no_grad", TORCH_BOX(&linear));
  m.impl("pack_image", TORCH_BOX(&pack));
  m.impl("unpack_image", TORCH_BOX(&unpack));
  m.impl("dequantize_image", TORCH_BOX(&dequantize));
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("image_objection", TORCH_BOX(&objection_to));
  m.impl("open_weight", TORCH_BOX(&open_weight));
  m.impl("warm_up", TORCH_BOX(&warm_up));
  m.impl("schedules", TORCH_BOX(&schedules));
  m.impl("use_schedule", TORCH_BOX(&use_schedule));
  m.impl("token_interval", TORCH_BOX(&token_interval));
  m.impl("add_nvrtc_directory", TORCH_BOX(&search_directory));
  m.impl("use_store", TORCH_BOX(&use_store_folder));
  m.impl("take_notices", TORCH_BOX(&notices));
}

}  // namespace ladder::binding
