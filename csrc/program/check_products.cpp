// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>
#include <vector>

#include "device/device.h"
#include "program/check.h"

namespace ladder {
namespace {

/// Whether tiles are the operands of an instruction but for the order of its rows, columns and
/// tokens: whatever lanes hold is multiplied, so all that counts is that A and B agree about the
/// column of each k, A and the sums about rows, B and the sums about tokens. B in shared memory has
/// columns and tokens in their order. Products of an instruction that has several sum up columns of
/// their own: those with the same columns, and no others, are one part of the sums.
class Relabelled {
 public:
  Relabelled(int threads, const MatrixInstruction& row, const Layout& a, const Layout& acc)
      : threads_(threads), row_(row), a_(a), acc_(acc) {}

  bool right(const Layout& b) {
    const Layout of_b = row_.b();
    const auto columns = b.slot_count() / of_b.slot_count();
    if (b.shape.size() != 3 || columns < 1 || !fits(row_.d(), columns)) return false;
    for (std::int64_t thread = 0; thread < threads_; ++thread) {
      const auto group = thread / row_.lanes(), lane = thread % row_.lanes();
      for (std::int64_t slot = 0; slot < b.slot_count(); ++slot) {
        const auto in = placed(of_b(lane, slot % of_b.slot_count()));
        const auto at = b(thread, slot);
        same(k_, {group, in[0] * row_.k + in[2]}, at[2]);
        same(tokens_, {group, (slot / of_b.slot_count() * row_.copies + in[0]) * row_.n + in[1]},
             at[1]);
      }
    }
    label(row_.d(), columns);
    return right_;
  }

  /// Of `tokens` tokens.
  bool right_in_shared_memory(int tokens) {
    if (!fits(row_.d(tokens), 1)) return false;
    for (std::int64_t group = 0; group < threads_ / row_.lanes(); ++group) {
      for (int k = 0; k < row_.k; ++k) same(k_, {group, k}, k);
      for (int token = 0; token < tokens; ++token) same(tokens_, {group, token}, token);
    }
    label(row_.d(tokens), 1);
    return right_;
  }

 private:
  bool fits(const Layout& d, std::int64_t columns) const {
    const auto units = a_.slot_count() / row_.a().slot_count();
    return a_.shape.size() == 3 && acc_.shape.size() == 3 &&
           (row_.copies == 1 || row_.parts() > 1) && threads_ % row_.lanes() == 0 && units >= 1 &&
           acc_.slot_count() == units * columns * d.slot_count();
  }

  /// The product of the instruction in front, 0 where there is one.
  std::array<std::int64_t, 3> placed(const std::vector<std::int64_t>& in) const {
    if (row_.copies == 1) return {0, in[0], in[1]};
    return {in[0], in[1], in[2]};
  }

  /// What A and the sums say, these in parts of `d`, of which `columns` have the same rows.
  void label(const Layout& d, std::int64_t columns) {
    const Layout a = row_.a();
    for (std::int64_t thread = 0; thread < threads_; ++thread) {
      const auto group = thread / row_.lanes(), lane = thread % row_.lanes();
      for (std::int64_t slot = 0; slot < a_.slot_count(); ++slot) {
        const auto in = placed(a(lane, slot % a.slot_count()));
        const auto at = a_(thread, slot);
        same(k_, {group, in[0] * row_.k + in[2]}, at[2]);
        same(rows_, {group, (slot / a.slot_count() * row_.copies + in[0]) * row_.m + in[1]}, at[1]);
      }
      for (std::int64_t slot = 0; slot < acc_.slot_count(); ++slot) {
        const auto tile = slot / d.slot_count();
        const auto in = placed(d(lane, slot % d.slot_count()));
        const auto at = acc_(thread, slot);
        same(rows_, {group, (tile / columns * row_.copies + in[0]) * row_.m + in[1]}, at[1]);
        same(tokens_, {group, (tile % columns * row_.copies + in[0]) * row_.n + in[2]}, at[2]);
        if (row_.parts() == 1) continue;
        // Known by its first column, which A has said.
        const auto first = k_[place({group, in[0] * row_.k})], part = at[0] % row_.parts();
        same(parts_, {group, part}, first);
        same(columns_, {group, first}, part);
      }
    }
  }

  /// Of a group of lanes: the row, column or token of the layer that one of the instruction is.
  struct Part {
    std::int64_t group, index;
  };
  using Labels = std::vector<std::int64_t>;
  std::size_t place(Part of) const {
    return static_cast<std::size_t>(of.index * (threads_ / row_.lanes()) + of.group);
  }
  void same(Labels& labels, Part of, std::int64_t label) {
    const auto at = place(of);
    if (at >= labels.size()) labels.resize(at + 1, -1);
    if (labels[at] == -1) labels[at] = label;
    right_ = right_ && labels[at] == label;
  }

  const int threads_;
  const MatrixInstruction& row_;
  const Layout &a_, &acc_;
  Labels k_, rows_, tokens_, parts_, columns_;
  bool right_ = true;
};

/// The same of B in shared memory. Products of a program are alike: what was found of the last is
/// kept.
bool is_relabelled(int threads, const MatrixInstruction& row, const Layout& a, const Layout& acc,
                   int tokens) {
  struct Last {
    int threads;
    const MatrixInstruction* row;
    Layout a, acc;
    int tokens;
    bool right;
  };
  thread_local std::optional<Last> last;
  if (!last || last->threads != threads || last->row != &row || last->tokens != tokens ||
      last->a != a || last->acc != acc) {
    last = {threads, &row,   a,
            acc,     tokens, Relabelled(threads, row, a, acc).right_in_shared_memory(tokens)};
  }
  return last->right;
}

}  // namespace

bool missing(const MatrixInstruction* row, Scalar operand, Faults& faults) {
  if (row == nullptr) add(faults, "no matrix instruction takes ", name_of(operand));
  return row == nullptr;
}

void check_operand(const char* which, const Register& tile, const Layout& fragment,
                   Faults& faults) {
  if (tile.layout.shape.size() != 3 || !(tile.layout / lifted(fragment))) {
    add(faults, tile.name, " is not laid out as the ", which, " of the matrix instruction");
  }
}

Faults check(const Program& program, const Mma& i) {
  Faults faults;
  const Register &a = program.registers[i.a], &b = program.registers[i.b],
                 &acc = program.registers[i.acc];
  if (missing(i.row, a.scalar, faults)) return faults;
  const auto operand = operand_scalar(*i.row);
  const bool codes = a.scalar == Scalar::u8 && operand == Scalar::s8 && i.row->takes_unsigned();
  if ((a.scalar != operand && !codes) || b.scalar != operand || acc.scalar != i.row->accumulator) {
    add(faults, "scalars that ", i.row->name, " does not take");
  }
  if (!i.row->b_in_registers()) {
    add(faults, i.row->name, " reads B from shared memory");
    return faults;
  }
  Faults plain;
  if (i.row->parts() > 1) {
    add(plain, a.name, ", ", b.name, " and ", acc.name, " are not operands of ", i.row->name);
  } else {
    check_operand("A operand", a, i.row->a(), plain);
    check_operand("B operand", b, i.row->b(), plain);
    check_operand("accumulator", acc, i.row->d(), plain);
  }
  if (!plain.empty() &&
      !Relabelled(program.threads, *i.row, a.layout, acc.layout).right(b.layout)) {
    faults.insert(faults.end(), plain.begin(), plain.end());
  }
  const auto &m = a.layout.shape, &n = b.layout.shape, &sum = acc.layout.shape;
  if (m[1] != sum[1] || n[1] != sum[2] || m[2] != n[2] || m[0] * i.row->parts() != sum[0]) {
    add(faults, "shapes that do not multiply");
  }
  return faults;
}

Faults check(const Program& program, const MmaShared& i) {
  Faults faults;
  const Register &a = program.registers[i.a], &acc = program.registers[i.acc];
  const Buffer& buffer = buffer_of(program, i.from);
  if (i.row == nullptr || i.row->b_in_registers()) {
    add(faults, "an instruction that does not read B from shared memory");
    return faults;
  }
  const auto operand = operand_scalar(*i.row);
  const bool codes = a.scalar == Scalar::u8 && operand == Scalar::s8;
  if ((a.scalar != operand && !codes) || buffer.scalar != operand ||
      acc.scalar != i.row->accumulator) {
    add(faults, "scalars that ", i.row->name, " does not take");
  }
  if (i.replaces && acc.scalar != Scalar::f32) {
    add(faults, "sums of ", name_of(acc.scalar), " do not begin at a product");
  }
  if (acc.layout.shape.size() != 3) {
    add(faults, acc.name, " is not [rows, tokens] of warps");
    return faults;
  }
  const auto tokens = acc.layout.shape[2];
  if (tokens % i.row->n != 0 || tokens > i.row->most_n) {
    add(faults, tokens, " tokens, no multiple of ", i.row->n, " up to ", i.row->most_n);
    return faults;
  }
  if (!i.row->takes_tokens(tokens)) {
    add(faults, tokens, " tokens, which ", i.row->name, " does not come with");
    return faults;
  }
  if (!is_relabelled(program.threads, *i.row, a.layout, acc.layout, static_cast<int>(tokens))) {
    add(faults, a.name, " and ", acc.name, " are not operands of ", i.row->name);
  }
  check_shared_operand(program, *i.row, i.from, i.at, tokens, faults);
  return faults;
}

void check_shared_operand(const Program& program, const MatrixInstruction& row, ViewId from,
                          const std::vector<Affine>& at, std::int64_t tokens, Faults& faults) {
  const View& view = program.views[from];
  const Buffer& buffer = buffer_of(program, from);
  const auto panel = 1024 / row.operand_bits();
  if (buffer.level != Level::shared || !view.is_swizzled || view.extents.size() != 4 ||
      at.size() != 4 || view.extents[3] != panel || view.strides[3] != 1 ||
      view.strides[1] != panel || view.strides[0] % (8 * panel) != 0 ||
      view.strides[2] % (8 * panel) != 0 || !multiple_of(at[1], 8) || !multiple_of(at[3], row.k)) {
    add(faults, buffer.name, " is not [tiles, tokens, panels, 128 bytes], swizzled");
    return;
  }
  const std::int64_t shape[] = {1, tokens, 1, row.k};
  for (int d = 0; d < 4; ++d) {
    const auto range = range_of(program, at[d]);
    if (range.low < 0 || range.high + shape[d] > view.extents[d]) {
      add(faults, "dimension ", d, " reaches ", range.high + shape[d], " of ", view.extents[d]);
    }
  }
}

}  // namespace ladder
