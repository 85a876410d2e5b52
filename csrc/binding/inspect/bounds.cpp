// SPDX-License-Identifier: Apache-2.0
// ladder._C.bounds: what Python's ladder.bounds is made of. Documentation for users is there.
#include <pybind11/stl.h>

#include <array>

#include "base/joined.h"
#include "binding/inspect/inspect.h"
#include "bounds/chain.h"
#include "bounds/lower_bound.h"
#include "bounds/mesa.h"
#include "bounds/slope.h"
#include "bounds/verdict.h"
#include "device/device.h"

namespace py = pybind11;

namespace ladder::inspect {
namespace {

using namespace ladder::bounds;  // NOLINT: this file is the layer's other side
using Pair = std::pair<double, double>;

std::vector<Pair> pairs(const Curve& curve) {
  std::vector<Pair> result;
  for (const Point& p : curve.points()) result.emplace_back(p.buffer_bytes, p.traffic_bytes);
  return result;
}

void add_einsum(py::module_& m) {
  py::class_<Bytes>(m, "Bytes")
      .def(py::init([](double store, double buffer, double code) {
             return Bytes{store, buffer, code};
           }),
           py::arg("store"), py::arg("buffer"), py::arg("code") = 0.0)
      .def_readonly("store", &Bytes::store)
      .def_readonly("buffer", &Bytes::buffer)
      .def_readonly("code", &Bytes::code);
  // Axes are lists of (rank, coefficient), the last tensor is the output.
  using Axes = std::vector<std::vector<std::pair<int, std::int64_t>>>;
  py::class_<Einsum>(m, "Einsum")
      .def(py::init([](const std::vector<std::pair<std::string, std::int64_t>>& ranks,
                       const std::vector<std::tuple<std::string, Axes, Bytes>>& tensors) {
             Einsum einsum;
             for (const auto& [name, size] : ranks) einsum.ranks.push_back({name, size});
             for (const auto& [name, axes, bytes] : tensors) {
               Tensor t{name, {}, false, bytes.store, bytes.buffer, bytes.code};
               for (const auto& axis : axes) {
                 t.axes.emplace_back();
                 for (const auto& [rank, c] : axis) t.axes.back().push_back({rank, c});
               }
               einsum.tensors.push_back(std::move(t));
             }
             if (!einsum.tensors.empty()) einsum.tensors.back().output = true;
             validate(einsum);
             return einsum;
           }),
           py::arg("ranks"), py::arg("tensors"))
      .def_property_readonly("ranks",
                             [](const Einsum& e) {
                               std::vector<std::pair<std::string, std::int64_t>> ranks;
                               for (const Rank& r : e.ranks) ranks.emplace_back(r.name, r.size);
                               return ranks;
                             })
      .def_property_readonly("iterations", &iterations)
      .def_property_readonly("operations", [](const Einsum& e) { return operations(e); })
      .def_property_readonly("algorithmic_minimum",
                             [](const Einsum& e) { return algorithmic_minimum(e); })
      .def("mapping_count", &mapping_count, py::arg("bypass") = false)
      .def("__repr__", [](const Einsum& e) {
        std::string text = "<Einsum";
        for (const Rank& r : e.ranks) text += " " + r.name + "=" + std::to_string(r.size);
        return text + ">";
      });
  m.def("matmul", [](std::int64_t rows, std::int64_t n, std::int64_t k, Bytes a, Bytes w, Bytes c) {
    return matmul(rows, n, k, {a, w, c});
  });
  m.def("batched_matmul", [](std::int64_t heads, std::int64_t rows, std::int64_t n, std::int64_t k,
                             Bytes a, Bytes w, Bytes c) {
    return batched_matmul(heads, rows, n, k, {a, w, c});
  });
  m.def("grouped_matmul", [](std::int64_t heads, std::int64_t groups, std::int64_t rows,
                             std::int64_t n, std::int64_t k, Bytes a, Bytes w, Bytes c) {
    return grouped_matmul(heads, groups, rows, n, k, {a, w, c});
  });
  m.def("conv2d", [](const std::array<std::int64_t, 9>& v, Bytes a, Bytes w, Bytes c) {
    return conv2d({v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]}, {a, w, c});
  });
  m.def("conv1d", [](const std::array<std::int64_t, 7>& v, Bytes a, Bytes w, Bytes c) {
    return conv1d({v[0], v[1], v[2], 1, v[3], 1, v[4], v[5], v[6]}, {a, w, c});
  });
}

void add_curve(py::module_& m) {
  py::class_<Curve>(m, "Curve")
      .def(py::init([](const std::vector<Pair>& points) {
             std::vector<Point> candidates;
             for (const auto& [buffer, traffic] : points) candidates.push_back({buffer, traffic});
             return Curve(std::move(candidates));
           }),
           py::arg("points") = std::vector<Pair>{})
      .def_property_readonly("points", &pairs)
      .def("at", &Curve::at, py::arg("buffer_bytes"))
      .def("interpolated", &Curve::interpolated, py::arg("buffer_bytes"))
      .def_property_readonly("max_effectual",
                             [](const Curve& c) {
                               const Point p = c.max_effectual();
                               return Pair{p.buffer_bytes, p.traffic_bytes};
                             })
      .def("scaled", &Curve::scaled, py::arg("buffer"), py::arg("traffic"))
      .def("__len__", [](const Curve& c) { return c.points().size(); })
      .def("__eq__", [](const Curve& a, const Curve& b) { return a.points() == b.points(); })
      .def("__repr__", [](const Curve& c) {
        return "<Curve of " + std::to_string(c.points().size()) + " points>";
      });
  m.def("sum", [](const std::vector<Curve>& curves) { return sum(curves); });
  m.def("envelope", [](const std::vector<Curve>& curves) { return envelope(curves); });
  py::enum_<Factors>(m, "Factors")
      .value("divisors", Factors::divisors)
      .value("integers", Factors::integers);
  py::enum_<Space>(m, "Space")
      .value("uniform", Space::uniform)
      .value("streaming", Space::streaming);
  m.def("ski_slope", [](const Einsum& einsum, Factors factors, Space space) {
    const py::gil_scoped_release release;
    return ski_slope(einsum, {factors, space});
  });
  m.def("best_mappings", [](const Einsum& einsum, Factors factors, Space space) {
    using Sizes = std::map<std::string, std::int64_t>;
    std::vector<std::tuple<double, double, Sizes, std::vector<std::string>>> result;
    for (const Mapped& best : best_mappings(einsum, {factors, space})) {
      Sizes tile;
      std::vector<std::string> order;
      for (std::size_t r = 0; r < einsum.ranks.size(); ++r) {
        tile[einsum.ranks[r].name] = best.mapping.tile[r];
        order.push_back(einsum.ranks[best.mapping.order[r]].name);
      }
      result.emplace_back(best.point.buffer_bytes, best.point.traffic_bytes, tile, order);
    }
    return result;
  });
  m.def("lower_bound", &lower_bound);
}

void add_chain(py::module_& m) {
  py::enum_<After>(m, "After")
      .value("nothing", After::nothing)
      .value("softmax", After::softmax)
      .value("layer_norm", After::layer_norm);
  py::enum_<Accounting>(m, "Accounting")
      .value("sound", Accounting::sound)
      .value("paper", Accounting::paper);
  py::class_<Layer>(m, "Layer")
      .def(py::init([](std::string name, std::int64_t rows, std::int64_t k, std::int64_t n,
                       std::int64_t heads, std::int64_t batch, After after, double activation,
                       double weight) {
        return Layer{std::move(name), rows, k, n, heads, batch, after, activation, weight};
      }))
      .def_readonly("name", &Layer::name)
      .def_readonly("m", &Layer::m)
      .def_readonly("k", &Layer::k)
      .def_readonly("n", &Layer::n)
      .def_readonly("heads", &Layer::heads)
      .def_readonly("batch", &Layer::batch)
      .def_readonly("after", &Layer::after)
      .def("__repr__", [](const Layer& l) {
        return "<Layer " + l.name + " m=" + std::to_string(l.m) + " k=" + std::to_string(l.k) +
               " n=" + std::to_string(l.n) + ">";
      });
  using Layers = std::vector<Layer>;
  m.def("unfused", [](const Layers& c, bool together) { return unfused(c, together); });
  m.def("untiled", [](const Layers& c) { return untiled(c); });
  m.def("fused", [](const Layers& c, Accounting a) { return fused(c, a); });
  m.def("flat", [](const Layers& c, Accounting a) { return flat(c, a); });
  m.def("flash", [](const Layers& c, Accounting a) { return flash(c, a); });
  m.def("segmented", [](const Layers& c, Accounting a) { return segmented(c, a); });
  m.def("best_segments", [](const Layers& c, double size, Accounting a) {
    std::vector<std::tuple<int, int, double>> result;
    for (const Segment& s : best_segments(c, size, a)) {
      result.emplace_back(s.first, s.count, s.traffic_bytes);
    }
    return result;
  });
  m.def("chain_minimum", [](const Layers& c) { return algorithmic_minimum(c); });
  m.def("fused_minimum", [](const Layers& c) { return fused_minimum(c); });
  m.def("chain_operations", [](const Layers& c) { return operations(c); });
  m.def("gpt3_6_7b_chain", &gpt3_6_7b_chain);
  m.def("gpt3_6_7b_side", &gpt3_6_7b_side);
  m.attr("GPT3_BLOCK_OPERATIONS") = kGpt3BlockOperations;
}

void add_machines(py::module_& m) {
  m.def("performance", [](const Curve& c, double ops, double peak, double bandwidth, double size) {
    return performance(c, ops, {peak, bandwidth}, size);
  });
  py::class_<AreaModel>(m, "AreaModel")
      .def(py::init<>())
      .def_readwrite("total_um2", &AreaModel::total_um2)
      .def_readwrite("um2_per_multiplier", &AreaModel::um2_per_multiplier)
      .def_readwrite("um2_per_byte", &AreaModel::um2_per_byte)
      .def_readwrite("hertz", &AreaModel::hertz)
      .def_readwrite("bytes_per_second", &AreaModel::bytes_per_second)
      .def_readwrite("operations_per_multiplication", &AreaModel::operations_per_multiplication);
  m.def("paper_area", &paper_area);
  py::class_<Provision>(m, "Provision")
      .def_readonly("buffer_bytes", &Provision::buffer_bytes)
      .def_readonly("share", &Provision::share)
      .def_readonly("compute_operations_per_second", &Provision::compute_operations_per_second)
      .def_readonly("memory_operations_per_second", &Provision::memory_operations_per_second)
      .def_readonly("operations_per_second", &Provision::operations_per_second);
  m.def("provisions", &provisions);
  m.def("best_provision", &best_provision);
  m.def("balanced_provision", &balanced_provision);

  py::class_<LevelVerdict>(m, "LevelVerdict")
      .def_readonly("name", &LevelVerdict::name)
      .def_readonly("traffic_bytes", &LevelVerdict::traffic_bytes)
      .def_readonly("bound_bytes", &LevelVerdict::bound_bytes)
      .def_readonly("curve_bytes", &LevelVerdict::curve_bytes)
      .def_readonly("fraction_of_bound", &LevelVerdict::fraction_of_bound)
      .def_readonly("fraction_of_curve", &LevelVerdict::fraction_of_curve)
      .def_readonly("seconds", &LevelVerdict::seconds)
      .def_readonly("floor_seconds", &LevelVerdict::floor_seconds);
  py::class_<Verdict>(m, "Verdict")
      .def_readonly("levels", &Verdict::levels)
      .def_readonly("arithmetic_seconds", &Verdict::arithmetic_seconds)
      .def_readonly("seconds", &Verdict::seconds)
      .def_readonly("floor_seconds", &Verdict::floor_seconds)
      .def_readonly("binding", &Verdict::binding)
      .def_readonly("floor_binding", &Verdict::floor_binding)
      .def("prunes", &prunes, py::arg("best_seconds"))
      .def("__str__", [](const Verdict& v) { return to_string(v); });
  m.def("machines", [] {
    using Machine = std::tuple<std::string, double, double, int, double, double, std::string>;
    std::vector<Machine> rows;
    for (const Device& d : devices()) {
      if (d.l2.capacity_bytes <= 0 || d.shared.capacity_bytes <= 0) continue;
      rows.emplace_back(
          d.name, d.l2.capacity_bytes, d.shared.capacity_bytes, d.multiprocessors,
          d.global.bytes_per_second, d.f16_flops,
          joined(d.sources.capacities, "; ", d.sources.bandwidths, "; ", d.sources.rates));
    }
    return rows;
  });
  using Row = std::tuple<std::string, double, std::int64_t, double>;
  py::class_<Ruler>(m, "Ruler")
      .def(py::init([](const Einsum& einsum, const std::vector<Row>& rows, double rate) {
             std::vector<Level> levels;
             for (const auto& [name, capacity, instances, bandwidth] : rows) {
               levels.push_back({name, capacity, instances, bandwidth});
             }
             return Ruler(einsum, std::move(levels), rate);
           }),
           py::arg("einsum"), py::arg("levels"), py::arg("operations_per_second"))
      .def(
          "judge",
          [](const Ruler& r, const std::vector<double>& traffic) { return r.judge(traffic); },
          py::arg("traffic_bytes"), "The verdict on a candidate with this traffic at each level.")
      .def_property_readonly("floor_seconds", &Ruler::floor_seconds)
      .def("finished", &Ruler::finished, py::arg("best_seconds"), py::arg("margin") = 0.02);
}

}  // namespace

void add_bounds(py::module_& module) {
  py::module_ m = module.def_submodule("bounds", "Least data movement; see ladder.bounds.");
  add_einsum(m);
  add_curve(m);
  add_chain(m);
  add_machines(m);
}

}  // namespace ladder::inspect
