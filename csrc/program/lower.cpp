// SPDX-License-Identifier: Apache-2.0
#include "program/lower.h"

#include <functional>

#include "base/error.h"
#include "layout/bit_plan.h"
#include "layout/weight_image.h"

namespace ladder {
namespace {

constexpr std::int64_t kStepsPerBlock = 4;  // k-steps of 16 columns
constexpr std::int64_t kStep = 16;
// Rows of partial sums are 64 floats; four more put the tokens of a warp in different banks.
constexpr std::int64_t kSumPad = 4;
// Rows of activations are 16 bytes longer than a multiple of 128, so that the eight rows that
// load-matrix reads together lie in different banks.
constexpr std::int64_t kActivationPadBytes = 16;

/// A two-dimensional layout as the last two of three dimensions.
Layout lifted(const Layout& layout) {
  Layout out{{1, layout.shape[0], layout.shape[1]}, layout.threads, layout.slots};
  for (auto* digits : {&out.threads, &out.slots}) {
    for (Digit& digit : *digits) {
      if (digit.stride != 0) ++digit.dim;
    }
  }
  return out;
}

// Loads of parts that a loop over them keeps in flight.
constexpr int kPartsInFlight = 8;
// Up to this many warps along K leave their sums to the peers of the cluster to add.
constexpr std::int64_t kWarpsReadByPeers = 2;

class Lowering {
 public:
  Lowering(const Linear& expr, const Schedule& schedule, const MatrixInstruction& instruction)
      : expr_(expr), schedule_(schedule), instruction_(instruction) {}

  Program run() {
    declare();
    auto& body = program_.body;
    // Weights do not depend on the preceding kernel, so a dependent launch asks for them first.
    // Otherwise the activations go first: they are few, and all threads wait for them.
    if (schedule_.dependent_launch) emit(body, DependentLaunch{});
    if (staged()) {
      declare_ring();
      const std::int64_t ahead = schedule_.stages - 1;
      if (schedule_.dependent_launch) {
        for (std::int64_t i = 0; i + 1 < ahead; ++i) fetch(body, i);
        emit(body, DependentWait{});
        copy_activations(body);
        fetch(body, ahead - 1);
        emit(body, Wait{1});
      } else {
        copy_activations(body);
        for (std::int64_t i = 0; i < ahead; ++i) fetch(body, i);
        emit(body, Wait{static_cast<int>(ahead)});
      }
    } else if (schedule_.dependent_launch) {
      load_weights(body);
      emit(body, DependentWait{});
      copy_activations(body);
      emit(body, Wait{0});
    } else {
      copy_activations(body);
      load_weights(body);
      emit(body, Wait{0});
    }
    emit(body, Barrier{});
    multiply(body);
    switch (schedule_.reduction) {
      case Reduction::none: add_warps(body), finish(body, Affine::of(kTile, rows())); break;
      case Reduction::cluster: add_cluster(body); break;
      case Reduction::ordered: add_warps(body), add_in_order(body); break;
    }
    return std::move(program_);
  }

 private:
  template <class Op>
  static void emit(std::vector<Statement>& body, Op op) {
    body.push_back({std::move(op)});
  }
  VariableId variable(std::string name, std::int64_t extent) {
    for (const Variable& other : program_.variables) {
      if (other.name == name) name += "_";
    }
    program_.variables.push_back({std::move(name), extent});
    return static_cast<VariableId>(program_.variables.size() - 1);
  }
  BufferId buffer(std::string name, Level level, Scalar scalar, std::int64_t elements = 0,
                  bool constant = false) {
    program_.buffers.push_back({std::move(name), level, scalar, elements, constant});
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }
  ViewId view(BufferId of, std::vector<std::int64_t> extents, std::vector<std::int64_t> strides) {
    program_.views.push_back({of, std::move(extents), std::move(strides)});
    return static_cast<ViewId>(program_.views.size() - 1);
  }
  RegisterId reg(std::string name, Scalar scalar, Layout layout) {
    for (const Register& other : program_.registers) {
      if (other.name == name) name += "_";
    }
    program_.registers.push_back({std::move(name), scalar, std::move(layout)});
    return static_cast<RegisterId>(program_.registers.size() - 1);
  }

  /// The warps of a block: thread = (warp_n * warps_k + warp_k) * 32 + lane, over [w, rows, n].
  Layout warps() const {
    return spatial({1, schedule_.warps_n, 1}) * spatial({schedule_.warps_k, 1, 1});
  }
  std::int64_t rows() const { return schedule_.block_rows(); }
  std::int64_t warp_columns() const { return kBlock * schedule_.blocks_per_warp; }

  void declare() {
    const auto& s = schedule_;
    program_.name = "linear_u" + std::to_string(expr_.bits);
    program_.threads = kLanes * s.warps_n * s.warps_k;
    program_.blocks_per_multiprocessor = s.blocks_per_multiprocessor;
    program_.cluster = s.reduction == Reduction::cluster ? static_cast<int>(s.splits(expr_.k)) : 1;
    program_.dependent_launch = s.dependent_launch;
    variable("split", s.splits(expr_.k));
    variable("tile", s.tiles(expr_.n));
    variable("rank", program_.cluster);
    weight_ = buffer("weight", Level::global, Scalar::u32, 0, true);
    scales_ = buffer("scales", Level::global, expr_.activation, 0, true);
    x_ = buffer("x", Level::global, expr_.activation);
    y_ = buffer("y", Level::global, expr_.activation);
    if (s.reduction == Reduction::ordered) {
      workspace_ = buffer("workspace", Level::global, Scalar::f32);
      counters_ = buffer("counters", Level::global, Scalar::u32);
    }
  }

  bool staged() const { return schedule_.stages > 1; }

  // A warp's words of one round: [N blocks, K blocks, chunks, lanes, words].
  Layout word_layout() const {
    return spatial({schedule_.warps_n, 1, 1, 1, 1}) * spatial({1, schedule_.warps_k, 1, 1, 1}) *
           local({1, schedule_.blocks_per_warp, expr_.bits, 1, 1}) * spatial({1, 1, 1, kLanes, 1}) *
           local({1, 1, 1, 1, 4});
  }
  std::int64_t round_blocks() const { return schedule_.warps_k * schedule_.blocks_per_warp; }
  std::vector<Affine> word_origin(const Affine& round) const {
    auto first = Affine::of(kSplit, round_blocks() * schedule_.rounds);
    return {Affine::of(kTile, schedule_.warps_n), first + times(round, round_blocks()), 0, 0, 0};
  }

  void declare_weights() {
    const int b = expr_.bits;
    const auto n_blocks = round_up(expr_.n, kBlock) / kBlock;
    const auto k_blocks = round_up(expr_.k, kBlock) / kBlock;
    image_ =
        view(weight_, {n_blocks, k_blocks, b, kLanes, 4}, {k_blocks * b * 128, b * 128, 128, 4, 1});
    words_ = reg("words", Scalar::u32, word_layout());
    declare_scales(n_blocks);
  }

  /// Columns of a warp in a round belong to one group, or to several whole ones; `sharing` warps in
  /// the order of K belong to one. The table has a dimension of lanes that share a scale: all read
  /// the same element from global memory, each keeps its own in shared memory.
  void declare_scales(std::int64_t n_blocks) {
    const auto group = expr_.group_size();
    const std::int64_t warps_k = schedule_.warps_k, rounds = schedule_.rounds;
    const bool one = expr_.groups() == 1;
    groups_ = one || group >= warp_columns() ? 1 : warp_columns() / group;
    const std::int64_t sharing = std::max<std::int64_t>(group / warp_columns(), 1);
    const auto per_block = rounds * warps_k;  // warps' columns of a thread block
    Layout over_k = replicated(warps_k, 5);
    if (one) {
      scale_origin_ = [](const Affine&) { return Affine(0); };
    } else if (sharing >= warps_k) {
      scale_origin_ = [=](const Affine& round) {
        const auto outer = sharing >= per_block ? Affine::of(kSplit, 1, sharing / per_block)
                                                : Affine::of(kSplit, per_block / sharing);
        return sharing >= per_block ? outer : outer + divided(round, sharing / warps_k);
      };
    } else {
      over_k = spatial({warps_k / sharing, 1, 1, 1, 1}) * replicated(sharing, 5);
      scale_origin_ = [=, this](const Affine& round) {
        const auto step = warps_k / sharing * groups_;
        return Affine::of(kSplit, step * rounds) + times(round, step);
      };
    }
    table_ =
        view(scales_, {expr_.groups(), n_blocks, 8, 4, 8}, {n_blocks * kBlock, kBlock, 8, 0, 1});
    scale_layout_ = spatial({1, schedule_.warps_n, 1, 1, 1}) * over_k *
                    local({groups_, 1, 1, 1, 1}) * spatial({1, 1, 8, 4, 1}) *
                    local({1, 1, 1, 1, 8});
    // [stage and warp]: in the ring each warp has its own copy.
    const auto warps = schedule_.warps_n * warps_k;
    scale_ring_layout_ = spatial({1, warps, 1, 1, 1}) * local({groups_, 1, 1, 1, 1}) *
                         spatial({1, 1, 8, 4, 1}) * local({1, 1, 1, 1, 8});
    loaded_scale_ =
        reg("scale_table", expr_.activation, staged() ? scale_ring_layout_ : scale_layout_);
    scale_ = reg("scale", expr_.activation,
                 spatial({1, schedule_.warps_n}) * replicated(warps_k, 2) * local({groups_, 1}) *
                     permuted_scale_fragment());
  }

  std::vector<Affine> scale_place(const Affine& round) const {
    return {scale_origin_(round), Affine::of(kTile, schedule_.warps_n), 0, 0, 0};
  }

  /// One round, straight to registers.
  void load_weights(std::vector<Statement>& body) {
    declare_weights();
    emit(body, Load{words_, image_, word_origin(0), Cache::once});
    emit(body, Load{loaded_scale_, table_, scale_place(0)});
    emit(body, Reinterpret{scale_, loaded_scale_});
  }

  /// Shared memory for `stages` rounds: what each thread copies and later reads itself.
  void declare_ring() {
    declare_weights();
    const std::int64_t b = expr_.bits, stages = schedule_.stages, warps_n = schedule_.warps_n;
    const auto words = round_blocks() * b * 128;  // of one row of blocks
    ring_buffer_ = buffer("ring", Level::shared, Scalar::u32, stages * warps_n * words);
    ring_ = view(ring_buffer_, {stages * warps_n, round_blocks(), b, kLanes, 4},
                 {words, b * 128, 128, 4, 1});
    // Scales: [stage and warp][group][g][lane of four][j], 256 per warp and group.
    const auto warps = warps_n * schedule_.warps_k;
    const auto scales =
        buffer("scale_ring", Level::shared, expr_.activation, stages * warps * groups_ * 256);
    scale_ring_ = view(scales, {groups_, stages * warps, 8, 4, 8}, {256, groups_ * 256, 32, 8, 1});
    round_ = variable("round", schedule_.rounds);
  }

  /// round mod stages, times `factor`: where the round lies in the ring.
  Affine ring_slot(const Affine& round, std::int64_t factor) const {
    const std::int64_t stages = schedule_.stages;
    return times(remainder(round, stages), factor);
  }

  /// Starts the copies of one round; always closes a group, so that groups count rounds.
  void fetch(std::vector<Statement>& body, const Affine& round) {
    const std::int64_t warps_n = schedule_.warps_n, warps = warps_n * schedule_.warps_k;
    emit(body, CopyOwn{ring_,
                       image_,
                       word_layout(),
                       word_layout(),
                       {ring_slot(round, warps_n), 0, 0, 0, 0},
                       word_origin(round),
                       round,
                       schedule_.rounds});
    emit(body, CopyOwn{scale_ring_,
                       table_,
                       scale_ring_layout_,
                       scale_layout_,
                       {0, ring_slot(round, warps), 0, 0, 0},
                       scale_place(round),
                       round,
                       schedule_.rounds});
    emit(body, Commit{});
  }

  /// [group, row] of the scales of one warp.
  static Layout permuted_scale_fragment() {
    Layout rows = scale_fragment();
    for (auto* digits : {&rows.threads, &rows.slots}) {
      for (Digit& digit : *digits) {
        if (digit.stride != 0) digit.dim = 1;
      }
    }
    rows.shape = {1, kBlock};
    return rows;
  }

  void copy_activations(std::vector<Statement>& body) {
    const auto columns = schedule_.block_columns();
    const auto pitch = columns + kActivationPadBytes / bytes_of(expr_.activation);
    const auto staged = buffer("x_tile", Level::shared, expr_.activation, schedule_.tokens * pitch);
    const auto x = view(x_, {kTokens, expr_.k}, {expr_.k, 1});
    const auto all = view(staged, {schedule_.tokens, columns}, {pitch, 1});
    x_warp_ = view(
        staged,
        {schedule_.warps_k, schedule_.tokens, columns - (schedule_.warps_k - 1) * warp_columns()},
        {warp_columns(), pitch, 1});
    emit(body, CopyAsync{all, x, {0, Affine::of(kSplit, columns)}});
    emit(body, Commit{});
  }

  void multiply(std::vector<Statement>& body) {
    const std::int64_t tokens = schedule_.tokens;
    const auto sum_layout = [&](std::int64_t units) {
      return warps() * local({1, units, 1}) * local({1, 1, tokens / 8}) * lifted(instruction_.d());
    };
    const auto a =
        reg("a", expr_.activation, warps() * local({1, kUnits, 1}) * lifted(instruction_.a()));
    const auto b = reg("b", expr_.activation,
                       replicated(schedule_.warps_n, 3) * spatial({schedule_.warps_k, 1, 1}) *
                           local({1, tokens / 8, 1}) * lifted(instruction_.b()));
    acc_ = reg("acc", Scalar::f32, sum_layout(kUnits));
    const auto total =
        groups_ > 1 || schedule_.rounds > 1 ? reg("total", Scalar::f32, sum_layout(kUnits)) : acc_;
    const bool in_place = schedule_.route == Route::in_place;
    const int exponent = operand_exponent();
    int scale_exponent[2] = {-exponent, -exponent};
    RegisterId zero_row = -1, zero_sum = -1;
    if (in_place) {
      const auto plan = unpack_plan(expr_.bits, linear_window(expr_.activation));
      double zero[2];
      for (int parity = 0; parity < 2; ++parity) {
        const int weight = linear_exponent(expr_.activation) + plan.pairs[parity].offset;
        scale_exponent[parity] = -weight;
        zero[parity] = -expr_.zero * power_of_two(weight);
      }
      if (expr_.zero != 0) {
        zero_row = reg("zero", expr_.activation, warps() * lifted(instruction_.a()));
        zero_sum = reg("zero_sum", Scalar::f32, sum_layout(1));
        emit(body, Fill{zero_row, {zero[0], zero[1]}});
      }
    }
    const auto steps = kStepsPerBlock * schedule_.blocks_per_warp / groups_;
    const auto group = variable("group", groups_);
    const auto step = variable("step", steps);
    // The k-step of the round is group * steps + step, of block k-step / 4.
    Affine block = 0, in_block = 0;
    if (steps >= kStepsPerBlock) {
      block = Affine::of(group, steps / kStepsPerBlock) + Affine::of(step, 1, kStepsPerBlock);
      in_block = remainder(Affine::of(step), kStepsPerBlock);
    } else {
      const auto per_block = kStepsPerBlock / steps;
      block = Affine::of(group, 1, per_block);
      in_block = times(remainder(Affine::of(group), per_block), steps) + Affine::of(step);
    }
    const auto multiply_round = [&](std::vector<Statement>& to, const Affine& round) {
      const auto column = Affine::of(group, steps * kStep) + Affine::of(step, kStep) +
                          times(round, round_blocks() * kBlock);
      std::vector<Statement> per_step, per_group;
      emit(per_step, LoadMatrix{b, x_warp_, {0, 0, column}});
      emit(per_step, Unpack{a, words_, block, in_block, expr_.bits, in_place,
                            in_place ? 0 : expr_.zero, in_place ? 0 : exponent});
      emit(per_step, Mma{acc_, a, b});
      if (zero_row >= 0) emit(per_step, Mma{zero_sum, zero_row, b});
      emit(per_group, Fill{acc_, {0, 0}});
      if (zero_row >= 0) emit(per_group, Fill{zero_sum, {0, 0}});
      emit(per_group, For{step, steps, std::move(per_step)});
      if (zero_row >= 0) emit(per_group, Add{acc_, zero_sum});
      emit(per_group, Scale{total,
                            acc_,
                            scale_,
                            Affine::of(group),
                            {scale_exponent[0], scale_exponent[1]},
                            total != acc_});
      emit(to, For{group, groups_, std::move(per_group)});
    };
    if (total != acc_) emit(body, Fill{total, {0, 0}});
    if (staged()) {
      ring_rounds(body, multiply_round);
    } else if (schedule_.rounds > 1) {
      register_rounds(body, multiply_round);
    } else {
      multiply_round(body, 0);
    }
    acc_ = total;
  }

  template <class Multiply>
  void ring_rounds(std::vector<Statement>& body, const Multiply& multiply_round) {
    const auto round = Affine::of(round_);
    const std::int64_t warps_n = schedule_.warps_n, warps = warps_n * schedule_.warps_k;
    std::vector<Statement> each;
    emit(each, Wait{schedule_.stages - 2});
    emit(each, Load{words_, ring_, {ring_slot(round, warps_n), 0, 0, 0, 0}});
    emit(each, Load{loaded_scale_, scale_ring_, {0, ring_slot(round, warps), 0, 0, 0}});
    emit(each, Reinterpret{scale_, loaded_scale_});
    fetch(each, round + Affine(schedule_.stages - 1));
    multiply_round(each, round);
    emit(body, For{round_, schedule_.rounds, std::move(each), 1});
  }

  /// The next round's words are on their way to registers while this round's are multiplied.
  template <class Multiply>
  void register_rounds(std::vector<Statement>& body, const Multiply& multiply_round) {
    round_ = variable("round", schedule_.rounds - 1);
    const auto round = Affine::of(round_), following = round + Affine(1);
    const auto next = reg("next_words", Scalar::u32, word_layout());
    const auto next_scale = reg("next_scale", expr_.activation, scale_layout_);
    std::vector<Statement> each;
    emit(each, Load{next, image_, word_origin(following), Cache::once});
    emit(each, Load{next_scale, table_, scale_place(following)});
    multiply_round(each, round);
    emit(each, Reinterpret{words_, next});
    emit(each, Reinterpret{loaded_scale_, next_scale});
    emit(each, Reinterpret{scale_, loaded_scale_});
    emit(body, For{round_, schedule_.rounds - 1, std::move(each), 2});
    multiply_round(body, schedule_.rounds - 1);
  }

  /// The largest power of two that the multiply-add can give to (code - zero).
  int operand_exponent() const {
    const int largest = expr_.activation == Scalar::f16 ? 15 : 127;
    return largest + linear_exponent(expr_.activation);
  }
  static double power_of_two(int exponent) {
    double out = 1;
    for (; exponent > 0; --exponent) out *= 2;
    for (; exponent < 0; ++exponent) out /= 2;
    return out;
  }

  /// [1, rows, tokens] over all threads: two neighbouring rows of one token each, so that y is
  /// written in whole words. More threads than pairs reach past the tokens, where nothing is.
  Layout output_layout(std::int64_t rows) const {
    const std::int64_t pairs = rows / 2, tokens = schedule_.tokens;
    const auto together = std::max<std::int64_t>(program_.threads / pairs, 1);
    return local({1, std::max<std::int64_t>(pairs / program_.threads, 1), 1}) *
           local({1, 1, std::max<std::int64_t>(tokens / together, 1)}) *
           lifted(column_spatial({std::min<std::int64_t>(pairs, program_.threads), together})) *
           local({1, 2, 1});
  }
  void declare_sums(std::int64_t rows) {
    sum_ = reg("sum", Scalar::f32, output_layout(rows));
    part_ = reg("part", Scalar::f32, output_layout(rows));
  }

  /// Puts the sums of each warp where the other warps can read them: [warp along K, row, token].
  ViewId share_sums(std::vector<Statement>& body) {
    const std::int64_t tokens = schedule_.tokens, pitch = rows() + kSumPad;
    const auto elements = schedule_.warps_k * tokens * pitch;
    const auto sums = buffer("sums", Level::shared, Scalar::f32, elements);
    if (staged() && elements <= program_.buffers[ring_buffer_].elements) {
      // All rounds are over: their memory is free once every thread is here.
      program_.buffers[sums].over = ring_buffer_;
      emit(body, Barrier{});
    }
    const auto by_warp =
        view(sums, {schedule_.warps_k, rows(), kTokens}, {tokens * pitch, 1, pitch});
    emit(body, Store{acc_, by_warp, {0, 0, 0}});
    return by_warp;
  }

  /// The sums of the warps along K in `sum_`.
  void add_warps(std::vector<Statement>& body) {
    const auto by_warp = share_sums(body);
    emit(body, Barrier{});
    declare_sums(rows());
    emit(body, Load{sum_, by_warp, {0, 0, 0}});
    add_parts(body, schedule_.warps_k, 1, "warp", [&](Affine w) -> Load {
      return {part_, by_warp, {std::move(w), 0, 0}};
    });
  }

  /// sum_ += part for part = first .. count - 1.
  template <class MakeLoad>
  void add_parts(std::vector<Statement>& body, std::int64_t count, std::int64_t first,
                 std::string name, const MakeLoad& load) {
    if (count <= first) return;
    const auto part = variable(std::move(name), count - first);
    std::vector<Statement> each;
    emit(each, load(Affine::of(part) + Affine(first)));
    emit(each, Add{sum_, part_});
    emit(body, For{part, count - first, std::move(each), kPartsInFlight});
  }

  /// Rounds `sum_` and writes it to y from row `first`.
  void finish(std::vector<Statement>& body, const Affine& first) {
    const auto out = reg("out", expr_.activation, program_.registers[sum_].layout);
    const auto y = view(y_, {1, expr_.n, kTokens}, {0, 1, expr_.n});
    emit(body, Cast{out, sum_});
    emit(body, Store{out, y, {0, first, 0}});
  }

  /// Every block of the cluster adds up its share of the rows, out of the memory of all.
  void add_cluster(std::vector<Statement>& body) {
    const std::int64_t pitch = rows() + kSumPad, share = rows() / program_.cluster;
    std::int64_t parts = schedule_.warps_k;
    ViewId sums;
    if (parts > kWarpsReadByPeers) {
      add_warps(body);
      const auto shared = buffer("block_sum", Level::shared, Scalar::f32, schedule_.tokens * pitch);
      sums = view(shared, {1, rows(), kTokens}, {0, 1, pitch});
      emit(body, Store{sum_, sums, {0, 0, 0}});
      parts = 1;
    } else {
      sums = share_sums(body);
    }
    emit(body, ClusterBarrier{});
    declare_sums(share);
    const auto mine = Affine::of(kRank, share);
    for (std::int64_t w = 0; w < parts; ++w) {
      if (w == 0) emit(body, Load{sum_, sums, {0, mine, 0}, Cache::many, true, 0});
      add_parts(body, program_.cluster, w == 0 ? 1 : 0, "peer", [&](Affine rank) -> Load {
        return {part_, sums, {w, mine, 0}, Cache::many, true, std::move(rank)};
      });
    }
    finish(body, Affine::of(kTile, rows()) + mine);
    emit(body, ClusterBarrier{});
  }

  void add_in_order(std::vector<Statement>& body) {
    const auto splits = schedule_.splits(expr_.k), tiles = schedule_.tiles(expr_.n);
    const auto parts =
        view(workspace_, {tiles * splits, rows(), kTokens}, {schedule_.tokens * rows(), 1, rows()});
    const auto counter = view(counters_, {tiles}, {1});
    const auto arrived = variable("arrived", splits);
    const auto first = Affine::of(kTile, splits);
    emit(body, Store{sum_, parts, {first + Affine::of(kSplit), 0, 0}});
    emit(body, Ticket{arrived, counter, {Affine::of(kTile)}, splits});
    std::vector<Statement> last;
    emit(last, Load{sum_, parts, {first, 0, 0}});
    add_parts(last, splits, 1, "earlier", [&](Affine split) -> Load {
      return {part_, parts, {first + split, 0, 0}};
    });
    finish(last, Affine::of(kTile, rows()));
    emit(body, If{arrived, splits - 1, std::move(last)});
  }

  const Linear& expr_;
  const Schedule& schedule_;
  const MatrixInstruction& instruction_;
  Program program_{};
  BufferId weight_, scales_, x_, y_, workspace_, counters_, ring_buffer_;
  ViewId image_, table_, x_warp_, ring_, scale_ring_;
  RegisterId words_, loaded_scale_, scale_, acc_, sum_, part_;
  Layout scale_layout_, scale_ring_layout_;
  std::function<Affine(const Affine&)> scale_origin_;  // by round
  VariableId round_ = -1;
  std::int64_t groups_ = 1;  // of one warp in one round
};

}  // namespace

Workspace workspace_of(const Linear& expr, const Schedule& schedule) {
  if (schedule.reduction != Reduction::ordered) return {};
  const auto tiles = schedule.tiles(expr.n);
  return {tiles * schedule.splits(expr.k) * schedule.tokens * schedule.block_rows(), tiles};
}

Program lower(const Linear& expr, const Schedule& schedule, const Device& device) {
  check(expr);
  const auto rows = instructions(device.capability, expr.activation);
  if (rows.empty()) {
    fail<Unsupported>(device.name, " has no matrix instruction for ", name_of(expr.activation));
  }
  return Lowering(expr, schedule, *rows.front()).run();
}

}  // namespace ladder
