// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "device/device.h"

namespace ladder {
namespace {

std::string_view multiprocessor_of(Family family) {
  switch (family) {
    case Family::nvidia: return "multiprocessors";
    case Family::cdna:
    case Family::rdna: return "compute units";
    case Family::x86: return "cores";
  }
  return "?";
}

void size(std::ostream& out, double bytes) {
  if (bytes < 1 << 20) {
    out << bytes / (1 << 10) << " KiB";
  } else if (bytes < 1e9) {
    out << bytes / (1 << 20) << " MiB";
  } else {
    out << bytes / 1e9 << " GB";
  }
}

}  // namespace

std::string to_string(const Device& device) {
  std::ostringstream out;
  out << device.name << ": " << device.architecture << ", " << device.multiprocessors << ' '
      << multiprocessor_of(device.family) << " of " << device.registers << " registers, "
      << device.threads << " threads, warps of " << device.warp << '\n';
  for (const Memory* memory : {&device.global, &device.l2, &device.shared}) {
    out << "  " << memory->name << ": ";
    size(out, memory->capacity_bytes);
    const double rate =
        memory == &device.shared ? device.shared_bytes_per_second() : memory->bytes_per_second;
    if (rate > 0) out << ", " << rate / 1e12 << " TB/s";
    out << ", transactions of " << memory->transaction_bytes << " B";
    if (memory->banks > 0)
      out << ", " << memory->banks << " banks of " << memory->bank_bytes << " B";
    out << '\n';
  }
  if (device.tensor_columns > 0) {
    out << "  tensor memory: " << device.tensor_columns << " columns of 128 lanes of 4 B"
        << (device.unproven ? ", used though nobody has run it\n"
                            : ", not used: nobody has run it\n");
  }
  for (const MatrixInstruction* row : instructions(device)) {
    out << "  " << row->name << ": " << row->operand << " to " << row->sum << ", ";
    const double rate = operations_per_second(device, *row);
    if (rate > 0) {
      out << rate / 1e12 << " TFLOP/s\n";
    } else {
      out << "rate not published\n";
    }
  }
  out << "  copies:";
  for (const CopyInstruction* row : copies(device)) out << ' ' << row->name;
  out << "\n  clusters of up to " << device.max_cluster << '\n';
  const Sources& sources = device.sources;
  out << "  sources:\n    capacities: " << sources.capacities
      << "\n    bandwidths: " << sources.bandwidths << "\n    rates: " << sources.rates
      << "\n    limits: " << sources.limits << '\n';
  return out.str();
}

}  // namespace ladder
