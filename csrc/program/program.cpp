// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include "base/error.h"

namespace ladder {
namespace {

constexpr std::int64_t kSharedAlignment = 128;

std::int64_t aligned_bytes(const Buffer& buffer) {
  const auto bytes = buffer.elements * bytes_of(buffer.scalar);
  return (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
}

}  // namespace

Affine operator+(Affine a, const Affine& b) {
  a.constant += b.constant;
  a.terms.insert(a.terms.end(), b.terms.begin(), b.terms.end());
  return a;
}

std::int64_t Program::shared_offset(BufferId buffer) const {
  std::int64_t offset = 0;
  for (BufferId i = 0; i < buffer; ++i) {
    if (buffers[i].level == Level::shared) offset += aligned_bytes(buffers[i]);
  }
  return offset;
}

std::int64_t Program::shared_bytes() const {
  return shared_offset(static_cast<BufferId>(buffers.size()));
}

Range range_of(const Program& program, const Affine& affine) {
  Range range{affine.constant, affine.constant};
  for (const auto& term : affine.terms) {
    const auto last = (program.variables[term.variable].extent - 1) / term.divisor * term.factor;
    (last < 0 ? range.low : range.high) += last;
  }
  return range;
}

}  // namespace ladder
