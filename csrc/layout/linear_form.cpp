// SPDX-License-Identifier: Apache-2.0
#include "layout/linear_form.h"

#include <bit>
#include <utility>

#include "base/error.h"

namespace ladder {
namespace {

constexpr int kMostBits = 63;

/// Nothing for what is no power of two.
std::optional<int> log2_of(std::int64_t extent) {
  const auto value = static_cast<std::uint64_t>(extent);
  if (extent < 1 || !std::has_single_bit(value)) return std::nullopt;
  return std::countr_zero(value);
}

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

}  // namespace

std::uint64_t BitMatrix::operator()(std::uint64_t x) const {
  LADDER_REQUIRE(x >> columns.size() == 0, x, " has more than ", columns.size(), " bits");
  std::uint64_t out = 0;
  for (int i = 0; i < arguments(); ++i) {
    if ((x >> i & 1) != 0) out ^= columns[i];
  }
  return out;
}

BitMatrix identity_bits(int bits) {
  LADDER_REQUIRE(0 <= bits && bits <= kMostBits, bits, " bits of at most ", kMostBits);
  BitMatrix out{bits, {}};
  for (int i = 0; i < bits; ++i) out.columns.push_back(std::uint64_t{1} << i);
  return out;
}

BitMatrix operator*(const BitMatrix& outer, const BitMatrix& inner) {
  LADDER_REQUIRE(inner.rows == outer.arguments(), "a matrix of ", inner.rows,
                 " rows has no product with one of ", outer.arguments(), " columns");
  BitMatrix out{outer.rows, {}};
  for (auto column : inner.columns) out.columns.push_back(outer(column));
  return out;
}

int rank(const BitMatrix& matrix) {
  auto columns = matrix.columns;
  int found = 0;
  for (int row = 0; row < matrix.rows; ++row) {
    const auto bit = std::uint64_t{1} << row;
    auto pivot = static_cast<std::size_t>(found);
    while (pivot < columns.size() && (columns[pivot] & bit) == 0) ++pivot;
    if (pivot == columns.size()) continue;
    std::swap(columns[found], columns[pivot]);
    for (std::size_t c = found + 1; c < columns.size(); ++c) {
      if ((columns[c] & bit) != 0) columns[c] ^= columns[found];
    }
    ++found;
  }
  return found;
}

// Gauss and Jordan on columns: whatever turns the matrix into the identity turns the identity into
// the inverse.
std::optional<BitMatrix> inverse(const BitMatrix& matrix) {
  if (matrix.rows != matrix.arguments()) return std::nullopt;
  auto left = matrix.columns;
  auto out = identity_bits(matrix.rows);
  for (int i = 0; i < matrix.rows; ++i) {
    const auto bit = std::uint64_t{1} << i;
    int pivot = i;
    while (pivot < matrix.rows && (left[pivot] & bit) == 0) ++pivot;
    if (pivot == matrix.rows) return std::nullopt;
    std::swap(left[i], left[pivot]);
    std::swap(out.columns[i], out.columns[pivot]);
    for (int c = 0; c < matrix.rows; ++c) {
      if (c == i || (left[c] & bit) == 0) continue;
      left[c] ^= left[i];
      out.columns[c] ^= out.columns[i];
    }
  }
  return out;
}

BitMatrix linear_form(const Layout& layout) {
  const auto elements = log2_of(layout.element_count());
  if (!elements) fail<Unsupported>(layout.element_count(), " elements are not a power of two");
  const auto strides = row_major_strides(layout.shape);
  BitMatrix out{*elements, {}};
  std::uint64_t used = 0;
  for (const auto* digits : {&layout.slots, &layout.threads}) {
    for (auto digit = digits->rbegin(); digit != digits->rend(); ++digit) {
      if (!log2_of(digit->extent)) {
        fail<Unsupported>("extent ", digit->extent, " is not a power of two");
      }
      for (std::int64_t step = 1; step < digit->extent; step *= 2) {
        const auto column = static_cast<std::uint64_t>(step * digit->stride * strides[digit->dim]);
        if ((used & column) != 0) fail<Unsupported>(to_string(layout), " is not linear over bits");
        used |= column;
        out.columns.push_back(column);
      }
    }
  }
  return out;
}

Layout layout_of(const BitMatrix& matrix, const std::vector<std::int64_t>& shape, int slot_bits) {
  LADDER_REQUIRE(0 <= slot_bits && slot_bits <= matrix.arguments(), slot_bits,
                 " bits of a slot, of ", matrix.arguments());
  int bits = 0;
  for (auto extent : shape) {
    const auto log2 = log2_of(extent);
    LADDER_REQUIRE(log2.has_value(), "extent ", extent, " is not a power of two");
    bits += *log2;
  }
  LADDER_REQUIRE(bits == matrix.rows, "a tile of 2^", bits, " elements for a matrix of ",
                 matrix.rows, " rows");
  const auto strides = row_major_strides(shape);
  // One digit of extent 2 per bit, outermost first; the product with a unit joins neighbours.
  Layout out{shape, {}, {}};
  for (int i = matrix.arguments(); i-- > 0;) {
    auto& digits = i < slot_bits ? out.slots : out.threads;
    const auto column = matrix.columns[i];
    if (column == 0) {
      digits.push_back({0, 2, 0});
      continue;
    }
    if (!std::has_single_bit(column)) fail<Unsupported>("no sum of digits is\n", to_string(matrix));
    int dim = 0;
    while (static_cast<std::uint64_t>(strides[dim]) > column || shape[dim] == 1) ++dim;
    digits.push_back({dim, 2, static_cast<std::int64_t>(column) / strides[dim]});
  }
  return out * local(std::vector<std::int64_t>(shape.size(), 1));
}

BitMatrix swizzle(int address_bits, int bits, int base, int shift) {
  LADDER_REQUIRE(0 <= bits && bits <= shift, bits, " bits cannot be XORed into themselves ", shift,
                 " lower");
  LADDER_REQUIRE(0 <= base && base + shift + bits <= address_bits, "bits ", base + shift, " to ",
                 base + shift + bits, " of an address of ", address_bits);
  auto out = identity_bits(address_bits);
  for (int i = 0; i < bits; ++i) {
    out.columns[base + shift + i] |= std::uint64_t{1} << (base + i);
  }
  return out;
}

std::string to_string(const BitMatrix& matrix) {
  std::string out;
  for (int row = matrix.rows; row-- > 0;) {
    for (int column = matrix.arguments(); column-- > 0;) {
      out += (matrix.columns[column] >> row & 1) != 0 ? '1' : '0';
    }
    out += '\n';
  }
  return out;
}

}  // namespace ladder
