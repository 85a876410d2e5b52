// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "base/error.h"
#include "device/device.h"
#include "layout/weight_image.h"
#include "program/check.h"
#include "program/program.h"

namespace ladder {
namespace {

class Verifier {
 public:
  explicit Verifier(const Program& program) : program_(program) {}

  void run(std::int64_t max_shared_bytes) {
    if (program_.shared_bytes() > max_shared_bytes) {
      fault("", program_.shared_bytes(), " bytes of shared memory, of ", max_shared_bytes);
    }
    for (const Register& reg : program_.registers) {
      if (reg.width < 0 || reg.width > 31 || (reg.width != 0 && reg.scalar != Scalar::u32)) {
        fault("", reg.name, " has elements of ", reg.width, " bits of ", name_of(reg.scalar));
      }
      if (reg.layout.thread_count() != program_.threads) {
        fault("", reg.name, " is spread over ", reg.layout.thread_count(), " threads of ",
              program_.threads);
      }
    }
    for (const View& view : program_.views) check_view(view);
    body(program_.body);
    if (!faults_.str().empty()) {
      fail<InternalError>("program ", program_.name, " is not well formed:", faults_.str());
    }
  }

 private:
  template <class... Parts>
  void fault(const std::string& where, const Parts&... parts) {
    faults_ << "\n  ";
    (faults_ << ... << parts);
    if (!where.empty()) faults_ << ", in: " << where;
  }

  void report(const std::string& where, const Faults& faults) {
    for (const auto& text : faults) fault(where, text);
  }

  const Register& reg(RegisterId id) const { return program_.registers[id]; }
  const Buffer& buffer(ViewId id) const { return program_.buffers[program_.views[id].buffer]; }

  void check_view(const View& view) {
    const Buffer& buffer = program_.buffers[view.buffer];
    if (view.extents.size() != view.strides.size()) {
      fault("", "a view of ", buffer.name, " has ", view.extents.size(), " extents and ",
            view.strides.size(), " strides");
      return;
    }
    if (buffer.level != Level::shared) return;
    std::int64_t last = 0;
    for (std::size_t d = 0; d < view.extents.size(); ++d) {
      if (view.extents[d] != kTokens) last += (view.extents[d] - 1) * view.strides[d];
    }
    const auto offset = range_of(program_, view.offset);
    if (offset.low < 0 || offset.high + last >= buffer.elements) {
      fault("", "a view of ", buffer.name, " reaches element ", offset.high + last, " of ",
            buffer.elements);
    }
  }

  void access(const std::string& where, const Register& tile, ViewId view,
              const std::vector<Affine>& at) {
    if (tile.scalar != buffer(view).scalar || tile.width != 0) {
      fault(where, type_name(tile), " registers for ", name_of(buffer(view).scalar), " memory");
    }
    if (at.size() != program_.views[view].extents.size() || at.size() != tile.layout.shape.size()) {
      fault(where, "a tile of rank ", tile.layout.shape.size(), " at ", at.size(),
            " coordinates of a view of rank ", program_.views[view].extents.size());
      return;
    }
    for (const Affine& index : at) {
      if (range_of(program_, index).low < 0) fault(where, "a negative index");
    }
    if (buffer(view).level == Level::shared) inside(where, tile.layout, view, at);
  }

  /// Shared views are padded to their tiles: an access that leaves one is a bug, not a border.
  void inside(const std::string& where, const Layout& tile, ViewId id,
              const std::vector<Affine>& at) {
    const View& view = program_.views[id];
    for (std::size_t d = 0; d < at.size(); ++d) {
      if (view.extents[d] == kTokens) continue;
      const auto end = range_of(program_, at[d]).high + tile.shape[d];
      if (end > view.extents[d]) {
        fault(where, "dimension ", d, " reaches ", end, " of ", view.extents[d]);
      }
    }
  }

  void operand(const std::string& where, const char* which, const Register& tile,
               const Layout& fragment) {
    if (tile.layout.shape.size() != 3 || !(tile.layout / lifted(fragment))) {
      fault(where, tile.name, " is not laid out as the ", which, " of the matrix instruction");
    }
  }

  template <class Op>
  void unpacks(const std::string& where, const Op& i, int bits) {
    if (const auto* mma = matrix(where, reg(i.to).scalar)) {
      operand(where, "A operand", reg(i.to), mma->a());
    }
    const auto units = reg(i.to).layout.slot_count() / 8;
    if (units < 1 || kUnits % units != 0 || reg(i.to).layout.slot_count() % 8 != 0) {
      fault(where, reg(i.to).name, " has ", reg(i.to).layout.slot_count(),
            " slots, not one k-step of a block");
    }
    const auto blocks = range_of(program_, i.block), steps = range_of(program_, i.step);
    if ((blocks.high + 1) * units * bits > reg(i.from).layout.slot_count()) {
      fault(where, "block ", blocks.high, " is not among the words loaded");
    }
    if (steps.high >= 4) fault(where, "step ", steps.high, " of a block of 4");
  }

  /// Two of each of the rows that a lane holds, in the order of its slots.
  void zero_operand(const std::string& where, const Register& tile, Scalar operand) {
    if (tile.scalar != operand) fault(where, "zero points of ", name_of(tile.scalar));
    if (!(tile.layout / zero_fragment())) {
      fault(where, tile.name, " is not laid out as the rows of an A operand");
    }
  }

  void table(const std::string& where, ViewId id, int bits) {
    const View& view = program_.views[id];
    const std::vector<std::int64_t> extents{table_entries(bits), kLanes};
    if (buffer(id).level != Level::shared || buffer(id).scalar != Scalar::u32 ||
        view.extents != extents || view.strides != std::vector<std::int64_t>{kLanes, 1}) {
      fault(where, buffer(id).name, " is not a table of ", bits, " bits");
    }
  }

  void has_group(const std::string& where, const Register& tile, const Affine& at,
                 const char* what) {
    const auto groups = tile.layout.shape[0];
    if (const auto group = range_of(program_, at); group.high >= groups) {
      fault(where, "group ", group.high, " of ", groups, " with ", what);
    }
  }

  void repeats(const std::string& where, const Register& to, const Register& from) {
    if (to.layout.slot_count() % from.layout.slot_count() != 0) {
      fault(where, "tiles whose slots do not match");
    }
  }

  void body(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) instruction(statement);
  }

  void same(const std::string& where, const Register& a, const Register& b) {
    if (a.layout != b.layout) fault(where, a.name, " and ", b.name, " are laid out differently");
  }

  void instruction(const Statement& statement) {
    const std::string where = to_string(program_, statement);
    std::visit(
        Match{[&](const Load& i) { access(where, reg(i.to), i.from, i.at); },
              [&](const Store& i) { access(where, reg(i.from), i.to, i.at); },
              [&](const CopyAsync& i) {
                const auto& to = program_.views[i.to];
                if (buffer(i.to).level != Level::shared || buffer(i.from).level != Level::global) {
                  fault(where, "copies go from global to shared memory");
                }
                if (buffer(i.to).scalar != buffer(i.from).scalar) {
                  fault(where, "the two sides differ in their scalar");
                }
                const int bytes = bytes_of(buffer(i.to).scalar);
                if (to.extents.size() != 2 || to.strides[1] != 1 ||
                    to.extents[1] * bytes % 16 != 0 || to.strides[0] * bytes % 16 != 0) {
                  fault(where, "rows that are not whole pieces of 16 bytes");
                }
              },
              [&](const CopyOwn& i) {
                const Scalar scalar = buffer(i.to).scalar;
                access(where, {"copy", scalar, i.to_layout}, i.to, i.to_at);
                access(where, {"copy", scalar, i.from_layout}, i.from, i.from_at);
                for (const Layout* side : {&i.to_layout, &i.from_layout}) {
                  if (side->thread_count() != program_.threads ||
                      side->slot_count() != i.to_layout.slot_count()) {
                    fault(where, "sides that do not match");
                  }
                }
              },
              [&](const LoadMatrix& i) {
                access(where, reg(i.to), i.from, i.at);
                if (const auto* mma = matrix(where, reg(i.to).scalar)) {
                  operand(where, "B operand", reg(i.to), mma->b());
                }
              },
              [&](const Unpack& i) {
                unpacks(where, i, i.bits);
                if (i.zeros >= 0) zero_operand(where, reg(i.zeros), reg(i.to).scalar);
              },
              [&](const UnpackFloat& i) { unpacks(where, i, i.fields.bits); },
              [&](const Lookup& i) {
                unpacks(where, i, i.bits);
                table(where, i.table, i.bits);
              },
              [&](const FillTable& i) {
                table(where, i.to, i.bits);
                if (i.values.size() != std::size_t{1} << i.bits) {
                  fault(where, i.values.size(), " values of ", i.bits, " bits");
                }
              },
              [&](const ZeroOperand& i) {
                zero_operand(where, reg(i.to), reg(i.to).scalar);
                if (reg(i.from).scalar != Scalar::u8) {
                  fault(where, "zero points of ", name_of(reg(i.from).scalar), ", not u8");
                }
                has_group(where, reg(i.from), i.group, "zero points");
              },
              [&](const Offset& i) {
                repeats(where, reg(i.to), reg(i.sum));
                has_group(where, reg(i.zero), i.group, "zero points");
              },
              [&](const Mma& i) {
                const auto* mma = matrix(where, reg(i.a).scalar);
                if (mma == nullptr) return;
                if (reg(i.b).scalar != reg(i.a).scalar || reg(i.acc).scalar != mma->accumulator) {
                  fault(where, "scalars that ", mma->name, " does not take");
                }
                operand(where, "A operand", reg(i.a), mma->a());
                operand(where, "B operand", reg(i.b), mma->b());
                operand(where, "accumulator", reg(i.acc), mma->d());
                const auto &a = reg(i.a).layout.shape, &b = reg(i.b).layout.shape,
                           &acc = reg(i.acc).layout.shape;
                if (a[1] != acc[1] || b[1] != acc[2] || a[2] != b[2] || a[0] != acc[0]) {
                  fault(where, "shapes that do not multiply");
                }
              },
              [&](const Reinterpret& i) {
                if (!can_view(reg(i.from).layout, bits_of(reg(i.from)), reg(i.to).layout,
                              bits_of(reg(i.to)))) {
                  fault(where, "a view that moves bits between threads");
                }
              },
              [&](const Scale& i) {
                same(where, reg(i.to), reg(i.acc));
                if (i.scale >= 0) has_group(where, reg(i.scale), i.group, "scales");
              },
              [&](const Add& i) { repeats(where, reg(i.to), reg(i.from)); },
              [&](const Multiply& i) { repeats(where, reg(i.to), reg(i.from)); },
              [&](const CopyElements& i) {
                const auto& to = program_.views[i.to];
                if (buffer(i.to).level != Level::shared || buffer(i.from).level != Level::global) {
                  fault(where, "copies go from global to shared memory");
                }
                if (buffer(i.to).scalar != buffer(i.from).scalar ||
                    bits_of(buffer(i.to).scalar) != 16) {
                  fault(where, "sides that are not of one scalar of 16 bits");
                }
                if (to.extents.size() != 2 || to.strides[1] != 1 || to.extents[1] % 2 != 0 ||
                    to.strides[0] % 2 != 0) {
                  fault(where, "rows that are not whole words");
                }
                if (i.columns >= 0 && buffer(i.columns).scalar != Scalar::u32) {
                  fault(where, "columns of ", name_of(buffer(i.columns).scalar), ", not u32");
                }
              },
              [&](const Cast& i) { report(where, check(program_, i)); },
              [&](const Ticket& i) {
                if (i.expected != program_.variables[i.result].extent) {
                  fault(where, i.expected, " blocks and a variable of ",
                        program_.variables[i.result].extent);
                }
              },
              [&](const For& i) {
                if (i.trips != program_.variables[i.variable].extent) {
                  fault(where, i.trips, " trips of a variable of ",
                        program_.variables[i.variable].extent);
                }
                body(i.body);
              },
              [&](const If& i) { body(i.body); },
              [&](const ClusterBarrier&) {
                if (program_.cluster == 1) fault(where, "no cluster");
              },
              [&](const AtomicAdd& i) {
                access(where, reg(i.from), i.to, i.at);
                report(where, check(program_, i));
              },
              [&](const SignalInit& i) { report(where, check(program_, i)); },
              [&](const Expect& i) { report(where, check(program_, i)); },
              [&](const Arrive& i) { report(where, check(program_, i)); },
              [&](const Await& i) { report(where, check(program_, i)); },
              [&](const CopyBulk& i) { report(where, check(program_, i)); },
              [&](const Unary& i) { report(where, check(program_, i)); },
              [&](const Binary& i) { report(where, check(program_, i)); },
              [&](const Reduce& i) { report(where, check(program_, i)); },
              // Nothing to check without running.
              [](const Commit&) {}, [](const Wait&) {}, [](const Barrier&) {},
              [](const DependentLaunch&) {}, [](const DependentWait&) {},
              [&](const Fill& i) {
                if (reg(i.to).width != 0)
                  fault(where, reg(i.to).name, " is ", type_name(reg(i.to)));
              }},
        statement.op);
  }

  const MatrixInstruction* matrix(const std::string& where, Scalar operand) {
    const auto* row = tile_instruction(operand);
    if (row == nullptr) fault(where, "no matrix instruction takes ", name_of(operand));
    return row;
  }

  const Program& program_;
  std::ostringstream faults_;
};

}  // namespace

void verify(const Program& program, std::int64_t max_shared_bytes) {
  Verifier(program).run(max_shared_bytes);
}

}  // namespace ladder
