// SPDX-License-Identifier: Apache-2.0
#include "expr/problem.h"

#include <sstream>

#include "base/error.h"
#include "base/joined.h"

namespace ladder {
namespace {

/// A step of that kind is in its place, or is not there.
void put(std::vector<EpilogueStep>& epilogue, const EpilogueStep& step, bool present) {
  std::erase_if(epilogue, [&](const auto& each) { return each.index() == step.index(); });
  if (!present) return;
  const auto behind =
      std::ranges::find_if(epilogue, [&](const auto& each) { return each.index() > step.index(); });
  epilogue.insert(behind, step);
}

void check_bytes(const Problem& problem) {
  LADDER_REQUIRE(problem.weight.element == nullptr || problem.formats.x == Scalar::e4m3, "x of ",
                 name_of(problem.formats.x), " beside codes that are ",
                 problem.weight.type.element->name);
  LADDER_REQUIRE(!problem.permuted_columns, "x of 8 bits has its columns in their order");
  LADDER_REQUIRE(problem.k % kColumnsOfBytes == 0, "x of 8 bits has ", problem.k,
                 " columns, no multiple of ", kColumnsOfBytes);
}

void check_formats(const Problem& problem) {
  const auto& [x, y, bias, sum, fast_accum] = problem.formats;
  LADDER_REQUIRE(x == Scalar::f16 || x == Scalar::bf16 || x == Scalar::s8 || x == Scalar::e4m3,
                 "x is ", name_of(x), ", not f16, bf16, s8 or e4m3");
  const auto is_float = [](Scalar scalar) {
    return scalar == Scalar::f16 || scalar == Scalar::bf16 || scalar == Scalar::f32;
  };
  if (problem.has<Quantise>()) {
    LADDER_REQUIRE(y == Scalar::s8 || y == Scalar::e4m3, "y is quantised to ", name_of(y),
                   ", not to s8 or e4m3");
    LADDER_REQUIRE(is_float(bias), "the bias is ", name_of(bias), ", not f16, bf16 or f32");
  } else {
    LADDER_REQUIRE(is_float(y), "y is ", name_of(y), ", not f16, bf16 or f32",
                   problem.has_bytes_of_y() ? ", and nothing quantises it" : "");
  }
  LADDER_REQUIRE(y != Scalar::f32 || problem.has_bytes_of_x(), "y is f32, and x is ", name_of(x),
                 ", not of 8 bits");
  LADDER_REQUIRE(!fast_accum || x == Scalar::e4m3, "x is ", name_of(x),
                 ", not e4m3, and its sums are fast");
  LADDER_REQUIRE(!problem.has<ScaleOfToken>() || problem.has_bytes_of_x(), "x is ", name_of(x),
                 ", and its tokens have scales");
  const bool second = problem.weight.type.has_scale_of_sums();
  LADDER_REQUIRE(problem.has_scale2() == second, "a second scale is ", second ? "missing" : "given",
                 ", and the weight is ", to_string(problem.weight.type));
}

void check_experts(const RoutedRows& rows) {
  LADDER_REQUIRE(rows.items >= 1 && rows.deviation >= 0, rows.items,
                 " products of experts, more or less ", rows.deviation);
  LADDER_REQUIRE(rows.bytes > 0 && rows.bytes % kPartBytes == 0, "weights of experts lie ",
                 rows.bytes, " bytes apart, not lines of ", kPartBytes);
}

void check_form(const MatmulForm& form, const Problem& problem) {
  const auto agree = [](const char* what, const Fused& fused, std::int64_t extent) {
    LADDER_REQUIRE(fused.extent == extent, what, " is ", extent, ", and the operator's ",
                   fused.extent);
  };
  agree("batch", form.s, problem.batch);
  agree("m", form.i, problem.m);
  agree("n", form.j, problem.n);
  agree("k", form.k, problem.k);
}

}  // namespace

void Problem::set_bias(bool present) { put(epilogue, Bias{}, present); }

const Gating* Problem::gate() const {
  for (const EpilogueStep& step : epilogue) {
    if (const auto* found = std::get_if<GateProduct>(&step)) return &found->gating;
  }
  return nullptr;
}

void Problem::set_gate(const std::optional<Gating>& gating) {
  put(epilogue, GateProduct{gating.value_or(Gating{})}, gating.has_value());
}

std::optional<Gated> Problem::activation_function() const {
  for (const EpilogueStep& step : epilogue) {
    if (const auto* found = std::get_if<ActivationFunction>(&step)) return found->what;
  }
  return std::nullopt;
}

void Problem::set_activation_function(std::optional<Gated> what) {
  put(epilogue, ActivationFunction{what.value_or(Gated::linear)}, what.has_value());
}

void Problem::set_residual(bool present) { put(epilogue, Residual{}, present); }

void Problem::set_activation(Scalar activation) {
  if (!has_bytes_of_x()) formats.x = activation;
  if (formats.bias == Scalar::f32) return;
  formats.bias = activation;
  if (!has_bytes_of_y()) formats.y = activation;
}

void Problem::round_x(std::optional<RoundedX> to) {
  formats.x = to ? to->scalar : activation();
  formats.fast_accum = to && to->fast_accum;
  put(epilogue, ScaleOfToken{}, to.has_value());
}

void Problem::widen_y(bool wide) {
  if (!wide) return;
  formats.bias = Scalar::f32;
  if (!has_bytes_of_y()) formats.y = Scalar::f32;
}

void Problem::quantise_y(std::optional<Scalar> to) {
  formats.y = to.value_or(formats.bias);
  put(epilogue, Quantise{}, to.has_value());
}

void check(const Problem& problem) {
  LADDER_REQUIRE(problem.m >= 1, "m is ", problem.m, ", not positive");
  LADDER_REQUIRE(problem.n >= 1, "n is ", problem.n, ", not positive");
  LADDER_REQUIRE(problem.k >= 1, "k is ", problem.k, ", not positive");
  LADDER_REQUIRE(problem.batch >= 1, "batch is ", problem.batch, ", not positive");
  check(problem.weight.type);
  check_formats(problem);
  if (problem.has_bytes_of_x()) check_bytes(problem);
  LADDER_REQUIRE(!problem.has_gate() || problem.n % (2 * kGateRows) == 0, "gate and up have ",
                 problem.n, " rows, not eight and eight in turn");
  if (const auto what = problem.activation_function()) {
    LADDER_REQUIRE(takes_gate_alone(*what), name_of(*what), " of sums, which takes a gate and up");
    LADDER_REQUIRE(!problem.has_gate(), name_of(*what), " of a product of gate and up");
  }
  LADDER_REQUIRE(problem.passes >= 1, "passes are ", problem.passes, ", not positive");
  if (const auto* windows = std::get_if<ImageToColumn>(&problem.rows)) {
    check_form(windows->form, problem);
  }
  if (const Windows* windows = problem.windows()) {
    check(*windows);
    LADDER_REQUIRE(problem.k == windows->columns(), "k is ", problem.k, ", and a window has ",
                   windows->columns());
  }
  if (problem.experts() == nullptr) return;
  check_experts(*problem.experts());
  LADDER_REQUIRE(problem.batch == 1 && problem.passes == 1, "a batch of ",
                 problem.batch * problem.passes, " layers of experts");
}

std::string refusal(const Problem& problem) {
  const Formats& formats = problem.formats;
  if (problem.weight.bits > 8) {
    return joined(problem.weight.type.element->name, " has more than 8 bits");
  }
  if (problem.weight.superblocks && problem.groups() == 1) {
    return joined("superblocks of ", problem.weight.superblocks->columns, " columns, and K is ",
                  problem.k, ", one group");
  }
  if (std::holds_alternative<ImageToColumn>(problem.rows)) {
    return "kernels read rows, or the windows of one group of channels-last images";
  }
  if (problem.windows() != nullptr && problem.batch > 1) {
    return joined("no kernel reads windows for a batch of ", problem.batch);
  }
  if (problem.windows() != nullptr && problem.has_bytes_of_x()) {
    return joined("x is ", name_of(formats.x), ", and windows have no scale of their own");
  }
  if (formats.sum != Scalar::f32) {
    return joined("kernels add up in f32, not in ", name_of(formats.sum));
  }
  const bool quantised = problem.has<Quantise>();
  if (formats.bias != formats.y && !quantised) {
    return joined("the bias is ", name_of(formats.bias), ", and y ", name_of(formats.y));
  }
  if (!problem.has_bytes_of_x() && formats.x != formats.bias) {
    return joined("x is ", name_of(formats.x), ", and ", quantised ? "the bias " : "y ",
                  name_of(formats.bias));
  }
  if (problem.has_bytes_of_x() && !problem.has<ScaleOfToken>()) {
    return joined("x of ", name_of(formats.x), " without scales of its tokens");
  }
  if (problem.has_residual()) {
    if (problem.has_gate()) return "kernels add no residual to a product of gate and up";
    if (problem.experts() != nullptr) return "kernels add no residual to rows of experts";
    if (problem.wide_y()) return "kernels add no residual to y of f32";
    if (quantised) return "kernels add no residual to y of 8 bits";
  }
  // Each kind once.
  const auto early = std::ranges::adjacent_find(
      problem.epilogue, [](const auto& a, const auto& b) { return a.index() >= b.index(); });
  return early == problem.epilogue.end() ? ""
                                         : "kernels take a second scale, scales of tokens, a bias, "
                                           "a gate, an activation function, a residual and the "
                                           "scale of y in this order";
}

std::string to_string(const Problem& problem) {
  const Weight& weight = problem.weight;
  std::ostringstream out, per_group;
  const auto type = name_of(problem.formats.y);
  per_group << "[n";
  if (problem.groups() > 1) per_group << ", k/" << problem.group_size();
  per_group << "] ";
  if (const RoutedRows* experts = problem.experts()) {
    out << experts->items << " +- " << experts->deviation << " of experts: ";
  }
  if (problem.batch > 1) out << "batch of " << problem.batch << ": ";
  if (problem.passes > 1) out << problem.passes << " times ";
  out << "y[m<=" << problem.m << (problem.has_gate() ? ", n/2, n=" : ", n=") << problem.n << "] "
      << type << " = ";
  if (problem.has<Quantise>()) out << "codes of 1/sy f32 * ";
  if (problem.has_residual()) out << "residual[m, n] " << type << " + ";
  if (const Gating* gate = problem.gate()) out << to_string(*gate) << " of ";
  if (const auto what = problem.activation_function()) out << name_of(*what) << " of ";
  for (const EpilogueStep& step : problem.epilogue) {
    if (std::holds_alternative<SecondScale>(step)) {
      out << (weight.type.scale2_of_rows ? "s2[n] f32 * " : "s2 f32 * ");
    }
    if (std::holds_alternative<ScaleOfToken>(step)) out << "t[m] f32 * ";
  }
  out << (problem.formats.fast_accum ? "fast sum k=" : "sum k=") << problem.k << ": ";
  if (const auto* windows = std::get_if<ImageToColumn>(&problem.rows)) {
    out << to_string(windows->form.expr.a, windows->form.expr);
  } else if (problem.windows() != nullptr) {
    out << "x[m, " << (problem.permuted_columns ? "gather[k]" : "k") << "] of "
        << to_string(*problem.windows()) << ',';
  } else {
    out << "x[m, " << (problem.permuted_columns ? "gather[k]" : "k") << ']';
  }
  out << ' ' << name_of(problem.formats.x) << " * ";
  const bool rescale = weight.stored_zero == Zero::rescale;
  if (rescale) out << '(';
  const auto superblock = [&](const char* name) {
    out << name << "[n, k/" << weight.superblocks->columns << "] "
        << name_of(weight.superblocks->seconds) << " * ";
  };
  if (weight.superblocks) superblock("d");
  if (weight.scale) {
    out << 's' << per_group.str() << name_of(weight.scale_in_memory());
    if (weight.type.has_integer_scales()) out << "<=" << max_value(*weight.type.scale);
    out << " * ";
  }
  const bool subtracts = weight.stored_zero != Zero::none && !rescale;
  if (subtracts) out << '(';
  if (weight.element != nullptr) {
    out << weight.element->name << "[n, k]";
  } else {
    if (weight.exponent != 0) out << "2^" << weight.exponent << " * ";
    out << '(' << (weight.shift != 0 ? "2 * u" : "u") << weight.bits
        << (weight.three ? " of three" : "") << "[n, k] - " << weight.zero << ')';
  }
  if (weight.stored_zero != Zero::none) {
    out << " - ";
    if (weight.seconds() > 1) superblock("e");
    out << 'z' << per_group.str() << name_of(weight.zero_in_memory()) << ')';
  }
  if (problem.has_bias()) out << " + bias[n] " << name_of(problem.formats.bias);
  return out.str();
}

double weight_bytes(const Problem& problem) {
  const Weight& weight = problem.weight;
  const double n = static_cast<double>(problem.n), k = static_cast<double>(problem.k);
  const double per_group =
      (weight.scale ? bytes_of(weight.scale_in_memory()) : 0) +
      (weight.stored_zero != Zero::none ? bytes_of(weight.zero_in_memory()) : 0);
  const double seconds =
      weight.superblocks ? weight.seconds() * bytes_of(weight.superblocks->seconds) : 0;
  return n * k * weight.bits / 8 + n * static_cast<double>(problem.groups()) * per_group +
         n * static_cast<double>(problem.superblocks()) * seconds;
}

double least_bytes(const Problem& problem, std::int64_t m) {
  const auto n = static_cast<double>(problem.columns_of_y()), k = static_cast<double>(problem.k);
  const auto* windows = problem.windows();
  // Windows overlap: of x what images have.
  const double of_row = windows == nullptr ? k
                                           : static_cast<double>(windows->numbers()) /
                                                 static_cast<double>(windows->positions());
  const int like_y = problem.has_residual() ? 2 : 1;
  const double rows = static_cast<double>(m) * (n * like_y * bytes_of(problem.formats.y) +
                                                of_row * bytes_of(problem.formats.x));
  const auto weights = problem.experts() != nullptr ? problem.products() : problem.batch;
  return weight_bytes(problem) * static_cast<double>(weights) +
         rows * static_cast<double>(problem.products());
}

}  // namespace ladder
