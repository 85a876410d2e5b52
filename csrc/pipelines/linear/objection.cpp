// SPDX-License-Identifier: Apache-2.0
#include "pipelines/linear/objection.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/joined.h"
#include "layout/digits.h"
#include "layout/in_place.h"
#include "program/program.h"

namespace ladder {
namespace {

// Of a CTA, on every device: CUDA C++ Programming Guide, table of capabilities.
constexpr int kMostThreads = 1024;
// Of each CTA's shared memory on NVIDIA's devices, for the system: the same table.
constexpr std::int64_t kSystemBytes = 1024;
// On AMD's, where what a workgroup asks for begins behind the result of a ticket.
constexpr std::int64_t kTicketBytes = kSharedAlignment;

}  // namespace

std::string count_objection(std::initializer_list<Count> counts) {
  for (const auto& [what, least, value] : counts) {
    if (value < least) return joined(what, " ", value, ", not at least ", least);
  }
  return {};
}

std::string too_many_for_warps(std::int64_t tokens) {
  constexpr std::int64_t kMost = 256;
  return tokens <= kMost
             ? ""
             : joined("products of warps serve at most ", kMost, " tokens, not ", tokens);
}

std::string reduction_objection(Reduction reduction, std::int64_t splits, std::int64_t rows,
                                const Device& device) {
  if (reduction == Reduction::none) return splits == 1 ? "" : joined("K is split over ", splits);
  if (splits == 1) return "nothing to reduce";
  if (reduction != Reduction::cluster) return {};
  if (splits > device.max_cluster) {
    return joined("a cluster of ", splits, ", of at most ", device.max_cluster);
  }
  if (rows % splits != 0 || rows / splits % 2 != 0) {
    return joined(rows, " rows do not divide into pairs for ", splits, " blocks");
  }
  return {};
}

std::string residence_objection(std::int64_t threads, std::int64_t bytes, int ctas,
                                const Device& device) {
  if (threads > kMostThreads) return joined(threads, " threads, of at most ", kMostThreads);
  if (threads * ctas > device.threads) return "too many threads";
  const bool nvidia = device.family == Family::nvidia;
  if (bytes + (nvidia ? 0 : kTicketBytes) > device.shared_per_block_bytes) {
    return joined(bytes, " bytes of shared memory");
  }
  const auto system = nvidia ? kSystemBytes : kTicketBytes;
  if ((bytes + system) * ctas > device.shared.capacity_bytes) {
    return joined(bytes, " bytes of shared memory for each of ", ctas);
  }
  return {};
}

bool has_whole_pieces(const Problem& problem, int granule) {
  const Windows* windows = problem.windows();
  const auto columns = windows != nullptr ? windows->channels : problem.k;
  return !problem.permuted_columns && columns * bytes_of(problem.formats.x) % granule == 0;
}

std::string gate_objection(const Problem& problem, std::int64_t rows) {
  return !problem.has_gate() || rows % (2 * kGateRows) == 0
             ? ""
             : joined(rows, " rows are not eight of the gate and eight of up in turn");
}

std::string pairs_objection(const Problem& problem, std::int64_t threads, std::int64_t rows) {
  if (auto why = gate_objection(problem, rows); !why.empty()) return why;
  const auto pairs = rows / 2;
  return std::max(threads, pairs) % std::min(threads, pairs) == 0
             ? ""
             : "threads do not divide the rows";
}

namespace {

/// Codes have an exponent and a mantissa where e4m3 has these.
std::string floats_objection(const Element& e) {
  if (e.encoding != Encoding::floating) return joined(e.name, " is no floating format");
  if (e.exponent_bits > kByteExponent || e.mantissa_bits > kByteMantissa) {
    return joined(e.name, " has ", e.exponent_bits, " and ", e.mantissa_bits,
                  " bits of exponent and mantissa, e4m3 ", kByteExponent, " and ", kByteMantissa);
  }
  const bool fills = e.exponent_bits == kByteExponent && e.mantissa_bits == kByteMantissa;
  const bool same = fills ? e.specials == Specials::nan_only : e.specials == Specials::none;
  return same ? "" : joined(e.name, " has other numbers than e4m3 at its ends");
}

/// Codes less their zero point are whole numbers that e4m3 holds as they are. Other zero points
/// would multiply sums of x, which the instruction keeps too few bits of to subtract.
std::string wholes_objection(const Problem& problem) {
  if (problem.weight.stored_zero == Zero::original || problem.weight.stored_zero == Zero::rescale) {
    return "zero points that are no whole numbers beside sums of e4m3";
  }
  const int code = ((1 << problem.weight.bits) - 1) << problem.weight.shift;
  const bool stored = problem.weight.stored_zero == Zero::integer;
  const int zero = stored ? 1 << problem.weight.bits : problem.weight.zero;  // the largest
  const int most = std::max(stored ? code : code - zero, zero);
  return most <= kMostWhole
             ? ""
             : joined("codes of ", problem.weight.bits, " bits are up to ", most,
                      " from their zero point, and e4m3 has whole numbers up to ", kMostWhole);
}

/// Sums of a group of integers are whole numbers of 32 bits.
std::string bytes_objection(const Problem& problem, const MatrixInstruction& row) {
  if (problem.weight.element != nullptr) return floats_objection(*problem.weight.element);
  if (problem.rounded_x() == Scalar::e4m3) return wholes_objection(problem);
  constexpr std::int64_t kLargestProduct = 128 * 255;
  const auto most = std::numeric_limits<std::int32_t>::max() / kLargestProduct;
  if (problem.group_size() > most) {
    return joined("sums of ", problem.group_size(), " products, of at most ", most);
  }
  if (problem.weight.stored_zero == Zero::original) return "zero points that are no whole numbers";
  const CodeBytes bytes = code_bytes(problem, Route::bytes, row.takes_unsigned());
  if (bytes.has_sign && !bytes.below_sign && problem.weight.stored_zero == Zero::rescale) {
    return joined("scaled zero points of codes of ", problem.weight.bits, " bits, of which ",
                  row.name, " takes none without a sign");
  }
  for (std::size_t parity = 0; parity < 2; ++parity) {
    const bool stored =
        takes_zero_product(problem, Route::bytes) && problem.weight.stored_zero != Zero::none;
    const double zero = stored ? std::ldexp(1.0, bytes.plan.offset[parity] - problem.weight.shift)
                               : -bytes.zero[parity];
    if (zero != std::floor(zero) || std::fabs(zero) > 128) {
      return joined("a zero point of ", zero, " is no byte");
    }
  }
  return {};
}

}  // namespace

std::int64_t fewest_of_rounded(const Problem& problem) {
  if (joins_powers(problem)) return 1;
  return rounds_no_product(problem) ? kFewestOfTiles : 65;
}

std::string code_objection(Route route, ScalePlace place, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  if ((route == Route::bytes) != problem.has_bytes_of_x()) {
    return joined("activations of ", name_of(problem.formats.x), " by ",
                  kRoutes[static_cast<std::size_t>(route)]);
  }
  const MatrixInstruction& row = *decisions.of(route).core.instruction;
  if (place == ScalePlace::relative) {
    if (auto why = no_relative_scales(problem); !why.empty()) return why;
  }
  if (route == Route::bytes && place == ScalePlace::rounded) return no_rounded_operands(problem);
  if (route == Route::bytes && scales_bytes(problem, place)) return no_scaled_operands(problem);
  if (route == Route::bytes) return bytes_objection(problem, row);
  if (!row.subnormals && problem.activation() == Scalar::f16 &&
      (place == ScalePlace::rounded ||
       (place == ScalePlace::usual ? usual_scale_place(problem) : place) == ScalePlace::operands)) {
    return joined(row.name, " reads subnormal operands as zero, and scaled ones may be such");
  }
  if (place == ScalePlace::rounded) {
    if (const auto fewest = fewest_of_rounded(problem); problem.m < fewest) {
      return joined("operands are rounded from ", fewest, " tokens on, not at ", problem.m);
    }
    if (route != Route::multiply_add || !(row.fragment == Fragment::warp || row.by_waves())) {
      return joined("operands of ", row.name, " by ", kRoutes[static_cast<std::size_t>(route)],
                    " are not rounded");
    }
    if (auto why = no_rounded_operands(problem); !why.empty()) return why;
  }
  if (place == ScalePlace::operands) {
    if (auto why = no_scaled_operands(problem); !why.empty()) return why;
  }
  if (place == ScalePlace::sums && !problem.weight.scale) return "no scales for sums";
  if (route == Route::in_place) {
    if (!row.subnormals && problem.activation() == Scalar::f16) {
      return joined(row.name, " reads codes in place, which are subnormals, as zero");
    }
    if (problem.weight.element != nullptr)
      return joined(problem.weight.element->name, " is no integer");
    if (problem.weight.shift != 0) return "a zero point between two codes";
    if (!fits_in_place(problem.weight.bits, problem.activation())) {
      return joined("codes of ", problem.weight.bits, " bits are no ",
                    name_of(problem.activation()), " in place");
    }
    const InPlace& codes = in_place(problem.weight.bits, problem.activation());
    if ((problem.weight.zero != 0 || codes.base != 0) && problem.weight.stored_zero != Zero::none) {
      return "a constant and a stored zero point";
    }
    for (int exponent : codes.exponent) {
      const double zero = codes.base + std::ldexp(problem.weight.zero, exponent);
      if (to_number(problem.activation(), to_bits(problem.activation(), zero)) != zero) {
        return joined("a zero point of ", problem.weight.zero, " is no ",
                      name_of(problem.activation()), " in place");
      }
    }
  }
  return {};
}

}  // namespace ladder
