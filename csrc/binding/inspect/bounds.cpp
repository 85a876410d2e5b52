// SPDX-License-Identifier: Apache-2.0
// ladder._C.bounds: what Python's ladder.bounds is made of. Documentation for users is there.
#include <array>

#include "base/joined.h"
#include "binding/inspect/inspect.h"
#include "bounds/chain.h"
#include "bounds/lower_bound.h"
#include "bounds/mesa.h"
#include "bounds/slope.h"
#include "bounds/verdict.h"
#include "device/device.h"

namespace ladder::inspect {
namespace {

using namespace ladder::bounds;  // NOLINT: this file is the layer's other side
using python::arg;
using python::Class;
using python::fn;
using Pair = std::pair<double, double>;

std::vector<Pair> pairs(const Curve& curve) {
  std::vector<Pair> result;
  for (const Point& p : curve.points()) result.emplace_back(p.buffer_bytes, p.traffic_bytes);
  return result;
}

void add_einsum(python::Module& m) {
  Class<Bytes>(m, "Bytes")
      .init(
          [](double store, double buffer, double code) {
            return Bytes{store, buffer, code};
          },
          arg("store"), arg("buffer"), arg("code", 0.0))
      .property("store", fn<&Bytes::store>)
      .property("buffer", fn<&Bytes::buffer>)
      .property("code", fn<&Bytes::code>);
  // Axes are lists of (rank, coefficient), the last tensor is the output.
  using Axes = std::vector<std::vector<std::pair<int, std::int64_t>>>;
  Class<Einsum>(m, "Einsum")
      .init(
          [](const std::vector<std::pair<std::string, std::int64_t>>& ranks,
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
          },
          arg("ranks"), arg("tensors"))
      .property("ranks",
                [](const Einsum& e) {
                  std::vector<std::pair<std::string, std::int64_t>> ranks;
                  for (const Rank& r : e.ranks) ranks.emplace_back(r.name, r.size);
                  return ranks;
                })
      .property("iterations", fn<&iterations>)
      .property("operations", [](const Einsum& e) { return operations(e); })
      .property("algorithmic_minimum", [](const Einsum& e) { return algorithmic_minimum(e); })
      .def("mapping_count", fn<&mapping_count>, "", arg("bypass", false))
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

void add_curve(python::Module& m) {
  Class<Curve>(m, "Curve")
      .init(
          [](const std::vector<Pair>& points) {
            std::vector<Point> candidates;
            for (const auto& [buffer, traffic] : points) candidates.push_back({buffer, traffic});
            return Curve(std::move(candidates));
          },
          arg("points", std::vector<Pair>{}))
      .property("points", fn<&pairs>)
      .def("at", fn<&Curve::at>, "", arg("buffer_bytes"))
      .def("interpolated", fn<&Curve::interpolated>, "", arg("buffer_bytes"))
      .property("max_effectual",
                [](const Curve& c) {
                  const Point p = c.max_effectual();
                  return Pair{p.buffer_bytes, p.traffic_bytes};
                })
      .def("scaled", fn<&Curve::scaled>, "", arg("buffer"), arg("traffic"))
      .def("__len__", [](const Curve& c) { return c.points().size(); })
      .def("__eq__", [](const Curve& a, const Curve& b) { return a.points() == b.points(); })
      .def("__repr__", [](const Curve& c) {
        return "<Curve of " + std::to_string(c.points().size()) + " points>";
      });
  m.def("sum", [](const std::vector<Curve>& curves) { return sum(curves); });
  m.def("envelope", [](const std::vector<Curve>& curves) { return envelope(curves); });
  python::type_of<Factors> =
      m.enumeration("Factors", {{"divisors", static_cast<int>(Factors::divisors)},
                                {"integers", static_cast<int>(Factors::integers)}});
  python::type_of<Space> =
      m.enumeration("Space", {{"uniform", static_cast<int>(Space::uniform)},
                              {"streaming", static_cast<int>(Space::streaming)}});
  m.def("ski_slope", [](const Einsum& einsum, Factors factors, Space space) {
    const python::Unlocked unlocked;
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
  m.def("lower_bound", fn<&lower_bound>);
}

void add_chain(python::Module& m) {
  python::type_of<After> =
      m.enumeration("After", {{"nothing", static_cast<int>(After::nothing)},
                              {"softmax", static_cast<int>(After::softmax)},
                              {"layer_norm", static_cast<int>(After::layer_norm)}});
  python::type_of<Accounting> =
      m.enumeration("Accounting", {{"sound", static_cast<int>(Accounting::sound)},
                                   {"paper", static_cast<int>(Accounting::paper)}});
  Class<Layer>(m, "Layer")
      .init([](std::string name, std::int64_t rows, std::int64_t k, std::int64_t n,
               std::int64_t heads, std::int64_t batch, After after, double activation,
               double weight) {
        return Layer{std::move(name), rows, k, n, heads, batch, after, activation, weight};
      })
      .property("name", fn<&Layer::name>)
      .property("m", fn<&Layer::m>)
      .property("k", fn<&Layer::k>)
      .property("n", fn<&Layer::n>)
      .property("heads", fn<&Layer::heads>)
      .property("batch", fn<&Layer::batch>)
      .property("after", fn<&Layer::after>)
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
  m.def("gpt3_6_7b_chain", fn<&gpt3_6_7b_chain>);
  m.def("gpt3_6_7b_side", fn<&gpt3_6_7b_side>);
  m.set("GPT3_BLOCK_OPERATIONS", python::give(kGpt3BlockOperations).get());
}

void add_machines(python::Module& m) {
  m.def("performance", [](const Curve& c, double ops, double peak, double bandwidth, double size) {
    return performance(c, ops, {peak, bandwidth}, size);
  });
  Class<AreaModel>(m, "AreaModel")
      .init([] { return AreaModel(); })
      .member<&AreaModel::total_um2>("total_um2")
      .member<&AreaModel::um2_per_multiplier>("um2_per_multiplier")
      .member<&AreaModel::um2_per_byte>("um2_per_byte")
      .member<&AreaModel::hertz>("hertz")
      .member<&AreaModel::bytes_per_second>("bytes_per_second")
      .member<&AreaModel::operations_per_multiplication>("operations_per_multiplication");
  m.def("paper_area", fn<&paper_area>);
  Class<Provision>(m, "Provision")
      .property("buffer_bytes", fn<&Provision::buffer_bytes>)
      .property("share", fn<&Provision::share>)
      .property("compute_operations_per_second", fn<&Provision::compute_operations_per_second>)
      .property("memory_operations_per_second", fn<&Provision::memory_operations_per_second>)
      .property("operations_per_second", fn<&Provision::operations_per_second>);
  m.def("provisions", fn<&provisions>);
  m.def("best_provision", fn<&best_provision>);
  m.def("balanced_provision", fn<&balanced_provision>);

  Class<LevelVerdict>(m, "LevelVerdict")
      .property("name", fn<&LevelVerdict::name>)
      .property("traffic_bytes", fn<&LevelVerdict::traffic_bytes>)
      .property("bound_bytes", fn<&LevelVerdict::bound_bytes>)
      .property("curve_bytes", fn<&LevelVerdict::curve_bytes>)
      .property("fraction_of_bound", fn<&LevelVerdict::fraction_of_bound>)
      .property("fraction_of_curve", fn<&LevelVerdict::fraction_of_curve>)
      .property("seconds", fn<&LevelVerdict::seconds>)
      .property("floor_seconds", fn<&LevelVerdict::floor_seconds>);
  Class<Verdict>(m, "Verdict")
      .property("levels", fn<&Verdict::levels>)
      .property("arithmetic_seconds", fn<&Verdict::arithmetic_seconds>)
      .property("seconds", fn<&Verdict::seconds>)
      .property("floor_seconds", fn<&Verdict::floor_seconds>)
      .property("binding", fn<&Verdict::binding>)
      .property("floor_binding", fn<&Verdict::floor_binding>)
      .def("prunes", fn<&prunes>, "", arg("best_seconds"))
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
  Class<Ruler>(m, "Ruler")
      .init(
          [](const Einsum& einsum, const std::vector<Row>& rows, double rate) {
            std::vector<Level> levels;
            for (const auto& [name, capacity, instances, bandwidth] : rows) {
              levels.push_back({name, capacity, instances, bandwidth});
            }
            return Ruler(einsum, std::move(levels), rate);
          },
          arg("einsum"), arg("levels"), arg("operations_per_second"))
      .def(
          "judge",
          [](const Ruler& r, const std::vector<double>& traffic) { return r.judge(traffic); },
          "The verdict on a candidate with this traffic at each level.", arg("traffic_bytes"))
      .property("floor_seconds", fn<&Ruler::floor_seconds>)
      .def("finished", fn<&Ruler::finished>, "", arg("best_seconds"), arg("margin", 0.02));
}

}  // namespace

void add_bounds(python::Module& module) {
  python::Module m = module.submodule("bounds", "Least data movement; see ladder.bounds.");
  add_einsum(m);
  add_curve(m);
  add_chain(m);
  add_machines(m);
}

}  // namespace ladder::inspect
