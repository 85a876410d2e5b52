// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include <algorithm>

#include "base/error.h"
#include "schedule/schedule.h"

namespace ladder {
namespace {

std::int64_t aligned_bytes(const Buffer& buffer) {
  const auto bytes = buffer.elements * bytes_of(buffer.scalar);
  return (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
}

std::int64_t end_of_buffers(const Program& program) {
  std::int64_t end = 0;
  for (BufferId i = 0; i < static_cast<BufferId>(program.buffers.size()); ++i) {
    if (program.buffers[i].level != Level::shared) continue;
    end = std::max(end, program.shared_offset(i) + aligned_bytes(program.buffers[i]));
  }
  return end;
}

}  // namespace

Affine operator+(Affine a, const Affine& b) {
  a.constant += b.constant;
  a.terms.insert(a.terms.end(), b.terms.begin(), b.terms.end());
  return a;
}

Affine times(Affine affine, std::int64_t factor) {
  affine.constant *= factor;
  for (auto& term : affine.terms) term.factor *= factor;
  return affine;
}

// (factor v + constant) / divisor, where one of factor and divisor divides the other.
Affine divided(Affine affine, std::int64_t divisor) {
  if (affine.terms.empty()) return affine.constant / divisor;
  auto& term = affine.terms.front();
  LADDER_CHECK(affine.terms.size() == 1 && term.modulus == 0, "no quotient of a sum");
  if (term.factor % divisor == 0) {
    term.factor /= divisor;
    affine.constant /= divisor;
    return affine;
  }
  LADDER_CHECK(divisor % term.factor == 0, "no quotient by ", divisor, " of steps of ",
               term.factor);
  term.offset += affine.constant / term.factor * term.divisor;
  term.divisor *= divisor / term.factor;
  term.factor = 1;
  affine.constant = 0;
  return affine;
}

// factor v + constant mod modulus, where factor divides modulus: what constant has beyond whole
// steps stays as it is.
Affine remainder(Affine affine, std::int64_t modulus) {
  if (affine.terms.empty()) return affine.constant % modulus;
  auto& term = affine.terms.front();
  LADDER_CHECK(affine.terms.size() == 1 && term.factor * term.modulus % modulus == 0,
               "no remainder of a sum");
  LADDER_CHECK(modulus % term.factor == 0, "no remainder by ", modulus, " of steps of ",
               term.factor);
  term.offset += affine.constant / term.factor * term.divisor;
  term.modulus = modulus / term.factor;
  affine.constant %= term.factor;
  return affine;
}

std::int64_t Program::shared_offset(BufferId buffer) const {
  if (buffers[buffer].over >= 0) return shared_offset(buffers[buffer].over);
  std::int64_t offset = 0;
  for (BufferId i = 0; i < buffer; ++i) {
    if (buffers[i].level == Level::shared && buffers[i].over < 0)
      offset += aligned_bytes(buffers[i]);
  }
  return offset;
}

std::int64_t Program::signal_offset(SignalId signal) const {
  auto offset = end_of_buffers(*this);
  for (SignalId i = 0; i < signal; ++i) offset += signals[i].count * kSignalBytes;
  return offset;
}

std::int64_t Program::shared_bytes() const {
  return signal_offset(static_cast<SignalId>(signals.size()));
}

bool multiple_of(const Affine& affine, std::int64_t by) {
  return affine.constant % by == 0 &&
         std::all_of(affine.terms.begin(), affine.terms.end(),
                     [&](const Affine::Term& term) { return term.factor % by == 0; });
}

int bits_of(const Register& reg) { return reg.width != 0 ? reg.width : bits_of(reg.scalar); }

std::string type_name(const Register& reg) {
  return reg.width != 0 ? "u" + std::to_string(reg.width) : std::string(name_of(reg.scalar));
}

Range range_of(const Program& program, const Affine& affine) {
  Range range{affine.constant, affine.constant};
  for (const auto& term : affine.terms) {
    const auto extent = program.variables[term.variable].extent;
    const bool wraps =
        term.modulus != 0 && (extent - 1 + term.offset) / term.divisor >= term.modulus;
    const auto first = wraps ? 0 : term.at(0);
    const auto last = wraps ? term.factor * (term.modulus - 1) : term.at(extent - 1);
    range.low += std::min(first, last);
    range.high += std::max(first, last);
  }
  return range;
}

}  // namespace ladder
