// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/joined.h"
#include "codegen/emit/emitter.h"
#include "layout/weight_image.h"
#include "program/check.h"

namespace ladder::codegen {

std::string Emitter::signal(SignalId id, const Affine& index) const {
  return program_.signals[id].name + " + 8 * (" + expr(index) + ")";
}

std::string Emitter::condition(const Affine& guard, std::int64_t below) const {
  return guard == Affine(0) ? "" : " && " + expr(guard) + " < " + std::to_string(below);
}

void Emitter::signal_init(const SignalInit& i) {
  const Signal& s = program_.signals[i.signal];
  line("if (thread == 0) signal_init(", s.name, ", ", s.count, "u, ", s.arrivals, "u);");
}

void Emitter::expect(const Expect& i) {
  line("if (thread == 0", condition(i.guard, i.below), ") signal_expect(",
       signal(i.signal, i.index), ", ", i.bytes, "u);");
}

void Emitter::arrive(const Arrive& i) {
  const auto there = signal(i.signal, i.index);
  line(i.by == Arrival::copies ? "signal_arrive_copies(" : "signal_arrive(", there, ");");
}

void Emitter::await(const Await& i) {
  line("signal_await(", signal(i.signal, i.index), ", ", expr(i.parity), ");");
}

// Rows are started by the lanes of the first warp. One may be ahead of the first thread's Expect:
// the phase cannot end without that arrival, and bytes that come early are counted.
void Emitter::copy_bulk(const CopyBulk& i) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const auto rows = bulk_rows(program_, i);
  const int size = bytes_of(buffer_of(i.to).scalar);
  Affine first = from.offset;
  for (std::size_t d = 0; d < i.at.size(); ++d) first = first + times(i.at[d], from.strides[d]);
  std::int64_t count = 1;
  std::string target, source;
  for (std::size_t d = rows.outer.size(); d-- > 0;) {
    auto row = count == 1 ? std::string("row") : "(row / " + std::to_string(count) + "u)";
    if (d > 0) row = "(" + row + " % " + std::to_string(rows.outer[d]) + "u)";
    target += " + " + row + " * " + std::to_string(to.strides[d]) + "u";
    source += " + (u64)" + row + " * " + std::to_string(from.strides[d]) + "u";
    count *= rows.outer[d];
  }
  const auto lanes = std::min<std::int64_t>(count, kLanes);
  line("if (thread < ", lanes, "u", condition(i.guard, i.below), ") {");
  line("  for (u32 row = thread; row < ", count, "u; row += ", lanes, "u) {");
  line("    copy_bulk(shared_address(", buffer_of(i.to).name, " + (", expr(to.offset), ")", target,
       "), ", buffer_of(i.from).name, " + (", expr(first), ")", source, ", ", rows.elements * size,
       "u, ", signal(i.signal, i.index), ");");
  line("  }");
  line("}");
}

// One lane of each warp in turn starts a row: a warp would start those of its lanes one after the
// other, at some 85 clocks each.
void Emitter::copy_rows(const CopyRows& i) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const auto bytes = to.extents[1] * bytes_of(buffer_of(i.to).scalar);
  const auto blocks = i.multicast ? program_.cluster : 1, warps = program_.threads / kLanes;
  const auto mbarrier = signal(i.signal, i.index);
  line("if (thread == 0) signal_expect(", mbarrier, ", (tokens < ", to.extents[0],
       "u ? tokens : ", to.extents[0], "u) * ", bytes, "u);");
  line("if (thread % 32 == 0) {");
  line("  #pragma unroll");
  line("  for (u32 piece = 0; piece < ", to.extents[0], "u; piece += ", warps * blocks, "u) {");
  line("    const u32 row = piece + thread / 32 * ", blocks, "u", i.multicast ? " + rank" : "",
       ";");
  line("    if (row < tokens && row < ", to.extents[0], "u) {");
  line("      copy_bulk", i.multicast ? "_to_all" : "", "(shared_address(", buffer_of(i.to).name,
       " + (", expr(to.offset), ") + row * ", to.strides[0], "u), ", buffer_of(i.from).name, " + (",
       expr(from.offset + i.at), ") + (u64)row * ", from.strides[0], "u, ", bytes, "u, ", mbarrier,
       i.multicast ? joined(", ", (1 << blocks) - 1, "u") : std::string(), ");");
  line("    }");
  line("  }");
  line("}");
  line("keep_order();");
}

}  // namespace ladder::codegen
