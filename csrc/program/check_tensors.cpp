// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"
#include "program/check.h"

namespace ladder {
namespace {

constexpr int kUnits = 2;         // of 16 lanes that a warp has access to
constexpr int kStepsColumns = 8;  // of tensor memory, that a k-step of 16-bit operands has

bool wrong_row(const MatrixInstruction* row, Faults& faults) {
  const bool wrong = row == nullptr || row->fragment != Fragment::tensor_memory;
  if (wrong) add(faults, "an instruction without tensor memory");
  return wrong;
}

/// A warp has 32 lanes, so that the threads' warpgroups are the products of a tensor.
void check_lanes(const Program& program, const Register& tile, const Tensor& tensor,
                 const Layout& fragment, const MatrixInstruction& row, Faults& faults) {
  if (program.threads != tensor.products * row.lanes()) {
    add(faults, program.threads, " threads for ", tensor.products, " products of ", row.lanes());
  }
  if (tile.layout.slot_count() != fragment.slot_count() || tile.layout.shape.size() != 3 ||
      !(tile.layout / lifted(fragment))) {
    add(faults, tile.name, " is not what lanes of ", kUnits * 16, " rows hold of ", row.name);
  }
}

void check_columns(const Program& program, const Tensor& tensor, const Affine& place,
                   const Affine& column, std::int64_t columns, Faults& faults) {
  const auto at = range_of(program, place), first = range_of(program, column);
  if (at.low < 0 || at.high >= tensor.places) {
    add(faults, "place ", at.high, " of ", tensor.places, " of ", tensor.name);
  }
  if (first.low < 0 || first.high + columns > tensor.columns) {
    add(faults, "columns reach ", first.high + columns, " of ", tensor.columns, " of ",
        tensor.name);
  }
}

}  // namespace

Faults check(const Program& program, const TensorStore& i) {
  Faults faults;
  if (wrong_row(i.row, faults)) return faults;
  const Register& from = program.registers[i.from];
  const Tensor& to = program.tensors[i.to];
  if (from.scalar != operand_scalar(*i.row)) {
    add(faults, "scalars that ", i.row->name, " does not take");
  }
  check_lanes(program, from, to, i.row->a(), *i.row, faults);
  check_columns(program, to, i.place, i.column, kStepsColumns, faults);
  return faults;
}

Faults check(const Program& program, const TensorMma& i) {
  Faults faults;
  if (wrong_row(i.row, faults)) return faults;
  const Tensor &sums = program.tensors[i.sums], &a = program.tensors[i.a];
  if (buffer_of(program, i.from).scalar != operand_scalar(*i.row)) {
    add(faults, "scalars that ", i.row->name, " does not take");
  }
  if (sums.products != a.products || sums.places != 1) {
    add(faults, sums.products, " products of sums at ", sums.places, " places, and ", a.products,
        " of ", a.name);
  }
  if (!i.row->takes_tokens(sums.columns)) {
    add(faults, sums.columns, " tokens, no multiple of ", i.row->n, " up to ", i.row->most_n);
  }
  check_columns(program, a, i.place, i.column, kStepsColumns, faults);
  check_shared_operand(program, *i.row, i.from, i.at, sums.columns, faults);
  return faults;
}

Faults check(const Program& program, const TensorCommit& i) {
  Faults faults;
  check_index(program, i.signal, i.index, faults);
  if (const int arrivals = program.signals[i.signal].arrivals; arrivals != 1) {
    add(faults, "a commit is one arrival, of ", arrivals);
  }
  return faults;
}

Faults check(const Program& program, const TensorLoad& i) {
  Faults faults;
  if (wrong_row(i.row, faults)) return faults;
  const Register& to = program.registers[i.to];
  if (to.scalar != i.row->accumulator || to.layout.shape.size() != 3) {
    add(faults, to.name, " has no sums of ", i.row->name);
    return faults;
  }
  const auto tokens = to.layout.shape[2];
  if (tokens != 16 && tokens != 32 && tokens != 64) {
    add(faults, tokens, " tokens of a load, not 16, 32 or 64");
    return faults;
  }
  check_lanes(program, to, program.tensors[i.from], i.row->d(static_cast<int>(tokens)), *i.row,
              faults);
  check_columns(program, program.tensors[i.from], 0, i.column, tokens, faults);
  return faults;
}

}  // namespace ladder
