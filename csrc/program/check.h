// SPDX-License-Identifier: Apache-2.0
//
// What the verifier demands of element-wise instructions and of the copy engine. Each returns the
// faults it finds, as clauses. Internal to csrc/program.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace ladder {

using Faults = std::vector<std::string>;

Faults check(const Program& program, const Cast& i);
Faults check(const Program& program, const Unary& i);
Faults check(const Program& program, const Binary& i);
Faults check(const Program& program, const Reduce& i);
Faults check(const Program& program, const AtomicAdd& i);
Faults check(const Program& program, const SignalInit& i);
Faults check(const Program& program, const Expect& i);
Faults check(const Program& program, const Arrive& i);
Faults check(const Program& program, const Await& i);
Faults check(const Program& program, const CopyBulk& i);

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
