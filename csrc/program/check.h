// SPDX-License-Identifier: Apache-2.0
//
// What the verifier demands of each instruction. Each returns the faults it finds, as clauses; an
// instruction without a check does not compile. Internal to csrc/program.
#pragma once

#include <string>
#include <vector>

#include "base/joined.h"
#include "program/program.h"

namespace ladder {

using Faults = std::vector<std::string>;

template <class... Parts>
void add(Faults& faults, const Parts&... parts) {
  faults.push_back(joined(parts...));
}

// check_memory.cpp: between registers and memory, and between memories.
Faults check(const Program& program, const Load& i);
Faults check(const Program& program, const Store& i);
Faults check(const Program& program, const CopyAsync& i);
Faults check(const Program& program, const CopyElements& i);
Faults check(const Program& program, const SplitDigits& i);
Faults check(const Program& program, const CopyOwn& i);
Faults check(const Program& program, const AtomicAdd& i);
/// The buffer that a view is of.
inline const Buffer& buffer_of(const Program& program, ViewId view) {
  return program.buffers[program.views[view].buffer];
}
/// That a tile fits the view that it is moved to or from at `at`.
void check_access(const Program& program, const Register& tile, ViewId view,
                  const std::vector<Affine>& at, Faults& faults);

// check_products.cpp: the matrix instruction.
/// Nothing multiplies `operand`: says so.
bool missing(const MatrixInstruction* row, Scalar operand, Faults& faults);
/// That a tile is laid out as an operand of the instruction, `which`.
void check_operand(const char* which, const Register& tile, const Layout& fragment, Faults& faults);
Faults check(const Program& program, const Mma& i);
Faults check(const Program& program, const MmaShared& i);

// check_matrix.cpp: its operands, of codes among others, and what becomes of its sums.
Faults check(const Program& program, const LoadMatrix& i);
Faults check(const Program& program, const LoadUnits& i);
Faults check(const Program& program, const Unpack& i);
Faults check(const Program& program, const UnpackBytes& i);
Faults check(const Program& program, const UnpackFloat& i);
Faults check(const Program& program, const ScaleOperand& i);
Faults check(const Program& program, const Lookup& i);
Faults check(const Program& program, const FillTable& i);
Faults check(const Program& program, const FillWords& i);
Faults check(const Program& program, const LargestScale& i);
Faults check(const Program& program, const TimesSecond& i);
Faults check(const Program& program, const LookupRelative& i);
Faults check(const Program& program, const ZeroOperand& i);
Faults check(const Program& program, const Offset& i);
Faults check(const Program& program, const Scale& i);
Faults check(const Program& program, const JoinDigits& i);

// check.cpp: what stays in registers.
void check_f32(const Program& program, RegisterId id, Faults& faults);
/// That two tiles are laid out alike.
void check_same(const Register& a, const Register& b, Faults& faults);
/// That the slots of `from` repeat in `to` without a rest.
void check_repeats(const Register& to, const Register& from, Faults& faults);
Faults check(const Program& program, const Reinterpret& i);
Faults check(const Program& program, const Fill& i);
Faults check(const Program& program, const Add& i);
Faults check(const Program& program, const Multiply& i);
Faults check(const Program& program, const Spread& i);
Faults check(const Program& program, const Cast& i);
Faults check(const Program& program, const Gate& i);
Faults check(const Program& program, const Activate& i);
Faults check(const Program& program, const ToCodes& i);
Faults check(const Program& program, const Unary& i);
Faults check(const Program& program, const Binary& i);
Faults check(const Program& program, const Reduce& i);

// check_tensors.cpp: tensor memory.
Faults check(const Program& program, const TensorStore& i);
Faults check(const Program& program, const TensorMma& i);
Faults check(const Program& program, const TensorCommit& i);
Faults check(const Program& program, const TensorLoad& i);
/// That B of a product of that many tokens is where `row` reads it, and that it is there.
void check_shared_operand(const Program& program, const MatrixInstruction& row, ViewId from,
                          const std::vector<Affine>& at, std::int64_t tokens, Faults& faults);

// check_order.cpp: control, and who waits for whom.
Faults check(const Program& program, const For& i);
Faults check(const Program& program, const Within& i);
Faults check(const Program& program, const Produce& i);
// check_alternate.cpp
Faults check(const Program& program, const Alternate& i);
/// Of a program that has one: whether threads touch shared memory that others may touch then.
Faults check_phases(Program program);
Faults check(const Program& program, const Ticket& i);
Faults check(const Program& program, const ClusterBarrier& i);
Faults check(const Program& program, const SignalInit& i);
Faults check(const Program& program, const Expect& i);
Faults check(const Program& program, const Arrive& i);
Faults check(const Program& program, const Await& i);
void check_index(const Program& program, SignalId id, const Affine& index, Faults& faults);
Faults check(const Program& program, const CopyBulk& i);
Faults check(const Program& program, const CopyRows& i);
// Nothing to check without running.
inline Faults check(const Program&, const If&) { return {}; }
inline Faults check(const Program&, const Commit&) { return {}; }
inline Faults check(const Program&, const Wait&) { return {}; }
inline Faults check(const Program&, const Barrier&) { return {}; }
inline Faults check(const Program&, const Priority&) { return {}; }
inline Faults check(const Program&, const DependentLaunch&) { return {}; }
inline Faults check(const Program&, const DependentWait&) { return {}; }
inline Faults check(const Program&, const MmaWait&) { return {}; }
inline Faults check(const Program&, const MatrixFence&) { return {}; }
inline Faults check(const Program&, const TensorWait&) { return {}; }
inline Faults check(const Program&, const TensorFence&) { return {}; }

/// A bulk copy as rows of contiguous bytes: the outer extents, and elements of one row.
struct BulkRows {
  std::vector<std::int64_t> outer;
  std::int64_t elements;
};
BulkRows bulk_rows(const Program& program, const CopyBulk& i);

/// How the threads along dimension `dim` of `layout` lie: masks of lanes to combine pairwise, from
/// the nearest, and steps over threads of other warps, outermost first.
struct Along {
  std::vector<std::int64_t> lane_masks;
  struct Warps {
    std::int64_t step, extent;
  };
  std::vector<Warps> warps;
  bool powers_of_two = true;
  /// Threads whose parts `thread` adds up over warps, in order.
  std::vector<std::int64_t> peers(std::int64_t thread) const;
};
Along threads_along(const Layout& layout, int dim);

}  // namespace ladder
