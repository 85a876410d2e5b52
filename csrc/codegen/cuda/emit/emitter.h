// SPDX-License-Identifier: Apache-2.0
//
// Writes one kernel, an instruction at a time, each in a block of its own under a comment that is
// the instruction's print. Registers become arrays of 32-bit words that only constants index, so
// that the compiler keeps them in registers: variables that index them are unrolled here. Internal
// to csrc/codegen/cuda/emit: emit.cpp has the frame and the control flow, memory.cpp,
// bulk_copy.cpp, arithmetic.cpp and elementwise.cpp the instructions, access.h how a tile is read
// and written.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/cuda/emit/access.h"
#include "program/program.h"

namespace ladder::cuda {

class Emitter {
 public:
  explicit Emitter(const Program& program) : program_(program) {}

  /// The whole text; once per object.
  std::string run();

 private:
  // emit.cpp
  void signature();
  void declarations();
  void ticket_results(const std::vector<Statement>& statements);
  void body(const std::vector<Statement>& statements, int depth);
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
  void load(const Load& i);
  void store(const Store& i);
  void copy(const CopyAsync& i);
  void copy_own(const CopyOwn& i);
  void load_matrix(const LoadMatrix& i);
  void ticket(const Ticket& i);
  void atomic_add(const AtomicAdd& i);
  /// Spreads the words of `v` over the registers from word `first`.
  std::string assign(RegisterId id, std::int64_t first, std::int64_t count) const;
  std::string word_of(RegisterId id, std::int64_t index) const;

  // arithmetic.cpp
  void unpack(const Unpack& i);
  void mma(const Mma& i);
  void fill(const Fill& i);
  void reinterpret_bits(const Reinterpret& i);
  void scale(const Scale& i);
  void add(const Add& i);

  // elementwise.cpp
  void cast(const Cast& i);
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
  std::string signal(SignalId id, const Affine& index) const;
  /// " && guard < below", or nothing.
  std::string condition(const Affine& guard, std::int64_t below) const;

  const Program& program_;
  std::ostringstream out_;
  Unrolled unrolled_;
  int depth_ = 1;
};

}  // namespace ladder::cuda
