// SPDX-License-Identifier: Apache-2.0
#include "program/builder.h"

#include <algorithm>
#include <charconv>
#include <regex>

#include "base/error.h"
#include "program/check.h"

namespace ladder {
namespace {

// Words of C++, what kernels declare and what their prelude has: a test compares the last.
constexpr std::string_view kReserved =
    " alignas alignof and asm auto bitand bitor bool break case catch char class compl const "
    "constexpr continue decltype default delete do double else enum explicit export extern false "
    "float for friend goto if inline int long mutable namespace new not operator or private "
    "protected public register return short signed sizeof static struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile "
    "while xor u16 u32 u64 thread split tile rank tokens shared from to v whole element lane "
    "address piece me target "
    "row "
    "column source inside before peer from_row from_column "
    "load_once load_now load_constant load_fresh load_element copy_async_8 from_u8 from_e8m0 "
    "halves_e4m3 ones_e8m0 root_above roots_above low_e4m3 high_e4m3 low_twice high_twice "
    "bf16_of_f16 scaled_bf16 "
    "select_bits "
    "halves_at_least at_least_by_sums fabsf mma_f16_k32 mma_bf16_k32 mma_blocks_f16 "
    "mma_blocks_bf16 dot_f16 dot_bf16 "
    "three_values halved_f16 dot_bytes dot_halves table_entry low_halves "
    "shared_address peer_address load_peer copy_async "
    "copy_commit copy_wait barrier cluster_barrier dependent_launch dependent_wait cluster_rank "
    "ticket load_matrix program and_or mma_u8 mma_s8 mma_e4m3 less_zeros whole_less_zeros "
    "split_f16 split_bf16 "
    "store_rows "
    "store_more_rows larger_bf16 largest_of_block join_digits all_threads all_finite "
    "largest_exponent fma_f16 "
    "fma_bf16 mma_f16 mma_bf16 as_float as_bits low_f16 "
    "high_f16 low_bf16 "
    "high_bf16 pack_f16 pack_bf16 to_integer shuffle_xor atomic_add_f32 signal_init signal_expect "
    "signal_arrive signal_arrive_copies signal_await copy_bulk copy_bulk_to_all "
    "cluster_meet keep_order anew mma_quad_pairs_f16 mma_half_f16 mma_quarter_u8 mma_quarter_s8 "
    "rounded_bf16 "
    "largest_of_warp ";

}  // namespace

bool is_reserved(std::string_view name) {
  if (kReserved.find(" " + std::string(name) + " ") != std::string_view::npos) return true;
  // add_f32, s0: made by rule.
  static const std::regex made("s[0-9]+|.*_(f32|u32)");
  return std::regex_match(std::string(name), made);
}

ElementType ElementType::of(std::string_view name) {
  const auto scalar = scalar_called(name);
  if (scalar && bits_of(*scalar) >= 16 && *scalar != Scalar::s32) return *scalar;
  int width = 0;
  const auto digits = name.substr(std::min<std::size_t>(1, name.size()));
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), width);
  LADDER_REQUIRE(!name.empty() && name[0] == 'u' && end.ec == std::errc() &&
                     end.ptr == digits.data() + digits.size() && width >= 1 && width <= 31,
                 "element type ", name, " is not f16, bf16, f32, u32 or u1 to u31");
  return {Scalar::u32, width};
}

Builder::Builder(std::string name, Grid grid) : bodies_(1) {
  LADDER_REQUIRE(grid.x >= 1 && grid.y >= 1, "a grid of ", grid.x, " x ", grid.y, " blocks");
  LADDER_REQUIRE(grid.threads >= 32 && grid.threads <= 1024 && grid.threads % 32 == 0, grid.threads,
                 " threads, not a multiple of 32 up to 1024");
  program_.threads = grid.threads;
  program_.blocks_per_multiprocessor = 1;
  program_.cluster = 1;
  program_.name = named(std::move(name), "program");
  program_.variables = {{"split", grid.x}, {"tile", grid.y}, {"rank", 1}};
}

std::string Builder::named(std::string name, const char* otherwise) {
  if (name.empty()) name = otherwise + std::to_string(numbered_++);
  static const std::regex identifier("[a-z][a-z0-9_]*");
  LADDER_REQUIRE(std::regex_match(name, identifier), "the name '", name,
                 "' is not lower-case letters, digits and underscores");
  LADDER_REQUIRE(!is_reserved(name), "the name '", name, "' is one that kernels use themselves");
  const auto taken = [&](const auto& all) {
    return std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  };
  LADDER_REQUIRE(name != program_.name && !taken(program_.variables) && !taken(program_.buffers) &&
                     !taken(program_.registers) && !taken(program_.signals),
                 "the name '", name, "' is taken");
  return name;
}

Array Builder::memory(std::string name, Level level, Scalar scalar, Extents extents,
                      Extents strides, bool constant) {
  LADDER_REQUIRE(level == Level::global || !extents.empty(), "shared memory without an extent");
  program_.buffers.push_back({named(std::move(name), "memory"), level, scalar, 0, constant});
  const auto id = static_cast<BufferId>(program_.buffers.size() - 1);
  const Array out = add_view(id, std::move(extents), std::move(strides), 0);
  if (level == Level::shared) {
    std::int64_t last = 0;
    const View& view = program_.views[out.id];
    for (std::size_t d = 0; d < view.extents.size(); ++d) {
      last += (view.extents[d] - 1) * view.strides[d];
    }
    program_.buffers[id].elements = last + 1;
  }
  return out;
}

Array Builder::input(std::string name, Scalar scalar, Extents extents, Extents strides) {
  return memory(std::move(name), Level::global, scalar, std::move(extents), std::move(strides),
                true);
}

Array Builder::output(std::string name, Scalar scalar, Extents extents, Extents strides) {
  return memory(std::move(name), Level::global, scalar, std::move(extents), std::move(strides),
                false);
}

Array Builder::shared(std::string name, Scalar scalar, Extents extents, Extents strides) {
  return memory(std::move(name), Level::shared, scalar, std::move(extents), std::move(strides),
                false);
}

Array Builder::view(Array of, Extents extents, Extents strides, Affine offset) {
  return add_view(program_.views[of.id].buffer, std::move(extents), std::move(strides),
                  std::move(offset));
}

Array Builder::add_view(BufferId buffer, Extents extents, Extents strides, Affine offset) {
  if (strides.empty()) {
    strides.assign(extents.size(), 1);
    for (std::size_t d = extents.size(); d-- > 1;) {
      LADDER_REQUIRE(extents[d] != kTokens, "tokens inside a row need strides of their own");
      strides[d - 1] = strides[d] * extents[d];
    }
  }
  LADDER_REQUIRE(strides.size() == extents.size(), strides.size(), " strides for ", extents.size(),
                 " extents");
  program_.views.push_back({buffer, std::move(extents), std::move(strides), std::move(offset)});
  return {static_cast<ViewId>(program_.views.size() - 1)};
}

Tile Builder::tile(ElementType type, Layout layout, std::string name) {
  LADDER_REQUIRE(layout.thread_count() == program_.threads, "a layout over ", layout.thread_count(),
                 " threads, of ", program_.threads);
  program_.registers.push_back(
      {named(std::move(name), "t"), type.scalar, std::move(layout), type.width});
  return {static_cast<RegisterId>(program_.registers.size() - 1)};
}

Tile Builder::load(Array from, At at, Layout layout, std::string name) {
  const Scalar scalar = program_.buffers[program_.views[from.id].buffer].scalar;
  const Tile to = tile(scalar, std::move(layout), std::move(name));
  emit(Load{to.id, from.id, std::move(at)});
  return to;
}

void Builder::store(Tile from, Array to, At at) { emit(Store{from.id, to.id, std::move(at)}); }

void Builder::atomic_add(Tile from, Array to, At at) {
  emit(AtomicAdd{from.id, to.id, std::move(at)});
}

Tile Builder::fill(ElementType type, Layout layout, double value, std::string name) {
  const Tile to = tile(type, std::move(layout), std::move(name));
  emit(Fill{to.id, {value, value}});
  return to;
}

Tile Builder::view(Tile from, ElementType type, Layout layout, std::string name) {
  const Tile to = tile(type, std::move(layout), std::move(name));
  const auto &a = info(from), &b = info(to);
  LADDER_REQUIRE(can_view(a.layout, bits_of(a), b.layout, bits_of(b)), a.layout.slot_count(), " ",
                 type_name(a), " a thread seen as ", b.layout.slot_count(), " ", type_name(b));
  emit(Reinterpret{to.id, from.id});
  return to;
}

Tile Builder::cast(Tile from, ElementType type, std::string name) {
  const Tile to = tile(type, info(from).layout, std::move(name));
  emit(Cast{to.id, from.id});
  return to;
}

Tile Builder::unary(UnaryOp op, Tile from, std::string name) {
  const Tile to = tile(Scalar::f32, info(from).layout, std::move(name));
  emit(Unary{op, to.id, from.id});
  return to;
}

Tile Builder::binary(BinaryOp op, Tile a, Tile b, std::string name) {
  const Register& larger =
      info(a).layout.element_count() >= info(b).layout.element_count() ? info(a) : info(b);
  const Tile to = tile({larger.scalar, larger.width}, Layout(larger.layout), std::move(name));
  emit(Binary{op, to.id, a.id, b.id});
  return to;
}

Tile Builder::binary(BinaryOp op, Tile a, double b, std::string name) {
  const Layout one = replicated(program_.threads, static_cast<int>(info(a).layout.shape.size()));
  return binary(op, a, fill(info(a).scalar, one, b), std::move(name));
}

void Builder::update(BinaryOp op, Tile to, Tile with) { emit(Binary{op, to.id, to.id, with.id}); }

Tile Builder::reduce(ReduceOp op, Tile from, int dim, std::string name) {
  const Tile to = tile(Scalar::f32, reduced(info(from).layout, dim), std::move(name));
  BufferId scratch = -1;
  if (!threads_along(info(from).layout, dim).warps.empty()) {
    const auto all = shared("scratch" + std::to_string(numbered_++), Scalar::f32,
                            {info(to).layout.slot_count() * program_.threads});
    scratch = program_.views[all.id].buffer;
  }
  emit(Reduce{op, to.id, from.id, dim, scratch});
  return to;
}

Tile Builder::load_matrix(Array from, At at, Layout layout, std::string name) {
  const Scalar scalar = program_.buffers[program_.views[from.id].buffer].scalar;
  const Tile to = tile(scalar, std::move(layout), std::move(name));
  emit(LoadMatrix{tile_instruction(scalar), to.id, from.id, std::move(at)});
  return to;
}

void Builder::mma(Tile acc, Tile a, Tile b) { mma_by(tile_instruction(info(a).scalar), acc, a, b); }
void Builder::mma_by(const MatrixInstruction* row, Tile acc, Tile a, Tile b) {
  emit(Mma{row, acc.id, a.id, b.id});
}

void Builder::copy_async(Array to, Array from, At at) {
  emit(CopyAsync{to.id, from.id, std::move(at)});
}
void Builder::commit() { emit(Commit{}); }
void Builder::wait(int pending) { emit(Wait{pending}); }
void Builder::barrier() { emit(Barrier{}); }

SignalHandle Builder::signal(std::string name, std::int64_t count, int arrivals) {
  LADDER_REQUIRE(count >= 1, "a signal of ", count, " mbarriers");
  program_.signals.push_back({named(std::move(name), "signal"), count, arrivals});
  return {static_cast<SignalId>(program_.signals.size() - 1)};
}
void Builder::signal_init(SignalHandle signal) { emit(SignalInit{signal.id}); }
void Builder::expect(SignalHandle signal, Affine index, std::int64_t bytes) {
  emit(Expect{signal.id, std::move(index), bytes});
}
void Builder::arrive(SignalHandle signal, Affine index) {
  emit(Arrive{signal.id, std::move(index)});
}
void Builder::await(SignalHandle signal, Affine index, Affine parity) {
  emit(Await{signal.id, std::move(index), std::move(parity)});
}
void Builder::copy_bulk(Array to, Array from, At at, SignalHandle signal, Affine index) {
  emit(CopyBulk{to.id, from.id, std::move(at), signal.id, std::move(index)});
}

Affine Builder::begin_for(std::string name, std::int64_t trips, int unroll) {
  LADDER_REQUIRE(trips >= 1, "a loop of ", trips, " trips");
  program_.variables.push_back({named(std::move(name), "i"), trips});
  const auto variable = static_cast<VariableId>(program_.variables.size() - 1);
  open_.push_back({For{variable, trips, {}, unroll}});
  bodies_.emplace_back();
  return Affine::of(variable);
}

void Builder::begin_if(const Affine& variable, std::int64_t value) {
  LADDER_REQUIRE(variable.constant == 0 && variable.terms.size() == 1 &&
                     variable == Affine::of(variable.terms.front().variable),
                 "the condition is not on a block or loop number alone");
  open_.push_back({If{variable.terms.front().variable, value, {}}});
  bodies_.emplace_back();
}

void Builder::end() {
  LADDER_REQUIRE(!open_.empty(), "the end of nothing");
  Statement statement = std::move(open_.back());
  open_.pop_back();
  auto body = std::move(bodies_.back());
  bodies_.pop_back();
  if (auto* loop = std::get_if<For>(&statement.op)) {
    loop->body = std::move(body);
  } else {
    std::get<If>(statement.op).body = std::move(body);
  }
  bodies_.back().push_back(std::move(statement));
}

void Builder::loop(std::string name, std::int64_t trips, const std::function<void(Affine)>& body,
                   int unroll) {
  body(begin_for(std::move(name), trips, unroll));
  end();
}

Program Builder::finish() const {
  LADDER_REQUIRE(open_.empty(), open_.size(), " loops or conditions have no end");
  Program out = program_;
  out.body = bodies_.front();
  return out;
}

}  // namespace ladder
