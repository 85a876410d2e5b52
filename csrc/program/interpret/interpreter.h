// SPDX-License-Identifier: Apache-2.0
//
// A run of a program. The blocks of a cluster take each statement together, one block after the
// other, and clusters run to their end in order: what the model lets happen in any order happens in
// this one, and what it forbids is found by bookkeeping, not by chance. Internal to
// csrc/program/interpret: interpret.cpp steps, memory.cpp moves data, decode.cpp makes operands,
// products.cpp multiplies them, arithmetic.cpp and elementwise.cpp compute, alternate.cpp runs
// halves of a block apart.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "program/interpret.h"
#include "program/interpret/shared_memory.h"
#include "program/interpret/signals.h"
#include "program/interpret/tensor_memory.h"
#include "program/program.h"

namespace ladder {

class Interpreter {
 public:
  Interpreter(const Program& program, std::vector<Argument>& arguments, std::int64_t tokens);

  /// All blocks; once per object.
  void run();

 private:
  /// The value of a register tile: [thread][slot], bits and whether they were ever set.
  struct Tile {
    std::vector<std::uint32_t> bits;
    std::vector<bool> set;
  };
  /// A product that has begun: its registers, and the bytes of shared memory that it reads.
  struct Product {
    RegisterId acc, a;
    std::vector<std::pair<std::int64_t, int>> reads;
  };
  /// One in tensor memory that has begun: what it reads there and in shared memory, and its sums.
  struct TensorProduct {
    std::vector<std::pair<std::int64_t, int>> reads;
    std::int64_t a_column, sum_column, tokens, a_columns;
  };
  struct Block {
    std::int64_t number;
    std::vector<std::int64_t> variables;
    std::vector<Tile> registers;
    SharedMemory shared;
    Signals signals;
    std::vector<Product> products = {};             // oldest first
    std::vector<int> summed = {}, multiplied = {};  // by register: products that have it as such
    std::vector<bool> awaited = {};                 // by register: no product since a wait named it
    TensorMemory tensors{};
    std::vector<TensorProduct> tensor_products = {};  // begun, not ended; oldest first
    std::int64_t begun_in_tensors = 0;                // of all, which numbers them
    bool dependent_waited = false, ticketed = false;
  };
  /// Coordinates of every (thread, slot) of a layout, computed once.
  struct Coordinates {
    std::int64_t slots;
    int rank;
    std::vector<std::int64_t> values;
    const std::int64_t* at(std::int64_t thread, std::int64_t slot) const {
      return values.data() + (thread * slots + slot) * rank;
    }
  };
  static Coordinates coordinates_of(const Layout& layout);
  /// A matrix instruction and who holds what of it, of B nothing where it is in shared memory.
  struct Fragments {
    const MatrixInstruction& row;
    int lanes;
    Coordinates a, b, d;
  };

  // interpret.cpp
  /// The cluster whose first block that is.
  /// All blocks of one item; of a program without items, its only one.
  void run_item(std::int64_t item);
  void run_cluster(std::int64_t tile, std::int64_t split);
  void execute(std::span<const Statement> body, const std::vector<Block*>& blocks);
  void forget(Block& block, const Within& part, const std::vector<Statement>& body);
  void instruction(Block& block, const Statement& statement);
  std::int64_t value(const Block& block, const Affine& affine) const;
  std::vector<std::int64_t> values(const Block& block, const std::vector<Affine>& at) const;

  template <class... Parts>
  [[noreturn]] void fault(const Parts&... parts) const {
    fail<InternalError>(parts..., ", in: ", to_string(program_, *statement_));
  }

  // alternate.cpp
  /// The phases of both halves between two barriers in one order or the other, in turn.
  void alternate(Block& block, const Alternate& part);

  // memory.cpp
  /// Element of the buffer at origin + offset, or nothing outside the view.
  std::optional<std::int64_t> element(const Block& block, const View& view,
                                      const std::vector<std::int64_t>& origin,
                                      const std::int64_t* offset) const;
  /// It would be of a token that the call has not.
  bool beyond_tokens(const View& view, const std::vector<std::int64_t>& origin,
                     const std::int64_t* offset) const;
  /// Where that element of a shared buffer lies, as the view has it.
  std::int64_t byte_of(const View& view, std::int64_t element) const;
  void touch_global(const Block& block, BufferId id, bool write) const;
  void read_global(Block& block, BufferId id, std::int64_t at, int size, int thread,
                   std::uint8_t* to);
  void write_global(Block& block, BufferId id, std::int64_t at, int size, int thread,
                    const std::uint8_t* from);
  void load(Block& block, const Load& i, std::uint32_t outside = 0);
  void load_units(Block& block, const LoadUnits& i);
  void store(Block& block, const Store& i);
  void copy(Block& block, const CopyAsync& i);
  void copy_own(Block& block, const CopyOwn& i);
  void copy_bulk(Block& block, const CopyBulk& i);
  void copy_rows(Block& block, const CopyRows& i);
  void atomic_add(Block& block, const AtomicAdd& i);
  void copy_elements(Block& block, const CopyElements& i);
  void split_digits(Block& block, const SplitDigits& i);
  void join_digits(Block& block, const JoinDigits& i);
  void ticket(Block& block, const Ticket& i);
  void refuse(const std::string& why) const {
    if (!why.empty()) fault(why);
  }

  // arithmetic.cpp
  std::uint32_t get(const Block& block, RegisterId id, std::int64_t index) const;
  void set(Block& block, RegisterId id, std::int64_t index, std::uint32_t bits) const;
  double number(const Block& block, RegisterId id, std::int64_t index) const;
  void set_number(Block& block, RegisterId id, std::int64_t index, double number) const;
  void fill(Block& block, const Fill& i);
  void spread(Block& block, const Spread& i);
  void reinterpret_bits(Block& block, const Reinterpret& i);
  void scale(Block& block, const Scale& i);
  /// to += from, or to *= from.
  void combine(Block& block, RegisterId to, RegisterId from, bool multiply);
  void cast(Block& block, const Cast& i);

  // products.cpp
  void mma(Block& block, const Mma& i);
  void mma_shared(Block& block, const MmaShared& i);
  void end_products(Block& block, int pending);
  // tensors.cpp
  void tensor_store(Block& block, const TensorStore& i);
  void tensor_mma(Block& block, const TensorMma& i);
  void tensor_load(Block& block, const TensorLoad& i);
  /// Of those that have begun, all but the last ones from number `upto` on have ended.
  void end_tensor_products(Block& block, std::int64_t upto);

  /// Of sums of so many columns; computed once.
  const Fragments& fragments_of(const MatrixInstruction& row, std::int64_t columns);
  /// [extent, k] of the operand whose fragment, `at`, starts at `slot` of the lanes from `first`
  /// on.
  std::vector<double> operand_of(const Block& block, RegisterId id, int first, std::int64_t slot,
                                 const Fragments& of, const Coordinates& at, int extent) const;
  /// [tokens, k] of B in shared memory; `reads` gets what that is.
  std::vector<double> shared_operand(Block& block, int depth, ViewId from,
                                     const std::vector<Affine>& at, std::int64_t tokens,
                                     std::vector<std::pair<std::int64_t, int>>& reads) const;
  /// acc += a [m, k] times b [n, k], the sums from `slot` of the lanes from `first` on.
  void add_product(Block& block, RegisterId acc, int first, std::int64_t slot, const Fragments& of,
                   const std::vector<double>& a, const std::vector<double>& b) const;

  // decode.cpp
  /// Sets both halves of every word of the step to decode(thread, where the word comes from, its
  /// first slot, pair of the image's unit, words of codes).
  template <class Op, class Decode>
  void for_each_pair(Block& block, const Op& i, int bits, const Decode& decode);
  /// The scale of the row of an operand's slot.
  template <class Op>
  double scale_of(const Block& block, const Op& i, int thread, std::int64_t group,
                  std::int64_t slot) const;
  void unpack(Block& block, const Unpack& i);
  void unpack_bytes(Block& block, const UnpackBytes& i);
  void unpack_float(Block& block, const UnpackFloat& i);
  void scale_operand(Block& block, const ScaleOperand& i);
  void lookup(Block& block, const Lookup& i);
  void fill_table(Block& block, const FillTable& i);
  void fill_words(Block& block, const FillWords& i);
  void largest_scale(Block& block, const LargestScale& i);
  void times_second(Block& block, const TimesSecond& i);
  void lookup_relative(Block& block, const LookupRelative& i);
  void zero_operand(Block& block, const ZeroOperand& i);
  void offset(Block& block, const Offset& i);
  /// Where `thread` holds row `row` of `group` in a register [groups, rows].
  std::int64_t slot_of_row(RegisterId id, int thread, std::int64_t group, std::int64_t row) const;

  // elementwise.cpp
  void gate(Block& block, const Gate& i);
  void activate(Block& block, const Activate& i);
  void to_codes(Block& block, const ToCodes& i);
  void unary(Block& block, const Unary& i);
  void binary(Block& block, const Binary& i);
  void reduce(Block& block, const Reduce& i);

  /// Those that take an instruction: all threads, or those of a half.
  auto running() const { return std::views::iota(threads_.first, threads_.second); }
  /// visit(thread, index in the tile, coordinates) for every element of a register.
  template <class Visit>
  void for_each(RegisterId id, const Visit& visit) const {
    const Coordinates& at = coordinates_[id];
    for (const int thread : running()) {
      for (std::int64_t slot = 0; slot < at.slots; ++slot) {
        visit(thread, thread * at.slots + slot, at.at(thread, slot));
      }
    }
  }

  const Program& program_;
  std::vector<Argument>& arguments_;
  std::int64_t tokens_;                // of the item
  std::pair<int, int> threads_;        // that take an instruction: the first, and behind the last
  std::int64_t first_row_ = 0;         // of the item, among those of all
  std::vector<std::int64_t> origins_;  // where its buffers begin, in bytes, by argument
  std::vector<Coordinates> coordinates_;  // by register
  std::map<std::pair<const MatrixInstruction*, std::int64_t>, Fragments> fragments_;
  struct Writer {
    std::int64_t block;  // or kGiven, kAdded
    int thread, epoch;
  };
  std::vector<std::vector<Writer>> writers_;  // by argument and byte
  std::vector<bool> published_;               // by block
  std::int64_t first_block_ = 0;              // of the item
  std::vector<Block*> cluster_;
  bool remote_reads_open_ = false;
  const Statement* statement_ = nullptr;

  static constexpr int kGiven = -1;   // written before the kernel started
  static constexpr int kAdded = -2;   // by atomics of any block
  static constexpr int kEngine = -3;  // no thread: the copy engine
};

}  // namespace ladder
