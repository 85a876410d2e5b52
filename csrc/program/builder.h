// SPDX-License-Identifier: Apache-2.0
//
// Writes a tile program by hand, an instruction a call:
//
//     Builder p("negated", {.x = 4, .threads = 64});
//     const auto x = p.input("x", Scalar::f32, {256, 16});
//     const auto y = p.output("y", Scalar::f32, {256, 16});
//     const auto tile = p.load(x, {times(p.x(), 64), 0}, spatial({64, 1}) * local({1, 16}));
//     p.store(p.unary(UnaryOp::negate, tile), y, {times(p.x(), 64), 0});
//     const Program program = with_barriers(p.finish());
//
// Handles are numbers and belong to their builder. What cannot be right for any program is refused
// here; the rest is what verify() and interpret() are for.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace ladder {

/// What a register tile holds.
struct ElementType {
  Scalar scalar;
  int width = 0;                                             ///< as Register::width
  ElementType(Scalar s, int w = 0) : scalar(s), width(w) {}  // NOLINT: a scalar is a type
  /// Of "f16", "bf16", "f32", "u32" or "u1" to "u31". Throws InvalidArgument for others.
  static ElementType of(std::string_view name);
};

struct Tile {
  RegisterId id;
};
/// Memory seen as an array.
struct Array {
  ViewId id;
};
struct SignalHandle {
  SignalId id;
};

/// Blocks, threads of each.
struct Grid {
  std::int64_t x = 1, y = 1;
  int threads = 128;
};

/// Names that a kernel's text has a use for; no buffer, tile, loop or signal may have one.
bool is_reserved(std::string_view name);

class Builder {
 public:
  using At = std::vector<Affine>;
  using Extents = std::vector<std::int64_t>;

  Builder(std::string name, Grid grid);

  /// The block's numbers.
  Affine x() const { return Affine::of(kSplit); }
  Affine y() const { return Affine::of(kTile); }

  // Memory. Parameters of the kernel are inputs and outputs in order of their calls;
  // arrays are row-major unless `strides` (in elements) say else. kTokens as an extent is the
  // number of tokens of the call.
  Array input(std::string name, Scalar scalar, Extents extents, Extents strides = {});
  Array output(std::string name, Scalar scalar, Extents extents, Extents strides = {});
  Array shared(std::string name, Scalar scalar, Extents extents, Extents strides = {});
  /// The same memory as another array.
  Array view(Array of, Extents extents, Extents strides = {}, Affine offset = 0);

  // Tiles. An empty name is replaced by a number.
  Tile tile(ElementType type, Layout layout, std::string name = "");
  Tile load(Array from, At at, Layout layout, std::string name = "");
  void store(Tile from, Array to, At at);
  void atomic_add(Tile from, Array to, At at);
  Tile fill(ElementType type, Layout layout, double value, std::string name = "");
  /// The bits of `from` under another layout and type.
  Tile view(Tile from, ElementType type, Layout layout, std::string name = "");
  Tile cast(Tile from, ElementType type, std::string name = "");
  Tile unary(UnaryOp op, Tile from, std::string name = "");
  /// The result is laid out as the operand with more elements.
  Tile binary(BinaryOp op, Tile a, Tile b, std::string name = "");
  Tile binary(BinaryOp op, Tile a, double b, std::string name = "");
  /// to = op(to, with): for sums that a loop carries.
  void update(BinaryOp op, Tile to, Tile with);
  Tile reduce(ReduceOp op, Tile from, int dim, std::string name = "");
  Tile load_matrix(Array from, At at, Layout layout, std::string name = "");
  void mma(Tile acc, Tile a, Tile b);
  /// By an instruction of another shape, or of another machine.
  void mma_by(const MatrixInstruction* row, Tile acc, Tile a, Tile b);

  // Copies and order.
  void copy_async(Array to, Array from, At at);
  void commit();
  void wait(int pending);
  void barrier();
  SignalHandle signal(std::string name, std::int64_t count, int arrivals = 1);
  void signal_init(SignalHandle signal);
  void expect(SignalHandle signal, Affine index, std::int64_t bytes);
  void arrive(SignalHandle signal, Affine index);
  void await(SignalHandle signal, Affine index, Affine parity);
  void copy_bulk(Array to, Array from, At at, SignalHandle signal, Affine index);

  // Control. Each begin_ is closed by end(); loop() does both.
  /// `unroll` 0: written out; else a loop, so many trips at a time.
  Affine begin_for(std::string name, std::int64_t trips, int unroll = 1);
  void begin_if(const Affine& variable, std::int64_t value);
  void end();
  void loop(std::string name, std::int64_t trips, const std::function<void(Affine)>& body,
            int unroll = 1);

  const Register& info(Tile tile) const { return program_.registers[tile.id]; }
  /// The program so far; all loops must have ended. Throws InvalidArgument otherwise.
  Program finish() const;

 private:
  template <class Op>
  void emit(Op op) {
    bodies_.back().push_back({std::move(op)});
  }
  Array memory(std::string name, Level level, Scalar scalar, Extents extents, Extents strides,
               bool constant);
  Array add_view(BufferId buffer, Extents extents, Extents strides, Affine offset);
  std::string named(std::string name, const char* otherwise);

  Program program_{};
  std::vector<std::vector<Statement>> bodies_;
  std::vector<Statement> open_;  // the For or If of each body but the first, still empty
  int numbered_ = 0;
};

}  // namespace ladder
