// SPDX-License-Identifier: Apache-2.0
// ladder._C.program: tile programs. Documentation for users is in ladder/program.
#include "program/program.h"

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "binding/inspect/inspect.h"
#include "codegen/cuda/emit.h"
#include "device/device.h"
#include "program/builder.h"
#include "program/interpret.h"
#include "program/passes.h"

namespace py = pybind11;

namespace ladder::inspect {
namespace {

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
  interpret(program, arguments, tokens);
  const auto all = parameters(program, tokens);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [address, bytes, given] = memory[i];
    if (!std::get<2>(all[i])) {
      std::memcpy(reinterpret_cast<void*>(address), arguments[i].bytes.data(), bytes);
    }
  }
}

void add_values(py::module_& m) {
  py::class_<Layout>(m, "Layout", "Which thread holds which element of a tile (csrc/layout).")
      .def_readonly("shape", &Layout::shape)
      .def_property_readonly("threads", &Layout::thread_count)
      .def_property_readonly("slots", &Layout::slot_count)
      .def("at", &Layout::operator(), py::arg("thread"), py::arg("slot"))
      .def("__mul__", [](const Layout& a, const Layout& b) { return a * b; })
      .def("__eq__", [](const Layout& a, const Layout& b) { return a == b; })
      .def("__repr__", [](const Layout& a) { return to_string(a); });
  m.def("local", &local);
  m.def("spatial", &spatial);
  m.def("column_local", &column_local);
  m.def("column_spatial", &column_spatial);
  m.def("replicated", &replicated, py::arg("count"), py::arg("rank"));
  m.def("operand", [](const std::string& scalar, const std::string& which) {
    const auto* row = tile_instruction(ElementType::of(scalar).scalar);
    if (row == nullptr) fail<Unsupported>("no matrix instruction takes ", scalar);
    LADDER_REQUIRE(which == "a" || which == "b" || which == "d", "operand ", which,
                   " is not a, b or d");
    return lifted(which == "a" ? row->a() : which == "b" ? row->b() : row->d());
  });
  py::class_<Affine>(m, "Index", "An integer expression in block and loop numbers.")
      .def(py::init<std::int64_t>())
      .def("__add__", [](const Affine& a, const Affine& b) { return a + b; })
      .def("__radd__", [](const Affine& a, std::int64_t b) { return a + Affine(b); })
      .def("__mul__", [](const Affine& a, std::int64_t b) { return times(a, b); })
      .def("__rmul__", [](const Affine& a, std::int64_t b) { return times(a, b); })
      .def("__floordiv__", [](const Affine& a, std::int64_t b) { return divided(a, b); })
      .def("__mod__", [](const Affine& a, std::int64_t b) { return remainder(a, b); });
  py::implicitly_convertible<py::int_, Affine>();
  py::class_<Tile>(m, "Tile").def_readonly("id", &Tile::id);
  py::class_<Array>(m, "Array").def_readonly("id", &Array::id);
  py::class_<SignalHandle>(m, "Signal").def_readonly("id", &SignalHandle::id);
}

void add_program(py::module_& m) {
  py::class_<Program>(m, "Program", "A tile program: what one kernel does, as data.")
      .def_readonly("name", &Program::name)
      .def_readonly("threads", &Program::threads)
      .def_property_readonly("grid",
                             [](const Program& p) {
                               return std::pair(p.variables[kSplit].extent,
                                                p.variables[kTile].extent);
                             })
      .def_property_readonly("shared_bytes", &Program::shared_bytes)
      .def_property_readonly("barriers", &count_barriers)
      .def("parameters", &parameters, py::arg("tokens"))
      .def("with_barriers", [](const Program& p) { return with_barriers(p); })
      .def("with_pipeline", [](const Program& p, int stages) { return with_pipeline(p, stages); })
      .def("verify",
           [](const Program& p, const std::string& name) {
             verify(p, device(name).shared_per_block_bytes);
           })
      .def("cuda_source", [](const Program& p) { return cuda::emit(p); })
      .def("interpret", &run, py::arg("memory"), py::arg("tokens"),
           py::call_guard<py::gil_scoped_release>())
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

void add_builder(py::module_& m) {
  using B = Builder;
  py::class_<Builder>(m, "Builder", "Writes a tile program, an instruction a call.")
      .def(py::init([](std::string name, std::int64_t x, std::int64_t y, int threads) {
        return Builder(std::move(name), {x, y, threads});
      }))
      .def_property_readonly("x", &B::x)
      .def_property_readonly("y", &B::y)
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
      .def("load", &B::load)
      .def("store", &B::store)
      .def("atomic_add", &B::atomic_add)
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
           [](B& b, const std::string& op, Tile x, Tile y, std::string name) {
             return b.binary(binary_op(op), x, y, std::move(name));
           })
      .def("binary",
           [](B& b, const std::string& op, Tile x, double y, std::string name) {
             return b.binary(binary_op(op), x, y, std::move(name));
           })
      .def("update", [](B& b, const std::string& op, Tile to,
                        Tile with) { b.update(binary_op(op), to, with); })
      .def("reduce",
           [](B& b, const std::string& op, Tile from, int dim, std::string name) {
             return b.reduce(op_of(op, ReduceOp::maximum), from, dim, std::move(name));
           })
      .def("load_matrix", &B::load_matrix)
      .def("mma", &B::mma)
      .def("copy_async", &B::copy_async)
      .def("commit", &B::commit)
      .def("wait", &B::wait)
      .def("barrier", &B::barrier)
      .def("signal", &B::signal)
      .def("signal_init", &B::signal_init)
      .def("expect", &B::expect)
      .def("arrive", &B::arrive)
      .def("await_phase", &B::await)
      .def("copy_bulk", &B::copy_bulk)
      .def("begin_for", &B::begin_for)
      .def("begin_if", &B::begin_if)
      .def("end", &B::end)
      .def("layout", [](const B& b, Tile tile) { return b.info(tile).layout; })
      .def("finish", &B::finish);
}

}  // namespace

void add_program_module(py::module_& module) {
  auto m = module.def_submodule("program", "Tile programs; users' documentation: ladder.program.");
  add_values(m);
  add_program(m);
  add_builder(m);
}

}  // namespace ladder::inspect
