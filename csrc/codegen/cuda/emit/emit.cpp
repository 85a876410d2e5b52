// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/emit.h"

#include "base/error.h"
#include "codegen/cuda/emit/emitter.h"
#include "codegen/cuda/prelude.h"

namespace ladder::cuda {

std::string Emitter::run() {
  out_ << prelude() << '\n';
  signature();
  declarations();
  body(program_.body, 1);
  out_ << "}\n";
  return out_.str();
}

std::int64_t Emitter::words(RegisterId id) const {
  return (reg(id).layout.slot_count() * bytes_of(reg(id).scalar) + 3) / 4;
}

const char* Emitter::type_of(Scalar scalar) {
  return scalar == Scalar::f32 ? "float" : scalar == Scalar::u32 ? "u32" : "u16";
}

void Emitter::signature() {
  out_ << "extern \"C\" __global__ void __launch_bounds__(" << program_.threads << ", "
       << program_.blocks_per_multiprocessor << ")";
  if (program_.cluster > 1) out_ << " __cluster_dims__(" << program_.cluster << ", 1, 1)";
  out_ << '\n' << program_.name << '(';
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.level != Level::global) continue;
    out_ << (buffer.constant ? "const " : "") << type_of(buffer.scalar) << "* __restrict__ "
         << buffer.name << ", ";
  }
  out_ << "u32 tokens) {\n";
}

void Emitter::declarations() {
  line("extern __shared__ __align__(128) unsigned char shared[];");
  line("const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;");
  if (program_.cluster > 1) line("const u32 rank = cluster_rank();");
  for (std::size_t id = 0; id < program_.buffers.size(); ++id) {
    const Buffer& buffer = program_.buffers[id];
    if (buffer.level != Level::shared) continue;
    line(type_of(buffer.scalar), "* const ", buffer.name, " = (", type_of(buffer.scalar),
         "*)(shared + ", program_.shared_offset(static_cast<BufferId>(id)), ");");
  }
  ticket_results(program_.body);
  for (std::size_t id = 0; id < program_.registers.size(); ++id) {
    const Register& reg = program_.registers[id];
    line(reg.scalar == Scalar::f32 ? "float " : "u32 ", reg.name, '[',
         words(static_cast<RegisterId>(id)), "];");
  }
}

void Emitter::ticket_results(const std::vector<Statement>& statements) {
  for (const Statement& statement : statements) {
    if (const auto* i = std::get_if<Ticket>(&statement.op)) {
      line("u32 ", program_.variables[i->result].name, ";");
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

void Emitter::body(const std::vector<Statement>& statements, int depth) {
  for (const Statement& statement : statements) {
    depth_ = depth;
    const auto* loop = std::get_if<For>(&statement.op);
    if (loop != nullptr && loop->unroll > 0) {
      const auto& name = program_.variables[loop->variable].name;
      line("#pragma unroll ", loop->unroll);
      line("for (u32 ", name, " = 0; ", name, " < ", loop->trips, "; ++", name, ") {");
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
                   [&](const Barrier&) { line("barrier();"); },
                   [&](const ClusterBarrier&) { line("cluster_barrier();"); },
                   [&](const DependentLaunch&) { line("dependent_launch();"); },
                   [&](const DependentWait&) { line("dependent_wait();"); },
                   [&](const LoadMatrix& i) { load_matrix(i); },
                   [&](const Unpack& i) { unpack(i); },
                   [&](const Mma& i) { mma(i); },
                   [&](const Fill& i) { fill(i); },
                   [&](const Reinterpret& i) { reinterpret_bits(i); },
                   [&](const Scale& i) { scale(i); },
                   [&](const Add& i) { add(i); },
                   [&](const Cast& i) { cast(i); },
                   [&](const Ticket& i) { ticket(i); },
                   [](const For&) {},  // body() has these
                   [](const If&) {}},
             statement.op);
}

std::string emit(const Program& program) { return Emitter(program).run(); }

}  // namespace ladder::cuda
