// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/emit/emitter.h"

namespace ladder::codegen {

namespace {

/// True when a statement needs what is in Preludes::tiles.
bool uses_tiles(const Program& program, const std::vector<Statement>& statements) {
  const auto body = [&](const auto& i) { return uses_tiles(program, i.body); };
  return std::any_of(statements.begin(), statements.end(), [&](const Statement& statement) {
    return std::visit(
        Match{[&](const For& i) { return body(i); }, [&](const If& i) { return body(i); },
              [&](const Within& i) { return body(i); }, [&](const Produce& i) { return body(i); },
              [&](const Alternate& i) { return body(i); },
              [&](const Cast& i) { return program.registers[i.to].scalar == Scalar::u32; },
              answer(Group<SignalInit, Unary, Binary, Reduce, AtomicAdd>{}, true),
              answer(InTime{}, false), answer(Group<Expect, Arrive, Await>{}, false),
              answer(Group<Load, Store, CopyAsync, CopyOwn, CopyBulk, CopyRows, CopyElements,
                           LoadMatrix, LoadUnits, MmaShared, TensorMma, SplitDigits, Ticket>{},
                     false),
              answer(OnTables{}, false), answer(InTensorMemory{}, false),
              answer(Group<TensorCommit>{}, false),
              answer(Group<Unpack, UnpackBytes, UnpackFloat, ScaleOperand, LargestScale,
                           TimesSecond, ZeroOperand, Offset, Mma, Fill, Reinterpret, Scale, Add,
                           Multiply, Spread, Gate, Activate, ToCodes, JoinDigits>{},
                     false)},
        statement.op);
  });
}

/// Some `Op` among the statements, at any depth, is such.
template <class Op>
bool has(const std::vector<Statement>& statements, const std::function<bool(const Op&)>& such) {
  return std::ranges::any_of(statements, [&](const Statement& statement) {
    if (const auto* op = std::get_if<Op>(&statement.op)) return such(*op);
    return std::visit(
        [&](const auto& i) {
          if constexpr (requires { i.body; }) return has<Op>(i.body, such);
          return false;
        },
        statement.op);
  });
}

}  // namespace

bool Emitter::has_halves() const {
  return has<Alternate>(program_.body, [](const Alternate&) { return true; });
}

std::string Emitter::run() {
  out_ << dialect_.preludes.common() << '\n';
  const bool small_scales = std::ranges::any_of(program_.registers, [](const Register& r) {
    return r.scalar == Scalar::e8m0 || r.scalar == Scalar::e4m3;
  });
  const bool operands =
      has<ScaleOperand>(program_.body, [](const ScaleOperand&) { return true; }) ||
      has<Unpack>(program_.body, [](const Unpack& i) { return i.scales >= 0; });
  const bool conversions =
      has<UnpackFloat>(program_.body, [](const UnpackFloat& i) { return i.fields.converted; });
  if (small_scales || operands || conversions) out_ << dialect_.preludes.scales() << '\n';
  const auto of_digits = [](const auto& named) {
    return named.scalar == Scalar::s8 || named.scalar == Scalar::s32;
  };
  if (std::ranges::any_of(program_.registers, of_digits) ||
      std::ranges::any_of(program_.buffers, of_digits)) {
    if (dialect_.preludes.digits == nullptr) fail<Unsupported>("no digits of activations");
    out_ << dialect_.preludes.digits() << '\n';
  }
  const auto by_quad_pairs = [](const Mma& i) { return i.row->fragment == Fragment::quad_pairs; };
  if (has<Mma>(program_.body, by_quad_pairs)) {
    if (dialect_.preludes.quad_pairs == nullptr) fail<Unsupported>("no products by quad pairs");
    out_ << dialect_.preludes.quad_pairs() << '\n';
  }
  const auto by_warps = [&](const Mma& i) { return has_fields_of_e4m3(reg(i.a).scalar); };
  if (has<Mma>(program_.body, by_warps)) {
    if (dialect_.preludes.e4m3 == nullptr) fail<Unsupported>("no products of e4m3");
    out_ << dialect_.preludes.e4m3() << '\n';
  }
  const auto wholes = [&](const UnpackBytes& i) {
    return has_fields_of_e4m3(reg(i.to).scalar) && i.has_zero();
  };
  if (has<UnpackBytes>(program_.body, wholes)) {
    if (dialect_.preludes.wholes == nullptr) fail<Unsupported>("no integers in e4m3");
    out_ << dialect_.preludes.wholes() << '\n';
  }
  if (has<LookupRelative>(program_.body, [](const LookupRelative&) { return true; })) {
    if (dialect_.preludes.relative == nullptr) fail<Unsupported>("no relative scales");
    out_ << dialect_.preludes.relative() << '\n';
  }
  if (has<Gate>(program_.body, [](const Gate&) { return true; }) ||
      has<Activate>(program_.body, [](const Activate&) { return true; })) {
    out_ << dialect_.preludes.gates() << '\n';
  }
  if (has<ToCodes>(program_.body, [](const ToCodes&) { return true; })) {
    out_ << dialect_.preludes.codes() << '\n';
  }
  if (uses_tiles(program_, program_.body)) out_ << dialect_.preludes.tiles() << '\n';
  if (program_.roles) {
    if (dialect_.preludes.roles == nullptr) fail<Unsupported>("no producers");
    out_ << dialect_.preludes.roles() << '\n';
  }
  if (std::ranges::any_of(program_.views, &View::is_swizzled)) {
    if (dialect_.preludes.products == nullptr) fail<Unsupported>("no swizzled activations");
    out_ << dialect_.preludes.products() << '\n';
    products(program_.body);
  }
  if (!program_.tensors.empty()) {
    if (dialect_.preludes.tensors == nullptr) fail<Unsupported>("no tensor memory");
    out_ << dialect_.preludes.tensors() << '\n';
  }
  if (has_halves()) {
    if (dialect_.preludes.phases == nullptr) fail<Unsupported>("no halves that alternate");
    out_ << dialect_.preludes.phases() << '\n';
  }
  table_values(program_.body);
  signature();
  if (program_.items) item();
  declarations();
  if (!program_.tensors.empty()) tensors_begin();
  const auto first = program_.body.begin(),
             parting = first + static_cast<std::ptrdiff_t>(common_statements(program_));
  body({first, parting}, 1);
  if (program_.roles) producers({parting, program_.body.end()});
  body({parting, program_.body.end()}, 1);
  if (!program_.tensors.empty()) tensors_end();
  out_ << "}\n";
  return out_.str();
}

/// What the warps behind the consumers do; they end there.
void Emitter::producers(std::span<const Statement> statements) {
  const Roles& roles = *program_.roles;
  depth_ = 1;
  line("if (thread >= ", program_.threads, "u) {  // producers");
  depth_ = 2;
  line("fewer_registers<", roles.producer_registers, ">();");
  line("const u32 producer = thread - ", program_.threads, "u;");
  thread_ = "producer", threads_ = roles.producers;
  role_ = Role::producers;
  body(statements, 2);
  role_ = Role::consumers;
  thread_ = "thread", threads_ = program_.threads;
  depth_ = 2;
  line("copies_end();");
  line("return;");
  depth_ = 1;
  line("}");
  line("more_registers<", roles.consumer_registers, ">();");
}

std::int64_t Emitter::words(RegisterId id) const {
  return (reg(id).layout.slot_count() * bits_of(reg(id)) + 31) / 32;
}

const char* Emitter::type_of(Scalar scalar) {
  if (scalar == Scalar::f32) return "float";
  return bits_of(scalar) == 32 ? "u32" : bits_of(scalar) == 16 ? "u16" : "u8";
}

void Emitter::signature() {
  out_ << dialect_.heading(program_) << '\n' << program_.name << '(';
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.level != Level::global) continue;
    out_ << (buffer.constant ? "const " : "") << type_of(buffer.scalar) << "* __restrict__ "
         << buffer.name << ", ";
  }
  out_ << "u32 tokens) {\n";
}

/// Buffers and tokens of the block's item.
void Emitter::item() {
  // The table may be the preceding kernel's.
  if (program_.dependent_launch) line("dependent_wait();");
  std::string number(dialect_.item);
  if (const auto together = program_.items->together; together > 1) {
    line("const u32 number = ", dialect_.item, " * ", together, " + ", dialect_.tile, " % ",
         together, ";");
    number = "number";
  }
  const Items& items = *program_.items;
  if (items.table >= 0) {
    line("const u32* const item = ", program_.buffers[items.table].name, " + ", number, " * ",
         kItemWords, ";");
    line("tokens = item[2];");
    line("if (tokens == 0) return;");
  } else {
    line("const u32 of_weight = (tokens + ", items.rows - 1, "u) / ", items.rows, "u;");
    line("const u32 at_row = ", number, " % of_weight * ", items.rows, "u;");
    line("const u32 item[2] = {", number, " / of_weight, ", number,
         " / of_weight * tokens + at_row};");
    if (items.together > 1) line("if (item[0] >= ", items.weights, "u) return;");
    line("tokens = tokens - at_row < ", items.rows, "u ? tokens - at_row : ", items.rows, "u;");
  }
  for (const auto& [buffer, by, elements] : program_.items->shifts) {
    const std::string which = by == Items::By::weight ? "item[0]"
                              : by == Items::By::row  ? "item[1]"
                                                      : number;
    const auto& name = program_.buffers[buffer].name;
    const auto step = joined("(unsigned long long)", which, " * ", elements);
    // No branch, behind which clang would not know that the pointer is one of global memory.
    const bool optional = program_.buffers[buffer].optional;
    line(name, " += ", optional ? joined(name, " != nullptr ? ", step, " : 0") : step, ";");
  }
}

void Emitter::declarations() {
  int alignment = kSharedAlignment;
  for (const Buffer& buffer : program_.buffers) alignment = std::max(alignment, buffer.alignment);
  line(dialect_.shared_memory(alignment));
  coordinates();
  if (program_.first_token) line("if (", expr(*program_.first_token), " >= tokens) return;");
  if (program_.cluster > 1) line("const u32 rank = cluster_rank();");
  for (std::size_t id = 0; id < program_.buffers.size(); ++id) {
    const Buffer& buffer = program_.buffers[id];
    if (buffer.level != Level::shared) continue;
    line(type_of(buffer.scalar), "* const ", buffer.name, " = (", type_of(buffer.scalar),
         "*)(shared + ", program_.shared_offset(static_cast<BufferId>(id)), ");");
  }
  for (std::size_t id = 0; id < program_.signals.size(); ++id) {
    line("const u32 ", program_.signals[id].name, " = shared_address(shared + ",
         program_.signal_offset(static_cast<SignalId>(id)), ");");
  }
  ticket_results(program_.body);
  for (std::size_t id = 0; id < program_.registers.size(); ++id) {
    const Register& reg = program_.registers[id];
    line(reg.scalar == Scalar::f32   ? "float "
         : reg.scalar == Scalar::s32 ? "int "
                                     : "u32 ",
         reg.name, '[', words(static_cast<RegisterId>(id)), "];");
  }
}

void Emitter::coordinates() {
  if (!program_.tail) {
    // Where halves alternate the number of the thread is another variable behind them.
    const char* const constant = has_halves() ? "" : "const ";
    return line(constant, "u32 thread = ", dialect_.thread, ", split = ", dialect_.split,
                ", tile = ", dialect_.tile, ";");
  }
  const auto& [first, is_tail, of_tail] = *program_.tail;
  const auto splits = program_.variables[kSplit].extent;
  const auto &in = program_.variables[is_tail].name, &at = program_.variables[of_tail].name;
  line("const u32 thread = ", dialect_.thread, ", block = ", dialect_.tile, ", ", in,
       " = block >= ", first, "u;");
  line("const u32 ", at, " = ", in, " ? (block - ", first, "u) / ", splits, "u : 0u;");
  line("const u32 split = ", in, " ? (block - ", first, "u) % ", splits, "u : 0u;");
  line("const u32 tile = ", in, " ? ", first, "u + ", at, " : block;");
}

void Emitter::ticket_results(const std::vector<Statement>& statements) {
  for (const Statement& statement : statements) {
    if (const auto* i = std::get_if<Ticket>(&statement.op)) {
      line("u32 ", program_.variables[i->result].name, ";");
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      ticket_results(branch->body);
    }
  }
}

std::int64_t Emitter::constant(const Affine& affine) const {
  auto sum = affine.constant;
  for (const auto& term : affine.terms) {
    const auto value = unrolled_.find(term.variable);
    LADDER_CHECK(value != unrolled_.end(), "a register index depends on ",
                 program_.variables[term.variable].name);
    sum += term.at(value->second);
  }
  return sum;
}

void Emitter::body(std::span<const Statement> statements, int depth) {
  for (const Statement& statement : statements) {
    depth_ = depth;
    if (const auto* part = std::get_if<Produce>(&statement.op)) {
      if (role_ != Role::producers) continue;
      role_ = Role::producing;
      body(part->body, depth);
      role_ = Role::producers;
      continue;
    }
    // Of a loop, producers have what is theirs; of the rest nothing.
    if (role_ == Role::producers && !has_producers(statement)) continue;
    const auto* loop = std::get_if<For>(&statement.op);
    if (loop != nullptr && loop->unroll > 0) {
      const auto& name = program_.variables[loop->variable].name;
      line("#pragma unroll ", loop->unroll);
      const auto trips = loop->tail_trips == 0
                             ? joined(loop->trips)
                             : joined("(", program_.variables[program_.tail->is_tail].name, " ? ",
                                      loop->tail_trips, "u : ", loop->trips, "u)");
      line("for (u32 ", name, " = 0; ", name, " < ", trips, "; ++", name, ") {");
      body(loop->body, depth + 1);
      depth_ = depth;
      line("}");
    } else if (loop != nullptr) {
      for (std::int64_t trip = 0; trip < loop->trips; ++trip) {
        unrolled_[loop->variable] = trip;
        depth_ = depth;
        line("// ", program_.variables[loop->variable].name, " = ", trip);
        body(loop->body, depth);
      }
      unrolled_.erase(loop->variable);
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      line("if (", program_.variables[branch->variable].name, " == ", branch->value, ") {");
      body(branch->body, depth + 1);
      depth_ = depth;
      line("}");
    } else if (const auto* part = std::get_if<Alternate>(&statement.op)) {
      alternates_ = true;
      body(part->body, depth);
      alternates_ = false;
      depth_ = depth;
      line("thread = thread_anew();");
    } else if (const auto* part = std::get_if<Within>(&statement.op)) {
      line("if (", inside(*part), ") {  // ", to_string(program_, statement));
      const bool outer = std::exchange(within_, true);
      body(part->body, depth + 1);
      within_ = outer;
      depth_ = depth;
      line("}");
    } else {
      line("{  // ", to_string(program_, statement));
      ++depth_;
      instruction(statement);
      --depth_;
      line("}");
    }
  }
}

void Emitter::instruction(const Statement& statement) {
  std::visit(Match{[&](const Load& i) { load(i); },
                   [&](const Store& i) { store(i); },
                   [&](const CopyAsync& i) { copy(i); },
                   [&](const CopyOwn& i) { copy_own(i); },
                   [&](const Commit&) { line("copy_commit();"); },
                   [&](const Wait& i) { line("copy_wait<", i.pending, ">();"); },
                   [&](const Barrier& i) {
                     if (alternates_) {
                       const auto of = joined("in_second_half(", program_.threads, "u)) ");
                       const auto half = i.half == Half::first    ? "if (!" + of
                                         : i.half == Half::second ? "if (" + of
                                                                  : "";
                       line(half, "phase_barrier();");
                     } else if (role_ == Role::consumers) {
                       line("barrier_of<", program_.threads, ">();");
                     } else {
                       line("barrier();");
                     }
                   },
                   [&](const Priority& i) { line("priority<", i.raised ? 1 : 0, ">();"); },
                   [&](const ClusterBarrier& i) {
                     line(i.signals_only ? "cluster_meet();" : "cluster_barrier();");
                   },
                   [&](const DependentLaunch&) { line("dependent_launch();"); },
                   [&](const DependentWait&) { line("dependent_wait();"); },
                   [&](const LoadMatrix& i) { load_matrix(i); },
                   [&](const LoadUnits& i) { load_units(i); },
                   [&](const Unpack& i) { unpack(i); },
                   [&](const Mma& i) { mma(i); },
                   [&](const MmaShared& i) { mma_shared(i); },
                   [&](const MmaWait& i) { mma_wait(i); },
                   [&](const MatrixFence&) { line("matrix_fence();"); },
                   [&](const TensorStore& i) { tensor_store(i); },
                   [&](const TensorWait&) { line("tensor_wait();"); },
                   [&](const TensorFence& i) {
                     line(i.after ? "tensor_fence_after();" : "tensor_fence_before();");
                   },
                   [&](const TensorMma& i) { tensor_mma(i); },
                   [&](const TensorCommit& i) { tensor_commit(i); },
                   [&](const TensorLoad& i) { tensor_load(i); },
                   [&](const Fill& i) { fill(i); },
                   [&](const Reinterpret& i) { reinterpret_bits(i); },
                   [&](const Scale& i) { scale(i); },
                   [&](const Add& i) { combine(i.to, i.from, "+="); },
                   [&](const Spread& i) { combine(i.to, i.from, "="); },
                   [&](const Multiply& i) { combine(i.to, i.from, "*="); },
                   [&](const UnpackFloat& i) { unpack_float(i); },
                   [&](const ScaleOperand& i) { scale_operand(i); },
                   [&](const Lookup& i) { lookup(i); },
                   [&](const FillTable& i) { fill_table(i); },
                   [&](const FillWords& i) { fill_words(i); },
                   [&](const LargestScale& i) { largest_scale(i); },
                   [&](const TimesSecond& i) { times_second(i); },
                   [&](const LookupRelative& i) { lookup_relative(i); },
                   [&](const ZeroOperand& i) { zero_operand(i); },
                   [&](const Offset& i) { offset(i); },
                   [&](const UnpackBytes& i) { unpack_bytes(i); },
                   [&](const SplitDigits& i) { split_digits(i); },
                   [&](const JoinDigits& i) { join_digits(i); },
                   [&](const CopyElements& i) { copy_elements(i); },
                   [&](const Cast& i) { cast(i); },
                   [&](const Ticket& i) { ticket(i); },
                   [&](const SignalInit& i) { signal_init(i); },
                   [&](const Expect& i) { expect(i); },
                   [&](const Arrive& i) { arrive(i); },
                   [&](const Await& i) { await(i); },
                   [&](const CopyBulk& i) { copy_bulk(i); },
                   [&](const CopyRows& i) { copy_rows(i); },
                   [&](const Gate& i) { gate(i); },
                   [&](const Activate& i) { activate(i); },
                   [&](const ToCodes& i) { to_codes(i); },
                   [&](const Unary& i) { unary(i); },
                   [&](const Binary& i) { binary(i); },
                   [&](const Reduce& i) { reduce(i); },
                   [&](const AtomicAdd& i) { atomic_add(i); },
                   [](const For&) {},  // body() has these
                   [](const If&) {},
                   [](const Within&) {},
                   [](const Produce&) {},
                   [](const Alternate&) {}},
             statement.op);
}

std::string emit(const Program& program, const Dialect& dialect) {
  return Emitter(program, dialect).run();
}

}  // namespace ladder::codegen
