// SPDX-License-Identifier: Apache-2.0
#include "program/lower.h"

#include <algorithm>

#include "program/lower/lowering.h"

namespace ladder {

Program Lowering::run() {
  declare();
  auto& body = program_.body;
  load_first(body);
  declare_table(body);
  if (needs_barrier_after_loads()) emit(body, Barrier{});
  if (schedule_.sweeps > 1) {
    sweeps(body);
    return std::move(program_);
  }
  multiply(body);
  switch (schedule_.reduction) {
    case Reduction::none: add_warps(body, 0, [&](Body& sums) { finish(sums, first_row()); }); break;
    case Reduction::cluster: add_cluster(body); break;
    case Reduction::ordered: add_in_order(body); break;
  }
  return std::move(program_);
}

// The engine's signal orders what it brings, and splitting into digits ends with a barrier. Rounds
// of activations begin with one, or await a signal of copies, which orders no table: threads fill
// it.
bool Lowering::needs_barrier_after_loads() const {
  const bool table = decoding_.kind == Decoding::Kind::table;
  if (x_in_rounds()) return table && schedule_.x_slack > 0;
  return table || (schedule_.sharers == 0 && !digits());
}

// The next kernel starts only then: kernels of torch's compiler wait for the one before them and
// read without another wait what earlier ones wrote.
void Lowering::await_preceding(Body& body) {
  emit(body, DependentWait{});
  emit(body, DependentLaunch{});
}

// Weights do not depend on the preceding kernel, so a dependent launch asks for them first.
// Otherwise the activations go first: they are few, and all threads wait for them; but not digits,
// which their threads make themselves.
void Lowering::load_first(Body& body) {
  if (schedule_.sharers > 0) {
    load_by_engine(body);
  } else if (staged()) {
    declare_ring();
    const std::int64_t ahead = schedule_.stages - 1;
    if (schedule_.dependent_launch) {
      for (std::int64_t i = 0; i + 1 < ahead; ++i) fetch(body, i);
      await_preceding(body);
      first_activations(body);
      fetch(body, ahead - 1);
      await_activations(body, 1);
    } else if (x_in_rounds()) {
      declare_activations();
      for (std::int64_t i = 0; i < ahead; ++i) copy_activations(body, i), fetch(body, i);
    } else {
      if (!digits()) first_activations(body);
      for (std::int64_t i = 0; i < ahead; ++i) fetch(body, i);
      if (digits()) first_activations(body);
      await_activations(body, static_cast<int>(ahead));
    }
  } else if (schedule_.dependent_launch) {
    load_weights(body);
    await_preceding(body);
    first_activations(body);
    if (!x_in_rounds()) await_activations(body, 0);
  } else {
    if (!digits()) first_activations(body);
    load_weights(body);
    if (digits()) first_activations(body);
    if (!x_in_rounds()) await_activations(body, 0);
  }
}

void Lowering::declare() {
  const auto& s = schedule_;
  program_.name = "linear_" + (expr_.element != nullptr ? std::string(expr_.element->name)
                                                        : "u" + std::to_string(expr_.bits));
  program_.threads = kLanes * s.warps_n * s.warps_k;
  program_.blocks_per_multiprocessor = s.blocks_per_multiprocessor;
  program_.cluster = s.reduction == Reduction::cluster ? static_cast<int>(s.splits(expr_.k))
                                                       : std::max(s.sharers, 1);
  program_.tiles_in_cluster = s.sharers > 1;
  program_.dependent_launch = s.dependent_launch;
  variable("split", s.splits(expr_.k));
  variable("tile", s.tiles(expr_.n));
  variable("rank", program_.cluster);
  weight_ = buffer("weight", Level::global, Scalar::u32, 0, true);
  const auto constant = [&](const char* name, Scalar scalar) {
    return buffer(name, Level::global, scalar, 0, true);
  };
  if (expr_.scale) per_group_.push_back({"scale", *expr_.scale, constant("scales", *expr_.scale)});
  if (expr_.stored_zero != Zero::none) {
    per_group_.push_back(
        {"zero_point", expr_.zero_scalar(), constant("zeros", expr_.zero_scalar())});
  }
  if (expr_.scale2) scale2_ = constant("scale2", Scalar::f32);
  if (expr_.bias) {
    // Training may have written it a moment ago: a dependent launch reads it after its wait. Loads
    // of the read-only path the assembler would move before that.
    bias_ = buffer("bias", Level::global, expr_.activation, 0, !s.dependent_launch);
    program_.buffers[bias_].optional = true;
  }
  if (expr_.gather) gather_ = constant("gather", Scalar::u32);
  x_ = buffer("x", Level::global, expr_.activation);
  y_ = buffer("y", Level::global, expr_.activation);
  if (s.reduction == Reduction::ordered) {
    workspace_ = buffer("workspace", Level::global, Scalar::f32);
    counters_ = buffer("counters", Level::global, Scalar::u32);
  }
}

VariableId Lowering::variable(std::string name, std::int64_t extent) {
  for (const Variable& other : program_.variables) {
    if (other.name == name) name += "_";
  }
  program_.variables.push_back({std::move(name), extent});
  return static_cast<VariableId>(program_.variables.size() - 1);
}

BufferId Lowering::buffer(std::string name, Level level, Scalar scalar, std::int64_t elements,
                          bool constant) {
  program_.buffers.push_back({std::move(name), level, scalar, elements, constant});
  return static_cast<BufferId>(program_.buffers.size() - 1);
}

ViewId Lowering::view(BufferId of, std::vector<std::int64_t> extents,
                      std::vector<std::int64_t> strides) {
  program_.views.push_back({of, std::move(extents), std::move(strides)});
  return static_cast<ViewId>(program_.views.size() - 1);
}

RegisterId Lowering::reg(std::string name, Scalar scalar, Layout layout) {
  for (const Register& other : program_.registers) {
    if (other.name == name) name += "_";
  }
  program_.registers.push_back({std::move(name), scalar, std::move(layout)});
  return static_cast<RegisterId>(program_.registers.size() - 1);
}

Layout Lowering::warps() const {
  return spatial({1, schedule_.warps_n, 1}) * spatial({schedule_.warps_k, 1, 1});
}

Workspace workspace_of(const Linear& expr, const Schedule& schedule) {
  if (schedule.reduction != Reduction::ordered) return {};
  const auto tiles = schedule.tiles(expr.n);
  return {tiles * schedule.splits(expr.k) * schedule.tokens * schedule.block_rows(), tiles};
}

Program lower(const Decisions& decisions, const Schedule& schedule) {
  return Lowering(decisions.expr, schedule, decisions.of(schedule.route)).run();
}

}  // namespace ladder
