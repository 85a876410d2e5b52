// SPDX-License-Identifier: Apache-2.0
#include "program/traffic.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/integers.h"
#include "device/device.h"
#include "layout/weight_image.h"
#include "program/access.h"

namespace ladder {
namespace {

constexpr int kMatrixRows = 8;  // that load-matrix reads in one phase, 16 bytes of each

class Counter {
 public:
  Counter(const Program& program, std::int64_t tokens)
      : program_(program),
        tokens_(tokens),
        values_(program.variables.size()),
        written_out_(program.variables.size()) {}

  std::vector<MemoryTraffic> run() {
    walk(program_.body);
    return std::move(rows_);
  }

 private:
  void walk(const std::vector<Statement>& body) {
    for (const Statement& statement : body) {
      statement_ = &statement;
      if (const auto* loop = std::get_if<For>(&statement.op)) {
        written_out_[loop->variable] = loop->unroll == 0;
        for (std::int64_t trip = 0; trip < loop->trips; ++trip) {
          values_[loop->variable] = trip;
          walk(loop->body);
        }
        values_[loop->variable] = 0;
      } else if (const auto* branch = std::get_if<If>(&statement.op)) {
        // Of blocks that share no tile.
        if (program_.tail && branch->variable == program_.tail->is_tail && branch->value == 1) {
          continue;
        }
        values_[branch->variable] = branch->value;
        walk(branch->body);
      } else if (const auto* part = std::get_if<Within>(&statement.op)) {
        walk(part->body);
      } else if (const auto* part = std::get_if<Produce>(&statement.op)) {
        walk(part->body);
      } else if (const auto* part = std::get_if<Alternate>(&statement.op)) {
        walk(part->body);
      } else {
        std::visit([&](const auto& i) { count(i); }, statement.op);
      }
    }
  }

  /// Those that touch no memory that is counted; walk() goes into bodies.
  template <class Op>
  void count(const Op&) requires(is_in<Op>(InRegisters{}) || std::is_same_v<Op, Reinterpret> ||
                                 is_in<Op>(InTime{}) || is_in<Op>(OnSignals{}) ||
                                 is_in<Op>(InTensorMemory{}) || is_in<Op>(Nested{}) ||
                                 is_in<Op>(Group<Reduce, Ticket, CopyElements>{})) {}

  void count(const Load& i) { tile(program_.registers[i.to].layout, i.from, i.at, false); }
  void count(const Store& i) { tile(program_.registers[i.from].layout, i.to, i.at, true); }
  void count(const AtomicAdd& i) { tile(program_.registers[i.from].layout, i.to, i.at, true); }

  void count(const CopyOwn& i) {
    if (value(i.guard) >= i.below) return;
    tile(i.from_layout, i.from, i.from_at, false);
    tile(i.to_layout, i.to, i.to_at, true);
  }

  void count(const CopyAsync& i) {
    if (value(i.guard) >= i.below) return;
    const View &to = program_.views[i.to], &from = program_.views[i.from];
    const int size = bytes_of(program_.buffers[to.buffer].scalar);
    const SharedRows rows = shared_rows(to);
    const std::int64_t run = 16 / size, pieces = rows.columns / run, all = rows.rows * pieces;
    const auto source = start(from, i.at);
    const auto target = start(to, std::vector<Affine>(to.extents.size()));
    AccessCount reads, writes;
    for (std::int64_t first = 0; first < all; first += kLanes) {
      std::vector<std::int64_t> read, written;
      for (std::int64_t piece = first; piece < std::min<std::int64_t>(first + kLanes, all);
           ++piece) {
        const std::int64_t at[] = {piece / pieces, piece % pieces * run};
        written.push_back(placed(to, target + rows.at(at[0], at[1]) * size));
        if (from.windows) {
          const auto place = inside(from, i.at, at) ? from.windows->place(value(i.at[0]) + at[0],
                                                                          value(i.at[1]) + at[1])
                                                    : -1;
          read.push_back(place < 0 ? kIdleLane : place * size);
          continue;
        }
        read.push_back(inside(from, i.at, at)
                           ? source + (at[0] * from.strides[0] + at[1] * from.strides[1]) * size
                           : kIdleLane);
      }
      reads += count_access(read, 16);
      writes += count_access(written, 16);
    }
    add(from.buffer, false, reads);
    add(to.buffer, true, writes);
  }

  /// Digits leave by words of four columns, one row after the other; x comes by single elements.
  void count(const SplitDigits& i) {
    const View &to = program_.views[i.to], &from = program_.views[i.from];
    const auto source = start(from, i.at), target = start(to, {0, 0});
    const auto pieces = to.extents[1] / 4;
    AccessCount reads, writes;
    for (std::int64_t first = 0; first < pieces; first += kLanes) {
      const auto end = std::min<std::int64_t>(first + kLanes, pieces);
      for (std::int64_t row = 0; row < to.extents[0]; ++row) {
        std::vector<std::int64_t> written;
        for (auto piece = first; piece < end; ++piece) {
          written.push_back(target + row * to.strides[0] + piece * 4);
        }
        writes += count_access(written, 4);
      }
      for (int j = 0; j < 4; ++j) {
        std::vector<std::int64_t> read;
        for (auto piece = first; piece < end; ++piece) {
          const std::int64_t at[] = {0, piece / 4 * 16 + piece % 4 * 2 + j / 2 + j % 2 * 8};
          read.push_back(inside(from, i.at, at) ? source + at[1] * 2 : kIdleLane);
        }
        reads += count_access(read, 2);
      }
    }
    add(from.buffer, false, reads);
    add(to.buffer, true, writes);
  }

  void count(const CopyBulk& i) {
    if (value(i.guard) >= i.below) return;
    const View& to = program_.views[i.to];
    std::int64_t bytes = bytes_of(program_.buffers[to.buffer].scalar);
    for (auto extent : to.extents) bytes *= extent;
    const auto sectors = ceil_div(bytes, kSectorBytes);
    const auto lines = ceil_div(bytes, kLineBytes);
    add(program_.views[i.from].buffer, false, {1, 0, 0, sectors, sectors, lines});
    add(to.buffer, true, {1, lines, lines, 0, 0, 0});
  }

  void count(const CopyRows& i) {
    const View& to = program_.views[i.to];
    const auto row = to.extents[1] * bytes_of(program_.buffers[to.buffer].scalar);
    const auto rows = std::min<std::int64_t>(to.extents[0], tokens_);
    // A block reads its part of what the cluster shares, and all of it is written.
    const auto mine = i.multicast ? ceil_div(rows, program_.cluster) : rows;
    const auto sectors = mine * ceil_div(row, kSectorBytes);
    const auto lines = ceil_div(row, kLineBytes);
    add(program_.views[i.from].buffer, false, {mine, 0, 0, sectors, sectors, mine * lines});
    add(to.buffer, true, {rows, rows * lines, rows * lines, 0, 0, 0});
  }

  /// Lanes give the addresses of rows, eight for each 8 x 8 matrix of 16-bit elements.
  void count(const LoadMatrix& i) {
    const View& view = program_.views[i.from];
    const Register& to = program_.registers[i.to];
    const auto origin = start(view, i.at);
    const std::int64_t size = bytes_of(to.scalar), row_elements = 16 / size;
    const auto matrices = to.layout.slot_count() * size / 4;
    AccessCount sum;
    for (int warp = 0; warp < program_.threads; warp += kLanes) {
      const auto base = to.layout(warp, 0);
      for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
        std::vector<std::int64_t> addresses;
        for (int row = 0; row < kMatrixRows; ++row) {
          const std::int64_t at[] = {base[0], base[1] + matrix / 2 * 8 + row,
                                     base[2] + matrix % 2 * row_elements};
          std::int64_t element = 0;
          for (int d = 0; d < 3; ++d) element += at[d] * view.strides[d];
          addresses.push_back(origin + element * size);
        }
        auto one = count_access(addresses, 16);
        one.accesses = matrix % 4 == 0;  // four matrices an instruction
        sum += one;
      }
    }
    add(view.buffer, false, sum);
  }

  /// Matrices of eight tokens and 16 bytes of each, one after the other, for each 64 rows.
  void count(const MmaShared& i) {
    const auto products = program_.registers[i.a].layout.slot_count() / i.row->a().slot_count() *
                          (program_.threads / i.row->lanes());
    shared_operand(*i.row, i.from, i.at, program_.registers[i.acc].layout.shape[2], products);
  }
  void count(const TensorMma& i) {
    const Tensor& sums = program_.tensors[i.sums];
    shared_operand(*i.row, i.from, i.at, sums.columns, sums.products);
  }

  void shared_operand(const MatrixInstruction& row_of, ViewId from, const std::vector<Affine>& at,
                      std::int64_t tokens, std::int64_t products) {
    const View& view = program_.views[from];
    const int size = bytes_of(program_.buffers[view.buffer].scalar);
    const auto origin = start(view, at);
    const std::int64_t run = 16 / size, pieces = row_of.k / run;
    AccessCount sum;
    for (std::int64_t matrix = 0; matrix < tokens / kMatrixRows * pieces; ++matrix) {
      std::vector<std::int64_t> addresses;
      for (std::int64_t row = 0; row < kMatrixRows; ++row) {
        const auto token = matrix / pieces * kMatrixRows + row;
        addresses.push_back(
            placed(view, origin + (token * view.strides[1] + matrix % pieces * run) * size));
      }
      sum += count_access(addresses, 16);
    }
    sum.accesses = 1;
    for (std::int64_t p = 0; p < products; ++p) add(view.buffer, false, sum);
  }

  /// Words one by one, or in twos.
  void count(const LoadUnits& i) {
    const View& view = program_.views[i.from];
    const Layout& layout = program_.registers[i.to].layout;
    const auto origin = start(view, i.at), width = width_of_units(layout.shape[4]);
    AccessCount sum;
    std::vector<std::int64_t> addresses(kLanes);
    for (std::int64_t slot = 0; slot < layout.slot_count(); slot += width) {
      for (std::int64_t warp = 0; warp < layout.thread_count(); warp += kLanes) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
          const auto at = place_in_chunks(layout(warp + lane, slot).data(), layout.shape[4]);
          addresses[lane] = inside(view, i.at, at.data()) ? origin : kIdleLane;
          for (std::size_t d = 0; d < at.size() && addresses[lane] != kIdleLane; ++d) {
            addresses[lane] += at[d] * view.strides[d] * 4;
          }
        }
        sum += count_access(addresses, static_cast<int>(width) * 4);
      }
    }
    add(view.buffer, false, sum);
  }

  /// Whatever the codes are, each lane reads its own copies, which lie in a bank of their own.
  void count(const Lookup& i) {
    const auto pairs = program_.registers[i.to].layout.slot_count() / 2 * program_.threads / kLanes;
    const auto all = i.bits <= kLargestPairTable ? pairs : 2 * pairs;
    add(program_.views[i.table].buffer, false, {all, all, all, 0, 0, 0});
  }

  /// Two words for each row of a unit, whatever their entries are: a wavefront for half of a warp.
  void count(const LookupRelative& i) {
    const auto& layout = program_.registers[i.to].layout;
    const auto rows = layout.slot_count() * 2 / layout.shape[2] * 2 * program_.threads / kLanes;
    add(program_.views[i.table].buffer, false, {rows, 2 * rows, 2 * rows, 0, 0, 0});
  }

  /// One word a lane.
  void count(const FillWords& i) {
    const auto warps = (static_cast<std::int64_t>(i.values.size()) + kLanes - 1) / kLanes;
    add(program_.views[i.to].buffer, true, {warps, warps, warps, 0, 0, 0});
  }

  /// Sixteen bytes a lane: four entries, a wavefront each.
  void count(const FillTable& i) {
    const auto entries = table_entries(i.bits);
    add(program_.views[i.to].buffer, true, {(entries + 3) / 4, entries, entries, 0, 0, 0});
  }

  void tile(const Layout& layout, ViewId id, const std::vector<Affine>& at, bool write) {
    const View& view = program_.views[id];
    const Scalar scalar = program_.buffers[view.buffer].scalar;
    const int size = bytes_of(scalar);
    std::vector<Affine> known;
    for (const Affine& coordinate : at) known.push_back(substituted(coordinate));
    const auto guarded = guarded_dimensions(program_, layout, view, known);
    const auto width =
        piece_width(layout, scalar, view, substituted(origin_of(view, known)), guarded);
    const bool borders = std::find(guarded.begin(), guarded.end(), true) != guarded.end();
    const auto origin = start(view, at);
    // Without borders only where in a line the tile starts matters.
    const auto key = std::pair{statement_, std::pair{write, origin % kLineBytes * 32 + width}};
    if (!borders) {
      if (const auto done = counted_.find(key); done != counted_.end()) {
        add(view.buffer, write, done->second);
        return;
      }
    }
    // Coordinates are sums of what the thread and what the slot add.
    std::vector<std::vector<std::int64_t>> of_thread;
    for (std::int64_t t = 0; t < layout.thread_count(); ++t) of_thread.push_back(layout(t, 0));
    const auto element_at = [&](const std::vector<std::int64_t>& x) {
      std::int64_t element = 0;
      for (std::size_t d = 0; d < x.size(); ++d) element += x[d] * view.strides[d];
      return element;
    };
    AccessCount sum;
    std::vector<std::int64_t> addresses(kLanes);
    for (std::int64_t slot = 0; slot < layout.slot_count(); slot += width) {
      const auto of_slot = layout(0, slot);
      for (std::int64_t warp = 0; warp < layout.thread_count(); warp += kLanes) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
          auto x = of_thread[warp + lane];
          for (std::size_t d = 0; d < x.size(); ++d) x[d] += of_slot[d];
          const bool there = !borders || inside(view, at, x.data());
          addresses[lane] = there ? origin + element_at(x) * size : kIdleLane;
        }
        sum += count_access(addresses, static_cast<int>(width) * size);
      }
    }
    if (!borders) counted_[key] = sum;
    add(view.buffer, write, sum);
  }

  bool inside(const View& view, const std::vector<Affine>& at, const std::int64_t* offset) const {
    for (std::size_t d = 0; d < at.size(); ++d) {
      const auto extent = view.extents[d] == kTokens ? tokens_ : view.extents[d];
      if (value(at[d]) + offset[d] >= extent) return false;
    }
    return true;
  }

  std::int64_t value(const Affine& affine) const {
    auto sum = affine.constant;
    for (const auto& term : affine.terms) sum += term.at(values_[term.variable]);
    return sum;
  }

  /// Byte address of coordinate `at`; in global memory, in its buffer.
  std::int64_t start(const View& view, const std::vector<Affine>& at) const {
    const Buffer& buffer = program_.buffers[view.buffer];
    const auto first = buffer.level == Level::shared ? program_.shared_offset(view.buffer) : 0;
    return first + value(origin_of(view, at)) * bytes_of(buffer.scalar);
  }

  /// The same of a byte that a swizzled view moves. Its buffer begins at a whole pattern.
  static std::int64_t placed(const View& view, std::int64_t byte) {
    return view.is_swizzled ? swizzled(byte) : byte;
  }

  /// Variables of loops that are written out are numbers to whoever emits the access.
  Affine substituted(const Affine& affine) const {
    Affine out = affine.constant;
    for (const auto& term : affine.terms) {
      if (written_out_[term.variable]) {
        out.constant += term.at(values_[term.variable]);
      } else {
        out.terms.push_back(term);
      }
    }
    return out;
  }

  void add(BufferId buffer, bool write, const AccessCount& count) {
    const auto [at, fresh] = row_of_.try_emplace({statement_, write}, rows_.size());
    if (fresh) rows_.push_back({to_string(program_, *statement_), buffer, write, {}});
    rows_[at->second].count += count;
  }

  const Program& program_;
  std::int64_t tokens_;
  std::vector<std::int64_t> values_;
  std::vector<bool> written_out_;
  const Statement* statement_ = nullptr;
  std::map<std::pair<const Statement*, bool>, std::size_t> row_of_;
  std::map<std::pair<const Statement*, std::pair<bool, std::int64_t>>, AccessCount> counted_;
  std::vector<MemoryTraffic> rows_;
};

}  // namespace

std::vector<MemoryTraffic> traffic(const Program& program, std::int64_t tokens) {
  return Counter(program, tokens).run();
}

}  // namespace ladder
