// SPDX-License-Identifier: Apache-2.0
#include "program/interpret.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "device/device.h"
#include "layout/bit_plan.h"
#include "layout/weight_image.h"
#include "program/block_memory.h"

namespace ladder {
namespace {

constexpr int kGiven = -1;  // written before the kernel started

/// The value of a register tile: [thread][slot], bits and whether they were ever set.
struct Tile {
  std::vector<std::uint32_t> bits;
  std::vector<bool> set;
};

struct Block {
  std::int64_t number;
  std::vector<std::int64_t> variables;
  std::vector<Tile> registers;
  SharedMemory shared;
  bool dependent_waited = false, ticketed = false;
};

/// Coordinates of every (thread, slot) of a register, computed once.
struct Coordinates {
  std::int64_t slots;
  int rank;
  std::vector<std::int64_t> values;
  const std::int64_t* at(std::int64_t thread, std::int64_t slot) const {
    return values.data() + (thread * slots + slot) * rank;
  }
};

Coordinates coordinates_of(const Layout& layout) {
  Coordinates out{layout.slot_count(), static_cast<int>(layout.shape.size()), {}};
  for (std::int64_t t = 0; t < layout.thread_count(); ++t) {
    for (std::int64_t s = 0; s < out.slots; ++s) {
      const auto at = layout(t, s);
      out.values.insert(out.values.end(), at.begin(), at.end());
    }
  }
  return out;
}

class Interpreter {
 public:
  Interpreter(const Program& program, std::vector<Argument>& arguments, std::int64_t tokens)
      : program_(program), arguments_(arguments), tokens_(tokens) {
    for (const Register& reg : program.registers) {
      coordinates_.push_back(coordinates_of(reg.layout));
    }
    for (const Argument& argument : arguments) {
      writers_.emplace_back(argument.bytes.size(), kGiven);
    }
  }

  void run() {
    const auto splits = program_.variables[kSplit].extent;
    const auto tiles = program_.variables[kTile].extent;
    published_.assign(splits * tiles, false);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (std::int64_t first = 0; first < splits; first += program_.cluster) {
        run_cluster(tile, first);
      }
    }
  }

 private:
  void run_cluster(std::int64_t tile, std::int64_t first) {
    std::vector<Block> blocks;
    for (int rank = 0; rank < program_.cluster; ++rank) {
      Block block{tile * program_.variables[kSplit].extent + first + rank,
                  std::vector<std::int64_t>(program_.variables.size()),
                  {},
                  SharedMemory(program_.shared_bytes())};
      block.variables[kSplit] = first + rank;
      block.variables[kTile] = tile;
      block.variables[kRank] = rank;
      for (const Register& reg : program_.registers) {
        const auto size = reg.layout.thread_count() * reg.layout.slot_count();
        block.registers.push_back({std::vector<std::uint32_t>(size), std::vector<bool>(size)});
      }
      blocks.push_back(std::move(block));
    }
    cluster_.clear();
    for (Block& block : blocks) cluster_.push_back(&block);
    remote_reads_open_ = false;
    execute(program_.body, cluster_);
    if (remote_reads_open_) {
      fail<InternalError>("a block ends while its peers may read its shared memory");
    }
    for (const Block& block : blocks) {
      if (block.shared.copies_in_flight())
        fail<InternalError>("a block ends with copies in flight");
    }
  }

  void execute(const std::vector<Statement>& body, const std::vector<Block*>& blocks) {
    for (const Statement& statement : body) {
      statement_ = &statement;
      if (const auto* loop = std::get_if<For>(&statement.op)) {
        for (std::int64_t trip = 0; trip < loop->trips; ++trip) {
          for (Block* block : blocks) block->variables[loop->variable] = trip;
          execute(loop->body, blocks);
        }
      } else if (const auto* branch = std::get_if<If>(&statement.op)) {
        std::vector<Block*> taken;
        for (Block* block : blocks) {
          if (block->variables[branch->variable] == branch->value) taken.push_back(block);
        }
        if (!taken.empty()) execute(branch->body, taken);
      } else if (std::holds_alternative<ClusterBarrier>(statement.op)) {
        if (blocks.size() != cluster_.size()) fault("not all blocks of the cluster reach it");
        for (Block* block : blocks) block->shared.cluster_barrier();
        remote_reads_open_ = false;
      } else {
        for (Block* block : blocks) instruction(*block, statement);
      }
    }
  }

  template <class... Parts>
  [[noreturn]] void fault(const Parts&... parts) const {
    fail<InternalError>(parts..., ", in: ", to_string(program_, *statement_));
  }

  std::int64_t value(const Block& block, const Affine& affine) const {
    auto sum = affine.constant;
    for (const auto& term : affine.terms) {
      sum += term.at(block.variables[term.variable]);
    }
    return sum;
  }

  std::vector<std::int64_t> values(const Block& block, const std::vector<Affine>& at) const {
    std::vector<std::int64_t> out;
    for (const Affine& affine : at) out.push_back(value(block, affine));
    return out;
  }

  /// Element of the buffer at origin + offset, or nothing outside the view.
  std::optional<std::int64_t> element(const View& view, const std::vector<std::int64_t>& origin,
                                      const std::int64_t* offset) const {
    std::int64_t index = 0;
    for (std::size_t d = 0; d < origin.size(); ++d) {
      const auto extent = view.extents[d] == kTokens ? tokens_ : view.extents[d];
      const auto at = origin[d] + offset[d];
      if (at < 0 || at >= extent) return std::nullopt;
      index += at * view.strides[d];
    }
    return index;
  }

  std::uint32_t get(const Block& block, RegisterId id, std::int64_t index) const {
    const Tile& tile = block.registers[id];
    if (!tile.set[index]) fault("reads ", program_.registers[id].name, " before it is set");
    return tile.bits[index];
  }
  static void set(Block& block, RegisterId id, std::int64_t index, std::uint32_t bits) {
    block.registers[id].bits[index] = bits;
    block.registers[id].set[index] = true;
  }

  // Global memory.

  void touch_global(const Block& block, BufferId id, bool write) const {
    const Buffer& buffer = program_.buffers[id];
    if (program_.dependent_launch && !block.dependent_waited && (write || !buffer.constant)) {
      fault(write ? "writes " : "reads ", buffer.name, " before the preceding kernel has ended");
    }
    if (write && buffer.constant) fault("writes the constant ", buffer.name);
  }

  void read_global(Block& block, BufferId id, std::int64_t at, int size, std::uint8_t* to) {
    touch_global(block, id, false);
    const Argument& argument = arguments_[id];
    if (at + size > static_cast<std::int64_t>(argument.bytes.size())) {
      fault("reads past the end of ", program_.buffers[id].name);
    }
    for (int i = 0; i < size; ++i) {
      const auto writer = writers_[id][at + i];
      if (!argument.written[at + i])
        fault("reads what nobody wrote to ", program_.buffers[id].name);
      if (writer != kGiven && writer != block.number && !(published_[writer] && block.ticketed)) {
        fault("reads what another block wrote to ", program_.buffers[id].name,
              ", without a ticket");
      }
      to[i] = argument.bytes[at + i];
    }
  }

  void write_global(Block& block, BufferId id, std::int64_t at, int size,
                    const std::uint8_t* from) {
    touch_global(block, id, true);
    Argument& argument = arguments_[id];
    if (at + size > static_cast<std::int64_t>(argument.bytes.size())) {
      fault("writes past the end of ", program_.buffers[id].name);
    }
    for (int i = 0; i < size; ++i) {
      auto& writer = writers_[id][at + i];
      if (writer != kGiven && writer != block.number) {
        fault("overwrites what another block wrote to ", program_.buffers[id].name);
      }
      writer = block.number;
      argument.bytes[at + i] = from[i];
      argument.written[at + i] = true;
    }
  }

  // Instructions.

  void load(Block& block, const Load& i) {
    const View& view = program_.views[i.from];
    const Buffer& buffer = program_.buffers[view.buffer];
    const int size = bytes_of(buffer.scalar);
    const auto origin = values(block, i.at);
    for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t* offset) {
      std::uint32_t bits = 0;
      if (const auto at = element(view, origin, offset)) {
        auto* to = reinterpret_cast<std::uint8_t*>(&bits);
        const auto byte = program_.shared_offset(view.buffer) + *at * size;
        std::string why;
        if (buffer.level == Level::global) {
          read_global(block, view.buffer, *at * size, size, to);
        } else if (i.remote) {
          remote_reads_open_ = true;
          why = cluster_.at(value(block, i.rank))->shared.read_remote(byte, size, to);
        } else {
          why = block.shared.read(byte, size, thread, to);
        }
        if (!why.empty()) fault(why);
      }
      set(block, i.to, index, bits);
    });
  }

  void store(Block& block, const Store& i) {
    const View& view = program_.views[i.to];
    const Buffer& buffer = program_.buffers[view.buffer];
    const int size = bytes_of(buffer.scalar);
    const auto origin = values(block, i.at);
    for_each(i.from, [&](int thread, std::int64_t index, const std::int64_t* offset) {
      const auto at = element(view, origin, offset);
      if (!at) return;
      const auto bits = get(block, i.from, index);
      const auto* from = reinterpret_cast<const std::uint8_t*>(&bits);
      if (buffer.level == Level::global) {
        write_global(block, view.buffer, *at * size, size, from);
      } else if (auto why = block.shared.write(program_.shared_offset(view.buffer) + *at * size,
                                               size, thread, from);
                 !why.empty()) {
        fault(why);
      }
    });
  }

  void copy(Block& block, const CopyAsync& i) {
    const View &to = program_.views[i.to], &from = program_.views[i.from];
    const int size = bytes_of(program_.buffers[to.buffer].scalar);
    const std::int64_t run = 16 / size, pieces = to.extents[1] / run;
    const auto origin = values(block, i.at);
    for (std::int64_t piece = 0; piece < to.extents[0] * pieces; ++piece) {
      const std::int64_t row = piece / pieces, column = piece % pieces * run;
      std::uint8_t bytes[16] = {};
      for (std::int64_t e = 0; e < run; ++e) {
        const std::int64_t offset[] = {row, column + e};
        if (const auto at = element(from, origin, offset)) {
          read_global(block, from.buffer, *at * size, size, bytes + e * size);
        }
      }
      const auto why = block.shared.write_async(
          program_.shared_offset(to.buffer) + (row * to.strides[0] + column) * size, 16,
          static_cast<int>(piece % program_.threads), bytes);
      if (!why.empty()) fault(why);
    }
  }

  void copy_own(Block& block, const CopyOwn& i) {
    if (value(block, i.guard) >= i.below) return;
    const View &to = program_.views[i.to], &from = program_.views[i.from];
    const int size = bytes_of(program_.buffers[to.buffer].scalar);
    const auto origin = values(block, i.from_at), target = values(block, i.to_at);
    const auto at = coordinates_of(i.from_layout), to_at = coordinates_of(i.to_layout);
    for (int thread = 0; thread < program_.threads; ++thread) {
      for (std::int64_t slot = 0; slot < at.slots; ++slot) {
        std::uint8_t bytes[4] = {};
        if (const auto source = element(from, origin, at.at(thread, slot))) {
          read_global(block, from.buffer, *source * size, size, bytes);
        }
        const auto place = element(to, target, to_at.at(thread, slot));
        if (!place) fault("copies outside ", program_.buffers[to.buffer].name);
        const auto why = block.shared.write_async(program_.shared_offset(to.buffer) + *place * size,
                                                  size, thread, bytes);
        if (!why.empty()) fault(why);
      }
    }
  }

  void unpack(Block& block, const Unpack& i) {
    const Scalar operand = program_.registers[i.to].scalar;
    const auto plan = unpack_plan(i.bits, linear_window(operand));
    const auto slots = program_.registers[i.from].layout.slot_count();
    const auto first = value(block, i.block) * 4 * i.bits;
    const auto step = value(block, i.step);
    for (int thread = 0; thread < program_.threads; ++thread) {
      for (int unit = 0; unit < kUnits; ++unit) {
        for (int r = 0; r < 4; ++r) {
          const UnpackPair& pair = plan.pairs[4 * step + r];
          std::uint32_t both = 0;
          for (const auto& piece : pair.pieces) {
            const auto word =
                get(block, i.from, thread * slots + first + unit * i.bits + piece.word);
            both |= (piece.shift >= 0 ? word >> piece.shift : word << -piece.shift) & piece.mask;
          }
          for (int half = 0; half < 2; ++half) {
            std::uint32_t bits = both >> (16 * half) & 0xffff;
            if (!i.in_place) {
              const double factor =
                  std::ldexp(1.0, i.exponent - linear_exponent(operand) - pair.offset);
              bits = to_bits(operand,
                             to_number(operand, bits) * factor - std::ldexp(i.zero, i.exponent));
            }
            set(block, i.to, thread * 8 * kUnits + unit * 8 + r * 2 + half, bits);
          }
        }
      }
    }
  }

  /// As the hardware does: by lanes and registers of the instruction, whatever the tiles claim.
  void mma(Block& block, const Mma& i) {
    const Scalar operand = program_.registers[i.a].scalar;
    const auto& row = *instructions(1000, operand).front();
    static const auto a_at = coordinates_of(row.a()), b_at = coordinates_of(row.b()),
                      d_at = coordinates_of(row.d());
    const auto a_slots = program_.registers[i.a].layout.slot_count();
    const auto b_slots = program_.registers[i.b].layout.slot_count();
    const auto d_slots = program_.registers[i.acc].layout.slot_count();
    const auto units = a_slots / a_at.slots, columns = b_slots / b_at.slots;
    for (int first = 0; first < program_.threads; first += kLanes) {
      for (std::int64_t u = 0; u < units; ++u) {
        const auto a = operand_of(block, i.a, first, a_slots, u * a_at.slots, a_at, row.m, row.k);
        for (std::int64_t c = 0; c < columns; ++c) {
          const auto b = operand_of(block, i.b, first, b_slots, c * b_at.slots, b_at, row.n, row.k);
          for (int lane = 0; lane < kLanes; ++lane) {
            for (std::int64_t s = 0; s < d_at.slots; ++s) {
              const auto* at = d_at.at(lane, s);
              const auto index = (first + lane) * d_slots + (u * columns + c) * d_at.slots + s;
              double sum = to_number(Scalar::f32, get(block, i.acc, index));
              for (int k = 0; k < row.k; ++k) sum += a[at[0] * row.k + k] * b[at[1] * row.k + k];
              set(block, i.acc, index, to_bits(Scalar::f32, sum));
            }
          }
        }
      }
    }
  }

  std::vector<double> operand_of(const Block& block, RegisterId id, int first, std::int64_t slots,
                                 std::int64_t slot, const Coordinates& at, int extent, int k) {
    std::vector<double> out(extent * k);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (std::int64_t s = 0; s < at.slots; ++s) {
        const auto* c = at.at(lane, s);
        out[c[0] * k + c[1]] = to_number(program_.registers[id].scalar,
                                         get(block, id, (first + lane) * slots + slot + s));
      }
    }
    return out;
  }

  void scale(Block& block, const Scale& i) {
    const auto& scales = program_.registers[i.scale];
    const auto group = value(block, i.group);
    const auto slots = scales.layout.slot_count();
    const auto per_group = slots / scales.layout.shape[0];
    for_each(i.acc, [&](int thread, std::int64_t index, const std::int64_t* at) {
      std::int64_t slot = group * per_group;
      while (slot < slots && coordinates_[i.scale].at(thread, slot)[1] != at[1]) ++slot;
      if (slot == slots) fault("thread ", thread, " has no scale of row ", at[1]);
      const float s =
          static_cast<float>(to_number(scales.scalar, get(block, i.scale, thread * slots + slot)) *
                             std::ldexp(1.0, i.exponent[at[1] / 8 % 2]));
      const float product =
          static_cast<float>(to_number(Scalar::f32, get(block, i.acc, index))) * s;
      const float before =
          i.accumulate ? static_cast<float>(to_number(Scalar::f32, get(block, i.to, index))) : 0.0f;
      set(block, i.to, index, to_bits(Scalar::f32, before + product));
    });
  }

  void reinterpret_bits(Block& block, const Reinterpret& i) {
    if (bits_of(program_.registers[i.to].scalar) != bits_of(program_.registers[i.from].scalar)) {
      fault("views of another width are not interpreted");
    }
    block.registers[i.to] = block.registers[i.from];
  }

  void ticket(Block& block, const Ticket& i) {
    touch_global(block, program_.views[i.counters].buffer, true);
    const View& view = program_.views[i.counters];
    const std::int64_t zero[] = {0};
    const auto at = element(view, values(block, i.at), zero);
    if (!at) fault("a counter outside its buffer");
    std::uint32_t count;
    auto* place = arguments_[view.buffer].bytes.data() + *at * 4;
    std::memcpy(&count, place, 4);
    block.variables[i.result] = count;
    if (++count == i.expected) count = 0;
    std::memcpy(place, &count, 4);
    published_[block.number] = true;
    block.ticketed = true;
    block.shared.barrier();
  }

  void instruction(Block& block, const Statement& statement) {
    std::visit(
        Match{[&](const Load& i) { load(block, i); }, [&](const Store& i) { store(block, i); },
              [&](const CopyAsync& i) { copy(block, i); },
              [&](const CopyOwn& i) { copy_own(block, i); },
              [&](const Commit&) { block.shared.commit(); },
              [&](const Wait& i) { block.shared.wait(i.pending); },
              [&](const Barrier&) { block.shared.barrier(); },
              [&](const DependentWait&) { block.dependent_waited = true; },
              [&](const LoadMatrix& i) {
                load(block, Load{i.to, i.from, i.at});
              },
              [&](const Unpack& i) { unpack(block, i); }, [&](const Mma& i) { mma(block, i); },
              [&](const Fill& i) {
                for_each(i.to, [&](int, std::int64_t index, const std::int64_t* at) {
                  set(block, i.to, index,
                      to_bits(program_.registers[i.to].scalar, i.value[at[1] / 8 % 2]));
                });
              },
              [&](const Reinterpret& i) { reinterpret_bits(block, i); },
              [&](const Scale& i) { scale(block, i); },
              [&](const Add& i) {
                const auto slots = coordinates_[i.to].slots, from = coordinates_[i.from].slots;
                for_each(i.to, [&](int thread, std::int64_t index, const std::int64_t*) {
                  const auto other = thread * from + index % slots % from;
                  const float sum =
                      static_cast<float>(to_number(Scalar::f32, get(block, i.to, index))) +
                      static_cast<float>(to_number(Scalar::f32, get(block, i.from, other)));
                  set(block, i.to, index, to_bits(Scalar::f32, sum));
                });
              },
              [&](const Cast& i) {
                for_each(i.to, [&](int, std::int64_t index, const std::int64_t*) {
                  set(block, i.to, index,
                      to_bits(
                          program_.registers[i.to].scalar,
                          to_number(program_.registers[i.from].scalar, get(block, i.from, index))));
                });
              },
              [&](const Ticket& i) { ticket(block, i); }, [](const auto&) {}},
        statement.op);
  }

  /// visit(thread, index in the tile, coordinates) for every element of a register.
  template <class Visit>
  void for_each(RegisterId id, const Visit& visit) {
    const Coordinates& at = coordinates_[id];
    for (int thread = 0; thread < program_.threads; ++thread) {
      for (std::int64_t slot = 0; slot < at.slots; ++slot) {
        visit(thread, thread * at.slots + slot, at.at(thread, slot));
      }
    }
  }

  const Program& program_;
  std::vector<Argument>& arguments_;
  const std::int64_t tokens_;
  std::vector<Coordinates> coordinates_;            // by register
  std::vector<std::vector<std::int64_t>> writers_;  // by argument and byte: a block, or kGiven
  std::vector<bool> published_;                     // by block
  std::vector<Block*> cluster_;
  bool remote_reads_open_ = false;
  const Statement* statement_ = nullptr;
};

}  // namespace

Argument Argument::input(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  return {std::vector<std::uint8_t>(bytes, bytes + size), std::vector<bool>(size, true)};
}

Argument Argument::output(std::size_t size) {
  return {std::vector<std::uint8_t>(size), std::vector<bool>(size, false)};
}

void interpret(const Program& program, std::vector<Argument>& arguments, std::int64_t tokens) {
  std::size_t global = 0;
  for (const Buffer& buffer : program.buffers) global += buffer.level == Level::global ? 1 : 0;
  LADDER_REQUIRE(arguments.size() >= global, arguments.size(), " arguments for ", global);
  Interpreter(program, arguments, tokens).run();
}

}  // namespace ladder
