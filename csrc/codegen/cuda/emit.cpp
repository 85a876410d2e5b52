// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/emit.h"

#include <cmath>
#include <cstdio>
#include <sstream>

#include "base/error.h"
#include "codegen/cuda/access.h"
#include "codegen/cuda/prelude.h"
#include "device/device.h"
#include "layout/bit_plan.h"
#include "layout/weight_image.h"

namespace ladder::cuda {
namespace {

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08xu", value);
  return text;
}

/// An exact literal.
std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%af", value);
  return text;
}

class Emitter {
 public:
  explicit Emitter(const Program& program) : program_(program) {}

  std::string run() {
    out_ << prelude() << '\n';
    signature();
    declarations();
    body(program_.body, 1);
    out_ << "}\n";
    return out_.str();
  }

 private:
  const Register& reg(RegisterId id) const { return program_.registers[id]; }
  const Buffer& buffer_of(ViewId id) const { return program_.buffers[program_.views[id].buffer]; }
  /// Registers hold 32-bit words; 16-bit scalars lie in pairs.
  std::int64_t words(RegisterId id) const {
    return (reg(id).layout.slot_count() * bytes_of(reg(id).scalar) + 3) / 4;
  }
  static const char* type_of(Scalar scalar) {
    return scalar == Scalar::f32 ? "float" : scalar == Scalar::u32 ? "u32" : "u16";
  }

  template <class... Parts>
  void line(const Parts&... parts) {
    for (int i = 0; i < depth_; ++i) out_ << "  ";
    (out_ << ... << parts);
    out_ << '\n';
  }

  void signature() {
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

  void declarations() {
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

  void ticket_results(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      if (const auto* i = std::get_if<Ticket>(&statement.op)) {
        line("u32 ", program_.variables[i->result].name, ";");
      }
    }
  }

  std::string expr(const Affine& affine) const { return expression(program_, affine, unrolled_); }
  std::int64_t constant(const Affine& affine) const {
    auto sum = affine.constant;
    for (const auto& term : affine.terms) {
      const auto value = unrolled_.find(term.variable);
      LADDER_CHECK(value != unrolled_.end(), "a register index depends on ",
                   program_.variables[term.variable].name);
      sum += term.at(value->second);
    }
    return sum;
  }

  void body(const std::vector<Statement>& statements, int depth) {
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

  // Memory.

  void guarded(const std::string& guard, const std::string& action) {
    if (guard.empty()) {
      line(action);
    } else {
      line("if (", guard, ") { ", action, " }");
    }
  }

  void load(const Load& i) {
    const Register& to = reg(i.to);
    const Buffer& from = buffer_of(i.from);
    const auto access =
        plan_access(program_, to.layout, to.scalar, program_.views[i.from], i.at, unrolled_);
    const int size = bytes_of(to.scalar);
    line("const ", type_of(to.scalar), "* const from = ", from.name, " + (", access.base, ");");
    if (i.remote)
      line("const u32 address = peer_address(shared_address(from), ", expr(i.rank), ");");
    for (const Piece& piece : access.pieces) {
      const auto count = piece.width * size / 4;
      if (count == 0) fail<Unsupported>(to.name, " would be loaded in pieces of ", size, " bytes");
      const auto type = "Words" + std::to_string(count);
      const auto at = "(const " + type + "*)(from + " + std::to_string(piece.offset) + ")";
      std::string action;
      if (i.remote) {
        action = "load_peer(v, address + " + std::to_string(piece.offset * size) + ");";
      } else if (from.level == Level::shared) {
        action = "v = *" + at + ";";
      } else if (!from.constant) {
        action = "v = load_fresh(" + at + ");";
      } else {
        action = std::string("v = ") + (i.cache == Cache::once ? "load_once" : "load_constant") +
                 "(" + at + ");";
      }
      const auto initial = piece.guard.empty() ? "" : " = {}";
      line("{ ", type, " v", initial, "; ",
           piece.guard.empty() ? action : "if (" + piece.guard + ") { " + action + " }",
           assign(i.to, piece.slot * size / 4, count), " }");
    }
  }

  /// Spreads the words of `v` over the registers from word `first`.
  std::string assign(RegisterId id, std::int64_t first, std::int64_t count) const {
    std::ostringstream out;
    for (std::int64_t w = 0; w < count; ++w) {
      const auto word = "v.w[" + std::to_string(w) + "]";
      out << ' ' << reg(id).name << '[' << first + w
          << "] = " << (reg(id).scalar == Scalar::f32 ? "as_float(" + word + ")" : word) << ';';
    }
    return out.str();
  }

  std::string word_of(RegisterId id, std::int64_t index) const {
    const auto text = reg(id).name + "[" + std::to_string(index) + "]";
    return reg(id).scalar == Scalar::f32 ? "as_bits(" + text + ")" : text;
  }

  void store(const Store& i) {
    const Register& from = reg(i.from);
    const Buffer& to = buffer_of(i.to);
    const auto access =
        plan_access(program_, from.layout, from.scalar, program_.views[i.to], i.at, unrolled_);
    const int size = bytes_of(from.scalar);
    line(type_of(from.scalar), "* const to = ", to.name, " + (", access.base, ");");
    for (const Piece& piece : access.pieces) {
      const auto count = piece.width * size / 4;
      std::ostringstream action;
      if (count == 0) {  // one 16-bit element
        action << "to[" << piece.offset << "] = (u16)(" << word_of(i.from, piece.slot / 2)
               << (piece.slot % 2 ? " >> 16" : "") << ");";
      } else {
        action << "*(Words" << count << "*)(to + " << piece.offset << ") = {{";
        for (std::int64_t w = 0; w < count; ++w) {
          action << (w ? ", " : "") << word_of(i.from, piece.slot * size / 4 + w);
        }
        action << "}};";
      }
      guarded(piece.guard, action.str());
    }
  }

  void copy(const CopyAsync& i) {
    const View &to = program_.views[i.to], &from = program_.views[i.from];
    const int size = bytes_of(buffer_of(i.to).scalar);
    const std::int64_t run = 16 / size, pieces = to.extents[1] / run, all = to.extents[0] * pieces;
    const bool columns_guarded = range_of(program_, i.at[1]).high + to.extents[1] > from.extents[1];
    if (columns_guarded && from.extents[1] % run != 0) {
      fail<Unsupported>("rows of ", from.extents[1], " elements end inside 16 bytes");
    }
    const auto limit = [](std::int64_t extent) {
      return extent == kTokens ? "tokens" : std::to_string(extent) + "u";
    };
    line("#pragma unroll");
    line("for (u32 piece = thread; piece < ", all, "u; piece += ", program_.threads, "u) {");
    line("  const u32 row = piece / ", pieces, "u, column = piece % ", pieces, "u * ", run, "u;");
    line("  const u32 from_row = row + ", expr(i.at[0]), ", from_column = column + ", expr(i.at[1]),
         ";");
    line("  const bool inside = from_row < ", limit(from.extents[0]),
         columns_guarded ? " && from_column < " + limit(from.extents[1]) : std::string(), ";");
    line("  const ", type_of(buffer_of(i.from).scalar), "* const source = ", buffer_of(i.from).name,
         " + (inside ? (u64)from_row * ", from.strides[0], "u + from_column : 0u);");
    line("  copy_async(shared_address(", buffer_of(i.to).name, " + row * ", to.strides[0],
         "u + column), source, inside ? 16u : 0u);");
    line("}");
  }

  void copy_own(const CopyOwn& i) {
    const Scalar scalar = buffer_of(i.to).scalar;
    const int size = bytes_of(scalar);
    const auto to =
        plan_access(program_, i.to_layout, scalar, program_.views[i.to], i.to_at, unrolled_);
    const auto from =
        plan_access(program_, i.from_layout, scalar, program_.views[i.from], i.from_at, unrolled_);
    const auto piece_bytes = from.pieces.front().width * size;
    if (piece_bytes != 16 || to.pieces.front().width * size != 16) {
      fail<Unsupported>("copies in pieces of ", piece_bytes, " bytes");
    }
    line("if (", expr(i.guard), " < ", i.below, ") {");
    line("  const ", type_of(scalar), "* const from = ", buffer_of(i.from).name, " + (", from.base,
         ");");
    line("  const u32 to = shared_address(", buffer_of(i.to).name, " + (", to.base, "));");
    for (std::size_t p = 0; p < from.pieces.size(); ++p) {
      line("  copy_async(to + ", to.pieces[p].offset * size, "u, from + ", from.pieces[p].offset,
           ", ", from.pieces[p].guard.empty() ? "16u" : from.pieces[p].guard + " ? 16u : 0u", ");");
    }
    line("}");
  }

  // Arithmetic.

  void load_matrix(const LoadMatrix& i) {
    const Register& to = reg(i.to);
    const View& view = program_.views[i.from];
    const auto& mma = *instructions(1000, to.scalar).front();
    // Lane l gives the address of row l % 8 of matrix l / 8: token 8 (matrix / 2), columns
    // 8 (matrix % 2) of the tile; warps are the digits outside the lanes.
    Layout warps{to.layout.shape, {}, {}};
    std::int64_t inner = to.layout.thread_count();
    for (const Digit& digit : to.layout.threads) {
      inner /= digit.extent;
      if (inner >= kLanes) warps.threads.push_back(digit);
    }
    Affine origin = 0;
    std::string base;
    for (std::size_t d = 0; d < 3; ++d) {
      Affine part = i.at[d];
      part.constant *= view.strides[d];
      for (auto& term : part.terms) term.factor *= view.strides[d];
      origin = origin + part;
      const auto warp = warp_part(warps, static_cast<int>(d), view.strides[d]);
      if (!warp.empty()) base += warp + " + ";
    }
    const auto matrices = words(i.to);
    line("const u32 lane = thread % 32;");
    for (std::int64_t first = 0; first < matrices;) {
      const int count = matrices - first >= 4 ? 4 : 2;
      line("load_matrix<", count, ">(", to.name, " + ", first, ", shared_address(",
           buffer_of(i.from).name, " + (", base, "(lane / 16 % ", count / 2, " * 8 + lane % 8 + ",
           first / 2 * mma.n, ") * ", view.strides[1], " + lane / 8 % 2 * 8 + ", expr(origin),
           ")));");
      first += count;
    }
  }

  static std::string warp_part(const Layout& warps, int dim, std::int64_t factor) {
    std::int64_t inner = warps.thread_count();
    std::string out;
    for (const Digit& digit : warps.threads) {
      inner /= digit.extent;
      if (digit.stride == 0 || digit.dim != dim) continue;
      out += (out.empty() ? "" : " + ") + std::string("(thread / ") +
             std::to_string(inner * kLanes) + " % " + std::to_string(digit.extent) + ") * " +
             std::to_string(digit.stride * factor);
    }
    return out;
  }

  void unpack(const Unpack& i) {
    const Scalar operand = reg(i.to).scalar;
    const auto plan = unpack_plan(i.bits, linear_window(operand));
    const auto first = constant(i.block) * 4 * i.bits, step = constant(i.step);
    const auto both = [&](double value) { return hex(to_bits(operand, value) * 0x10001u); };
    const auto zero = both(-std::ldexp(i.zero, i.exponent));
    for (int unit = 0; unit < kUnits; ++unit) {
      for (int r = 0; r < 4; ++r) {
        const UnpackPair& pair = plan.pairs[4 * step + r];
        std::ostringstream code;
        for (const auto& piece : pair.pieces) {
          const auto word =
              reg(i.from).name + "[" + std::to_string(first + unit * i.bits + piece.word) + "]";
          code << (code.tellp() > 0 ? " | " : "") << '(';
          if (piece.shift == 0) code << word;
          if (piece.shift > 0) code << '(' << word << " >> " << piece.shift << ')';
          if (piece.shift < 0) code << '(' << word << " << " << -piece.shift << ')';
          code << " & " << hex(piece.mask) << ')';
        }
        const auto to = reg(i.to).name + "[" + std::to_string(unit * 4 + r) + "]";
        if (i.in_place) {
          line(to, " = ", code.str(), ";");
        } else {
          const double factor =
              std::ldexp(1.0, i.exponent - linear_exponent(operand) - pair.offset);
          line(to, " = fma_", name_of(operand), "(", code.str(), ", ", both(factor), ", ", zero,
               ");");
        }
      }
    }
  }

  void mma(const Mma& i) {
    const auto units = words(i.a) / 4, columns = words(i.b) / 2;
    for (std::int64_t u = 0; u < units; ++u) {
      for (std::int64_t c = 0; c < columns; ++c) {
        line("mma_", name_of(reg(i.a).scalar), "(", reg(i.acc).name, " + ", (u * columns + c) * 4,
             ", ", reg(i.a).name, " + ", u * 4, ", ", reg(i.b).name, " + ", c * 2, ");");
      }
    }
  }

  void scale(const Scale& i) {
    const Register& scales = reg(i.scale);
    const auto group = constant(i.group);
    const auto per_group = scales.layout.slot_count() / scales.layout.shape[0];
    std::int64_t declared = -1;
    for (std::int64_t s = 0; s < reg(i.acc).layout.slot_count(); ++s) {
      const auto row = reg(i.acc).layout(0, s)[1];
      auto slot = group * per_group;
      while (scales.layout(0, slot)[1] != row) ++slot;
      const auto factor = "s" + std::to_string(slot);
      if (slot > declared) {
        line("const float ", factor, " = ", slot % 2 ? "high_" : "low_", name_of(scales.scalar),
             "(", scales.name, "[", slot / 2, "]) * ",
             number(std::ldexp(1.0, i.exponent[row / 8 % 2])), ";");
        declared = slot;
      }
      line(reg(i.to).name, "[", s, "] ", i.accumulate ? "+=" : "=", " ", reg(i.acc).name, "[", s,
           "] * ", factor, ";");
    }
  }

  void fill(const Fill& i) {
    const Register& to = reg(i.to);
    for (std::int64_t w = 0; w < words(i.to); ++w) {
      const bool f32 = to.scalar == Scalar::f32;
      const auto row = to.layout(0, f32 ? w : 2 * w)[1];
      const double value = i.value[row / 8 % 2];
      line(to.name, "[", w, "] = ", f32 ? number(value) : hex(to_bits(to.scalar, value) * 0x10001u),
           ";");
    }
  }

  void add(const Add& i) {
    const auto from = reg(i.from).layout.slot_count();
    for (std::int64_t s = 0; s < reg(i.to).layout.slot_count(); ++s) {
      line(reg(i.to).name, "[", s, "] += ", reg(i.from).name, "[", s % from, "];");
    }
  }

  void cast(const Cast& i) {
    for (std::int64_t w = 0; w < words(i.to); ++w) {
      line(reg(i.to).name, "[", w, "] = pack_", name_of(reg(i.to).scalar), "(", reg(i.from).name,
           "[", 2 * w, "], ", reg(i.from).name, "[", 2 * w + 1, "]);");
    }
  }

  void instruction(const Statement& statement) {
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
                     [&](const Reinterpret& i) {
                       for (std::int64_t w = 0; w < words(i.to); ++w) {
                         line(reg(i.to).name, "[", w, "] = ", reg(i.from).name, "[", w, "];");
                       }
                     },
                     [&](const Scale& i) { scale(i); },
                     [&](const Add& i) { add(i); },
                     [&](const Cast& i) { cast(i); },
                     [&](const Ticket& i) { ticket(i); },
                     [](const For&) {},
                     [](const If&) {}},
               statement.op);
  }

  void ticket(const Ticket& i) {
    line("__shared__ u32 before;");
    line(program_.variables[i.result].name, " = ticket(", buffer_of(i.counters).name, " + ",
         expr(i.at[0]), ", ", i.expected, "u, &before);");
  }

  const Program& program_;
  std::ostringstream out_;
  Unrolled unrolled_;
  int depth_ = 1;
};

}  // namespace

std::string emit(const Program& program) { return Emitter(program).run(); }

}  // namespace ladder::cuda
