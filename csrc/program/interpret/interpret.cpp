// SPDX-License-Identifier: Apache-2.0
#include "program/interpret.h"

#include "base/error.h"
#include "program/interpret/interpreter.h"

namespace ladder {

Interpreter::Interpreter(const Program& program, std::vector<Argument>& arguments,
                         std::int64_t tokens)
    : program_(program), arguments_(arguments), tokens_(tokens) {
  for (const Register& reg : program.registers) {
    coordinates_.push_back(coordinates_of(reg.layout));
  }
  for (const Argument& argument : arguments) {
    writers_.emplace_back(argument.bytes.size(), Writer{kGiven, 0, 0});
  }
}

Interpreter::Coordinates Interpreter::coordinates_of(const Layout& layout) {
  Coordinates out{layout.slot_count(), static_cast<int>(layout.shape.size()), {}};
  for (std::int64_t t = 0; t < layout.thread_count(); ++t) {
    for (std::int64_t s = 0; s < out.slots; ++s) {
      const auto at = layout(t, s);
      out.values.insert(out.values.end(), at.begin(), at.end());
    }
  }
  return out;
}

void Interpreter::run() {
  const auto splits = program_.variables[kSplit].extent;
  const auto tiles = program_.variables[kTile].extent;
  published_.assign(splits * tiles, false);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    for (std::int64_t first = 0; first < splits; first += program_.cluster) {
      run_cluster(tile, first);
    }
  }
}

void Interpreter::run_cluster(std::int64_t tile, std::int64_t first) {
  std::vector<Block> blocks;
  for (int rank = 0; rank < program_.cluster; ++rank) {
    Block block{tile * program_.variables[kSplit].extent + first + rank,
                std::vector<std::int64_t>(program_.variables.size()),
                {},
                SharedMemory(program_.shared_bytes()),
                Signals(program_)};
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
    if (block.shared.copies_in_flight()) fail<InternalError>("a block ends with copies in flight");
  }
}

void Interpreter::execute(const std::vector<Statement>& body, const std::vector<Block*>& blocks) {
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

std::int64_t Interpreter::value(const Block& block, const Affine& affine) const {
  auto sum = affine.constant;
  for (const auto& term : affine.terms) sum += term.at(block.variables[term.variable]);
  return sum;
}

std::vector<std::int64_t> Interpreter::values(const Block& block,
                                              const std::vector<Affine>& at) const {
  std::vector<std::int64_t> out;
  for (const Affine& affine : at) out.push_back(value(block, affine));
  return out;
}

void Interpreter::instruction(Block& block, const Statement& statement) {
  std::visit(
      Match{[&](const Load& i) { load(block, i); }, [&](const Store& i) { store(block, i); },
            [&](const CopyAsync& i) { copy(block, i); },
            [&](const CopyOwn& i) { copy_own(block, i); },
            [&](const Commit&) { block.shared.commit(); },
            [&](const Wait& i) { block.shared.wait(i.pending); },
            [&](const Barrier&) { block.shared.barrier(); },
            [&](const DependentLaunch&) {},  // there is no next kernel
            [&](const DependentWait&) { block.dependent_waited = true; },
            [&](const LoadMatrix& i) {
              load(block, Load{i.to, i.from, i.at});
            },
            [&](const Unpack& i) { unpack(block, i); }, [&](const Mma& i) { mma(block, i); },
            [&](const Fill& i) { fill(block, i); },
            [&](const Reinterpret& i) { reinterpret_bits(block, i); },
            [&](const Scale& i) { scale(block, i); },
            [&](const Add& i) { combine(block, i.to, i.from, false); },
            [&](const Spread& i) { spread(block, i); },
            [&](const Multiply& i) { combine(block, i.to, i.from, true); },
            [&](const UnpackFloat& i) { unpack_float(block, i); },
            [&](const Lookup& i) { lookup(block, i); },
            [&](const FillTable& i) { fill_table(block, i); },
            [&](const ZeroOperand& i) { zero_operand(block, i); },
            [&](const Offset& i) { offset(block, i); },
            [&](const UnpackBytes& i) { unpack_bytes(block, i); },
            [&](const SplitDigits& i) { split_digits(block, i); },
            [&](const JoinDigits& i) { join_digits(block, i); },
            [&](const CopyElements& i) { copy_elements(block, i); },
            [&](const Cast& i) { cast(block, i); }, [&](const Ticket& i) { ticket(block, i); },
            [&](const SignalInit& i) { refuse(block.signals.init(i.signal, block.shared)); },
            [&](const Expect& i) {
              if (value(block, i.guard) >= i.below) return;
              refuse(block.signals.expect(i.signal, value(block, i.index), i.bytes, block.shared));
            },
            [&](const Arrive& i) {
              refuse(block.signals.arrive(i.signal, value(block, i.index), i.by, block.shared));
            },
            [&](const Await& i) {
              refuse(block.signals.await(i.signal, value(block, i.index), value(block, i.parity),
                                         block.shared));
            },
            [&](const CopyBulk& i) { copy_bulk(block, i); },
            [&](const Unary& i) { unary(block, i); }, [&](const Binary& i) { binary(block, i); },
            [&](const Reduce& i) { reduce(block, i); },
            [&](const AtomicAdd& i) { atomic_add(block, i); },
            // Statements of all blocks together: execute() has them.
            [](const ClusterBarrier&) {}, [](const For&) {}, [](const If&) {}},
      statement.op);
}

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
