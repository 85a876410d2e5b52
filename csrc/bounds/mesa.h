// SPDX-License-Identifier: Apache-2.0
// What a ski slope means for speed: operations per byte, operations per second, and how a chip
// area is best divided between buffer and arithmetic.
#pragma once

#include <vector>

#include "bounds/curve.h"

namespace ladder::bounds {

/// Operations per byte moved, with the best mapping in `buffer_bytes`; 0 below the first point.
double intensity(const Curve& curve, double operations, double buffer_bytes);

struct Machine {
  double operations_per_second;
  double bytes_per_second;
};

/// min(peak, intensity * bandwidth), in operations per second: the roof over any mapping.
double performance(const Curve& curve, double operations, const Machine& machine,
                   double buffer_bytes);

/// Least seconds with the best mapping in `buffer_bytes`.
double floor_seconds(const Curve& curve, double operations, const Machine& machine,
                     double buffer_bytes);

/// A chip on which buffer and multipliers share an area.
struct AreaModel {
  double total_um2;
  double um2_per_multiplier;
  double um2_per_byte;
  double hertz;
  double bytes_per_second;
  double operations_per_multiplication = 2;
};

/// The chip of the paper's Fig. 23, at half the area of a large GPU. Its numbers are those that
/// reproduce the figure: the text rounds 2.59122 um2 to 2.59 and 147.8 GB/s to 149, and prints
/// 432.2 mm2 for 0.8 * 529 mm2 = 423.2 mm2. The figure counts one operation for a multiplication.
AreaModel paper_area();

struct Provision {
  double buffer_bytes;
  double share;  ///< of the area that is buffer
  double compute_operations_per_second;
  double memory_operations_per_second;
  double operations_per_second;  ///< the smaller of the two
};

/// `samples` buffers evenly spaced from the curve's first point to the whole area.
/// Throws InvalidArgument for an empty curve, fewer than 2 samples or a number that is not
/// positive.
std::vector<Provision> provisions(const Curve& curve, double operations, const AreaModel& area,
                                  int samples = 100);

/// The sample with the highest rate; of equals, the smallest buffer.
Provision best_provision(const std::vector<Provision>& provisions);

/// The first sample at which memory is no slower than arithmetic: the mark of Fig. 23. Throws
/// InvalidArgument if there is none.
Provision balanced_provision(const std::vector<Provision>& provisions);

}  // namespace ladder::bounds
