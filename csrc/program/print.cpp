// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "program/program.h"

namespace ladder {
namespace {

std::string list(const std::vector<std::int64_t>& values) {
  std::ostringstream out;
  out << '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    out << (i ? ", " : "");
    if (values[i] == kTokens) {
      out << 'm';
    } else {
      out << values[i];
    }
  }
  out << ']';
  return out.str();
}

/// The buffer and where the view starts in it: "ring", "ring{round%3*4096}".
std::string memory(const Program& program, ViewId id) {
  const View& view = program.views[id];
  const auto& name = program.buffers[view.buffer].name;
  return view.offset == Affine(0) ? name : name + '{' + to_string(program, view.offset) + '}';
}

std::string place(const Program& program, ViewId view, const std::vector<Affine>& at) {
  std::ostringstream out;
  out << memory(program, view) << '[';
  for (std::size_t i = 0; i < at.size(); ++i) {
    out << (i ? ", " : "") << to_string(program, at[i]);
  }
  out << ']';
  return out.str();
}

/// " while i + 1 < 8", or nothing for what always happens.
std::string condition(const Program& program, const Affine& guard, std::int64_t below) {
  if (guard.terms.empty() && guard.constant < below) return {};
  return " while " + to_string(program, guard) + " < " + std::to_string(below);
}

std::string signal(const Program& program, SignalId id, const Affine& index) {
  return program.signals[id].name + '[' + to_string(program, index) + ']';
}

/// "operands[block%2] from step*8".
std::string tensor(const Program& program, TensorId id, const Affine& at, const Affine& column) {
  std::string out = program.tensors[id].name;
  if (program.tensors[id].places > 1) out += '[' + to_string(program, at) + ']';
  return column == Affine(0) ? out : out + " from " + to_string(program, column);
}

std::string_view name_of(Items::By by) {
  switch (by) {
    case Items::By::weight: return "weight";
    case Items::By::row: return "row";
    case Items::By::item: return "item";
  }
  return "?";
}

void print_body(const Program& program, const std::vector<Statement>& body, int depth,
                std::ostream& out) {
  for (const Statement& statement : body) {
    out << std::string(2 * depth, ' ') << to_string(program, statement) << '\n';
    if (const auto* loop = std::get_if<For>(&statement.op)) {
      print_body(program, loop->body, depth + 1, out);
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      print_body(program, branch->body, depth + 1, out);
    } else if (const auto* part = std::get_if<Within>(&statement.op)) {
      print_body(program, part->body, depth + 1, out);
    } else if (const auto* part = std::get_if<Produce>(&statement.op)) {
      print_body(program, part->body, depth + 1, out);
    } else if (const auto* part = std::get_if<Alternate>(&statement.op)) {
      print_body(program, part->body, depth + 1, out);
    }
  }
}

/// "2^24|2^20" by parity of eight rows.
std::string powers(const int exponent[2]) {
  const auto first = "2^" + std::to_string(exponent[0]);
  return exponent[1] == exponent[0] ? first : first + "|2^" + std::to_string(exponent[1]);
}

}  // namespace

std::string to_string(const Program& program, const Affine& affine) {
  std::ostringstream out;
  bool first = true;
  for (const auto& term : affine.terms) {
    const auto& name = program.variables[term.variable].name;
    out << (first ? "" : " + ");
    if (term.offset != 0) {
      out << '(' << name << " + " << term.offset << ')';
    } else {
      out << name;
    }
    if (term.divisor != 1) out << '/' << term.divisor;
    if (term.modulus != 0) out << '%' << term.modulus;
    if (term.factor != 1) out << '*' << term.factor;
    first = false;
  }
  if (first || affine.constant != 0) out << (first ? "" : " + ") << affine.constant;
  return out.str();
}

std::string to_string(const Program& program, const Statement& statement) {
  std::ostringstream out;
  auto reg = [&](RegisterId id) { return program.registers[id].name; };
  auto group = [&](RegisterId id, const Affine& at) {
    return reg(id) + '[' + to_string(program, at) + ']';
  };
  std::visit(
      Match{
          [&](const Load& i) {
            out << reg(i.to) << " = load " << place(program, i.from, i.at);
            if (i.remote) out << " of rank " << to_string(program, i.rank);
            if (i.cache == Cache::once) out << " once";
            if (i.cache == Cache::now) out << " now";
            if (i.any_token) out << " of any tokens";
          },
          [&](const Store& i) {
            out << "store " << place(program, i.to, i.at) << " = " << reg(i.from);
          },
          [&](const CopyAsync& i) {
            out << "copy_async " << memory(program, i.to) << " = " << place(program, i.from, i.at)
                << condition(program, i.guard, i.below);
          },
          [&](const CopyOwn& i) {
            out << "copy_own " << place(program, i.to, i.to_at) << " = "
                << place(program, i.from, i.from_at) << " while " << to_string(program, i.guard)
                << " < " << i.below;
          },
          [&](const Commit&) { out << "commit"; },
          [&](const Wait& i) { out << "wait pending<=" << i.pending; },
          [&](const Barrier& i) {
            out << "barrier"
                << (i.half == Half::first    ? " of the first half"
                    : i.half == Half::second ? " of the second half"
                                             : "");
          },
          [&](const Priority& i) { out << (i.raised ? "priority" : "no priority"); },
          [&](const Alternate&) { out << "alternate"; },
          [&](const ClusterBarrier& i) {
            out << "cluster_barrier" << (i.signals_only ? " for signals" : "");
          },
          [&](const DependentLaunch&) { out << "dependent_launch"; },
          [&](const DependentWait&) { out << "dependent_wait"; },
          [&](const LoadMatrix& i) {
            out << reg(i.to) << " = load_matrix " << place(program, i.from, i.at);
          },
          [&](const LoadUnits& i) {
            out << reg(i.to) << " = load_units " << place(program, i.from, i.at);
          },
          [&](const Unpack& i) {
            out << reg(i.to) << " = unpack u" << i.bits << (i.three ? " of three " : " ")
                << reg(i.from) << " block " << to_string(program, i.block) << " step "
                << to_string(program, i.step);
            if (i.in_place) {
              out << " in place";
            } else {
              if (i.shift != 0) out << " times 2^" << i.shift;
              out << " - " << i.zero << " times 2^" << i.exponent;
              if (i.zeros >= 0) out << " + " << reg(i.zeros);
              if (i.ones) out << " from ones";
              if (i.scales >= 0) out << " * " << group(i.scales, i.group);
            }
          },
          [&](const MmaShared& i) {
            out << reg(i.acc) << (i.replaces ? " = mma " : " += mma ") << reg(i.a) << ", "
                << place(program, i.from, i.at);
          },
          [&](const MmaWait& i) {
            out << "mma_wait pending<=" << i.pending;
            for (const RegisterId sums : i.sums) {
              out << (sums == i.sums.front() ? " for " : ", ") << reg(sums);
            }
          },
          [&](const MatrixFence&) { out << "matrix_fence"; },
          [&](const TensorStore& i) {
            out << tensor(program, i.to, i.place, i.column) << " = tensor_store " << reg(i.from);
          },
          [&](const TensorWait&) { out << "tensor_wait"; },
          [&](const TensorFence& i) { out << "tensor_fence " << (i.after ? "after" : "before"); },
          [&](const TensorMma& i) {
            out << program.tensors[i.sums].name << " += tensor_mma "
                << tensor(program, i.a, i.place, i.column) << ", " << place(program, i.from, i.at)
                << " from step " << to_string(program, i.step);
          },
          [&](const TensorCommit& i) {
            out << "tensor_commit " << signal(program, i.signal, i.index);
          },
          [&](const TensorLoad& i) {
            out << reg(i.to) << " = tensor_load " << tensor(program, i.from, 0, i.column);
          },
          [&](const Mma& i) { out << reg(i.acc) << " += mma " << reg(i.a) << ", " << reg(i.b); },
          [&](const Fill& i) {
            out << reg(i.to) << " = " << i.value[0];
            if (i.value[1] != i.value[0]) out << '|' << i.value[1];
          },
          [&](const Reinterpret& i) { out << reg(i.to) << " = view " << reg(i.from); },
          [&](const Scale& i) {
            out << reg(i.to) << (i.accumulate ? " += " : " = ");
            i.biased ? out << '(' << reg(i.acc) << " - " << kSumBias << ") * "
                     : out << reg(i.acc) << " * ";
            if (i.scale >= 0) out << group(i.scale, i.group) << " * ";
            out << powers(i.exponent);
          },
          [&](const UnpackFloat& i) {
            out << reg(i.to) << " = unpack f" << i.fields.bits << ' ' << reg(i.from) << " block "
                << to_string(program, i.block) << " step " << to_string(program, i.step)
                << " at bit " << i.fields.place << (i.fields.halved ? " halved" : "")
                << (i.fields.converted ? " converted" : "") << " times " << i.fields.factor;
            if (i.scales >= 0) out << " * " << group(i.scales, i.group);
          },
          [&](const ScaleOperand& i) {
            out << reg(i.to) << " *= " << group(i.scales, i.group) << " * 2^" << i.exponent;
          },
          [&](const Lookup& i) {
            out << reg(i.to) << " = lookup u" << i.bits << ' ' << reg(i.from) << " block "
                << to_string(program, i.block) << " step " << to_string(program, i.step) << " in "
                << program.buffers[program.views[i.table].buffer].name;
          },
          [&](const FillTable& i) {
            out << "fill_table " << program.buffers[program.views[i.to].buffer].name << " of u"
                << i.bits;
          },
          [&](const FillWords& i) {
            out << "fill_words " << program.buffers[program.views[i.to].buffer].name << " of "
                << i.values.size();
          },
          [&](const LargestScale& i) {
            out << reg(i.to) << " = largest of " << i.count << " from " << group(i.scales, i.first);
          },
          [&](const TimesSecond& i) {
            out << reg(i.to) << " = " << reg(i.numbers) << " * " << reg(i.seconds);
          },
          [&](const LookupRelative& i) {
            out << reg(i.to) << " = lookup " << reg(i.from) << " block "
                << to_string(program, i.block) << " step " << to_string(program, i.step) << " in "
                << program.buffers[program.views[i.table].buffer].name << " by "
                << group(i.scales, i.group) << " below " << reg(i.largest);
          },
          [&](const ZeroOperand& i) {
            const bool bytes = program.registers[i.to].scalar == Scalar::u8;
            out << reg(i.to) << (bytes ? " = " : " = -") << group(i.from, i.group) << " * 2^"
                << i.exponent;
          },
          [&](const Offset& i) {
            out << reg(i.to) << " += " << group(i.zero, i.group) << " * " << reg(i.sum) << " * "
                << powers(i.exponent);
            if (i.less != 0) out << ", less " << i.less;
          },
          [&](const Spread& i) { out << reg(i.to) << " = spread " << reg(i.from); },
          [&](const Gate& i) {
            out << reg(i.to) << " = gate " << to_string(i.gating) << ' ' << reg(i.from);
          },
          [&](const Activate& i) { out << reg(i.to) << " = " << name_of(i.what) << " itself"; },
          [&](const ToCodes& i) {
            out << reg(i.to) << " = codes of " << reg(i.from) << " * 1/" << reg(i.scale);
          },
          [&](const Multiply& i) { out << reg(i.to) << " *= " << reg(i.from); },
          [&](const UnpackBytes& i) {
            out << reg(i.to) << " = unpack_bytes " << (i.mantissa_bits ? "f" : "u") << i.bits;
            if (i.mantissa_bits) out << " of mantissa " << *i.mantissa_bits;
            if (i.shift != 0) out << " * 2^" << i.shift;
            out << (i.three ? " of three " : " ") << reg(i.from) << " block "
                << to_string(program, i.block) << " step " << to_string(program, i.step);
            if (i.zeros >= 0) out << " - " << reg(i.zeros);
            if (i.zero != 0) out << " - " << i.zero;
            if (i.below_sign) out << " below the sign";
            if (i.scales >= 0) out << " * " << group(i.scales, i.group);
          },
          [&](const SplitDigits& i) {
            out << "split_digits " << program.buffers[program.views[i.to].buffer].name << ", "
                << reg(i.unit) << " = " << place(program, i.from, i.at);
            if (i.columns >= 0) {
              out << " by " << program.buffers[program.views[i.columns].buffer].name;
            }
          },
          [&](const JoinDigits& i) {
            out << reg(i.to) << " = join_digits " << reg(i.to) << ", " << reg(i.unit);
          },
          [&](const CopyElements& i) {
            out << "copy_elements " << memory(program, i.to) << " = "
                << place(program, i.from, i.at);
            if (i.columns >= 0) {
              out << " by " << program.buffers[program.views[i.columns].buffer].name;
            }
            out << condition(program, i.guard, i.below);
          },
          [&](const Add& i) { out << reg(i.to) << " += " << reg(i.from); },
          [&](const Cast& i) { out << reg(i.to) << " = cast " << reg(i.from); },
          [&](const Ticket& i) {
            out << program.variables[i.result].name << " = ticket "
                << place(program, i.counters, i.at) << " of " << i.expected;
          },
          [&](const For& i) {
            out << "for " << program.variables[i.variable].name << " in 0.." << i.trips - 1
                << (i.unroll ? " rolled" : "");
            if (i.tail_trips > 0) out << ", in the tail in 0.." << i.tail_trips - 1;
          },
          [&](const If& i) {
            out << "if " << program.variables[i.variable].name << " == " << i.value;
          },
          [&](const Within& i) {
            out << "within " << place(program, i.view, i.at) << " by " << reg(i.tile);
          },
          [&](const Produce&) { out << "produce"; },
          [&](const SignalInit& i) {
            const Signal& s = program.signals[i.signal];
            out << "signal_init " << s.name << '[' << s.count << "] of " << s.arrivals
                << " arrivals";
          },
          [&](const Expect& i) {
            out << "expect " << signal(program, i.signal, i.index) << ", " << i.bytes << " bytes"
                << condition(program, i.guard, i.below);
          },
          [&](const Arrive& i) {
            out << "arrive " << signal(program, i.signal, i.index)
                << (i.by == Arrival::copies ? " with copies" : "");
          },
          [&](const Await& i) {
            out << "await " << signal(program, i.signal, i.index) << " parity "
                << to_string(program, i.parity);
          },
          [&](const CopyBulk& i) {
            out << "copy_bulk " << memory(program, i.to) << " = " << place(program, i.from, i.at)
                << " on " << signal(program, i.signal, i.index)
                << condition(program, i.guard, i.below);
          },
          [&](const CopyRows& i) {
            out << "copy_rows " << memory(program, i.to) << " = "
                << place(program, i.from, {0, i.at}) << (i.multicast ? " to the cluster" : "")
                << " on " << signal(program, i.signal, i.index);
          },
          [&](const Unary& i) { out << reg(i.to) << " = " << name_of(i.op) << ' ' << reg(i.from); },
          [&](const Binary& i) {
            out << reg(i.to) << " = " << name_of(i.op) << ' ' << reg(i.a) << ", " << reg(i.b);
          },
          [&](const Reduce& i) {
            out << reg(i.to) << " = reduce " << name_of(i.op) << ' ' << reg(i.from) << " along "
                << i.dim;
            if (i.scratch >= 0) out << " through " << program.buffers[i.scratch].name;
          },
          [&](const AtomicAdd& i) {
            out << "atomic_add " << place(program, i.to, i.at) << " += " << reg(i.from)
                << " in any order";
          }},
      statement.op);
  return out.str();
}

std::string to_string(const Program& program) {
  std::ostringstream out;
  const auto [x, y] = program.grid();
  out << "program " << program.name << ": " << x << " x " << y << " blocks of " << program.threads
      << " threads";
  if (program.roles) out << " that consume and " << program.roles->producers << " that produce";
  if (program.cluster > 1) {
    out << ", clusters of " << program.cluster << (program.tiles_in_cluster ? " tiles" : "");
  }
  if (program.tail) {
    out << ", " << program.variables[kSplit].extent << " of each tile from " << program.tail->first
        << " on";
  }
  out << ", " << program.shared_bytes() << " bytes shared\n";
  for (const Buffer& buffer : program.buffers) {
    out << (buffer.level == Level::global ? "global " : "shared ") << buffer.name << ' '
        << name_of(buffer.scalar);
    for (const View& view : program.views) {
      if (&program.buffers[view.buffer] != &buffer) continue;
      out << ' ' << list(view.extents) << " strides " << list(view.strides);
      if (view.offset != Affine(0)) out << " from " << to_string(program, view.offset);
      if (view.is_swizzled) out << " swizzled";
      if (view.windows) out << " of " << to_string(*view.windows);
    }
    out << '\n';
  }
  if (program.first_token) {
    out << "blocks from token " << to_string(program, *program.first_token) << " on\n";
  }
  for (const Tensor& t : program.tensors) {
    out << "tensor " << t.name << " 128 lanes x " << t.columns << " columns of " << t.products
        << (t.products == 1 ? " product" : " products");
    if (t.places > 1) out << ", " << t.places << " places";
    out << '\n';
  }
  if (program.items) {
    const Items& items = *program.items;
    if (items.table >= 0) {
      out << "for each item of " << program.buffers[items.table].name;
    } else {
      out << "for each item of " << items.rows << " rows";
      if (items.weights > 1) out << " of " << items.weights << " weights";
    }
    if (program.items->together > 1) out << ", " << program.items->together << " together";
    for (const auto& [buffer, by, elements] : program.items->shifts) {
      out << ", " << program.buffers[buffer].name << " + " << elements << " a " << name_of(by);
    }
    out << '\n';
  }
  for (const Register& reg : program.registers) {
    out << "register " << reg.name << ' ' << type_name(reg) << ' ' << to_string(reg.layout) << '\n';
  }
  print_body(program, program.body, 0, out);
  return out.str();
}

}  // namespace ladder
