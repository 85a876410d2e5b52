// SPDX-License-Identifier: Apache-2.0
//
// How one thread reads or writes its part of a tile: which slots travel together, at which address,
// under which condition. Internal to csrc/codegen/emit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"

namespace ladder::codegen {

/// Values of variables that the emitter unrolls.
using Unrolled = std::map<VariableId, std::int64_t>;

/// C++ for `affine`; a literal when every variable in it is unrolled.
std::string expression(const Program& program, const Affine& affine, const Unrolled& unrolled);

/// C++ for the extent of a dimension of a view.
std::string limit(std::int64_t extent);

/// C++ for what the thread digits of `layout` add to dimension `dim`, times `factor`; empty when
/// that is nothing.
std::string thread_part(const Layout& layout, int dim, std::int64_t factor);

/// Consecutive slots that are consecutive elements of memory.
struct Piece {
  std::int64_t slot, width;  ///< first slot, number of slots
  std::int64_t offset;       ///< elements from `base`
  std::string guard;         ///< condition under which it lies in the view; empty: always
  bool by_tokens = true;     ///< which is of tokens, and of nothing else
};

struct Access {
  std::string base;  ///< C++ for the element of the buffer that slot 0 of this thread is at
  std::vector<Piece> pieces;
};

/// The widest pieces, at most 16 bytes, that alignment, strides and borders allow.
Access plan_access(const Program& program, const Layout& tile, Scalar scalar, const View& view,
                   const std::vector<Affine>& at, const Unrolled& unrolled);

}  // namespace ladder::codegen
