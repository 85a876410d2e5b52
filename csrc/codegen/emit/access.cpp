// SPDX-License-Identifier: Apache-2.0
#include "codegen/emit/access.h"

#include <sstream>

#include "program/access.h"

namespace ladder::codegen {
namespace {

std::string joined(const std::vector<std::string>& terms) {
  std::ostringstream out;
  for (const auto& term : terms) out << (out.tellp() > 0 ? " + " : "") << term;
  return terms.empty() ? "0" : out.str();
}

/// Substitutes the unrolled variables.
Affine substituted(Affine affine, const Unrolled& unrolled) {
  Affine out = affine.constant;
  for (const auto& term : affine.terms) {
    const auto value = unrolled.find(term.variable);
    if (value != unrolled.end()) {
      out.constant += term.at(value->second);
    } else if (term.factor != 0) {
      out.terms.push_back(term);
    }
  }
  return out;
}

}  // namespace

std::string expression(const Program& program, const Affine& affine, const Unrolled& unrolled) {
  const Affine rest = substituted(affine, unrolled);
  std::vector<std::string> terms;
  for (const auto& term : rest.terms) {
    std::string text = program.variables[term.variable].name;
    if (term.offset != 0) text = "(" + text + " + " + std::to_string(term.offset) + ")";
    if (term.divisor != 1) text = "(" + text + " / " + std::to_string(term.divisor) + ")";
    if (term.modulus != 0) text = "(" + text + " % " + std::to_string(term.modulus) + "u)";
    if (term.factor != 1) text += " * " + std::to_string(term.factor);
    terms.push_back(std::move(text));
  }
  if (rest.constant != 0 || terms.empty()) terms.push_back(std::to_string(rest.constant));
  return joined(terms);
}

std::string limit(std::int64_t extent) {
  return extent == kTokens ? "tokens" : std::to_string(extent) + "u";
}

std::string thread_part(const Layout& layout, int dim, std::int64_t factor) {
  std::vector<std::string> terms;
  std::int64_t inner = layout.thread_count();
  const auto all = inner;
  for (const Digit& digit : layout.threads) {
    inner /= digit.extent;
    if (digit.stride == 0 || digit.dim != dim || factor == 0) continue;
    std::string text = "thread";
    if (inner != 1) text += " / " + std::to_string(inner);
    if (inner * digit.extent != all) text += " % " + std::to_string(digit.extent);
    const auto scale = digit.stride * factor;
    if (scale != 1) text = "(" + text + ") * " + std::to_string(scale);
    terms.push_back(scale == 1 && terms.empty() ? text : "(" + text + ")");
  }
  return terms.empty() ? "" : joined(terms);
}

Access plan_access(const Program& program, const Layout& tile, Scalar scalar, const View& view,
                   const std::vector<Affine>& at, const Unrolled& unrolled) {
  const auto rank = view.extents.size();
  Access out;
  std::vector<std::string> base;
  std::vector<Affine> from_at;
  for (const Affine& coordinate : at) from_at.push_back(substituted(coordinate, unrolled));
  const Affine origin = substituted(origin_of(view, from_at), unrolled);
  for (std::size_t d = 0; d < rank; ++d) {
    if (auto part = thread_part(tile, static_cast<int>(d), view.strides[d]); !part.empty()) {
      base.push_back(std::move(part));
    }
  }
  if (auto text = expression(program, origin, {}); text != "0") base.push_back(std::move(text));
  out.base = joined(base);

  const auto guarded = guarded_dimensions(program, tile, view, from_at);
  const auto width = piece_width(tile, scalar, view, origin, guarded);
  for (std::int64_t s = 0; s < tile.slot_count(); s += width) {
    const auto coordinates = tile(0, s);
    Piece piece{s, width, 0, ""};
    for (std::size_t d = 0; d < rank; ++d) {
      piece.offset += coordinates[d] * view.strides[d];
      if (!guarded[d]) continue;
      const Affine from = at[d] + Affine(coordinates[d]);
      auto index = expression(program, from, unrolled);
      if (auto part = thread_part(tile, static_cast<int>(d), 1); !part.empty()) {
        index = part + " + " + index;
      }
      piece.by_tokens &= view.extents[d] == kTokens;
      piece.guard += (piece.guard.empty() ? "" : " && ") + index + " < " + limit(view.extents[d]);
    }
    out.pieces.push_back(std::move(piece));
  }
  return out;
}

}  // namespace ladder::codegen
