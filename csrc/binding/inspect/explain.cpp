// SPDX-License-Identifier: Apache-2.0
// ladder._C.explain: every value between a tType and a kernel, as text. `ladder explain` prints it.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "binding/inspect/inspect.h"
#include "codegen/target.h"
#include "compile.h"
#include "expr/constructors.h"
#include "expr/windows_text.h"
#include "pipelines/diversified.h"
#include "pipelines/pruned.h"
#include "program/traffic.h"
#include "runtime/device_row.h"
#include "runtime/expert_products.h"
#include "runtime/rounding.h"
#include "schedule/tile_plan.h"

namespace ladder::inspect {
namespace {

using Section = std::pair<std::string, std::string>;

struct Request {
  std::int64_t m, n, k;
  std::string weight, activation, device;
  int candidates;
  bool all, dependent_launch;
  std::string activation_type;
  std::int64_t batch;
  std::string windows;
  bool residual;
  std::string codes_of_y;
};

/// As runtime/expert_products.h divides rows: those of the first kernel.
Problem in_items(const Problem& whole, const Device& machine) {
  Problem best = whole;
  double least = HUGE_VAL;
  for (const std::int64_t of_item : kItemRows) {
    Problem items = whole;
    items.m = of_item;
    items.passes = ceil_div(whole.m, of_item);
    const auto all = candidates(decide(items, machine), false);
    if (all.empty() || !all.front().dropped.empty() || all.front().cost.seconds >= least) continue;
    least = all.front().cost.seconds;
    best = std::move(items);
  }
  return best;
}

std::string type_text(const TType& type, std::int64_t n, std::int64_t k) {
  std::ostringstream out;
  const Element& element = *type.element;
  out << to_string(type) << '\n'
      << element.name << ": " << element.bits << " bits a code, values " << min_value(element)
      << " to " << max_value(element) << "; source: " << element.source << '\n'
      << type.bits_per_weight(n, k) << " bits a weight with scales and zero points\n"
      << "held exactly by:";
  for (const Element* to : exact_targets(element)) out << ' ' << to->name;
  out << '\n';
  return out.str();
}

/// "a cluster of 8, of at most 1" and its like with other numbers are one reason.
std::string reason_of(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) {
      out += c;
    } else if (out.empty() || out.back() != '#') {
      out += '#';
    }
  }
  return out;
}

void print(std::ostream& out, const Candidate& candidate) {
  const auto microseconds = [](double seconds) { return 1e6 * seconds; };
  const Cost& cost = candidate.cost;
  out << microseconds(cost.seconds) << " us (memory " << microseconds(cost.memory_seconds)
      << ", issue " << microseconds(cost.issue_seconds) << ", shared "
      << microseconds(cost.shared_seconds) << ", fixed " << microseconds(cost.fixed_seconds)
      << "): " << to_string(candidate.schedule) << '\n';
}

std::string candidates_text(const std::vector<Candidate>& all, const Request& request) {
  std::ostringstream out;
  out.precision(3);
  struct Dropped {
    int count = 0;
    const Candidate* first = nullptr;
  };
  std::map<std::string, Dropped> reasons;
  const auto kept =
      std::ranges::count_if(all, [](const Candidate& c) { return c.dropped.empty(); });
  out << all.size() << " candidates, " << kept << " kept\n";
  int shown = 0;
  for (const Candidate& candidate : all) {
    if (candidate.dropped.empty()) {
      if (request.all || shown++ < request.candidates) print(out, candidate);
      continue;
    }
    auto& dropped = reasons[reason_of(candidate.dropped)];
    if (dropped.count++ == 0) dropped.first = &candidate;
  }
  out << "dropped:\n";
  if (request.all) {
    for (const Candidate& candidate : all) {
      if (candidate.dropped.empty()) continue;
      out << "  " << candidate.dropped << ": " << to_string(candidate.schedule) << '\n';
    }
  }
  for (const auto& [reason, dropped] : reasons) {
    out << "  " << dropped.count << " x " << reason << '\n';
    if (reason != dropped.first->dropped) out << "      such as " << dropped.first->dropped << '\n';
    out << "      first " << to_string(dropped.first->schedule) << '\n';
  }
  return out.str();
}

std::string traffic_text(const Program& program, std::int64_t tokens) {
  // Some seconds of counting; 28672 x 8192 takes a few thousand.
  constexpr double kMostVisits = 1 << 18;
  if (const double visits = traffic_visits(program); visits > kMostVisits) {
    return joined("not counted: a block goes through ", static_cast<std::int64_t>(visits),
                  " instructions, more than ", static_cast<std::int64_t>(kMostVisits), '\n');
  }
  return to_string(program, traffic(program, tokens));
}

/// The schedule, and what was decided for its route before there were schedules.
std::string schedule_text(const Schedule& schedule, const Decisions& decisions) {
  const OperandDecisions& operands = decisions.of(route_of(schedule));
  return joined(to_string(schedule), "\nby ", operands.core.instruction->name, " in tiles of ",
                to_string(operands.hint), "; weights are converted ", name_of(*operands.place),
                '\n');
}

/// Of y that is codes; "": y is numbers.
std::optional<Scalar> coded_called(const std::string& name) {
  if (name.empty()) return std::nullopt;
  LADDER_REQUIRE(name == "int8" || name == "float8_e4m3", "codes of y are \"", name,
                 "\", not int8 or float8_e4m3");
  return rounded_called(name)->scalar;
}

std::vector<Section> explain(const Request& request) {
  const TType& type = ttype(request.weight);
  LADDER_REQUIRE(request.activation == "float16" || request.activation == "bfloat16",
                 "activation is ", request.activation, ", not float16 or bfloat16");
  const Scalar activation = *scalar_of(element(request.activation));
  Device machine = device(request.device);
  machine.unproven = allows_unproven();
  LADDER_REQUIRE(!request.dependent_launch || machine.dependent_launch(), machine.name,
                 " starts no kernel before the preceding one has ended: no dependent launch");
  std::vector<Section> out = {{"tType", type_text(type, request.n, request.k)}};
  LADDER_REQUIRE(request.batch == 1 || request.windows.empty(), "a batch of ", request.batch,
                 " convolutions, which no kernel multiplies");
  Problem problem = linear_of(type, request.n, request.k, activation, request.m);
  problem.batch = request.batch;
  if (!request.windows.empty()) {
    const Windows windows = windows_from(request.windows);
    LADDER_REQUIRE(request.k == windows.columns(), "k is ", request.k, ", and a window has ",
                   windows.columns());
    problem.rows = windows;
  }
  problem.round_x(rounded_called(request.activation_type));
  problem.set_residual(request.residual);
  problem.quantise_y(coded_called(request.codes_of_y));
  check(problem);
  out.emplace_back("expression", to_string(problem) + '\n');
  const auto form = matmul_form(tensor_expr(problem));
  out.emplace_back("matmul", to_string(form.expr) + '\n' + to_string(form) +
                                 "\na at (s, i, k): " + to_string(view_of_a(form).map) +
                                 "\nw at (s, j, k): " + to_string(view_of_b(form).map) + '\n');
  out.emplace_back("device", to_string(machine));

  out.emplace_back("transforms", to_string(tile_plan(problem, machine)));

  const Problem whole = problem;
  const auto floor_text = [&] {
    auto text = joined("no schedule takes less than ",
                       1e6 * ruler_of(whole, machine).floor_seconds(), " us\n");
    if (arithmetic_rate(whole, machine) == 0) {
      text += joined("of data alone: ", machine.name, " has no known rate of ",
                     request.activation_type, " products\n");
    }
    return text;
  };
  const auto without_program = [&](const std::string& why) {
    out.emplace_back("bound", floor_text());
    out.emplace_back("program", why + '\n');
    return out;
  };
  if (const auto why_not = no_target(machine); !why_not.empty()) return without_program(why_not);
  if (problem.has_items()) {
    problem = in_items(problem, machine);
    out.emplace_back("items", to_string(problem) + '\n');
  }
  const Decisions decisions = decide(problem, machine);
  auto all = candidates(decisions, request.dependent_launch);
  if (all.empty()) return without_program("no kernel serves it: there is no candidate");
  const double best_seconds = all.front().cost.seconds;
  all = diversified(pruned(std::move(all), decisions, best_seconds),
                    static_cast<std::size_t>(std::max(request.candidates, 0)));
  out.emplace_back("candidates", candidates_text(all, request));
  if (!all.front().dropped.empty()) {
    return without_program("no kernel serves it: every candidate was dropped");
  }
  if (is_dense(all.front().schedule)) {
    return without_program(
        joined(request.m, " tokens: the weight is dequantised, and a library multiplies"));
  }
  const Compiled compiled = compile(decisions, all.front().schedule);
  // Items end within images, of which bounds have whole ones.
  out.emplace_back("bound", problem.windows() != nullptr
                                ? floor_text()
                                : to_string(verdict_of(compiled.schedule, decisions)));
  out.emplace_back("schedule", schedule_text(compiled.schedule, decisions));
  if (const auto* waves = std::get_if<WaveSchedule>(&compiled.schedule)) {
    out.emplace_back("layouts", to_string(maps_of(*waves, decisions)));
  }
  out.emplace_back("program", to_string(compiled.program));
  out.emplace_back("traffic", traffic_text(compiled.program, request.m));
  out.emplace_back("source", compiled.source);
  return out;
}

}  // namespace

void add_explain(python::Module& module) {
  using python::arg;
  module.def(
      "explain",
      [](std::int64_t m, std::int64_t n, std::int64_t k, const std::string& weight,
         const std::string& activation, const std::string& device, int candidates, bool all,
         bool dependent_launch, const std::string& activation_type, std::int64_t batch,
         const std::string& windows, bool residual, const std::string& codes_of_y) {
        return explain({m, n, k, weight, activation, device, candidates, all, dependent_launch,
                        activation_type, batch, windows, residual, codes_of_y});
      },
      "Every value between a tType and a kernel: (title, text), in order.", arg("m"), arg("n"),
      arg("k"), arg("weight"), arg("activation"), arg("device"), arg("candidates", 8),
      arg("all", false), arg("dependent_launch", false), arg("activation_type", ""),
      arg("batch", 1), arg("windows", ""), arg("residual", false),
      arg("codes_of_y", ""));
}

}  // namespace ladder::inspect
