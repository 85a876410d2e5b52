// SPDX-License-Identifier: Apache-2.0
// Tensor memory.
#include "base/joined.h"
#include "codegen/emit/emitter.h"
#include "layout/weight_image.h"
#include "program/access.h"

namespace ladder::codegen {
namespace {

constexpr int kUnits = 2, kUnitLanes = 16;  // of a warp's lanes
constexpr std::int64_t kWarpgroup = 128;

}  // namespace

void Emitter::tensors_begin() {
  line("const u32 tensor_slot = shared_address(shared + ", program_.tensor_slot(), ");");
  line("if (thread < ", kLanes, "u) tensor_alloc<", program_.tensor_columns(), ">(tensor_slot);");
  line("tensor_fence_before();");
  line("barrier();");
  line("tensor_fence_after();");
  line("const u32 tensors = load_shared(tensor_slot);");
  // A warp has access to the lanes of its number in a warpgroup.
  line("const u32 own_lanes = tensors + ((thread & 96u) << 16);");
}

void Emitter::tensors_end() {
  depth_ = 1;
  line("tensor_fence_before();");
  if (program_.roles) {
    line("barrier_of<", program_.threads, ">();");
  } else {
    line("barrier();");
  }
  line("tensor_fence_after();");
  line("if (thread < ", kLanes, "u) tensor_free<", program_.tensor_columns(), ">(tensors);");
}

std::string Emitter::tensor_address(TensorId id, const Affine& place, const Affine& column,
                                    const std::string& product, bool lanes) const {
  const Tensor& tensor = program_.tensors[id];
  const Affine at = Affine(program_.tensor_column(id, 0, 0)) +
                    times(place, tensor.products * tensor.columns) + column;
  const auto of_product =
      tensor.products == 1 ? "" : joined(" + ", product, " * ", tensor.columns, "u");
  return joined(lanes ? "own_lanes" : "tensors", of_product, " + (", expr(at), ")");
}

void Emitter::tensor_store(const TensorStore& i) {
  const auto of_unit = words(i.from) / kUnits;
  line("const u32 to = ",
       tensor_address(i.to, i.place, i.column, joined("thread / ", kWarpgroup, "u"), true), ";");
  for (int unit = 0; unit < kUnits; ++unit) {
    line("tensor_store(to + ", unit * kUnitLanes, " * 65536u, ", reg(i.from).name, " + ",
         unit * of_unit, ");");
  }
}

void Emitter::tensor_mma(const TensorMma& i) {
  const Tensor& sums = program_.tensors[i.sums];
  const auto of_piece = 16 / bytes_of(buffer_of(i.from).scalar);
  line("if (thread == 0) {");
  line("  const u64 matrices = tensor_matrices(shared_address(", buffer_of(i.from).name, "), ",
       expr(exact_quotient(origin_of(program_.views[i.from], i.at), of_piece)), ");");
  for (std::int64_t p = 0; p < sums.products; ++p) {
    const auto product = joined(p, "u");
    line("  tensor_mma_", name_of(operand_scalar(*i.row).value()), "<", sums.columns, ">(",
         tensor_address(i.sums, 0, 0, product, false), ", ",
         tensor_address(i.a, i.place, i.column, product, false), ", matrices, ", expr(i.step),
         ");");
  }
  line("}");
}

void Emitter::tensor_commit(const TensorCommit& i) {
  line("if (thread == 0) tensor_commit(", signal(i.signal, i.index), ");");
}

void Emitter::tensor_load(const TensorLoad& i) {
  const auto of_unit = words(i.to) / kUnits;
  line("const u32 from = ",
       tensor_address(i.from, 0, i.column, joined("thread / ", kWarpgroup, "u"), true), ";");
  for (int unit = 0; unit < kUnits; ++unit) {
    line("tensor_load<", reg(i.to).layout.shape[2], ">(", reg(i.to).name, " + ", unit * of_unit,
         ", from + ", unit * kUnitLanes, " * 65536u);");
  }
}

}  // namespace ladder::codegen
