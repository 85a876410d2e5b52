// SPDX-License-Identifier: Apache-2.0
#include "layout/layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

std::int64_t product_of_extents(const std::vector<Digit>& digits) {
  std::int64_t n = 1;
  for (const Digit& digit : digits) n *= digit.extent;
  return n;
}

/// Canonical form. Neighbours of one dimension join when the outer steps exactly over the inner;
/// replicas (stride 0) join with replicas, whatever their dimension, which is set to 0.
std::vector<Digit> canonical(const std::vector<Digit>& digits) {
  std::vector<Digit> out;
  for (Digit digit : digits) {
    if (digit.extent == 1) continue;
    if (digit.stride == 0) digit.dim = 0;
    if (!out.empty() && out.back().dim == digit.dim &&
        out.back().stride == digit.stride * digit.extent) {
      out.back() = {digit.dim, out.back().extent * digit.extent, digit.stride};
    } else {
      out.push_back(digit);
    }
  }
  return out;
}

/// Digits that enumerate `shape`; `order` lists the dimensions outermost first.
std::vector<Digit> enumerate(const std::vector<std::int64_t>& shape,
                             const std::vector<int>& order) {
  std::vector<Digit> digits;
  for (int dim : order) digits.push_back({dim, shape[dim], 1});
  return canonical(digits);
}

std::vector<int> row_major(std::size_t rank) {
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int> column_major(std::size_t rank) {
  auto order = row_major(rank);
  std::reverse(order.begin(), order.end());
  return order;
}

void check_shape(const std::vector<std::int64_t>& shape) {
  for (auto extent : shape) LADDER_REQUIRE(extent >= 1, "extent ", extent, " is not positive");
}

void add_digits(const std::vector<Digit>& digits, std::int64_t number,
                std::vector<std::int64_t>& coordinates) {
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
    coordinates[digit->dim] += number % digit->extent * digit->stride;
    number /= digit->extent;
  }
}

/// Splits digits whose inner part is `suffix`. Undoes the merging of canonical form: the outer part
/// of one digit may be what is left of it after `suffix` takes its inner values.
std::optional<std::vector<Digit>> without_suffix(std::vector<Digit> digits,
                                                 const std::vector<Digit>& suffix) {
  for (auto want = suffix.rbegin(); want != suffix.rend(); ++want) {
    if (digits.empty()) return std::nullopt;
    Digit& last = digits.back();
    if (last.dim != want->dim || last.stride != want->stride || last.extent % want->extent != 0) {
      return std::nullopt;
    }
    if (last.extent == want->extent) {
      digits.pop_back();
    } else {
      last = {last.dim, last.extent / want->extent, last.stride * want->extent};
    }
  }
  return digits;
}

}  // namespace

std::int64_t Layout::thread_count() const { return product_of_extents(threads); }
std::int64_t Layout::slot_count() const { return product_of_extents(slots); }
std::int64_t Layout::element_count() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<std::int64_t> Layout::operator()(std::int64_t thread, std::int64_t slot) const {
  LADDER_REQUIRE(0 <= thread && thread < thread_count(), "thread ", thread, " of ", thread_count());
  LADDER_REQUIRE(0 <= slot && slot < slot_count(), "slot ", slot, " of ", slot_count());
  std::vector<std::int64_t> coordinates(shape.size(), 0);
  add_digits(threads, thread, coordinates);
  add_digits(slots, slot, coordinates);
  return coordinates;
}

Layout local(std::vector<std::int64_t> shape) {
  check_shape(shape);
  auto slots = enumerate(shape, row_major(shape.size()));
  return {std::move(shape), {}, std::move(slots)};
}

Layout spatial(std::vector<std::int64_t> shape) {
  check_shape(shape);
  auto threads = enumerate(shape, row_major(shape.size()));
  return {std::move(shape), std::move(threads), {}};
}

Layout column_local(std::vector<std::int64_t> shape) {
  check_shape(shape);
  auto slots = enumerate(shape, column_major(shape.size()));
  return {std::move(shape), {}, std::move(slots)};
}

Layout column_spatial(std::vector<std::int64_t> shape) {
  check_shape(shape);
  auto threads = enumerate(shape, column_major(shape.size()));
  return {std::move(shape), std::move(threads), {}};
}

Layout replicated(std::int64_t count, int rank) {
  check_shape({count});
  return {std::vector<std::int64_t>(rank, 1), canonical({{0, count, 0}}), {}};
}

Layout operator*(const Layout& outer, const Layout& inner) {
  LADDER_REQUIRE(outer.shape.size() == inner.shape.size(), "layouts of rank ", outer.shape.size(),
                 " and ", inner.shape.size(), " have no product");
  Layout out{outer.shape, outer.threads, outer.slots};
  for (std::size_t d = 0; d < out.shape.size(); ++d) out.shape[d] *= inner.shape[d];
  for (auto* digits : {&out.threads, &out.slots}) {
    for (Digit& digit : *digits) digit.stride *= inner.shape[digit.dim];
  }
  out.threads.insert(out.threads.end(), inner.threads.begin(), inner.threads.end());
  out.slots.insert(out.slots.end(), inner.slots.begin(), inner.slots.end());
  out.threads = canonical(out.threads);
  out.slots = canonical(out.slots);
  return out;
}

std::optional<Layout> operator/(const Layout& product, const Layout& inner) {
  if (product.shape.size() != inner.shape.size()) return std::nullopt;
  Layout out{product.shape, {}, {}};
  for (std::size_t d = 0; d < out.shape.size(); ++d) {
    if (out.shape[d] % inner.shape[d] != 0) return std::nullopt;
    out.shape[d] /= inner.shape[d];
  }
  auto threads = without_suffix(product.threads, inner.threads);
  auto slots = without_suffix(product.slots, inner.slots);
  if (!threads || !slots) return std::nullopt;
  for (auto* digits : {&*threads, &*slots}) {
    for (Digit& digit : *digits) {
      if (digit.stride % inner.shape[digit.dim] != 0) return std::nullopt;
      digit.stride /= inner.shape[digit.dim];
    }
  }
  out.threads = canonical(*threads);
  out.slots = canonical(*slots);
  return out;
}

Layout permuted(const Layout& layout, const std::vector<int>& order) {
  LADDER_REQUIRE(order.size() == layout.shape.size(), "a permutation of ", order.size(),
                 " dimensions for a layout of ", layout.shape.size());
  Layout out = layout;
  for (std::size_t d = 0; d < order.size(); ++d) out.shape.at(order[d]) = layout.shape[d];
  for (auto* digits : {&out.threads, &out.slots}) {
    for (Digit& digit : *digits) {
      if (digit.stride != 0) digit.dim = order[digit.dim];
    }
    *digits = canonical(*digits);
  }
  return out;
}

Layout lifted(Layout layout) {
  layout.shape.insert(layout.shape.begin(), 1);
  for (auto* digits : {&layout.threads, &layout.slots}) {
    for (Digit& digit : *digits) {
      if (digit.stride != 0) ++digit.dim;
    }
  }
  return layout;
}

Place locate(const Layout& layout, const std::vector<std::int64_t>& coordinates) {
  LADDER_REQUIRE(coordinates.size() == layout.shape.size(), coordinates.size(),
                 " coordinates for a layout of rank ", layout.shape.size());
  for (std::size_t d = 0; d < coordinates.size(); ++d) {
    LADDER_REQUIRE(0 <= coordinates[d] && coordinates[d] < layout.shape[d], "coordinate ",
                   coordinates[d], " of dimension ", d, " is outside ", layout.shape[d]);
  }
  auto number = [&](const std::vector<Digit>& digits) {
    std::int64_t n = 0;
    for (const Digit& digit : digits) {
      const auto value =
          digit.stride == 0 ? 0 : coordinates[digit.dim] / digit.stride % digit.extent;
      n = n * digit.extent + value;
    }
    return n;
  };
  const Place place{number(layout.threads), number(layout.slots)};
  LADDER_REQUIRE(layout(place.thread, place.slot) == coordinates, "no thread of ",
                 to_string(layout), " holds the element asked for");
  return place;
}

bool is_bijective(const Layout& layout) {
  if (layout.thread_count() * layout.slot_count() != layout.element_count()) return false;
  std::vector<bool> seen(layout.element_count());
  for (std::int64_t t = 0; t < layout.thread_count(); ++t) {
    for (std::int64_t s = 0; s < layout.slot_count(); ++s) {
      const auto at = layout(t, s);
      std::int64_t flat = 0;
      for (std::size_t d = 0; d < at.size(); ++d) {
        if (at[d] >= layout.shape[d]) return false;
        flat = flat * layout.shape[d] + at[d];
      }
      if (seen[flat]) return false;
      seen[flat] = true;
    }
  }
  return true;
}

bool can_view(const Layout& from, int from_bits, const Layout& to, int to_bits) {
  return from.thread_count() == to.thread_count() &&
         from.slot_count() * from_bits == to.slot_count() * to_bits;
}

Layout inverse(const Layout& layout) {
  LADDER_REQUIRE(is_bijective(layout), to_string(layout), " is no bijection and has no inverse");
  struct Value {
    Digit of;             // the digit of a coordinate that it is
    int dim;              // 0: of the thread's number, 1: of the slot's
    std::int64_t weight;  // in that number
  };
  std::vector<Value> values;
  for (int dim = 0; dim < 2; ++dim) {
    const auto& digits = dim == 0 ? layout.threads : layout.slots;
    std::int64_t weight = product_of_extents(digits);
    for (const Digit& digit : digits) values.push_back({digit, dim, weight /= digit.extent});
  }
  std::sort(values.begin(), values.end(), [](const Value& a, const Value& b) {
    return a.of.dim != b.of.dim ? a.of.dim < b.of.dim : a.of.stride > b.of.stride;
  });
  Layout out{{layout.thread_count(), layout.slot_count()}, {}, {}};
  for (const Value& value : values) out.slots.push_back({value.dim, value.of.extent, value.weight});
  out.slots = canonical(out.slots);
  return out;
}

std::string to_string(const Layout& layout) {
  std::ostringstream out;
  out << '[';
  for (std::size_t d = 0; d < layout.shape.size(); ++d) out << (d ? ", " : "") << layout.shape[d];
  out << "] =";
  for (const auto& [name, digits] :
       {std::pair{" threads(", &layout.threads}, std::pair{" slots(", &layout.slots}}) {
    out << name;
    for (std::size_t i = 0; i < digits->size(); ++i) {
      const Digit& digit = (*digits)[i];
      out << (i ? ", " : "");
      if (digit.stride == 0) {
        out << "replica:" << digit.extent;
      } else {
        out << digit.dim << ':' << digit.extent << 'x' << digit.stride;
      }
    }
    out << ')';
  }
  return out.str();
}

}  // namespace ladder
