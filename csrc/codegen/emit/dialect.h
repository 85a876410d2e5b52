// SPDX-License-Identifier: Apache-2.0
//
// Programs are written out as C++ by one emitter for all targets; what differs between them is
// here. The rest of a text is arithmetic of the language and calls of prelude functions, which
// every target has under the same names.
#pragma once

#include <string>
#include <string_view>

#include "program/program.h"

namespace ladder::codegen {

/// Pieces of prelude, each with the functions of some instructions.
struct Preludes {
  std::string_view (*common)();
  std::string_view (*scales)();      ///< scales of 8 bits
  std::string_view (*digits)();      ///< products of integers (layout/digits.h); null: has none
  std::string_view (*quad_pairs)();  ///< products by quad pairs; null: has none
  std::string_view (*e4m3)();        ///< products of e4m3 by a warp; null: has none
  std::string_view (*wholes)();      ///< integers less zero points in e4m3; null: has none
  std::string_view (*relative)();    ///< operands by differences of scales; null: has none
  std::string_view (*gates)();       ///< functions of gates (codegen/gated_product.h)
  std::string_view (*codes)();       ///< numbers to codes of 8 bits
  std::string_view (*tiles)();       ///< element-wise arithmetic, shuffles, signals
  std::string_view (*products)();  ///< around products whose B is in shared memory; null: has none
  std::string_view (*roles)();     ///< registers and barriers of roles; null: has none
  std::string_view (*tensors)();   ///< tensor memory; null: has none
  std::string_view (*phases)();    ///< halves of a block that alternate; null: has none
};

struct Dialect {
  Preludes preludes;
  /// The kernel up to its parameters: linkage, attributes, limits.
  std::string (*heading)(const Program& program);
  std::string_view shared;     ///< storage class of variables in shared memory
  std::string_view constants;  ///< of arrays that the text has the values of
  /// The line that declares `shared`, the dynamic shared memory, at a multiple of so many bytes.
  std::string (*shared_memory)(int alignment);
  std::string_view thread;             ///< its number in the block
  std::string_view split, tile, item;  ///< the block's coordinates in the grid
  std::string_view byte_perm;          ///< bytes of two words by a selector of four nibbles
  /// The prelude has its wrapper.
  bool (*multiplies_by)(const MatrixInstruction& row);
  /// The name of that, with A of `a`.
  std::string (*product)(const MatrixInstruction& row, Scalar a);
  /// The function of such products of `tokens` tokens, with A of that scalar, which are added to
  /// sums or replace them; null: there is none.
  std::string (*shared_product)(const MatrixInstruction& row, Scalar a, std::int64_t tokens,
                                bool replaces);
};

/// C++ for `program`, preludes included: one kernel called program.name, its parameters the global
/// buffers in order, then `unsigned tokens`. Needs program.shared_bytes() of dynamic shared memory.
/// Pure: equal programs give equal text on any machine.
std::string emit(const Program& program, const Dialect& dialect);

}  // namespace ladder::codegen
