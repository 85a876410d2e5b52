// SPDX-License-Identifier: Apache-2.0
#include "device/calibration.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/joined.h"

namespace ladder {
namespace {

// A read rate is at most what the driver or the data sheet has, but for their rounding; less than a
// sixteenth is no measurement of an idle device.
constexpr double kMostOfRow = 1.5, kLeastOfRow = 1.0 / 16;
// By which numbers that contradict each other may differ.
constexpr double kRounding = 1.1;

template <double Calibration::*Member>
constexpr CalibrationField number(std::string_view name, std::string_view unit, double low,
                                  double high) {
  return {name, unit, [](Calibration& c) -> double& { return c.*Member; }, low, high};
}

template <std::array<MatrixRate, 4> Calibration::*Rates, std::size_t At>
constexpr std::array<CalibrationField, 2> rate(std::string_view flops, std::string_view lanes) {
  return {{{flops, "operations/s", [](Calibration& c) -> double& { return (c.*Rates)[At].flops; },
            1e10, 1e17},
           {lanes, "multiply-adds/cycle",
            [](Calibration& c) -> double& { return (c.*Rates)[At].lanes; }, 1, 65536}}};
}

std::vector<CalibrationField> all_fields() {
  using C = Calibration;
  std::vector<CalibrationField> out = {
      number<&C::read_bytes_per_second>("read_bytes_per_second", "B/s", 1e9, 1e14),
      number<&C::l2_bytes_per_second>("l2_bytes_per_second", "B/s", 1e9, 1e15),
      number<&C::clock>("clock", "Hz", 1e8, 1e10),
      number<&C::integer_lanes>("integer_lanes", "operations/cycle", 1, 4096),
      number<&C::latency_seconds>("latency_seconds", "s", 1e-8, 1e-4),
      number<&C::launch_seconds>("launch_seconds", "s", 1e-7, 1e-3),
      number<&C::dependent_seconds>("dependent_seconds", "s", 1e-7, 1e-3),
      number<&C::ticket_seconds>("ticket_seconds", "s", 1e-8, 1e-3),
      number<&C::cluster_seconds>("cluster_seconds", "s", 1e-9, 1e-3),
  };
  const auto add = [&](const std::array<CalibrationField, 2>& both) {
    out.insert(out.end(), both.begin(), both.end());
  };
  add(rate<&C::warps, 0>("mma.float16.flops", "mma.float16.lanes"));
  add(rate<&C::warps, 1>("mma.bfloat16.flops", "mma.bfloat16.lanes"));
  add(rate<&C::warps, 2>("mma.int8.flops", "mma.int8.lanes"));
  add(rate<&C::warps, 3>("mma.float8_e4m3.flops", "mma.float8_e4m3.lanes"));
  add(rate<&C::warpgroups, 0>("wgmma.float16.flops", "wgmma.float16.lanes"));
  add(rate<&C::warpgroups, 1>("wgmma.bfloat16.flops", "wgmma.bfloat16.lanes"));
  add(rate<&C::warpgroups, 2>("wgmma.int8.flops", "wgmma.int8.lanes"));
  add(rate<&C::warpgroups, 3>("wgmma.float8_e4m3.flops", "wgmma.float8_e4m3.lanes"));
  return out;
}

double& flops_of(Device& device, std::size_t operand) {
  double Device::*const all[] = {&Device::f16_flops, &Device::bf16_flops, &Device::i8_flops,
                                 &Device::f8_flops};
  return device.*all[operand];
}

// Repeats differ by some per cent, and the cost model errs by more: a number this near to that of
// the row, or of the machine of the fit, changes nothing, as in runtime/device_row.cpp. Of 30
// problems on an H100 it otherwise moved one first choice, to one that takes 1.23 times as long.
constexpr double kSame = 0.1;

bool same(double measured, double known) {
  return known > 0 && std::abs(measured - known) <= kSame * known;
}

void take(double& number, double measured) {
  if (measured > 0 && !same(measured, number)) number = measured;
}

/// `measured` over what was measured where the costs were fitted; 1 where one of them was not.
double ratio(double measured, double known) {
  return measured > 0 && known > 0 && !same(measured, known) ? measured / known : 1;
}

void take_rates(Device& out, const Device& row, const Calibration& c,
                const Calibration& fitted_on) {
  for (std::size_t i = 0; i < kMatrixOperands.size(); ++i) {
    const MatrixRate &warp = c.warps[i], &group = c.warpgroups[i];
    double& flops = flops_of(out, i);
    if (const double known = fitted_on.warpgroups[i].flops; group.flops > 0) {
      take(flops, known > 0 ? row.costs.at.warpgroup_flops[i] * group.flops / known : group.flops);
    }
    if (warp.flops <= 0) continue;
    // Of a machine that has faster instructions than those of single warps, and whose rate it is.
    const bool slower = group.flops > 0 || row.warp_share != 1;
    if (!slower || flops <= 0) take(flops, warp.flops);
    double share = 1;
    if (group.lanes > 0 && warp.lanes > 0) {
      share = warp.lanes / group.lanes;
    } else if (slower) {
      share = warp.flops / flops;
    }
    if (same(share, row.warp_share)) share = row.warp_share;
    out.warp_shares[i] = share;
    if (i == 0 && warp.lanes > 0 && !same(warp.lanes, row.f16_lanes * share)) {
      out.f16_lanes = static_cast<int>(std::lround(warp.lanes / share));
    }
  }
}

}  // namespace

// Of an H100, which differs from an H200 in its memory: `ladder calibrate`, the middle of two runs
// under torch 2.11 and CUDA 13.0 (docs/dev/notebook_gpu.md).
const Calibration kFittedOn = {
    .l2_bytes_per_second = 7.54e12,
    .clock = 1.98e9,
    .integer_lanes = 63.6,
    .warpgroups = {{{871e12, 2048}, {885e12, 2048}, {1955e12, 4096}, {1768e12, 4096}}},
    .latency_seconds = 0.3516e-6,
    .launch_seconds = 1.81e-6,
    .dependent_seconds = 1.31e-6,
    .ticket_seconds = 0.824e-6,
    .cluster_seconds = 0.378e-6,
};

std::span<const CalibrationField> calibration_fields() {
  static const auto& all = *new std::vector<CalibrationField>(all_fields());
  return all;
}

std::string objection(const Calibration& calibration, const Device& row) {
  bool any = false;
  for (const CalibrationField& field : calibration_fields()) {
    const double value = field.get(calibration);
    if (value == 0) continue;
    any = true;
    if (!(field.low <= value && value <= field.high)) {
      return joined(field.name, " is ", value, " ", field.unit, ", not from ", field.low, " to ",
                    field.high);
    }
  }
  if (!any) return "it has no numbers";
  const double read = calibration.read_bytes_per_second, known = row.global.bytes_per_second;
  if (read > 0 && known > 0 && (read > kMostOfRow * known || read < kLeastOfRow * known)) {
    return joined("read_bytes_per_second is ", read, " B/s, where the row has ", known);
  }
  const double cycles = row.multiprocessors * std::max(row.clock(), calibration.clock);
  for (std::size_t i = 0; i < kMatrixOperands.size(); ++i) {
    const MatrixRate &warp = calibration.warps[i], &group = calibration.warpgroups[i];
    // The matrix unit is the same.
    if (group.lanes > 0 && warp.lanes > kRounding * group.lanes) {
      return joined("mma.", kMatrixOperands[i], ".lanes is ", warp.lanes, ", more than ",
                    group.lanes, " of wgmma");
    }
    for (const MatrixRate* rate : {&warp, &group}) {
      if (rate->lanes <= 0 || rate->flops <= kRounding * 2 * rate->lanes * cycles) continue;
      return joined(rate == &warp ? "mma." : "wgmma.", kMatrixOperands[i], ".flops is ",
                    rate->flops, ", more than ", rate->lanes, " multiply-adds in each of ", cycles,
                    " cycles per second");
    }
  }
  return "";
}

double number_of_row(const Device& row, const CalibrationField& field) {
  if (field.name == "read_bytes_per_second") return row.global.bytes_per_second;
  if (field.name == "l2_bytes_per_second") return row.l2.bytes_per_second;
  if (field.name == "clock") return row.clock();
  for (const MatrixInstruction* each : instructions(row)) {
    const bool warp = each->fragment == Fragment::warp;
    if (!warp && each->fragment != Fragment::warpgroup) continue;
    const std::string name = joined(warp ? "mma." : "wgmma.", each->operand);
    if (field.name == name + ".flops") return operations_per_second(row, *each);
    if (field.name == name + ".lanes" && each->operand_bits() == 16) {
      return row.f16_lanes * reached_share(row, *each);
    }
  }
  return 0;
}

Device calibrated(const Device& row, const Calibration& c, const Calibration& fitted_on) {
  Device out = row;
  take(out.global.bytes_per_second, c.read_bytes_per_second);
  if (c.l2_bytes_per_second > 0) out.l2.bytes_per_second = c.l2_bytes_per_second;
  take_rates(out, row, c, fitted_on);
  Costs& costs = out.costs;
  // Kernels run between the clock that is measured and the one that the row has: so do both of the
  // machine on which costs were fitted.
  if (c.clock > 0 && fitted_on.clock > 0) {
    const double clock = costs.at.clock * c.clock / fitted_on.clock;
    if (!same(clock, row.clock())) out.f32_flops *= clock / row.clock();
  }
  // L2 is slower than its width where its slices are fewer than what multiprocessors ask for.
  if (c.l2_bytes_per_second > 0 && c.clock > 0 && fitted_on.clock > 0) {
    const auto of_cycle = [](const Calibration& of, int multiprocessors) {
      return of.l2_bytes_per_second / multiprocessors / of.clock;
    };
    const double share =
        ratio(of_cycle(c, row.multiprocessors), of_cycle(fitted_on, costs.at.multiprocessors));
    out.fill_bytes *= share;
    costs.warpgroups.fill_bytes *= share;
  }
  const double integers = ratio(fitted_on.integer_lanes, c.integer_lanes);
  for (double* cycles : {&costs.decode.decoding, &costs.tiles.beside, &costs.warpgroups.decoding}) {
    *cycles *= integers;
  }
  const double latency = ratio(c.latency_seconds, fitted_on.latency_seconds);
  for (double* hiding :
       {&costs.decode.wave_bytes, &costs.decode.hiding_warps, &costs.tiles.bytes_in_flight}) {
    *hiding *= latency;
  }
  costs.tiles.ticket_seconds *= ratio(c.ticket_seconds, fitted_on.ticket_seconds);
  const double cluster = ratio(c.cluster_seconds, fitted_on.cluster_seconds);
  costs.tiles.cluster_seconds *= cluster;
  costs.warpgroups.cluster_seconds *= cluster;
  for (WayCosts& way : costs.decode.ways) way.cluster *= cluster;
  if (ratio(c.launch_seconds, fitted_on.launch_seconds) != 1) {
    // Of all that a launch takes at least a tenth is left, whatever was measured.
    const double later = c.launch_seconds - fitted_on.launch_seconds;
    const auto delay = [](double& seconds, double by) {
      seconds = std::max(seconds + by, seconds / 10);
    };
    for (WayCosts& way : costs.decode.ways) delay(way.fixed, 1e6 * later);
    delay(costs.tiles.launch_seconds, later);
    delay(costs.warpgroups.launch_seconds, later);
    delay(costs.dense.launch_seconds, 2 * later);  // two kernels
    delay(costs.dense.least_seconds, 2 * later);
  }
  const auto gain = [](const Calibration& of) {
    return of.launch_seconds > 0 && of.dependent_seconds > 0
               ? std::max(of.launch_seconds - of.dependent_seconds, 1e-9)
               : 0;
  };
  costs.warpgroups.weights_ahead_seconds *= ratio(gain(c), gain(fitted_on));
  return out;
}

}  // namespace ladder
