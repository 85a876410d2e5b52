// SPDX-License-Identifier: Apache-2.0
//
// Which thread touches which bytes, instruction by instruction.
#include <algorithm>

#include "base/error.h"
#include "layout/weight_image.h"
#include "program/access.h"
#include "program/passes/hazards.h"

namespace ladder {
namespace {

/// Sum of the digits of every number below their product.
std::vector<std::int64_t> sums(const std::vector<Digit>& digits,
                               const std::vector<std::int64_t>& weights) {
  std::vector<std::int64_t> out{0};
  for (const Digit& digit : digits) {
    std::vector<std::int64_t> next;
    for (auto sum : out) {
      for (std::int64_t v = 0; v < digit.extent; ++v) {
        next.push_back(sum + v * digit.stride * weights[digit.dim]);
      }
    }
    out = std::move(next);
  }
  return out;
}

}  // namespace

void Hazards::clash(int before) {
  if (!found_) found_ = Hazard{moments_[before], now_, to_string(program_, *statement_)};
}

void Hazards::touch(std::int64_t granule, int thread, bool write, bool pending) {
  Facts& facts = facts_[granule];
  const int moment = static_cast<int>(moments_.size()) - 1;
  const bool at_once = same_ && write && facts.write_moment == moment;
  if (facts.writer != kNobody && facts.writer != thread && !facts.pending && !at_once &&
      facts.write_epoch > synchronised()) {
    clash(facts.write_moment);
  }
  const bool fresh = facts.reader != kNobody && facts.read_epoch > synchronised();
  if (write) {
    if (fresh && facts.reader != thread) clash(facts.read_moment);
    facts = {thread, kNobody, epoch_, 0, moment, 0, pending};
  } else {
    facts.reader = !fresh || facts.reader == thread ? thread : kSeveral;
    facts.read_epoch = epoch_;
    facts.read_moment = moment;
  }
}

/// What touch() notes of a read, by what was synchronised when it happened.
void Hazards::note(const Read& read) {
  each(*read.tile, read.half, read.start, read.width, [&](std::int64_t first, int thread) {
    for (std::int64_t g = first; g < first + read.width; ++g) {
      Facts& facts = facts_[g];
      const bool fresh = facts.reader != kNobody && facts.read_epoch > read.synchronised;
      facts.reader = !fresh || facts.reader == thread ? thread : kSeveral;
      facts.read_epoch = read.epoch;
      facts.read_moment = read.moment;
    }
    return true;
  });
}

void Hazards::note_reads() {
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.level == Level::shared) {
      before_writing(static_cast<BufferId>(&buffer - program_.buffers.data()));
    }
  }
}

// Buffers may lie over each other.
void Hazards::before_writing(BufferId buffer) {
  const auto range = [&](std::size_t id) {
    const Buffer& of = program_.buffers[id];
    const auto first = granules(static_cast<BufferId>(id));
    return std::pair{first, first + of.elements * bytes_of(of.scalar) / granule_};
  };
  const auto [first, end] = range(buffer);
  std::vector<Read> last;
  for (std::size_t other = 0; other < reads_.size(); ++other) {
    if (reads_[other].empty()) continue;
    const auto [from, to] = range(other);
    if (from >= end || to <= first) continue;
    for (const auto& [place, read] : reads_[other]) last.push_back(read);
    reads_[other].clear();
  }
  std::sort(last.begin(), last.end(),
            [](const Read& a, const Read& b) { return a.moment < b.moment; });
  for (const Read& read : last) note(read);
}

/// Calls `visit(granule, thread)` with the first granule of each element, until it returns false.
template <class Visit>
void Hazards::each(const Footprint& tile, Half half, std::int64_t start, std::int64_t width,
                   const Visit& visit) {
  const auto threads = tile.elements.threads.size();
  const auto begin = half == Half::second ? threads / kHalves : 0;
  const auto end = half == Half::first ? threads / kHalves : threads;
  for (std::size_t thread = begin; thread < end; ++thread) {
    for (std::size_t slot = 0; slot < tile.elements.slots.size(); ++slot) {
      const bool outside =
          std::any_of(tile.bounded.begin(), tile.bounded.end(), [&](const auto& bound) {
            return bound.first.threads[thread] + bound.first.slots[slot] >= bound.second;
          });
      if (outside) continue;
      const auto first =
          start + (tile.elements.threads[thread] + tile.elements.slots[slot]) * width;
      if (!visit(first, static_cast<int>(thread))) return;
    }
  }
}

/// The extent of a dimension that the call decides, from how far its memory reaches.
std::int64_t Hazards::limit(const View& view, std::size_t d) const {
  auto within = program_.buffers[view.buffer].elements;
  for (auto stride : view.strides) {
    if (stride > view.strides[d]) within = std::min(within, stride);
  }
  return within / view.strides[d];
}

const Hazards::Footprint& Hazards::footprint(const void* key, const Layout& layout,
                                             const View& view) {
  const auto known = footprints_.find(key);
  if (known != footprints_.end()) return known->second;
  Footprint out{{sums(layout.threads, view.strides), sums(layout.slots, view.strides)}, {}};
  for (std::size_t d = 0; d < view.extents.size(); ++d) {
    if (view.extents[d] != kTokens) continue;
    std::vector<std::int64_t> only(view.strides.size(), 0);
    only[d] = 1;
    out.bounded.push_back({{sums(layout.threads, only), sums(layout.slots, only)}, limit(view, d)});
  }
  return footprints_.emplace(key, std::move(out)).first->second;
}

std::int64_t Hazards::place(const View& view, std::int64_t element) const {
  const auto byte = (value(view.offset) + element) * bytes_of(program_.buffers[view.buffer].scalar);
  return granules(view.buffer) + (view.is_swizzled ? swizzled(byte) : byte) / granule_;
}

std::int64_t Hazards::origin(const View& view, const std::vector<Affine>& at) const {
  std::int64_t element = 0;
  for (std::size_t d = 0; d < at.size(); ++d) element += value(at[d]) * view.strides[d];
  return element;
}

void Hazards::access(const void* key, const Layout& layout, ViewId id,
                     const std::vector<Affine>& at, bool write, bool pending) {
  const View& view = program_.views[id];
  const Footprint& tile = footprint(key, layout, view);
  const std::int64_t width = bytes_of(program_.buffers[view.buffer].scalar) / granule_;
  const auto start = place(view, origin(view, at));
  if (write) {
    before_writing(view.buffer);
  } else {
    const int moment = static_cast<int>(moments_.size()) - 1;
    const Read read{&tile, half_, start, width, epoch_, moment, synchronised()};
    // Nobody has written there since, and more has been synchronised: what was right is right.
    if (!reads_[view.buffer].insert_or_assign({key, half_, start}, read).second) return;
  }
  each(tile, half_, start, width, [&](std::int64_t first, int thread) {
    LADDER_CHECK(first >= 0 && first + width <= static_cast<std::int64_t>(facts_.size()),
                 "an access outside shared memory, in: ", to_string(program_, *statement_));
    for (std::int64_t g = first; g < first + width; ++g) touch(g, thread, write, pending);
    if (pending) groups_.back().push_back({first, width});
    return !found_;
  });
}

void Hazards::copy_async(const CopyAsync& i) {
  if (value(i.guard) >= i.below) return;
  const View& to = program_.views[i.to];
  before_writing(to.buffer);
  const int size = bytes_of(program_.buffers[to.buffer].scalar);
  const SharedRows rows = shared_rows(to);
  const std::int64_t run = 16 / size, pieces = rows.columns / run, width = 16 / granule_;
  for (std::int64_t piece = 0; piece < rows.rows * pieces; ++piece) {
    const auto first = place(to, rows.at(piece / pieces, piece % pieces * run));
    for (std::int64_t g = first; g < first + width; ++g) {
      touch(g, copying_thread(program_, role_ != 0, piece), true, true);
    }
    groups_.back().push_back({first, width});
  }
}

// Rows in pieces of `run` elements, one after the other by one thread after the other.
void Hazards::plain_copy(ViewId id, std::int64_t run) {
  const View& to = program_.views[id];
  before_writing(to.buffer);
  const SharedRows rows = shared_rows(to);
  const std::int64_t width = bytes_of(program_.buffers[to.buffer].scalar) / granule_;
  const auto pieces = rows.columns / run;
  for (std::int64_t piece = 0; piece < rows.rows * pieces; ++piece) {
    const auto first = place(to, rows.at(piece / pieces, piece % pieces * run));
    for (auto g = first; g < first + run * width; ++g) {
      touch(g, copying_thread(program_, role_ != 0, piece), true, false);
    }
  }
}

// Which entries a thread reads depends on the codes: all of them, by all threads, once until the
// next barrier.
void Hazards::look_up(ViewId id) {
  int& looked = looked_up_.emplace(id, -1).first->second;
  if (looked == epoch_) return;
  looked = epoch_;
  const View& table = program_.views[id];
  const auto size = table.extents[0] * table.extents[1] * 4 / granule_;
  for (std::int64_t g = place(table); g < place(table) + size; ++g) {
    touch(g, kSeveral, false, false);
  }
}

void Hazards::load_units(const LoadUnits& i) {
  const View& view = program_.views[i.from];
  const Layout& layout = program_.registers[i.to].layout;
  const auto first_element = origin(view, i.at);
  const auto width = bytes_of(program_.buffers[view.buffer].scalar) / granule_;
  for (std::int64_t thread = 0; thread < layout.thread_count(); ++thread) {
    for (std::int64_t slot = 0; slot < layout.slot_count(); ++slot) {
      const auto at = place_in_chunks(layout(thread, slot).data(), layout.shape[4]);
      auto element = first_element;
      for (std::size_t d = 0; d < at.size(); ++d) element += at[d] * view.strides[d];
      const auto first = place(view, element);
      for (auto g = first; g < first + width; ++g) {
        touch(g, static_cast<int>(thread), false, false);
      }
    }
  }
}

// B is read by all lanes, from now until the product has been waited for.
void Hazards::multiply(const MmaShared& i) {
  const View& view = program_.views[i.from];
  const auto tokens = program_.registers[i.acc].layout.shape[2];
  const int size = bytes_of(program_.buffers[view.buffer].scalar), run = 16 / size;
  const auto first = origin(view, i.at);
  std::vector<Copy> read;
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t column = 0; column < i.row->k; column += run) {
      const auto element = first + token * view.strides[1] + column * view.strides[3];
      read.push_back({place(view, element), 16 / granule_});
    }
  }
  products_.push_back(std::move(read));
  for (const Copy& piece : products_.back()) {
    for (auto g = piece.first; g < piece.first + piece.count; ++g) touch(g, kSeveral, false, false);
  }
}

void Hazards::end_products(int pending) {
  while (static_cast<int>(products_.size()) > pending) {
    for (const Copy& piece : products_.front()) {
      for (auto g = piece.first; g < piece.first + piece.count; ++g) {
        touch(g, kSeveral, false, false);
      }
    }
    products_.erase(products_.begin());
  }
}

void Hazards::copy_bulk(const CopyBulk& i) {
  if (value(i.guard) < i.below) by_engine(i.to, phases_[i.signal][value(i.index)]);
}

// Of all rows: how many the call has is not known here.
void Hazards::copy_rows(const CopyRows& i) {
  if (initialised_[i.signal] > synchronised()) clash(initialised_moment_[i.signal]);
  by_engine(i.to, phases_[i.signal][value(i.index)]);
}

void Hazards::by_engine(ViewId view, Phase& phase) {
  const View& to = program_.views[view];
  before_writing(to.buffer);
  const int width = bytes_of(program_.buffers[to.buffer].scalar) / granule_;
  std::vector<std::int64_t> ones(to.strides.size(), 1);
  std::vector<Digit> digits;
  for (std::size_t d = 0; d < to.extents.size(); ++d) {
    digits.push_back({static_cast<int>(d), to.extents[d], to.strides[d]});
  }
  for (auto element : sums(digits, ones)) {
    const auto first = place(to) + element * width;
    for (auto g = first; g < first + width; ++g) touch(g, kEngine, true, true);
    phase.copies.push_back({first, width});
  }
}

// Each thread writes its own words of the scratch memory; two barriers follow.
void Hazards::reduce(const Reduce& i) {
  if (i.scratch < 0) return;
  before_writing(i.scratch);
  const auto slots = program_.registers[i.to].layout.slot_count();
  const std::int64_t width = 4 / granule_;
  for (std::int64_t word = 0; word < slots * program_.threads; ++word) {
    for (std::int64_t g = 0; g < width; ++g) {
      touch(granules(i.scratch) + word * width + g, static_cast<int>(word % program_.threads), true,
            false);
    }
  }
  barrier();
}

// By whole buffers, except that equal tiles at equal places have equal threads.
void Hazards::global(BufferId buffer, const Layout& layout, ViewId view,
                     const std::vector<Affine>& at, bool write) {
  const int moment = static_cast<int>(moments_.size()) - 1;
  const auto meets = [&](const GlobalUse& use) {
    return use.epoch > synchronised() &&
           !(use.view == view && *use.layout == layout && use.at == at);
  };
  if (meets(written_[buffer]) && !write) clash(written_[buffer].moment);
  if (write && meets(read_[buffer])) clash(read_[buffer].moment);
  (write ? written_ : read_)[buffer] = {epoch_, moment, &layout, view, at};
}

}  // namespace ladder
