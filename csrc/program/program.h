// SPDX-License-Identifier: Apache-2.0
//
// Tile programs: what a kernel does, as data. A program is one thread block's work on tiles; each
// tile is a view of memory or a set of registers spread over the threads by a layout
// (layout/layout.h). The same value is printed, verified, executed by the interpreter without a
// device, and written out as source for one.
//
// The model of execution, which the interpreter enforces and every target implements:
//   - The threads of a block run each instruction together; blocks run in any order.
//   - Where a block has producers (roles.h), they run what is in a Produce, and the other threads,
//     the consumers, all else; all threads run the first statements (common_statements()). Only
//     signals order one role after the other.
//   - What a thread writes to shared memory, another may read only after a Barrier; memory that was
//     read may be overwritten only after one.
//   - In an Alternate each half of the threads is at a place of its own. The first Barriers that
//     they meet are one, the second, and so on: between two of them they run in any order.
//   - A CopyAsync is finished for the thread that issued it by a Wait on its group, and for the
//     others by a Barrier after that, or by an Await of the phase at which copies arrive.
//   - A CopyBulk is finished for all threads by an Await of the phase that expects its bytes.
//     Phases also order threads: what each did before an Arrive is behind those that Await it.
//   - Tensor memory (tensor_memory.h) is read by products after a TensorWait, a TensorFence before
//     and one behind a Barrier; what products read and wrote is free, and there, after the Await of
//     a TensorCommit and a TensorFence.
//   - Blocks of a cluster may read each other's shared memory after a ClusterBarrier, and a block
//     may not end before its peers have passed one after reading it.
//   - A block may copy into the shared memory of its peers after a ClusterBarrier, and they may
//     not end before that has arrived.
//   - Blocks see each other's writes to global memory only through a Ticket.
//   - What the preceding kernel wrote may be read, and what it may still read or write be written,
//     only after DependentWait.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "device/instructions.h"
#include "expr/windows.h"
#include "layout/layout.h"
#include "program/affine.h"
#include "program/alternate.h"
#include "program/bulk_copy.h"
#include "program/elementwise.h"
#include "program/items.h"
#include "program/operands.h"
#include "program/roles.h"
#include "program/tensor_memory.h"
#include "types/scalar.h"

namespace ladder {

enum class Level { global, shared };

/// Shared buffers begin at a multiple of this many bytes, or of more.
constexpr int kSharedAlignment = 128;
/// Those that are read swizzled.
constexpr int kSwizzleAlignment = 1024;

/// Memory: a kernel parameter or a piece of shared memory.
struct Buffer {
  std::string name;
  Level level;
  Scalar scalar;
  std::int64_t elements;  ///< shared: its size; global: 0, the caller's
  /// Global: written neither by this kernel nor by one before it that may still run.
  bool constant = false;
  BufferId over = -1;     ///< shared: lies over that earlier buffer, which is no longer needed
  bool optional = false;  ///< global: may be null, and then reads as zero
  int alignment = kSharedAlignment;  ///< shared: begins at a multiple of so many bytes
};

/// Extent of a view that is the number of tokens of the call.
constexpr std::int64_t kTokens = -1;

/// A buffer seen as an array. Elements outside the extents read as zero and are not written.
struct View {
  BufferId buffer;
  std::vector<std::int64_t> extents;  ///< kTokens where the call decides
  std::vector<std::int64_t> strides;  ///< in elements
  Affine offset = 0;  ///< of its first element in the buffer: which stage of a ring, say
  /// Shared: byte b of the buffer lies at swizzled(b). For copies of rows, and for MmaShared.
  bool is_swizzled = false;
  /// Global: not the buffer is [rows, columns], but the windows of the images in it are. Rows count
  /// from the first of all items on. Only copies to shared memory read it.
  std::optional<Windows> windows = std::nullopt;
};
/// The eight pieces of 16 bytes in 128 lie in another order in each of eight rows of 128 bytes, so
/// that a column of pieces is in different banks: bits 4 to 6 xor bits 7 to 9.
constexpr std::int64_t swizzled(std::int64_t byte) { return byte ^ (byte >> 3 & 0x70); }

/// Registers: `layout` says which thread holds which element of the tile.
struct Register {
  std::string name;
  Scalar scalar;
  Layout layout;
  int width = 0;  ///< 1 .. 31: unsigned integers of so many bits, packed in u32; 0: whole scalars
};
/// Bits of one element.
int bits_of(const Register& reg);
/// "f16", "u32", "u4".
std::string type_name(const Register& reg);

enum class Cache {
  once,  ///< read once by the whole device: do not keep
  now,   ///< the same, and the load starts here: it is for later, and what comes between hides it
  many,  ///< other blocks read it too
};

/// to[i] = from[at + i], zero outside the view. A `remote` load reads the shared memory of the
/// block of that rank in the cluster. With `any_token` what tokens have that the call has not is
/// anything, which is in y nowhere: such a load needs no branch.
struct Load {
  RegisterId to;
  ViewId from;
  std::vector<Affine> at;
  Cache cache = Cache::many;
  bool remote = false;
  Affine rank = 0;
  bool any_token = false;
};
/// to[at + i] = from[i]; nothing outside the view. Elements held by several threads are written by
/// each.
struct Store {
  RegisterId from;
  ViewId to;
  std::vector<Affine> at;
};
/// to[i] = from[at + i] for the whole of `to`, a shared view of rows (SharedRows), by 16-byte
/// asynchronous copies; zero outside `from`. Nothing happens unless `guard` is below `below`.
struct CopyAsync {
  ViewId to, from;
  std::vector<Affine> at;
  Affine guard = 0;
  std::int64_t below = 1;
};
/// Each thread copies, slot by slot and asynchronously, what `from_layout` gives it of
/// from[from_at] to where `to_layout` has it of to[to_at]; zero outside `from`. A thread that later
/// reads what it copied itself needs no Barrier. Nothing happens unless `guard` is below `below`.
struct CopyOwn {
  ViewId to, from;
  Layout to_layout, from_layout;
  std::vector<Affine> to_at, from_at;
  Affine guard;
  std::int64_t below;
};
/// Closes the group of the copies since the last one.
struct Commit {};
/// Waits until at most `pending` groups of this thread are unfinished.
struct Wait {
  int pending;
};
/// All threads of all blocks of the cluster; a Barrier too. With `signals_only` nothing is ordered
/// but SignalInits, and nothing waits for what is on its way.
struct ClusterBarrier {
  bool signals_only = false;
};
/// The next kernel may start; its DependentWait still waits for the end of this one.
struct DependentLaunch {};
/// The preceding kernel has ended and its writes are visible.
struct DependentWait {};

/// B operands of `row` through the load-matrix instruction: to[i] = from[at + i], 16-bit elements.
/// Those outside `from` are anything; nothing that follows from them may be stored.
struct LoadMatrix {
  const MatrixInstruction* row;
  RegisterId to;
  ViewId from;
  std::vector<Affine> at;
};
/// Words of codes of the units of rows that a warp has, out of blocks of the weight image: with W
/// words of a lane, to[n, k, part, lane, word] = from[at + (n, k, w / 4, lane, w % 4)] where w =
/// part W + word; zero outside blocks in global memory. For units that are not whole chunks, which
/// no layout can say.
struct LoadUnits {
  RegisterId to;
  ViewId from;
  std::vector<Affine> at;
};
/// acc[w, m, n] += sum_k a[w, m, k] * b[w, n, k] by the instruction `row`, whose fragments say
/// which lane has what. Rows outlive programs.
struct Mma {
  const MatrixInstruction* row;
  RegisterId acc, a, b;
};
/// acc[w, m, n] += sum_k a[w, m, k] * from[at + (w, n, 0, k)] by the instruction `row`, whose lanes
/// read B from shared memory, swizzled: [tiles, tokens, panels, 128 bytes]. It begins here, and
/// ends in a MmaWait: until then nothing reads `acc` but the next of its kind, and nothing writes
/// `a`. Where it `replaces`, acc is the product alone, whatever was there.
struct MmaShared {
  const MatrixInstruction* row;
  RegisterId acc, a;
  ViewId from;
  std::vector<Affine> at;
  bool replaces = false;
};
/// Waits until at most `pending` MmaShared of this thread are unfinished, none of them of `sums`.
struct MmaWait {
  int pending;
  std::vector<RegisterId> sums = {};  ///< what is read after it
};
/// What threads wrote to shared memory, and copies that they have waited for, is there for
/// MmaShared after the next Barrier; what all of them know already, at once.
struct MatrixFence {};
/// to[w, row, n] = value[row_parity(row)]; a tile of one or two dimensions takes value[0].
struct Fill {
  RegisterId to;
  double value[2];
};
/// The bits of `from` under the layout and scalar of `to`: the same threads, the same bits per
/// thread. Costs nothing on any target.
struct Reinterpret {
  RegisterId to, from;
};
/// to[i] = from[i] in to's type, through f32: to floats rounded to nearest even, to integers
/// towards zero and into their range, with NaN as 0.
struct Cast {
  RegisterId to, from;
};
/// Publishes this block's writes to global memory, adds one to counters[at] and sets `result` to
/// how many came before; the block that comes last of `expected` sees the writes of all and resets
/// the counter to zero.
struct Ticket {
  VariableId result;
  ViewId counters;
  std::vector<Affine> at;
  std::int64_t expected;
};

struct Statement;
/// body for variable = 0 .. trips - 1. Written out when registers are indexed by the variable, else
/// a loop of the target, so that long sums over parts stay short texts.
struct For {
  VariableId variable;
  std::int64_t trips;
  std::vector<Statement> body;
  int unroll = 0;               ///< 0: written out; else a loop, this many trips at a time
  std::int64_t tail_trips = 0;  ///< of blocks that share a tile (Tail); 0: the same. Of loops alone
};
/// body where variable == value; the same for all threads of a block.
struct If {
  VariableId variable;
  std::int64_t value;
  std::vector<Statement> body;
};
/// body, which threads may pass over that have nothing of `tile` inside the view at `at`: it moves
/// and computes tiles of that layout, and what it leaves in registers is theirs only who took it.
struct Within {
  RegisterId tile;
  ViewId view;
  std::vector<Affine> at;
  std::vector<Statement> body;
};

/// body by the producers; it copies and signals. In the loops around it they are in step with the
/// consumers by signals only.
struct Produce {
  std::vector<Statement> body;
};

/// body, which each half of the threads runs on its own (alternate.h). Between two barriers a half
/// either multiplies, with priority, or does all else, and the halves never multiply both.
struct Alternate {
  std::vector<Statement> body;
};

struct Statement {
  std::variant<Load, Store, CopyAsync, CopyOwn, Commit, Wait, Barrier, ClusterBarrier,
               DependentLaunch, DependentWait, LoadMatrix, LoadUnits, Unpack, Mma, Fill,
               Reinterpret, Scale, Add, Cast, Ticket, For, If, Within, Produce, SignalInit, Expect,
               Arrive, Await, CopyBulk, CopyRows, Unary, Binary, Reduce, AtomicAdd, UnpackFloat,
               Lookup, FillTable, FillWords, LargestScale, TimesSecond, LookupRelative, ZeroOperand,
               Offset, Multiply, Spread, Gate, Activate, CopyElements, UnpackBytes, SplitDigits,
               JoinDigits, MmaShared, MmaWait, MatrixFence, ScaleOperand, TensorStore, TensorWait,
               TensorFence, TensorMma, TensorCommit, TensorLoad, ToCodes, Priority, Alternate>
      op;
};

/// The last tiles, of which each has all splits, so that a device is not left in part empty by the
/// last of the tiles that have a block each. In the grid their blocks are the last.
struct Tail {
  std::int64_t first;  ///< of these tiles
  VariableId is_tail;  ///< 1 in their blocks, 0 in others, whose number of the split is 0
  VariableId tile;     ///< which of these tiles
};

/// Of one signal.
constexpr std::int64_t kSignalBytes = 8;
/// Of shared memory, of a block that has tensor memory: its address there.
constexpr std::int64_t kTensorSlotBytes = 16;

struct Program {
  std::string name;
  int threads;                    ///< of a block; where there are roles, the consumers
  int blocks_per_multiprocessor;  ///< that registers and shared memory must leave room for
  int cluster;                    ///< blocks along `split`, or along `tile`, that form one
  bool dependent_launch;
  std::vector<Variable> variables;  ///< kSplit, kTile, kRank first
  std::vector<Buffer> buffers;      ///< global ones are the parameters, in this order, then tokens
  std::vector<View> views;
  std::vector<Register> registers;
  std::vector<Statement> body;
  std::vector<Signal> signals;
  std::vector<Tensor> tensors;    ///< one behind the other, from column 0 on
  bool tiles_in_cluster = false;  ///< a cluster is of neighbouring tiles, not of splits
  /// Of a block: the first of its tokens. Blocks for which the call has none end at once.
  std::optional<Affine> first_token;
  std::optional<Items> items;  ///< where there are some: none else has a third dimension
  std::optional<Roles> roles;
  std::optional<Tail> tail;

  /// Blocks along the first two dimensions of the grid: splits and tiles, where there is a tail
  /// blocks of tiles alone.
  std::array<std::int64_t, 2> grid() const;
  /// Threads that a block is started with.
  int block_threads() const { return threads + (roles ? roles->producers : 0); }
  std::int64_t shared_bytes() const;
  /// Where the first mbarrier of a signal lies, 8 bytes each, after all buffers.
  std::int64_t signal_offset(SignalId signal) const;
  /// Where in shared memory the block finds the address of its tensor memory, if it has some: last.
  std::int64_t tensor_slot() const { return signal_offset(static_cast<SignalId>(signals.size())); }
  /// Columns of tensor memory that a block asks for: a power of two, 32 at least; 0: it has none.
  std::int64_t tensor_columns() const;
  /// The first column of a product's part of a tensor, at that place.
  std::int64_t tensor_column(TensorId tensor, std::int64_t place, std::int64_t product) const;
  /// Where a shared buffer starts; each begins at a multiple of 128 bytes.
  std::int64_t shared_offset(BufferId buffer) const;
};

/// A shared view that rows of a matrix are copied to: [rows, columns], or [rows, panels, columns of
/// a panel], whose panels lie apart.
struct SharedRows {
  std::int64_t rows, columns;
  std::int64_t pitch;               ///< elements from one row to the next
  std::int64_t panel, panel_pitch;  ///< columns of a panel; elements from one to the next

  /// Elements behind the first of the view, not swizzled.
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    return row * pitch + column / panel * panel_pitch + column % panel;
  }
};
/// Throws InternalError where the view has another rank.
SharedRows shared_rows(const View& view);

/// The program as text: declarations, then one instruction per line.
std::string to_string(const Program& program);
/// One instruction, without its body.
std::string to_string(const Program& program, const Statement& statement);
std::string to_string(const Program& program, const Affine& affine);

/// How many of the first statements all threads run: all of them where there are no roles, else
/// those that make signals, meet, wait for the preceding kernel and let the next one start.
std::size_t common_statements(const Program& program);

/// Producers have a part in it: it is a Produce, or a loop around one.
bool has_producers(const Statement& statement);
/// The thread that copies 16-byte piece `piece` of a CopyAsync, of consumers or of producers.
int copying_thread(const Program& program, bool producers, std::int64_t piece);

/// Smallest and largest value over all values of the variables.
struct Range {
  std::int64_t low, high;
};
Range range_of(const Program& program, const Affine& affine);

/// Throws InternalError naming every fault: shapes that do not match, layouts that are not the
/// operands of the instruction, views that leave their buffers, more memory than the block may
/// have.
void verify(const Program& program, std::int64_t max_shared_bytes);

template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

/// Instructions by what they touch. A visitor that answers for groups and names the rest knows
/// every instruction: a forgotten one does not compile.
template <class... Ops>
struct Group {};
/// Neither memory nor time: tiles in registers. Reinterpret is in no group: it is no work, and
/// stays with what made the tile.
using InRegisters = Group<Unpack, UnpackBytes, UnpackFloat, ScaleOperand, LargestScale, TimesSecond,
                          ZeroOperand, Offset, Mma, Fill, Scale, Add, Multiply, Spread, Gate,
                          Activate, ToCodes, Cast, Unary, Binary, JoinDigits>;
/// Waits and groups of copies.
using InTime = Group<Commit, Wait, Barrier, ClusterBarrier, DependentLaunch, DependentWait, MmaWait,
                     MatrixFence, TensorWait, TensorFence, Priority>;
/// Tables in shared memory, of which each thread may read all.
using OnTables = Group<Lookup, LookupRelative, FillTable, FillWords>;
/// Shared or global memory.
using InMemory = Group<Load, Store, CopyAsync, CopyOwn, CopyBulk, CopyRows, CopyElements,
                       LoadMatrix, LoadUnits, MmaShared, TensorMma, Lookup, LookupRelative,
                       FillTable, FillWords, SplitDigits, Reduce, AtomicAdd, Ticket>;
using OnSignals = Group<SignalInit, Expect, Arrive, Await, TensorCommit>;
/// Tensor memory, and no other.
using InTensorMemory = Group<TensorStore, TensorLoad>;
using Nested = Group<For, If, Within, Produce, Alternate>;

template <class Op, class... Ops>
constexpr bool is_in(Group<Ops...>) {
  return (std::is_same_v<Op, Ops> || ...);
}

template <class Op, class Value>
struct AnswerTo {
  Value value;
  Value operator()(const Op&) const { return value; }
};
template <class Op>
struct AnswerTo<Op, void> {
  void operator()(const Op&) const {}
};
/// Case of a Match: `value` for each instruction of the group.
template <class Value, class... Ops>
struct Answer : AnswerTo<Ops, Value>... {
  using AnswerTo<Ops, Value>::operator()...;
};
template <class Value, class... Ops>
Answer<Value, Ops...> answer(Group<Ops...>, Value value) {
  return {AnswerTo<Ops, Value>{value}...};
}
/// The same for visitors that return nothing.
template <class... Ops>
Answer<void, Ops...> nothing(Group<Ops...>) {
  return {};
}

}  // namespace ladder
