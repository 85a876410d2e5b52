// SPDX-License-Identifier: Apache-2.0
#include "program/interpret.h"

#include <cstring>

#include "base/error.h"
#include "program/interpret/interpreter.h"

namespace ladder {

namespace {

// Of float16 and bfloat16: what load-matrix finds outside a view, so that its use shows.
constexpr std::uint32_t kNotANumber = 0x7fff;

}  // namespace

Interpreter::Interpreter(const Program& program, std::vector<Argument>& arguments,
                         std::int64_t tokens)
    : program_(program), arguments_(arguments), tokens_(tokens), threads_(0, program.threads) {
  for (const Register& reg : program.registers) {
    coordinates_.push_back(coordinates_of(reg.layout));
  }
  origins_.resize(arguments.size());
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
  if (!program_.items) return run_item(0);
  const Items& items = *program_.items;
  const auto table = items.table >= 0 ? arguments_[items.table].bytes : std::vector<std::uint8_t>{};
  const auto tokens = tokens_;
  const auto count = items.table >= 0 ? static_cast<std::int64_t>(table.size()) / (4 * kItemWords)
                                      : count_of(items, tokens);
  if (count % items.together != 0) {
    fail<InternalError>(count, " items, no groups of ", items.together);
  }
  for (std::int64_t item = 0; item < count; ++item) {
    std::uint32_t words[kItemWords] = {};
    if (items.table >= 0) std::memcpy(words, table.data() + item * sizeof words, sizeof words);
    const auto [weight, first, rows] =
        items.table >= 0 ? ItemRows{words[0], words[1], words[2]} : rows_of(items, item, tokens);
    if (rows == 0) continue;
    tokens_ = rows, first_row_ = first;
    for (const auto& [buffer, by, elements] : program_.items->shifts) {
      const std::int64_t times = by == Items::By::weight ? weight
                                 : by == Items::By::row  ? first
                                                         : item;
      origins_[buffer] = times * elements * bytes_of(program_.buffers[buffer].scalar);
    }
    run_item(item);
  }
}

void Interpreter::run_item(std::int64_t item) {
  const auto splits = program_.variables[kSplit].extent;
  const auto tiles = program_.variables[kTile].extent;
  first_block_ = item * splits * tiles;
  published_.resize(first_block_ + splits * tiles, false);
  const auto along = [&](bool yes) { return yes ? program_.cluster : 1; };
  const auto together = program_.items ? program_.items->together : 1;
  for (std::int64_t tile = item % together; tile < tiles;
       tile += together * along(program_.tiles_in_cluster)) {
    const auto of_tile = program_.tail && tile < program_.tail->first ? 1 : splits;
    for (std::int64_t split = 0; split < of_tile; split += along(!program_.tiles_in_cluster)) {
      run_cluster(tile, split);
    }
  }
}

void Interpreter::run_cluster(std::int64_t first_tile, std::int64_t first_split) {
  std::vector<Block> blocks;
  for (int rank = 0; rank < program_.cluster; ++rank) {
    const auto tile = first_tile + (program_.tiles_in_cluster ? rank : 0);
    const auto split = first_split + (program_.tiles_in_cluster ? 0 : rank);
    Block block{first_block_ + tile * program_.variables[kSplit].extent + split,
                std::vector<std::int64_t>(program_.variables.size()),
                {},
                SharedMemory(program_.shared_bytes()),
                Signals(program_)};
    block.dependent_waited = program_.items.has_value();  // it has read its item
    block.variables[kSplit] = split;
    block.variables[kTile] = tile;
    block.variables[kRank] = rank;
    if (program_.tail && tile >= program_.tail->first) {
      block.variables[program_.tail->is_tail] = 1;
      block.variables[program_.tail->tile] = tile - program_.tail->first;
    }
    for (const Register& reg : program_.registers) {
      const auto size = reg.layout.thread_count() * reg.layout.slot_count();
      block.registers.push_back({std::vector<std::uint32_t>(size), std::vector<bool>(size)});
    }
    block.summed.resize(program_.registers.size());
    block.multiplied.resize(program_.registers.size());
    block.awaited.resize(program_.registers.size(), true);
    block.tensors = TensorMemory(program_.tensor_columns());
    blocks.push_back(std::move(block));
  }
  if (program_.first_token && value(blocks.front(), *program_.first_token) >= tokens_) return;
  cluster_.clear();
  for (Block& block : blocks) cluster_.push_back(&block);
  remote_reads_open_ = false;
  const auto first = program_.body.begin(),
             parting = first + static_cast<std::ptrdiff_t>(common_statements(program_));
  execute({first, parting}, cluster_);
  if (program_.roles) {
    for (Block* block : cluster_) block->shared.apart();
  }
  execute({parting, program_.body.end()}, cluster_);
  if (remote_reads_open_) {
    fail<InternalError>("a block ends while its peers may read its shared memory");
  }
  for (const Block& block : blocks) {
    if (block.shared.copies_in_flight()) fail<InternalError>("a block ends with copies in flight");
    if (!block.products.empty() || !block.tensor_products.empty()) {
      fail<InternalError>("a block ends before its products");
    }
  }
}

void Interpreter::execute(std::span<const Statement> body, const std::vector<Block*>& blocks) {
  for (const Statement& statement : body) {
    statement_ = &statement;
    if (const auto* loop = std::get_if<For>(&statement.op)) {
      // A tail has no clusters: a block is alone.
      const bool fewer =
          loop->tail_trips > 0 && blocks.front()->variables[program_.tail->is_tail] == 1;
      for (std::int64_t trip = 0; trip < (fewer ? loop->tail_trips : loop->trips); ++trip) {
        for (Block* block : blocks) block->variables[loop->variable] = trip;
        execute(loop->body, blocks);
      }
    } else if (const auto* branch = std::get_if<If>(&statement.op)) {
      std::vector<Block*> taken;
      for (Block* block : blocks) {
        if (block->variables[branch->variable] == branch->value) taken.push_back(block);
      }
      if (!taken.empty()) execute(branch->body, taken);
    } else if (const auto* part = std::get_if<Within>(&statement.op)) {
      execute(part->body, blocks);
      for (Block* block : blocks) forget(*block, *part, part->body);
    } else if (const auto* part = std::get_if<Produce>(&statement.op)) {
      for (Block* block : blocks) block->shared.as_producers(true);
      execute(part->body, blocks);
      for (Block* block : blocks) block->shared.as_producers(false);
    } else if (const auto* halves = std::get_if<Alternate>(&statement.op)) {
      for (Block* block : blocks) alternate(*block, *halves);
    } else if (const auto* meeting = std::get_if<ClusterBarrier>(&statement.op)) {
      if (blocks.size() != cluster_.size()) fault("not all blocks of the cluster reach it");
      for (Block* block : blocks) block->signals.meet();
      if (meeting->signals_only) continue;
      for (Block* block : blocks) block->shared.cluster_barrier();
      remote_reads_open_ = false;
    } else {
      for (Block* block : blocks) instruction(*block, statement);
    }
  }
}

// What threads would not have that passed over a body.
void Interpreter::forget(Block& block, const Within& part, const std::vector<Statement>& body) {
  std::vector<bool> took(program_.threads, false);
  const auto origin = values(block, part.at);
  for_each(part.tile, [&](int thread, std::int64_t, const std::int64_t* offset) {
    if (element(block, program_.views[part.view], origin, offset)) took[thread] = true;
  });
  for (const Statement& statement : body) {
    if (const auto* loop = std::get_if<For>(&statement.op)) forget(block, part, loop->body);
    RegisterId written = -1;
    if (const auto* i = std::get_if<Load>(&statement.op)) written = i->to;
    if (const auto* i = std::get_if<Add>(&statement.op)) written = i->to;
    if (const auto* i = std::get_if<Multiply>(&statement.op)) written = i->to;
    if (const auto* i = std::get_if<Cast>(&statement.op)) written = i->to;
    if (const auto* i = std::get_if<ToCodes>(&statement.op)) written = i->to;
    if (written < 0) continue;
    for_each(written, [&](int thread, std::int64_t index, const std::int64_t*) {
      if (!took[thread]) block.registers[written].set[index] = false;
    });
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
            [&](const Barrier& i) {
              if (i.half != Half::both) fault("half of the threads meet nobody");
              block.shared.barrier();
            },
            [&](const Priority&) {}, [&](const DependentLaunch&) {},  // there is no next kernel
            [&](const DependentWait&) { block.dependent_waited = true; },
            [&](const LoadUnits& i) { load_units(block, i); },
            [&](const LoadMatrix& i) {
              load(block, Load{i.to, i.from, i.at}, kNotANumber);
            },
            [&](const Unpack& i) { unpack(block, i); }, [&](const Mma& i) { mma(block, i); },
            [&](const MmaShared& i) { mma_shared(block, i); },
            [&](const MmaWait& i) {
              end_products(block, i.pending);
              for (const RegisterId sums : i.sums) {
                if (block.summed[sums] > 0) {
                  fault("a product of ", program_.registers[sums].name, " is left");
                }
                block.awaited[sums] = true;
              }
            },
            [&](const MatrixFence&) { block.shared.matrix_fence(); },
            [&](const TensorStore& i) { tensor_store(block, i); },
            [&](const TensorWait&) { block.tensors.wait(); },
            [&](const TensorFence& i) {
              if (i.after) {
                block.tensors.fence_after(block.shared.known());
              } else {
                block.tensors.fence_before(block.shared.now());
              }
            },
            [&](const TensorMma& i) { tensor_mma(block, i); },
            [&](const TensorCommit& i) {
              refuse(block.signals.commit(i.signal, value(block, i.index), block.begun_in_tensors,
                                          block.shared));
            },
            [&](const TensorLoad& i) { tensor_load(block, i); },
            [&](const Fill& i) { fill(block, i); },
            [&](const Reinterpret& i) { reinterpret_bits(block, i); },
            [&](const Scale& i) { scale(block, i); },
            [&](const Add& i) { combine(block, i.to, i.from, false); },
            [&](const Spread& i) { spread(block, i); },
            [&](const Multiply& i) { combine(block, i.to, i.from, true); },
            [&](const Gate& i) { gate(block, i); }, [&](const Activate& i) { activate(block, i); },
            [&](const UnpackFloat& i) { unpack_float(block, i); },
            [&](const ScaleOperand& i) { scale_operand(block, i); },
            [&](const Lookup& i) { lookup(block, i); },
            [&](const FillTable& i) { fill_table(block, i); },
            [&](const FillWords& i) { fill_words(block, i); },
            [&](const LargestScale& i) { largest_scale(block, i); },
            [&](const TimesSecond& i) { times_second(block, i); },
            [&](const LookupRelative& i) { lookup_relative(block, i); },
            [&](const ZeroOperand& i) { zero_operand(block, i); },
            [&](const Offset& i) { offset(block, i); },
            [&](const UnpackBytes& i) { unpack_bytes(block, i); },
            [&](const SplitDigits& i) { split_digits(block, i); },
            [&](const JoinDigits& i) { join_digits(block, i); },
            [&](const CopyElements& i) { copy_elements(block, i); },
            [&](const ToCodes& i) { to_codes(block, i); }, [&](const Cast& i) { cast(block, i); },
            [&](const Ticket& i) { ticket(block, i); },
            [&](const SignalInit& i) { refuse(block.signals.init(i.signal, block.shared)); },
            [&](const Expect& i) {
              if (value(block, i.guard) >= i.below) return;
              refuse(block.signals.expect(i.signal, value(block, i.index), i.bytes, block.shared));
            },
            [&](const Arrive& i) {
              refuse(block.signals.arrive(i.signal, value(block, i.index), i.by, block.shared));
            },
            [&](const Await& i) {
              std::int64_t products = 0;
              refuse(block.signals.await(i.signal, value(block, i.index), value(block, i.parity),
                                         block.shared, products));
              end_tensor_products(block, products);
            },
            [&](const CopyBulk& i) { copy_bulk(block, i); },
            [&](const CopyRows& i) { copy_rows(block, i); },
            [&](const Unary& i) { unary(block, i); }, [&](const Binary& i) { binary(block, i); },
            [&](const Reduce& i) { reduce(block, i); },
            [&](const AtomicAdd& i) { atomic_add(block, i); },
            // Statements of all blocks together: execute() has them.
            [](const ClusterBarrier&) {}, nothing(Nested{})},
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
