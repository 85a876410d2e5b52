// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/quantize_rules.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "codegen/cuda/quantize_values.h"
#include "codegen/emit/literal.h"

namespace ladder::cuda {
namespace {

/// 1 / value in double.
std::string inverse(float value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", 1.0 / static_cast<double>(value));
  return text;
}

/// inverse_of(choice, unit): what weights are multiplied with; by 0 all become the zero point.
std::string inverse_function(const TType& type) {
  return std::string("DEVICE double inverse_of(Choice c, float unit) {\n  const float step = ") +
         (type.scale2 != nullptr ? "__fmul_rn(c.scale, unit)" : "c.scale") +
         ";\n  return step > 0 && step < as_float(0x7f800000u) ? inverse(step) : 0.0;\n}\n";
}

std::string candidate_function(const TType& type, const Encoder& encoder) {
  const float low = encoder.value(encoder.codes().front());
  const float high = encoder.value(encoder.codes().back());
  const float zero = fixed_zero(type);
  const std::string relative =
      type.scale2 == nullptr ? "scale" : "(unit > 0 ? quotient(scale, inverse(unit)) : 0.0f)";
  const std::string step = type.scale2 == nullptr ? "c.scale" : "__fmul_rn(c.scale, unit)";
  std::ostringstream out;
  out << "struct Choice { float scale, zero; };\n"
      << inverse_function(type)
      << "// What candidates are made of: the ends of a block, or the scale that covers them.\n"
         "struct Cover { float low, high; };\n";
  if (is_asymmetric(type.zero)) {
    out << "DEVICE float clamped(float zero) {\n  return zero < " << literal(low) << " ? "
        << literal(low) << " : " << literal(high) << " < zero ? " << literal(high) << R"( : zero;
}
DEVICE float zero_of(float least) {
  return clamped(rintf(__fsub_rn()"
        << literal(low) << R"(, least)));  // ties to even
}
DEVICE float covering_zero(float least) {
  return clamped(ceilf(__fsub_rn(__fsub_rn()"
        << literal(low) << R"(, least), 0.5f)));
}
DEVICE Cover cover_of(float least, float greatest) {
  return {0.0f < least ? 0.0f : least, greatest < 0.0f ? 0.0f : greatest};
}
DEVICE Choice candidate(Cover cover, float fraction, float unit) {
  const float low = __fmul_rn(cover.low, fraction), high = __fmul_rn(cover.high, fraction);
  const float scale = quotient(__fsub_rn(high, low), )"
        << inverse(high - low) << R"();
  Choice c{stored()"
        << relative << R"(), 0.0f};
  const float step = )"
        << step << R"(;
  c.zero = zero_of(step == 0 ? )"
        << literal(low) << R"( : quotient(low, inverse_of({c.scale, 0.0f}, unit)));
  return c;
}
)";
  } else {
    const float up = high - zero, down = zero - low;
    out << "DEVICE Cover cover_of(float least, float greatest) {\n  float scale = 0.0f, one;\n";
    const auto side = [&](const std::string& end, float reach) {
      if (reach > 0)
        out << "  one = quotient(" << end << ", " << inverse(reach)
            << ");\n  scale = scale < one ? one : scale;\n";
    };
    side("greatest", up);
    side("-least", down);
    out << "  return {scale, 0.0f};\n}\n"
           "DEVICE Choice candidate(Cover cover, float fraction, float unit) {\n"
           "  const float scale = __fmul_rn(cover.low, fraction);\n  return {stored("
        << relative << "), " << literal(zero) << "};\n}\n";
  }
  return out.str();
}

/// grid_of(weight, ...), the number whose nearest value is looked for, and the squared error.
std::string error_function(const TType& type) {
  const bool second = type.scale2 != nullptr;
  std::ostringstream out;
  out << "DEVICE float grid_of(float w, Choice c, double inverse) {\n"
         "  return __fadd_rn(quotient(w, inverse), c.zero);\n}\n"
         "DEVICE double squared_error(float w, Choice c, double inverse, float unit, const float* "
         "tables) {\n"
         "  const float near = nearest(grid_of(w, c, inverse), tables);\n"
         "  const float scaled = __fmul_rn(__fsub_rn(near, c.zero), c.scale);\n"
         "  const float back = "
      << (second ? "__fmul_rn(scaled, unit)" : "scaled")
      << ";\n  const double error = __dsub_rn((double)back, (double)w);\n"
         "  return __dmul_rn(error, error);\n}\n";
  return out.str();
}

/// quotient(a, inverse(b)) is a / b, rounded once to float32: a product in double with an inverse
/// within 2^-52 differs from it by less than any quotient differs from the middle between two
/// float32. With b = D * 2^y, a middle M * 2^x and a = A * 2^z, whole numbers A, D < 2^24 and M <
/// 2^25, a differs from middle * b by a multiple of 2^(x+y) or of 2^z, so by 1/(M D) > 2^-49 or by
/// 1/A of itself, also among subnormal numbers. The compiler's own divisions are calls, around
/// which registers are saved, and twice as long.
constexpr const char* kDivision = R"(
DEVICE double inverse(float b) {
  const double d = (double)b;
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(d));  // 20 bits
  r = __fma_rn(__fma_rn(-d, r, 1.0), r, r);
  return __fma_rn(__fma_rn(-d, r, 1.0), r, r);
}
DEVICE float quotient(float a, double inverse) {
  return __double2float_rn(__dmul_rn((double)a, inverse));
}
)";

/// What a search tries, step by step: the covering scale, the smallest scale where there is one,
/// coarse steps, fine steps.
std::string step_functions(const TType& type) {
  const float smallest = smallest_scale(type);
  std::ostringstream out;
  out << "constexpr u32 kFirst = " << steps_of(type).first << ", kCoarse = " << kCoarseSteps << R"(;
DEVICE bool is_coarse(u32 step) { return step >= kFirst && step < kFirst + kCoarse; }
DEVICE float fraction_of(u32 step, float middle) {
  if (step < kFirst) return 1.0f;
  if (is_coarse(step)) return __fsub_rn(1.0f, __fmul_rn()"
      << literal(kCoarse) << R"(, (float)(step - kFirst + 1)));
  const u32 fine = step - kFirst - kCoarse;
  const float distance = __fmul_rn()"
      << literal(kFine) << R"(, (float)(fine / 2 + 1));
  return __fadd_rn(middle, fine % 2 == 0 ? -distance : distance);
}
DEVICE Choice choice_of(u32 step, Cover cover, float fraction, float unit) {
)";
  if (smallest != 0) out << "  if (step == 1) return {" << literal(smallest) << ", 0.0f};\n";
  out << "  return candidate(cover, fraction, unit);\n}\n"
         "DEVICE Choice first_choice(Cover cover, float unit) {\n  return ";
  if (type.scale != nullptr)
    out << "candidate(cover, 1.0f, unit)";
  else if (is_asymmetric(type.zero))
    out << "{1.0f, covering_zero(cover.low)}";
  else
    out << "{1.0f, " << literal(fixed_zero(type)) << "}";
  out << ";\n}\n";
  return out.str();
}

}  // namespace

Steps steps_of(const TType& type) {
  if (type.scale == nullptr) return {0, 0, 0, 0};
  const bool tries_smallest = smallest_scale(type) != 0;
  const unsigned first = tries_smallest ? 2 : 1;
  return {tries_smallest ? first : 0, first, first + kCoarseSteps,
          first + kCoarseSteps + kFineSteps};
}

std::string rule_functions(const TType& type) {
  const Encoder encoder(*type.element);
  return value_functions(*type.element) + scale_functions(type.scale) + kDivision +
         candidate_function(type, encoder) + error_function(type) + step_functions(type);
}

std::string team_functions(std::int64_t lanes) {
  return "constexpr u32 kTeam = " + std::to_string(lanes) + R"(;
DEVICE double xor_lane(double mine, u32 mask) {
  const int high = __shfl_xor_sync(0xffffffffu, __double2hiint(mine), mask);
  const int low = __shfl_xor_sync(0xffffffffu, __double2loint(mine), mask);
  return __hiloint2double(high, low);
}
// In halves: lane l takes lane l + 16, then + 8, down to + 1.
DEVICE double added(double sum) {
#pragma unroll
  for (u32 lanes = kTeam / 2; lanes > 0; lanes /= 2) sum = __dadd_rn(sum, xor_lane(sum, lanes));
  return sum;
}
DEVICE void widen_range(float w, float& least, float& greatest) {
  least = w < least ? w : least;
  greatest = w > greatest ? w : greatest;
}
DEVICE void team_range(float& least, float& greatest) {
#pragma unroll
  for (u32 lanes = kTeam / 2; lanes > 0; lanes /= 2) {
    const float low = __shfl_xor_sync(0xffffffffu, least, lanes);
    const float high = __shfl_xor_sync(0xffffffffu, greatest, lanes);
    least = low < least ? low : least;
    greatest = high > greatest ? high : greatest;
  }
}
)";
}

std::string tables_and_unit(const TType& type, const std::string& threads) {
  std::ostringstream out;
  out << "  __shared__ float tables[kTables];\n  for (u32 i = threadIdx.x; i < kTables; i += "
      << threads << ") tables[i] = as_float(table_entries[i]);\n  __syncthreads();\n";
  return out.str() + unit(type);
}

namespace {

std::string unit_from(const std::string& found, const TType& type) {
  char reach[40];
  std::snprintf(reach, sizeof reach, "%a", second_scale_reach(type));
  return "  const float unit = " + found + " == 0 ? 1.0f : (float)__ddiv_rn((double)as_float(" +
         found + "), " + reach + ");\n";
}

}  // namespace

std::string unit(const TType& type) {
  if (type.scale2_of_rows) return "";
  return type.scale2 == nullptr ? "  const float unit = 1.0f;\n" : unit_from("*found", type);
}

std::string unit_of_rows(const TType& type) {
  if (!type.scale2_of_rows) return "";
  return "  const u32 largest = there ? found[block_row] : 0;\n" + unit_from("largest", type);
}

std::string stores_of(const TType& type) {
  std::ostringstream out;
  const auto stores = [&](const char* where, const std::string& value) {
    const std::string word = "u" + std::to_string(std::max(type.scale->bits, 8));
    out << "    ((" << word << "*)" << where << ")[block] = (" << word << ")scale_code(" << value
        << ");\n";
  };
  if (type.scale != nullptr) stores("scales", "best.scale");
  switch (type.zero) {
    case Zero::none:
    case Zero::midpoint: break;
    case Zero::integer:
    case Zero::quantized: out << "    ((u8*)zeros)[block] = (u8)(u32)best.zero;\n"; break;
    case Zero::original: stores("zeros", "stored(best.zero)"); break;
    case Zero::rescale: stores("zeros", "stored(__fmul_rn(best.zero, best.scale))"); break;
  }
  if (type.scale2_of_rows) {
    out << "    if (group == 0) scale2[block_row] = unit;\n";
  } else if (type.scale2 != nullptr) {
    out << "    if (block == 0) *scale2 = unit;\n";
  }
  return out.str();
}

}  // namespace ladder::cuda
