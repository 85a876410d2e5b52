// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>

#include "program/access.h"
#include "program/interpret/interpreter.h"

namespace ladder {

std::optional<std::int64_t> Interpreter::element(const Block& block, const View& view,
                                                 const std::vector<std::int64_t>& origin,
                                                 const std::int64_t* offset) const {
  std::int64_t index = value(block, view.offset);
  if (view.windows) {
    const auto row = origin[0] + offset[0], column = origin[1] + offset[1];
    if (row < 0 || row >= tokens_ || column < 0 || column >= view.extents[1]) return std::nullopt;
    const auto place = view.windows->place(first_row_ + row, column);
    return place < 0 ? std::nullopt : std::optional(index + place);
  }
  for (std::size_t d = 0; d < origin.size(); ++d) {
    const auto extent = view.extents[d] == kTokens ? tokens_ : view.extents[d];
    const auto at = origin[d] + offset[d];
    if (at < 0 || at >= extent) return std::nullopt;
    index += at * view.strides[d];
  }
  return index;
}

std::int64_t Interpreter::byte_of(const View& view, std::int64_t element) const {
  const auto byte = element * bytes_of(program_.buffers[view.buffer].scalar);
  return program_.shared_offset(view.buffer) + (view.is_swizzled ? swizzled(byte) : byte);
}

void Interpreter::touch_global(const Block& block, BufferId id, bool write) const {
  const Buffer& buffer = program_.buffers[id];
  if (program_.dependent_launch && !block.dependent_waited && (write || !buffer.constant)) {
    fault(write ? "writes " : "reads ", buffer.name, " before the preceding kernel has ended");
  }
  if (write && buffer.constant) fault("writes the constant ", buffer.name);
}

void Interpreter::read_global(Block& block, BufferId id, std::int64_t at, int size, int thread,
                              std::uint8_t* to) {
  touch_global(block, id, false);
  const Argument& argument = arguments_[id];
  if (program_.buffers[id].optional && argument.bytes.empty()) {
    std::fill_n(to, size, 0);
    return;
  }
  at += origins_[id];
  if (at + size > static_cast<std::int64_t>(argument.bytes.size())) {
    fault("reads past the end of ", program_.buffers[id].name);
  }
  for (int i = 0; i < size; ++i) {
    const auto [writer, other, epoch] = writers_[id][at + i];
    if (!argument.written[at + i]) fault("reads what nobody wrote to ", program_.buffers[id].name);
    if (writer == kAdded) fault("reads what blocks still add to ", program_.buffers[id].name);
    if (writer != kGiven && writer != block.number && !(published_[writer] && block.ticketed)) {
      fault("reads what another block wrote to ", program_.buffers[id].name, ", without a ticket");
    }
    if (writer == block.number && other != thread && !block.shared.synchronised(epoch)) {
      fault("reads what another thread wrote to ", program_.buffers[id].name,
            ", without a barrier");
    }
    to[i] = argument.bytes[at + i];
  }
}

void Interpreter::write_global(Block& block, BufferId id, std::int64_t at, int size, int thread,
                               const std::uint8_t* from) {
  touch_global(block, id, true);
  Argument& argument = arguments_[id];
  at += origins_[id];
  if (at + size > static_cast<std::int64_t>(argument.bytes.size())) {
    fault("writes past the end of ", program_.buffers[id].name);
  }
  for (int i = 0; i < size; ++i) {
    auto& writer = writers_[id][at + i];
    if (writer.block != kGiven && writer.block != block.number) {
      fault("overwrites what another block wrote to ", program_.buffers[id].name);
    }
    writer = {block.number, thread, block.shared.now()};
    argument.bytes[at + i] = from[i];
    argument.written[at + i] = true;
  }
}

void Interpreter::load(Block& block, const Load& i, std::uint32_t outside) {
  const View& view = program_.views[i.from];
  const Buffer& buffer = program_.buffers[view.buffer];
  const int size = bytes_of(buffer.scalar);
  const auto origin = values(block, i.at);
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* offset) {
    std::uint32_t bits = outside;
    if (const auto at = element(block, view, origin, offset)) {
      bits = 0;
      auto* to = reinterpret_cast<std::uint8_t*>(&bits);
      const auto byte = program_.shared_offset(view.buffer) + *at * size;
      std::string why;
      if (buffer.level == Level::global) {
        read_global(block, view.buffer, *at * size, size, thread, to);
      } else if (i.remote) {
        remote_reads_open_ = true;
        why = cluster_.at(value(block, i.rank))->shared.read_remote(byte, size, to);
      } else {
        why = block.shared.read(byte, size, thread, to);
      }
      if (!why.empty()) fault(why);
    } else if (i.any_token && beyond_tokens(view, origin, offset)) {
      bits = 0x7fffffffu >> (32 - 8 * size);  // NaN of floats, so that its use shows
    }
    set(block, i.to, index, bits);
  });
}

bool Interpreter::beyond_tokens(const View& view, const std::vector<std::int64_t>& origin,
                                const std::int64_t* offset) const {
  for (std::size_t d = 0; d < origin.size(); ++d) {
    if (view.extents[d] == kTokens && origin[d] + offset[d] >= tokens_) return true;
  }
  return false;
}

void Interpreter::load_units(Block& block, const LoadUnits& i) {
  const View& view = program_.views[i.from];
  const bool global = program_.buffers[view.buffer].level == Level::global;
  const auto origin = values(block, i.at);
  const auto words = program_.registers[i.to].layout.shape[4];
  for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* offset) {
    const auto at = element(block, view, origin, place_in_chunks(offset, words).data());
    if (!at && !global) fault("words outside the view");
    std::uint32_t word = 0;
    auto* to = reinterpret_cast<std::uint8_t*>(&word);
    if (global) {
      if (at) read_global(block, view.buffer, *at * 4, sizeof word, thread, to);
    } else if (auto why = block.shared.read(byte_of(view, *at), sizeof word, thread, to);
               !why.empty()) {
      fault(why);
    }
    set(block, i.to, index, word);
  });
}

// Threads that hold the same elements write the same, in any order.
void Interpreter::store(Block& block, const Store& i) {
  const View& view = program_.views[i.to];
  const Buffer& buffer = program_.buffers[view.buffer];
  const int size = bytes_of(buffer.scalar);
  const auto origin = values(block, i.at);
  const Layout& layout = program_.registers[i.from].layout;
  const bool repeats = layout.thread_count() * layout.slot_count() > layout.element_count();
  std::map<std::int64_t, std::uint32_t> written;  // of elements that several threads hold
  for_each(i.from, [&](int thread, std::int64_t index, const std::int64_t* offset) {
    const auto at = element(block, view, origin, offset);
    if (!at) return;
    const auto bits = get(block, i.from, index);
    const auto* from = reinterpret_cast<const std::uint8_t*>(&bits);
    if (buffer.level == Level::global) {
      write_global(block, view.buffer, *at * size, size, thread, from);
      return;
    }
    if (repeats) {
      const auto [other, first] = written.emplace(*at, bits);
      if (other->second != bits) fault("threads that hold the same element write another");
      if (!first) return;
    }
    if (auto why = block.shared.write(program_.shared_offset(view.buffer) + *at * size, size,
                                      thread, from);
        !why.empty()) {
      fault(why);
    }
  });
}

void Interpreter::copy(Block& block, const CopyAsync& i) {
  if (value(block, i.guard) >= i.below) return;
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const int size = bytes_of(program_.buffers[to.buffer].scalar);
  const SharedRows rows = shared_rows(to);
  const std::int64_t run = 16 / size, pieces = rows.columns / run;
  const auto origin = values(block, i.at);
  for (std::int64_t piece = 0; piece < rows.rows * pieces; ++piece) {
    const std::int64_t row = piece / pieces, column = piece % pieces * run;
    const int thread = copying_thread(program_, block.shared.by_producers(), piece);
    std::uint8_t bytes[16] = {};
    for (std::int64_t e = 0; e < run; ++e) {
      const std::int64_t offset[] = {row, column + e};
      if (const auto at = element(block, from, origin, offset)) {
        read_global(block, from.buffer, *at * size, size, thread, bytes + e * size);
      }
    }
    const auto why = block.shared.write_async(
        byte_of(to, value(block, to.offset) + rows.at(row, column)), 16, thread, bytes);
    if (!why.empty()) fault(why);
  }
}

void Interpreter::copy_own(Block& block, const CopyOwn& i) {
  if (value(block, i.guard) >= i.below) return;
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const int size = bytes_of(program_.buffers[to.buffer].scalar);
  const auto origin = values(block, i.from_at), target = values(block, i.to_at);
  const auto at = coordinates_of(i.from_layout), to_at = coordinates_of(i.to_layout);
  for (int thread = 0; thread < program_.threads; ++thread) {
    for (std::int64_t slot = 0; slot < at.slots; ++slot) {
      std::uint8_t bytes[4] = {};
      if (const auto source = element(block, from, origin, at.at(thread, slot))) {
        read_global(block, from.buffer, *source * size, size, thread, bytes);
      }
      const auto place = element(block, to, target, to_at.at(thread, slot));
      if (!place) fault("copies outside ", program_.buffers[to.buffer].name);
      const auto why = block.shared.write_async(program_.shared_offset(to.buffer) + *place * size,
                                                size, thread, bytes);
      if (!why.empty()) fault(why);
    }
  }
}

void Interpreter::copy_bulk(Block& block, const CopyBulk& i) {
  if (value(block, i.guard) >= i.below) return;
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const int size = bytes_of(program_.buffers[to.buffer].scalar);
  const auto origin = values(block, i.at);
  const std::vector<std::int64_t> zero(to.extents.size(), 0);
  const auto index = value(block, i.index);
  std::vector<std::int64_t> at(to.extents.size(), 0);
  for (bool more = true; more;) {
    const auto source = element(block, from, origin, at.data());
    const auto target = element(block, to, zero, at.data());
    if (!source || !target) fault("a bulk copy leaves ", program_.buffers[from.buffer].name);
    std::uint8_t bytes[4] = {};
    read_global(block, from.buffer, *source * size, size, kEngine, bytes);
    const auto place = program_.shared_offset(to.buffer) + *target * size;
    refuse(block.shared.write_bulk(place, size, bytes));
    refuse(block.signals.copied(i.signal, index, place, size));
    more = false;
    for (auto d = at.size(); d-- > 0 && !more;) {
      more = ++at[d] < to.extents[d];
      if (!more) at[d] = 0;
    }
  }
}

void Interpreter::copy_rows(Block& block, const CopyRows& i) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const int size = bytes_of(program_.buffers[to.buffer].scalar);
  const auto index = value(block, i.index);
  const std::vector<std::int64_t> origin = {0, value(block, i.at)};
  const auto rows = std::min(to.extents[0], tokens_);
  refuse(block.signals.expect(i.signal, index, rows * to.extents[1] * size, block.shared));
  const std::int64_t blocks = i.multicast ? program_.cluster : 1;
  for (std::int64_t row = i.multicast ? block.variables[kRank] : 0; row < rows; row += blocks) {
    for (std::int64_t column = 0; column < to.extents[1]; ++column) {
      const std::int64_t at[] = {row, column};
      const auto source = element(block, from, origin, at);
      if (!source) fault("a copy leaves ", program_.buffers[from.buffer].name);
      std::uint8_t bytes[4] = {};
      read_global(block, from.buffer, *source * size, size, kEngine, bytes);
      const auto place = program_.shared_offset(to.buffer) +
                         (value(block, to.offset) + row * to.strides[0] + column) * size;
      for (Block* peer : cluster_) {
        if (!i.multicast && peer != &block) continue;
        if (i.multicast) refuse(peer->signals.known_to_peers(i.signal, index));
        refuse(peer->shared.write_bulk(place, size, bytes));
        refuse(peer->signals.copied(i.signal, index, place, size, i.multicast));
      }
    }
  }
}

void Interpreter::atomic_add(Block& block, const AtomicAdd& i) {
  const View& view = program_.views[i.to];
  const auto origin = values(block, i.at);
  Argument& argument = arguments_[view.buffer];
  touch_global(block, view.buffer, true);
  for_each(i.from, [&](int, std::int64_t index, const std::int64_t* offset) {
    const auto at = element(block, view, origin, offset);
    if (!at) return;
    const auto& name = program_.buffers[view.buffer].name;
    if (*at * 4 + 4 > static_cast<std::int64_t>(argument.bytes.size())) {
      fault("adds past the end of ", name);
    }
    for (int b = 0; b < 4; ++b) {
      auto& writer = writers_[view.buffer][*at * 4 + b].block;
      if (!argument.written[*at * 4 + b]) fault("adds to what nobody wrote to ", name);
      if (writer != kGiven && writer != kAdded) fault("adds to what a block stored to ", name);
      writer = kAdded;
    }
    float sum;
    std::memcpy(&sum, argument.bytes.data() + *at * 4, 4);
    sum += static_cast<float>(number(block, i.from, index));
    std::memcpy(argument.bytes.data() + *at * 4, &sum, 4);
  });
}

void Interpreter::copy_elements(Block& block, const CopyElements& i) {
  if (value(block, i.guard) >= i.below) return;
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const auto origin = values(block, i.at);
  const SharedRows rows = shared_rows(to);
  const std::int64_t words = rows.columns / 2;
  for (std::int64_t word = 0; word < rows.rows * words; ++word) {
    const std::int64_t row = word / words, column = word % words * 2;
    const int thread = static_cast<int>(word % program_.threads);
    std::uint8_t bytes[4] = {};
    for (int half = 0; half < 2; ++half) {
      std::int64_t source = origin[1] + column + half;
      if (source >= from.extents[1]) continue;
      if (i.columns >= 0) {
        const View& columns = program_.views[i.columns];
        std::uint32_t index;
        read_global(block, columns.buffer, source * columns.strides[0] * 4, 4, thread,
                    reinterpret_cast<std::uint8_t*>(&index));
        if (index >= from.extents[1]) fault("column ", index, " of ", from.extents[1]);
        source = index;
      }
      const std::int64_t offset[] = {row, source - origin[1]};
      if (const auto at = element(block, from, origin, offset)) {
        read_global(block, from.buffer, *at * 2, 2, thread, bytes + 2 * half);
      }
    }
    const auto why = block.shared.write(byte_of(to, value(block, to.offset) + rows.at(row, column)),
                                        4, thread, bytes);
    if (!why.empty()) fault(why);
  }
}

void Interpreter::ticket(Block& block, const Ticket& i) {
  touch_global(block, program_.views[i.counters].buffer, true);
  const View& view = program_.views[i.counters];
  const std::int64_t zero[] = {0};
  const auto at = element(block, view, values(block, i.at), zero);
  if (!at) fault("a counter outside its buffer");
  std::uint32_t count;
  auto* place = arguments_[view.buffer].bytes.data() + origins_[view.buffer] + *at * 4;
  std::memcpy(&count, place, 4);
  block.variables[i.result] = count;
  if (++count == i.expected) count = 0;
  std::memcpy(place, &count, 4);
  published_[block.number] = true;
  block.ticketed = true;
  block.shared.barrier();
}

}  // namespace ladder
