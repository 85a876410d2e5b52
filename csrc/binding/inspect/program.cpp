// SPDX-License-Identifier: Apache-2.0
// ladder._C.program: tile programs. Documentation for users is in ladder/program.
#include "program/program.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "binding/inspect/inspect.h"
#include "codegen/target.h"
#include "device/device.h"
#include "program/builder.h"
#include "program/interpret.h"
#include "program/passes.h"

/// An index is a whole number too.
template <>
struct ladder::python::Taker<ladder::Affine> {
  static Affine take(PyObject* object) {
    if (PyLong_Check(object) != 0) return Affine(python::take<std::int64_t>(object));
    auto* const type = reinterpret_cast<PyTypeObject*>(type_of<Affine>);
    if (PyObject_TypeCheck(object, type) == 0) mismatch(object, "Index or int");
    return reinterpret_cast<Instance<Affine>*>(object)->value();
  }
};

namespace ladder::inspect {
namespace {

using python::arg;
using python::Class;
using python::fn;

using Shape = std::vector<std::int64_t>;

/// Elements of a parameter that the program may touch with `tokens` tokens.
std::int64_t elements_of(const Program& program, BufferId buffer, std::int64_t tokens) {
  std::int64_t most = 0;
  for (const View& view : program.views) {
    if (view.buffer != buffer) continue;
    auto last = range_of(program, view.offset).high;
    for (std::size_t d = 0; d < view.extents.size(); ++d) {
      last += ((view.extents[d] == kTokens ? tokens : view.extents[d]) - 1) * view.strides[d];
    }
    most = std::max(most, last + 1);
  }
  return most;
}

/// Name, scalar, whether it is only read, elements.
using Parameter = std::tuple<std::string, std::string, bool, std::int64_t>;
std::vector<Parameter> parameters(const Program& program, std::int64_t tokens) {
  std::vector<Parameter> out;
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    if (buffer.level != Level::global) continue;
    out.emplace_back(buffer.name, name_of(buffer.scalar), buffer.constant,
                     elements_of(program, static_cast<BufferId>(id), tokens));
  }
  return out;
}

/// `memory`: address, bytes and whether they are given, one for each parameter. Writes the others'
/// back.
void run(const Program& program,
         const std::vector<std::tuple<std::uintptr_t, std::size_t, bool>>& memory,
         std::int64_t tokens) {
  std::vector<Argument> arguments;
  for (const auto& [address, bytes, given] : memory) {
    arguments.push_back(Argument::input(reinterpret_cast<const void*>(address), bytes));
    if (!given) arguments.back().written.assign(bytes, false);
  }
  {
    const python::Unlocked unlocked;
    interpret(program, arguments, tokens);
  }
  const auto all = parameters(program, tokens);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [address, bytes, given] = memory[i];
    if (!std::get<2>(all[i])) {
      std::memcpy(reinterpret_cast<void*>(address), arguments[i].bytes.data(), bytes);
    }
  }
}

void add_values(python::Module& m) {
  Class<Layout>(m, "Layout", "Which thread holds which element of a tile (csrc/layout).")
      .property("shape", fn<&Layout::shape>)
      .property("threads", fn<&Layout::thread_count>)
      .property("slots", fn<&Layout::slot_count>)
      .def("at", fn<&Layout::operator()>, "", arg("thread"), arg("slot"))
      .def("__mul__", [](const Layout& a, const Layout& b) { return a * b; })
      .def("__eq__", [](const Layout& a, const Layout& b) { return a == b; })
      .def("__repr__", [](const Layout& a) { return to_string(a); });
  m.def("local", fn<&local>);
  m.def("spatial", fn<&spatial>);
  m.def("column_local", fn<&column_local>);
  m.def("column_spatial", fn<&column_spatial>);
  m.def("replicated", fn<&replicated>, "", arg("count"), arg("rank"));
  m.def("operand", [](const std::string& scalar, const std::string& which) {
    const auto* row = tile_instruction(ElementType::of(scalar).scalar);
    if (row == nullptr) fail<Unsupported>("no matrix instruction takes ", scalar);
    LADDER_REQUIRE(which == "a" || which == "b" || which == "d", "operand ", which,
                   " is not a, b or d");
    return lifted(which == "a" ? row->a() : which == "b" ? row->b() : row->d());
  });
  Class<Affine>(m, "Index", "An integer expression in block and loop numbers.")
      .init([](std::int64_t value) { return Affine(value); })
      .def("__add__", [](const Affine& a, const Affine& b) { return a + b; })
      .def("__radd__", [](const Affine& a, std::int64_t b) { return a + Affine(b); })
      .def("__mul__", [](const Affine& a, std::int64_t b) { return times(a, b); })
      .def("__rmul__", [](const Affine& a, std::int64_t b) { return times(a, b); })
      .def("__floordiv__", [](const Affine& a, std::int64_t b) { return divided(a, b); })
      .def("__mod__", [](const Affine& a, std::int64_t b) { return remainder(a, b); });
  Class<Tile>(m, "Tile").property("id", fn<&Tile::id>);
  Class<Array>(m, "Array").property("id", fn<&Array::id>);
  Class<SignalHandle>(m, "Signal").property("id", fn<&SignalHandle::id>);
}

void add_program(python::Module& m) {
  Class<Program>(m, "Program", "A tile program: what one kernel does, as data.")
      .property("name", fn<&Program::name>)
      .property("threads", fn<&Program::block_threads>)
      .property("grid",
                [](const Program& p) {
                  const auto [splits, tiles] = p.grid();
                  return std::pair(splits, tiles);
                })
      .property("shared_bytes", fn<&Program::shared_bytes>)
      .property("barriers", fn<&count_barriers>)
      .def("parameters", fn<&parameters>, "", arg("tokens"))
      .def("with_barriers", [](const Program& p) { return with_barriers(p); })
      .def("with_pipeline", [](const Program& p, int stages) { return with_pipeline(p, stages); })
      .def("verify",
           [](const Program& p, const std::string& name) {
             verify(p, device(name).shared_per_block_bytes);
           })
      .def(
          "source",
          [](const Program& p, const std::string& target) {
            return emit(target_called(target), p);
          },
          "The kernel in the language of `target`. NotImplementedError: it writes none yet.",
          arg("target"))
      .def("interpret", fn<&run>, "", arg("memory"), arg("tokens"))
      .def("__str__", [](const Program& p) { return to_string(p); });
}

template <class Op>
Op op_of(const std::string& name, Op last) {
  std::string all;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (name == name_of(static_cast<Op>(i))) return static_cast<Op>(i);
    all += (i ? ", " : "") + std::string(name_of(static_cast<Op>(i)));
  }
  fail<InvalidArgument>("operation ", name, " is not one of ", all);
}

BinaryOp binary_op(const std::string& name) { return op_of(name, BinaryOp::shift_right); }

Scalar scalar_of(const std::string& name) {
  const auto type = ElementType::of(name);
  LADDER_REQUIRE(type.width == 0, "memory of ", name, "; packed elements are u32, seen by a view");
  return type.scalar;
}

void add_builder(python::Module& m) {
  using B = Builder;
  Class<Builder>(m, "Builder", "Writes a tile program, an instruction a call.")
      .init([](std::string name, std::int64_t x, std::int64_t y, int threads) {
        return Builder(std::move(name), {x, y, threads});
      })
      .property("x", fn<&B::x>)
      .property("y", fn<&B::y>)
      .def("memory",
           [](B& b, const std::string& kind, std::string name, const std::string& type, Shape shape,
              Shape strides) {
             const auto scalar = scalar_of(type);
             if (kind == "input") return b.input(std::move(name), scalar, shape, strides);
             if (kind == "output") return b.output(std::move(name), scalar, shape, strides);
             return b.shared(std::move(name), scalar, shape, strides);
           })
      .def("array_view",
           [](B& b, Array of, Shape shape, Shape strides, Affine offset) {
             return b.view(of, std::move(shape), std::move(strides), std::move(offset));
           })
      .def("load", fn<&B::load>)
      .def("store", fn<&B::store>)
      .def("atomic_add", fn<&B::atomic_add>)
      .def("fill",
           [](B& b, const std::string& type, Layout layout, double value, std::string name) {
             return b.fill(ElementType::of(type), std::move(layout), value, std::move(name));
           })
      .def("view",
           [](B& b, Tile from, const std::string& type, Layout layout, std::string name) {
             return b.view(from, ElementType::of(type), std::move(layout), std::move(name));
           })
      .def("cast",
           [](B& b, Tile from, const std::string& type, std::string name) {
             return b.cast(from, ElementType::of(type), std::move(name));
           })
      .def("unary",
           [](B& b, const std::string& op, Tile from, std::string name) {
             return b.unary(op_of(op, UnaryOp::round_to_even), from, std::move(name));
           })
      .def("binary",
           [](B& b, const std::string& op, Tile x, std::variant<Tile, double> y, std::string name) {
             return std::visit(
                 [&](auto with) { return b.binary(binary_op(op), x, with, std::move(name)); }, y);
           })
      .def("update", [](B& b, const std::string& op, Tile to,
                        Tile with) { b.update(binary_op(op), to, with); })
      .def("reduce",
           [](B& b, const std::string& op, Tile from, int dim, std::string name) {
             return b.reduce(op_of(op, ReduceOp::maximum), from, dim, std::move(name));
           })
      .def("load_matrix", fn<&B::load_matrix>)
      .def("mma", fn<&B::mma>)
      .def("copy_async", fn<&B::copy_async>)
      .def("commit", fn<&B::commit>)
      .def("wait", fn<&B::wait>)
      .def("barrier", fn<&B::barrier>)
      .def("signal", fn<&B::signal>)
      .def("signal_init", fn<&B::signal_init>)
      .def("expect", fn<&B::expect>)
      .def("arrive", fn<&B::arrive>)
      .def("await_phase", fn<&B::await>)
      .def("copy_bulk", fn<&B::copy_bulk>)
      .def("begin_for", fn<&B::begin_for>)
      .def("begin_if", fn<&B::begin_if>)
      .def("end", fn<&B::end>)
      .def("layout", [](const B& b, Tile tile) { return b.info(tile).layout; })
      .def("finish", fn<&B::finish>);
}

}  // namespace

void add_program_module(python::Module& module) {
  auto m = module.submodule("program", "Tile programs; users' documentation: ladder.program.");
  add_values(m);
  add_program(m);
  add_builder(m);
}

}  // namespace ladder::inspect
