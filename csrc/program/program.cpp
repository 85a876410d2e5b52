// SPDX-License-Identifier: Apache-2.0
#include "program/program.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"

namespace ladder {
namespace {

std::int64_t aligned_bytes(const Buffer& buffer) {
  const auto bytes = buffer.elements * bytes_of(buffer.scalar);
  return round_up(bytes, kSharedAlignment);
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

std::int64_t count_of(const Items& items, std::int64_t tokens) {
  return round_up(items.weights * ceil_div(tokens, items.rows), items.together);
}

ItemRows rows_of(const Items& items, std::int64_t item, std::int64_t tokens) {
  const auto per_weight = ceil_div(tokens, items.rows);
  const auto weight = item / per_weight, at = item % per_weight * items.rows;
  const auto rows = weight < items.weights ? std::min(items.rows, tokens - at) : 0;
  return {weight, weight * tokens + at, rows};
}

std::int64_t Program::shared_offset(BufferId buffer) const {
  if (buffers[buffer].over >= 0) return shared_offset(buffers[buffer].over);
  std::int64_t offset = 0;
  for (BufferId i = 0; i <= buffer; ++i) {
    if (buffers[i].level != Level::shared || buffers[i].over >= 0) continue;
    offset = round_up(offset, std::int64_t{buffers[i].alignment});
    if (i < buffer) offset += aligned_bytes(buffers[i]);
  }
  return offset;
}

std::int64_t Program::signal_offset(SignalId signal) const {
  auto offset = end_of_buffers(*this);
  for (SignalId i = 0; i < signal; ++i) offset += signals[i].count * kSignalBytes;
  return offset;
}

std::int64_t Program::tensor_columns() const {
  constexpr std::int64_t kFewest = 32;
  std::int64_t all = 0, asked = kFewest;
  for (const Tensor& tensor : tensors) all += tensor.size();
  while (asked < all) asked *= 2;
  return all == 0 ? 0 : asked;
}

std::int64_t Program::tensor_column(TensorId tensor, std::int64_t place,
                                    std::int64_t product) const {
  std::int64_t first = 0;
  for (TensorId i = 0; i < tensor; ++i) first += tensors[i].size();
  return first + (place * tensors[tensor].products + product) * tensors[tensor].columns;
}

std::int64_t Program::shared_bytes() const {
  return tensor_slot() + (tensors.empty() ? 0 : kTensorSlotBytes);
}

SharedRows shared_rows(const View& view) {
  const auto &extents = view.extents, &strides = view.strides;
  if (extents.size() == 2) return {extents[0], extents[1], strides[0], extents[1], 0};
  LADDER_CHECK(extents.size() == 3, "rows in a view of rank ", extents.size());
  return {extents[0], extents[1] * extents[2], strides[0], extents[2], strides[1]};
}

int bits_of(const Register& reg) { return reg.width != 0 ? reg.width : bits_of(reg.scalar); }

std::string type_name(const Register& reg) {
  return reg.width != 0 ? "u" + std::to_string(reg.width) : std::string(name_of(reg.scalar));
}

std::size_t common_statements(const Program& program) {
  if (!program.roles) return program.body.size();
  std::size_t count = 0;
  const auto common = [](const Statement& s) {
    return std::holds_alternative<SignalInit>(s.op) || std::holds_alternative<Barrier>(s.op) ||
           std::holds_alternative<DependentWait>(s.op) ||
           std::holds_alternative<DependentLaunch>(s.op);
  };
  while (count < program.body.size() && common(program.body[count])) ++count;
  return count;
}

std::array<std::int64_t, 2> Program::grid() const {
  const auto splits = variables[kSplit].extent, tiles = variables[kTile].extent;
  if (!tail) return {splits, tiles};
  return {1, tail->first + (tiles - tail->first) * splits};
}

bool has_producers(const Statement& statement) {
  const auto* loop = std::get_if<For>(&statement.op);
  return std::holds_alternative<Produce>(statement.op) ||
         (loop != nullptr && std::ranges::any_of(loop->body, has_producers));
}

int copying_thread(const Program& program, bool producers, std::int64_t piece) {
  if (!producers) return static_cast<int>(piece % program.threads);
  return program.threads + static_cast<int>(piece % program.roles->producers);
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
