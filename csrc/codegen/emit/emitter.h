// SPDX-License-Identifier: Apache-2.0
//
// Writes one kernel, an instruction at a time, each in a block of its own under a comment that is
// the instruction's print. Registers become arrays of 32-bit words that only constants index, so
// that the compiler keeps them in registers: variables that index them are unrolled here. Internal
// to csrc/codegen/emit: emit.cpp has the frame and the control flow, memory.cpp, copies.cpp,
// bulk_copy.cpp, decode.cpp, digits.cpp, arithmetic.cpp and elementwise.cpp the instructions,
// access.h how a tile is read and written.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/emit/access.h"
#include "codegen/emit/dialect.h"
#include "codegen/emit/literal.h"
#include "layout/bit_plan.h"
#include "layout/field_plan.h"
#include "program/program.h"

namespace ladder::codegen {

class Emitter {
 public:
  Emitter(const Program& program, const Dialect& dialect)
      : program_(program), dialect_(dialect), threads_(program.threads) {}

  /// The whole text; once per object.
  std::string run();

 private:
  // emit.cpp
  /// Some of the threads' work is an Alternate.
  bool has_halves() const;
  void signature();
  void declarations();
  /// Which thread of which block this is.
  void coordinates();
  void item();
  void ticket_results(const std::vector<Statement>& statements);
  void body(std::span<const Statement> statements, int depth);
  void producers(std::span<const Statement> statements);
  void instruction(const Statement& statement);

  template <class... Parts>
  void line(const Parts&... parts) {
    for (int i = 0; i < depth_; ++i) out_ << "  ";
    (out_ << ... << parts);
    out_ << '\n';
  }
  const Register& reg(RegisterId id) const { return program_.registers[id]; }
  const Buffer& buffer_of(ViewId id) const { return program_.buffers[program_.views[id].buffer]; }
  /// 32-bit words of a register; 16-bit scalars lie in pairs.
  std::int64_t words(RegisterId id) const;
  static const char* type_of(Scalar scalar);
  std::string expr(const Affine& affine) const { return expression(program_, affine, unrolled_); }
  /// The value of an index of registers. Throws InternalError when a variable in it is not
  /// unrolled.
  std::int64_t constant(const Affine& affine) const;

  // memory.cpp
  /// C++ for whether the thread has something of the tile inside the view.
  std::string inside(const Within& part) const;
  void load(const Load& i);
  void store(const Store& i);
  void load_matrix(const LoadMatrix& i);
  void load_units(const LoadUnits& i);
  void ticket(const Ticket& i);
  void atomic_add(const AtomicAdd& i);
  /// Spreads the words of `v` over the registers from word `first`.
  std::string assign(RegisterId id, std::int64_t first, std::int64_t count) const;
  std::string word_of(RegisterId id, std::int64_t index) const;

  // copies.cpp
  /// C++ for the address of what a copy brings to `row` and `column` of a shared view.
  std::string place_of_row(ViewId id) const;
  void copy(const CopyAsync& i);
  void copy_written_out(const CopyAsync& i, std::int64_t pieces, bool columns_guarded);
  /// Declares `place` and `in_image` of element [row, column] of windows; the column once for many
  /// rows.
  void window_column(const Windows& windows, const char* column);
  void window_row(const Windows& windows, const std::string& row);
  void copy_own(const CopyOwn& i);
  void copy_elements(const CopyElements& i);

  // arithmetic.cpp
  void mma(const Mma& i);
  void mma_shared(const MmaShared& i);
  void mma_wait(const MmaWait& i);
  /// The functions of the target that products with B in shared memory call.
  void products(const std::vector<Statement>& statements);
  void fill(const Fill& i);
  void reinterpret_bits(const Reinterpret& i);
  void scale(const Scale& i);
  void offset(const Offset& i);
  /// to <operation> from, slot by slot.
  void combine(RegisterId to, RegisterId from, const char* operation);
  /// C++ for the number in a slot, as a float; of e4m3 2^-8 times that.
  std::string number_in(RegisterId id, std::int64_t slot) const;
  /// The slot of a lane's row in registers [groups, rows].
  std::int64_t slot_of_row(RegisterId id, std::int64_t group, std::int64_t row) const;
  /// The name of a variable that holds the number of that row times 2^exponent; written once.
  std::string factor_of_row(RegisterId rows, const Affine& group, std::int64_t row, int exponent,
                            std::set<std::int64_t>& declared);

  // tensors.cpp
  /// The block's columns, before its first statement and after its last.
  void tensors_begin();
  void tensors_end();
  /// C++ for the address of a product's part of a tensor; `lanes`: of the warp's own lanes.
  std::string tensor_address(TensorId id, const Affine& place, const Affine& column,
                             const std::string& product, bool lanes) const;
  void tensor_store(const TensorStore& i);
  void tensor_mma(const TensorMma& i);
  void tensor_commit(const TensorCommit& i);
  void tensor_load(const TensorLoad& i);

  // decode.cpp
  /// Writes `decode(word, pair of the image's unit, first word of codes, row of the lane)`, C++ for
  /// each word of operands of the step.
  template <class Op, class Decode>
  void for_each_pair(const Op& i, int bits, const Decode& decode);
  /// C++ for the OR of the pieces and of `joined`, each word first passed through that function of
  /// the prelude.
  std::string pieces(RegisterId from, std::int64_t first, const std::vector<UnpackPiece>& pieces,
                     const std::string& through = {}, std::uint32_t joined = 0) const;
  /// C++ for the word of a piece, shifted.
  std::string shifted(RegisterId from, std::int64_t first, const UnpackPiece& piece,
                      const std::string& through) const;
  void unpack(const Unpack& i);
  void scaled_constants(const Unpack& i, const UnpackPlan& plan);
  void unpack_bytes(const UnpackBytes& i);
  /// The scale of a row as a number of 32 bits, `less_` of that name beside it.
  std::string byte_scale(const UnpackBytes& i, std::int64_t row, std::set<std::int64_t>& declared);
  void split_digits(const SplitDigits& i);
  void join_digits(const JoinDigits& i);
  void unpack_float(const UnpackFloat& i);
  void convert_float(const UnpackFloat& i);
  /// C++ for the fields of a pair whose unit begins at word `first`.
  std::string fields(RegisterId from, std::int64_t first, const FieldPlan& plan,
                     const FieldPair& pair) const;
  void scale_operand(const ScaleOperand& i);
  void scales_of_units(RegisterId of, RegisterId scales, const Affine& group, double factor);
  /// C++ for both halves of the scale of a row of an operand's tile, by parity of eight rows.
  static std::string scale_of_unit(std::int64_t row);
  template <class Visit>
  void for_each_unit(const UnpackFloat& i, const Visit& visit);
  void powers_of_units(const UnpackFloat& i);
  void large_powers_of_units(const UnpackFloat& i);
  void lookup(const Lookup& i);
  void fill_table(const FillTable& i);
  void fill_words(const FillWords& i);
  template <class Value>
  void array_of(std::string_view type, ViewId of, const std::vector<Value>& values);
  /// The code of a scale of 8 bits.
  std::string scale_code(RegisterId scales, std::int64_t slot) const;
  void largest_scale(const LargestScale& i);
  void times_second(const TimesSecond& i);
  void lookup_relative(const LookupRelative& i);
  void table_values(const std::vector<Statement>& statements);
  void zero_operand(const ZeroOperand& i);

  // elementwise.cpp
  void cast(const Cast& i);
  void gate(const Gate& i);
  void activate(const Activate& i);
  void to_codes(const ToCodes& i);
  void unary(const Unary& i);
  void binary(const Binary& i);
  void reduce(const Reduce& i);
  /// C++ for an element as f32, or as unsigned integer.
  std::string float_of(RegisterId id, std::int64_t slot) const;
  std::string integer_of(RegisterId id, std::int64_t slot) const;

  // bulk_copy.cpp
  void signal_init(const SignalInit& i);
  void expect(const Expect& i);
  void arrive(const Arrive& i);
  void await(const Await& i);
  void copy_bulk(const CopyBulk& i);
  void copy_rows(const CopyRows& i);
  std::string signal(SignalId id, const Affine& index) const;
  /// " && guard < below", or nothing.
  std::string condition(const Affine& guard, std::int64_t below) const;

  const Program& program_;
  const Dialect& dialect_;
  /// Whose part is being written, what its threads call their number, and how many they are.
  /// Producers' loops, and within those what they do.
  enum class Role { all, consumers, producers, producing } role_ = Role::all;
  std::string_view thread_ = "thread";
  std::int64_t threads_;
  std::ostringstream out_;
  Unrolled unrolled_;
  std::set<std::string> functions_;  // that the text has
  int depth_ = 1;
  bool alternates_ = false;  // halves of the threads are apart
  bool within_ = false;      // other threads of a warp may skip what is being written
};

}  // namespace ladder::codegen
