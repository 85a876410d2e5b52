// SPDX-License-Identifier: Apache-2.0
//
// A layout is a function. It says which element of a tile each thread holds in each of its slots
// (registers):
//
//     f : [0, threads) x [0, slots)  ->  [0, shape[0]) x [0, shape[1]) x ...
//
// Every layout here is a sum of digits. Write the thread number in a mixed radix, the slot number
// in another, outermost digit first; a digit d with value v adds v * d.stride to the coordinate of
// dimension d.dim. Two generators and one product build all of them:
//
//     local(a, b)    one thread holds an a x b tile, row-major over its slots
//     spatial(a, b)  a * b threads hold one element each, row-major over the threads
//     f * g          a tile of tiles: f arranges copies of what g arranges,
//                    (f * g)(t, s) = f(t_f, s_f) * g.shape + g(t_g, s_g) elementwise,
//                    where t = t_f * g.threads + t_g and s = s_f * g.slots + s_g
//
// For example `local(2, 1) * spatial(8, 4) * local(1, 2)` is the accumulator
// of the tensor-core instruction m16n8k16: lane 4g + t holds rows g and g + 8, columns 2t, 2t + 1.
//
// Laws, each a property test:
//     (f * g) * h == f * (g * h)          associative
//     f * local(1, 1) == f == local(1, 1) * f
//     (f * g) / g == f                    division by a right factor
//     f * g == g * f only when it happens: the product does not commute
//     locate(f, f(t, s)) == (t, s)        when f is injective, with replicas resolved to the first
//     inverse(f)(0, e) == (t, s)          when f is a bijection and f(t, s) has row-major number e
//     permuted(permuted(f, p), q) == permuted(f, q after p)
//
// `replicated(n)` gives n threads the same element; a layout without replicas whose
// threads * slots equals its elements is a bijection.
//
// A layout is the special case of an index map (index_map.h) whose coordinates are thread and slot;
// those compose, divide and invert over any coordinates. Where extents are powers of two it is also
// a matrix over bits (linear_form.h), in which a swizzle, that no sum of digits is, has its place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ladder {

/// One digit of a thread or slot number.
struct Digit {
  int dim;              ///< dimension whose coordinate it adds to
  std::int64_t extent;  ///< number of values, at least 2 in canonical form
  std::int64_t stride;  ///< what one step adds; 0: a replica
  bool operator==(const Digit&) const = default;
};

/// A layout in canonical form: no digit of extent 1, no two neighbours that could be one digit.
struct Layout {
  std::vector<std::int64_t> shape;
  std::vector<Digit> threads;  ///< outermost first
  std::vector<Digit> slots;    ///< outermost first

  bool operator==(const Layout&) const = default;
  std::int64_t thread_count() const;
  std::int64_t slot_count() const;
  std::int64_t element_count() const;

  /// Coordinates of the element that `thread` holds in `slot`.
  /// Throws InvalidArgument when either is out of range.
  std::vector<std::int64_t> operator()(std::int64_t thread, std::int64_t slot) const;
};

/// One thread holds the whole tile, row-major.
Layout local(std::vector<std::int64_t> shape);
/// One element per thread, row-major.
Layout spatial(std::vector<std::int64_t> shape);
/// The same with the first dimension running fastest.
Layout column_local(std::vector<std::int64_t> shape);
Layout column_spatial(std::vector<std::int64_t> shape);
/// `count` threads that all hold the one element of a tile of `rank` dimensions.
Layout replicated(std::int64_t count, int rank);

/// A tile of tiles. Throws InvalidArgument when the ranks differ.
Layout operator*(const Layout& outer, const Layout& inner);

/// The `f` with f * inner == product, or nothing when `inner` is no right factor.
std::optional<Layout> operator/(const Layout& product, const Layout& inner);

/// Renames dimensions: dimension d of `layout` becomes dimension order[d] of the result.
Layout permuted(const Layout& layout, const std::vector<int>& order);

/// The same tile with a dimension of extent 1 before its own.
Layout lifted(Layout layout);

/// Where a layout keeps an element.
struct Place {
  std::int64_t thread, slot;
  bool operator==(const Place&) const = default;
};
/// The first thread and slot that hold `coordinates`: the inverse of an injective layout.
/// Throws InvalidArgument when they lie outside the shape or no thread holds them.
Place locate(const Layout& layout, const std::vector<std::int64_t>& coordinates);

/// True when every element has exactly one place.
bool is_bijective(const Layout& layout);

/// The inverse as a value: a layout of shape [threads, slots] that one thread holds, whose slot e
/// is the thread and slot of the element with the row-major number e. Throws InvalidArgument when
/// `layout` is no bijection.
Layout inverse(const Layout& layout);

/// True when a register tile of `from_bits`-wide elements laid out as `from` may be read as
/// `to_bits`-wide elements laid out as `to` without moving a bit between threads: equal thread
/// counts and equal bits per thread.
bool can_view(const Layout& from, int from_bits, const Layout& to, int to_bits);

/// "[16, 8] = threads(0:8x1, 1:4x2) slots(0:2x8, 1:2x1)": dim:extent x stride, outermost first.
std::string to_string(const Layout& layout);

}  // namespace ladder
