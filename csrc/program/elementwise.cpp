// SPDX-License-Identifier: Apache-2.0
#include "program/elementwise.h"

#include <numeric>

#include "base/error.h"

namespace ladder {

std::string_view name_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::negate: return "negate";
    case UnaryOp::absolute: return "absolute";
    case UnaryOp::reciprocal: return "reciprocal";
    case UnaryOp::square_root: return "square_root";
    case UnaryOp::round_to_even: return "round_to_even";
  }
  return "?";
}

std::string_view name_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::add: return "add";
    case BinaryOp::subtract: return "subtract";
    case BinaryOp::multiply: return "multiply";
    case BinaryOp::divide: return "divide";
    case BinaryOp::minimum: return "minimum";
    case BinaryOp::maximum: return "maximum";
    case BinaryOp::bit_and: return "bit_and";
    case BinaryOp::bit_or: return "bit_or";
    case BinaryOp::bit_xor: return "bit_xor";
    case BinaryOp::shift_left: return "shift_left";
    case BinaryOp::shift_right: return "shift_right";
  }
  return "?";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::add: return "add";
    case ReduceOp::minimum: return "minimum";
    case ReduceOp::maximum: return "maximum";
  }
  return "?";
}

Layout reduced(const Layout& layout, int dim) {
  LADDER_REQUIRE(dim >= 0 && dim < static_cast<int>(layout.shape.size()), "dimension ", dim,
                 " of a tile of ", layout.shape.size());
  Layout out = layout;
  out.shape[dim] = 1;
  for (Digit& digit : out.threads) digit.stride = digit.dim == dim ? 0 : digit.stride;
  std::erase_if(out.slots, [&](const Digit& digit) { return digit.dim == dim; });
  std::vector<int> same(layout.shape.size());
  std::iota(same.begin(), same.end(), 0);
  return permuted(out, same);  // in canonical form
}

std::optional<std::vector<std::int64_t>> slots_of(const Layout& to, const Layout& from) {
  const auto rank = to.shape.size();
  if (from.shape.size() != rank || from.thread_count() != to.thread_count()) return std::nullopt;
  for (std::size_t d = 0; d < rank; ++d) {
    if (from.shape[d] != 1 && from.shape[d] != to.shape[d]) return std::nullopt;
  }
  const auto wanted = [&](std::int64_t thread, std::int64_t slot) {
    auto at = to(thread, slot);
    for (std::size_t d = 0; d < rank; ++d) at[d] = from.shape[d] == 1 ? 0 : at[d];
    return at;
  };
  std::vector<std::int64_t> out;
  for (std::int64_t slot = 0; slot < to.slot_count(); ++slot) {
    std::int64_t other = 0;
    while (other < from.slot_count() && from(0, other) != wanted(0, slot)) ++other;
    if (other == from.slot_count()) return std::nullopt;
    for (std::int64_t thread = 1; thread < to.thread_count(); ++thread) {
      if (from(thread, other) != wanted(thread, slot)) return std::nullopt;
    }
    out.push_back(other);
  }
  return out;
}

}  // namespace ladder
