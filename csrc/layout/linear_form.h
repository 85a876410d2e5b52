// SPDX-License-Identifier: Apache-2.0
//
// Layouts and addresses as matrices over bits. Where every extent is a power of two, the number of
// an element is a row of bits, and a layout moves bits: it is a linear map over GF(2), in which
// addition is XOR. A matrix is kept by columns,
//
//     f(x) = XOR of columns[i] over the bits i that are set in x,
//
// so column i is f(2^i). Laws, each a property test:
//     (f * g)(x) == f(g(x))                              composition is the matrix product
//     inverse(f) * f == f * inverse(f) == identity       when f is square and of full rank
//     layout_of(linear_form(l), l.shape, bits of a slot) == l
//     linear_form(layout_of(f, ...)) == f                when no column has two bits
//     linear_form(inverse(l)) * linear_form(l) == identity, up to the order of threads and slots
//     swizzle * swizzle == identity                      an XOR of other bits undoes itself
//
// What no layout says, since no digit of a number decides it, a matrix does: a swizzle XORs some
// bits of an address into others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/layout.h"

namespace ladder {

/// A linear map from columns.size() bits to `rows` bits, each at most 63.
struct BitMatrix {
  int rows = 0;
  std::vector<std::uint64_t> columns = {};

  bool operator==(const BitMatrix&) const = default;
  int arguments() const { return static_cast<int>(columns.size()); }
  /// Throws InvalidArgument when `x` has a bit at or above arguments().
  std::uint64_t operator()(std::uint64_t x) const;
};

BitMatrix identity_bits(int bits);
/// Throws InvalidArgument when the rows of `inner` are not the arguments of `outer`.
BitMatrix operator*(const BitMatrix& outer, const BitMatrix& inner);
/// Dimension of the image.
int rank(const BitMatrix& matrix);
/// Nothing when `matrix` is not square or not of full rank.
std::optional<BitMatrix> inverse(const BitMatrix& matrix);

/// `layout` as a matrix from the bits of (slot, thread), slots first, to those of the element's
/// row-major number. A replica is a column of zeros.
/// Throws Unsupported for extents that are not powers of two or contributions that overlap.
BitMatrix linear_form(const Layout& layout);

/// The layout of a tile of `shape` whose matrix this is, when the first `slot_bits` arguments
/// number the slot. Throws Unsupported when a column has several bits: no sum of digits does that;
/// InvalidArgument when the extents are not powers of two or their product is not 2^rows.
Layout layout_of(const BitMatrix& matrix, const std::vector<std::int64_t>& shape, int slot_bits);

/// address ^ (address >> shift) & (2^bits - 1) << base, over addresses of `address_bits` bits: the
/// `bits` bits at base + shift are XORed into those at `base`. In bytes, swizzle(b, 3, 4, 3) is
/// the 128-byte swizzle: the row, modulo 8, moves the 16-byte pieces of its 128 bytes.
/// Throws InvalidArgument unless bits <= shift and base + shift + bits <= address_bits.
BitMatrix swizzle(int address_bits, int bits, int base, int shift);

/// One row of zeros and ones per bit of the result, most significant first; so is each row.
std::string to_string(const BitMatrix& matrix);

}  // namespace ladder
