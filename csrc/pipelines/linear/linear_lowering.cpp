// SPDX-License-Identifier: Apache-2.0
#include "pipelines/linear/linear_lowering.h"

#include <algorithm>
#include <utility>

#include "base/integers.h"
#include "layout/image_parts.h"
#include "layout/weight_image.h"
#include "pipelines/linear/objection.h"
#include "pipelines/lower.h"

namespace ladder {

// The next kernel starts only then: kernels of torch's compiler wait for the one before them and
// read without another wait what earlier ones wrote.
void LinearLowering::await_preceding(Body& body) {
  emit(body, DependentWait{});
  emit(body, DependentLaunch{});
}

SignalId LinearLowering::signal(Body& body, Signal signal) {
  program_.signals.push_back(std::move(signal));
  const auto id = static_cast<SignalId>(program_.signals.size() - 1);
  emit(body, SignalInit{id});
  return id;
}

bool LinearLowering::whole_pieces() const {
  return !digits() && has_whole_pieces(problem_, granule_);
}

void LinearLowering::declare_kernel(std::int64_t splits, std::int64_t tiles, int cluster,
                                    bool dependent_launch, Reduction reduction) {
  program_.name =
      "linear_" + (problem_.weight.element != nullptr ? std::string(problem_.weight.element->name)
                                                      : "u" + std::to_string(problem_.weight.bits));
  program_.cluster = cluster;
  program_.dependent_launch = dependent_launch;
  variable("split", splits);
  variable("tile", tiles);
  variable("rank", program_.cluster);
  weight_ = buffer("weight", Level::global, Scalar::u32, 0, true);
  const auto constant = [&](const char* name, Scalar scalar) {
    return buffer(name, Level::global, scalar, 0, true);
  };
  const Weight& weight = problem_.weight;
  const auto per_group = [&](const char* name, const char* buffer, Scalar scalar, bool zeros) {
    per_group_.push_back({name, scalar, constant(buffer, scalar), problem_.group_size(), zeros});
  };
  if (weight.scale) per_group("scale", "scales", weight.scale_in_memory(), false);
  if (weight.stored_zero != Zero::none) {
    per_group("zero_point", "zeros", weight.zero_in_memory(), true);
  }
  if (problem_.has_scale2()) scale2_ = constant("scale2", Scalar::f32);
  if (weight.superblocks) {
    const auto [columns, integers, seconds] = *weight.superblocks;
    scale2_ = constant("scale2", seconds);
    per_group_.push_back({"second_scale", seconds, scale2_, columns, false, 0});
    if (weight.seconds() > 1) {
      const auto of_scales = problem_.superblocks() * round_up(problem_.n, kBlock);
      per_group_.push_back({"second_zero", seconds, scale2_, columns, true, 1, of_scales});
    }
  }
  if (problem_.has_bias()) {
    // Training may have written it a moment ago: a dependent launch reads it after its wait. Loads
    // of the read-only path the assembler would move before that.
    bias_ = buffer("bias", Level::global, problem_.formats.bias, 0, !dependent_launch);
    program_.buffers[bias_].optional = true;
  }
  if (problem_.permuted_columns) gather_ = constant("gather", Scalar::u32);
  // Bytes come as the instruction reads them.
  x_ = buffer("x", Level::global, problem_.has_bytes_of_x() ? operand_ : problem_.formats.x);
  if (problem_.has_bytes_of_x()) x_scales_ = buffer("x_scales", Level::global, Scalar::f32);
  // As the bias: the layer before may have written it.
  if (problem_.has_residual()) {
    residual_ = buffer("residual", Level::global, problem_.formats.y, 0, !dependent_launch);
  }
  if (problem_.has<Quantise>()) {
    y_scale_ = buffer("y_scale", Level::global, Scalar::f32, 0, !dependent_launch);
  }
  y_ = buffer("y", Level::global, problem_.formats.y);
  if (reduction == Reduction::ordered) {
    workspace_ = buffer("workspace", Level::global, Scalar::f32);
    counters_ = buffer("counters", Level::global, Scalar::u32);
  }
  if (problem_.has_items()) declare_items();
}

// What a weight has lies in its image, all parts of which are as far apart as the images are.
void LinearLowering::declare_items() {
  const RoutedRows* experts = problem_.experts();
  Items items{.weights = problem_.batch, .rows = problem_.m};
  if (experts != nullptr) items.table = buffer("items", Level::global, Scalar::u32, 0, true);
  const bool one_weight = experts == nullptr && problem_.batch == 1;
  const auto image_bytes = experts != nullptr ? experts->bytes : 4 * image_parts(problem_).words;
  const auto shift = [&](BufferId id, Items::By by, std::int64_t elements) {
    if (id >= 0) items.shifts.push_back({id, by, elements});
  };
  const auto of_image = [&](BufferId id) {
    if (id < 0 || one_weight) return;
    shift(id, Items::By::weight, image_bytes / bytes_of(program_.buffers[id].scalar));
  };
  of_image(weight_);
  for (const PerGroup& numbers : per_group_) {
    if (numbers.of < 0) of_image(numbers.buffer);
  }
  of_image(scale2_);
  of_image(gather_);
  if (!one_weight) shift(bias_, Items::By::weight, round_up(problem_.n, kBiasOfExpert));
  // Windows count their rows themselves.
  if (problem_.windows() == nullptr) shift(x_, Items::By::row, problem_.k);
  shift(x_scales_, Items::By::row, 1);
  shift(residual_, Items::By::row, problem_.columns_of_y());
  shift(y_, Items::By::row, problem_.columns_of_y());
  program_.items = std::move(items);
}

RegisterId LinearLowering::rows_of(bool zeros) const {
  for (const PerGroup& part : per_group_) {
    if (part.zeros == zeros && part.of < 0) return part.product >= 0 ? part.product : part.rows;
  }
  return -1;
}

ViewId LinearLowering::table_of(const PerGroup& part) {
  const auto n_blocks = round_up(problem_.n, kBlock) / kBlock;
  const auto table = view(part.buffer, {ceil_div(problem_.k, part.columns), n_blocks, 8, 4, 8},
                          {n_blocks * kBlock, kBlock, 8, 0, 1});
  program_.views[table].offset = part.offset;
  return table;
}

std::int64_t LinearLowering::groups_in(std::int64_t columns, const PerGroup& part) const {
  return part.columns >= problem_.k ? 1 : std::max<std::int64_t>(columns / part.columns, 1);
}

void LinearLowering::multiply_seconds(Body& body) {
  for (const PerGroup& seconds : per_group_) {
    if (seconds.of < 0) continue;
    PerGroup& part = per_group_[seconds.of];
    if (part.product < 0) {
      const Layout layout = program_.registers[part.rows].layout;
      part.product = reg(part.name, Scalar::f32, layout);
    }
    emit(body, TimesSecond{part.product, part.rows, seconds.rows});
  }
}

// `sharing` warps in the order of K belong to one group.
LinearLowering::GroupOrder LinearLowering::group_order(std::int64_t columns, std::int64_t warps_k,
                                                       std::int64_t parts,
                                                       std::int64_t group) const {
  if (group >= problem_.k) {
    return {replicated(warps_k, 5), [](const Affine&) { return Affine(0); }};
  }
  const auto sharing = std::max<std::int64_t>(group / columns, 1);
  const auto groups = std::max<std::int64_t>(columns / group, 1);
  const auto per_block = parts * warps_k;  // warps' columns of a thread block
  if (groups == 1 && sharing >= warps_k) {
    return {replicated(warps_k, 5), [=](const Affine& part) {
              const auto outer = sharing >= per_block ? Affine::of(kSplit, 1, sharing / per_block)
                                                      : Affine::of(kSplit, per_block / sharing);
              return sharing >= per_block ? outer : outer + divided(part, sharing / warps_k);
            }};
  }
  const auto step = warps_k / sharing * groups;
  return {spatial({warps_k / sharing, 1, 1, 1, 1}) * replicated(sharing, 5),
          [=](const Affine& part) { return Affine::of(kSplit, step * parts) + times(part, step); }};
}

// K-step s of a group is step group * count + s of all; a block of the image has `per_block`.
LinearLowering::Steps LinearLowering::declare_steps(std::int64_t groups, std::int64_t all) {
  const std::int64_t per_block = kBlock / instruction_.step_columns();
  const auto group = variable("group", groups);
  const Steps out = {group, variable("step", all / groups), all / groups};
  Operands& o = operands_;
  o.group = Affine::of(out.group);
  if (out.count >= per_block) {
    o.block = Affine::of(out.group, out.count / per_block) + Affine::of(out.step, 1, per_block);
    o.in_block = remainder(Affine::of(out.step), per_block);
  } else {
    const auto of_block = per_block / out.count;
    o.block = Affine::of(out.group, 1, of_block);
    o.in_block =
        times(remainder(Affine::of(out.group), of_block), out.count) + Affine::of(out.step);
  }
  return out;
}

VariableId LinearLowering::variable(std::string name, std::int64_t extent) {
  for (const Variable& other : program_.variables) {
    if (other.name == name) name += "_";
  }
  program_.variables.push_back({std::move(name), extent});
  return static_cast<VariableId>(program_.variables.size() - 1);
}

BufferId LinearLowering::buffer(std::string name, Level level, Scalar scalar, std::int64_t elements,
                                bool constant) {
  program_.buffers.push_back({std::move(name), level, scalar, elements, constant});
  return static_cast<BufferId>(program_.buffers.size() - 1);
}

ViewId LinearLowering::view(BufferId of, std::vector<std::int64_t> extents,
                            std::vector<std::int64_t> strides) {
  program_.views.push_back({of, std::move(extents), std::move(strides)});
  return static_cast<ViewId>(program_.views.size() - 1);
}

RegisterId LinearLowering::reg(std::string name, Scalar scalar, Layout layout) {
  for (const Register& other : program_.registers) {
    if (other.name == name) name += "_";
  }
  program_.registers.push_back({std::move(name), scalar, std::move(layout)});
  return static_cast<RegisterId>(program_.registers.size() - 1);
}

RegisterId LinearLowering::another(RegisterId of) {
  const Register first = program_.registers[of];
  std::string name = first.name.substr(0, first.name.find_last_not_of('_') + 1);
  return reg(std::move(name), first.scalar, first.layout);
}

}  // namespace ladder
