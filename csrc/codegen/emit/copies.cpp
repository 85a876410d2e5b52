// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory by the threads.
#include "base/error.h"
#include "base/joined.h"
#include "codegen/emit/emitter.h"

namespace ladder::codegen {
namespace {

// Copies of a thread that are written out rather than a loop: of one of all threads, and of one of
// the producers, which has registers for nothing else.
constexpr std::int64_t kCopiesWrittenOut = 16, kCopiesOfProducer = 32;

/// C++ for the element of a shared view that is at `row` and `column`.
std::string element_of_row(const SharedRows& rows) {
  if (rows.panel_pitch == 0) return joined("row * ", rows.pitch, "u + column");
  return joined("row * ", rows.pitch, "u + column / ", rows.panel, "u * ", rows.panel_pitch,
                "u + column % ", rows.panel, "u");
}

/// C++ for a quotient.
std::string over(const std::string& value, std::int64_t divisor) {
  return divisor == 1 ? value : joined(value, " / ", divisor, "u");
}

}  // namespace

// Padding is what lies outside: in front of an image a number without a sign is too large, too.
void Emitter::window_column(const Windows& windows, const char* column) {
  const auto& [y, x, channels] = windows;
  line("const u32 tap = ", over(column, channels), ", channel = ", column, " % ", channels, "u;");
  line("const u32 tap_y = tap / ", x.taps, "u * ", y.dilation, "u - ", y.padding,
       "u, tap_x = tap % ", x.taps, "u * ", x.dilation, "u - ", x.padding, "u;");
}

void Emitter::window_row(const Windows& windows, const std::string& row) {
  const auto& [y, x, channels] = windows;
  line("const u32 window = item[1] + ", row, ", above = ", over("window", x.positions()), ";");
  line("const u32 in_y = above % ", y.positions(), "u * ", y.stride, "u + tap_y, in_x = window % ",
       x.positions(), "u * ", x.stride, "u + tap_x;");
  line("const u64 place = ((u64)(above / ", y.positions(), "u * ", y.size, "u + in_y) * ", x.size,
       "u + in_x) * ", channels, "u + channel;");
  line("const bool in_image = in_y < ", y.size, "u && in_x < ", x.size, "u;");
}

std::string Emitter::place_of_row(ViewId id) const {
  const View& view = program_.views[id];
  const auto start = view.offset == Affine(0) ? "" : " + (" + expr(view.offset) + ")";
  const auto element = element_of_row(shared_rows(view));
  const auto& name = buffer_of(id).name;
  if (!view.is_swizzled) return joined("shared_address(", name, start, " + ", element, ")");
  return joined("shared_address(", name, ") + swizzled((", element, start, ") * ",
                bytes_of(buffer_of(id).scalar), "u)");
}

void Emitter::copy(const CopyAsync& i) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const int size = bytes_of(buffer_of(i.to).scalar);
  const SharedRows rows = shared_rows(to);
  const std::int64_t run = 16 / size, pieces = rows.columns / run, all = rows.rows * pieces;
  const bool columns_guarded = range_of(program_, i.at[1]).high + rows.columns > from.extents[1];
  if (columns_guarded && from.extents[1] % run != 0) {
    fail<Unsupported>("rows of ", from.extents[1], " elements end inside 16 bytes");
  }
  const bool always = i.guard == Affine(0);
  if (!always) line("if (", expr(i.guard), " < ", i.below, ") {");
  const std::int64_t threads = threads_,
                     most = role_ == Role::producing ? kCopiesOfProducer : kCopiesWrittenOut;
  // Of a swizzled view all pieces of a thread are at one place of its pattern.
  const bool alike =
      !to.is_swizzled ||
      (threads % pieces == 0 && rows.at(threads / pieces, 0) * size % kSwizzleAlignment == 0);
  if (all % threads == 0 && all / threads <= most && alike &&
      (threads % pieces == 0 || (pieces % threads == 0 && !from.windows))) {
    copy_written_out(i, pieces, columns_guarded);
    if (!always) line("}");
    return;
  }
  line("#pragma unroll");
  line("for (u32 piece = ", thread_, "; piece < ", all, "u; piece += ", threads, "u) {");
  line("  const u32 row = piece / ", pieces, "u, column = piece % ", pieces, "u * ", run, "u;");
  line("  const u32 from_row = row + ", expr(i.at[0]), ", from_column = column + ", expr(i.at[1]),
       ";");
  const std::string guard =
      joined("from_row < ", limit(from.extents[0]),
             columns_guarded ? " && from_column < " + limit(from.extents[1]) : std::string());
  if (from.windows) {
    ++depth_;
    window_column(*from.windows, "from_column");
    window_row(*from.windows, "from_row");
    line("const bool inside = in_image && ", guard, ";");
    line("copy_async(", place_of_row(i.to), ", ", buffer_of(i.from).name,
         " + (inside ? place : 0u), inside ? 16u : 0u);");
    --depth_;
    line("}");
    if (!always) line("}");
    return;
  }
  line("  const bool inside = ", guard, ";");
  line("  const ", type_of(buffer_of(i.from).scalar), "* const source = ", buffer_of(i.from).name,
       " + (inside ? (u64)from_row * ", from.strides[0], "u + from_column : 0u)",
       from.offset == Affine(0) ? "" : " + (" + expr(from.offset) + ")", ";");
  line("  copy_async(", place_of_row(i.to), ", source, inside ? 16u : 0u);");
  line("}");
  if (!always) line("}");
}

// Where the pieces of a thread lie at fixed distances: two addresses, and no division for each.
// Addresses are made anew in every round: kept through a loop, they are the registers that spill.
void Emitter::copy_written_out(const CopyAsync& i, std::int64_t pieces, bool columns_guarded) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const SharedRows rows = shared_rows(to);
  const Scalar scalar = buffer_of(i.to).scalar;
  const std::int64_t size = bytes_of(scalar), run = 16 / size, threads = threads_;
  line("const u32 me = anew(", thread_, ");");
  line("const u32 row = me / ", pieces, "u, column = me % ", pieces, "u * ", run, "u;");
  line("const u32 from_row = row + ", expr(i.at[0]), ", from_column = column + ", expr(i.at[1]),
       ";");
  if (from.windows) {
    window_column(*from.windows, "from_column");
    line("const u32 target = ", place_of_row(i.to), ";");
    for (std::int64_t piece = 0; piece < rows.rows * pieces; piece += threads) {
      const auto down = joined("from_row + ", piece / pieces, "u");
      line("{");
      ++depth_;
      window_row(*from.windows, down);
      line("const bool inside = in_image && ", down, " < ", limit(from.extents[0]),
           columns_guarded ? " && from_column < " + limit(from.extents[1]) : std::string(), ";");
      line("copy_async(target + ", rows.at(piece / pieces, 0) * size, "u, ", buffer_of(i.from).name,
           " + (inside ? place : 0u), inside ? 16u : 0u);");
      --depth_;
      line("}");
    }
    return;
  }
  line("const ", type_of(scalar), "* const source = ", buffer_of(i.from).name,
       " + ((u64)from_row * ", from.strides[0], "u + from_column",
       from.offset == Affine(0) ? "" : " + " + expr(from.offset), ");");
  line("const u32 target = ", place_of_row(i.to), ";");
  for (std::int64_t piece = 0; piece < rows.rows * pieces; piece += threads) {
    const auto row = piece / pieces, columns = piece % pieces * run;
    line("copy_async(target + ", rows.at(row, columns) * size, "u, source + ",
         row * from.strides[0] + columns, ", from_row + ", row, "u < ", limit(from.extents[0]),
         columns_guarded
             ? " && from_column + " + std::to_string(columns) + "u < " + limit(from.extents[1])
             : std::string(),
         " ? 16u : 0u);");
  }
}

void Emitter::copy_own(const CopyOwn& i) {
  const Scalar scalar = buffer_of(i.to).scalar;
  const int size = bytes_of(scalar);
  const auto to =
      plan_access(program_, i.to_layout, scalar, program_.views[i.to], i.to_at, unrolled_);
  const auto from =
      plan_access(program_, i.from_layout, scalar, program_.views[i.from], i.from_at, unrolled_);
  const auto piece_bytes = from.pieces.front().width * size;
  if ((piece_bytes != 16 && piece_bytes != 8) || to.pieces.front().width * size != piece_bytes) {
    fail<Unsupported>("copies in pieces of ", piece_bytes, " bytes");
  }
  line("if (", expr(i.guard), " < ", i.below, ") {");
  line("  const ", type_of(scalar), "* const from = ", buffer_of(i.from).name, " + (", from.base,
       ");");
  line("  const u32 to = shared_address(", buffer_of(i.to).name, " + (", to.base, "));");
  for (std::size_t p = 0; p < from.pieces.size(); ++p) {
    const auto bytes = std::to_string(piece_bytes) + "u";
    line("  copy_async", piece_bytes == 8 ? "_8" : "", "(to + ", to.pieces[p].offset * size,
         "u, from + ", from.pieces[p].offset, ", ",
         from.pieces[p].guard.empty() ? bytes : from.pieces[p].guard + " ? " + bytes + " : 0u",
         ");");
  }
  line("}");
}

void Emitter::copy_elements(const CopyElements& i) {
  const View &to = program_.views[i.to], &from = program_.views[i.from];
  const SharedRows rows = shared_rows(to);
  const auto words = rows.columns / 2;
  const auto& source = buffer_of(i.from).name;
  const bool ends = range_of(program_, i.at[1]).high + rows.columns > from.extents[1];
  const bool always = i.guard == Affine(0);
  if (!always) line("if (", expr(i.guard), " < ", i.below, ") {");
  line("#pragma unroll 4");
  line("for (u32 word = thread; word < ", rows.rows * words, "u; word += ", program_.threads,
       "u) {");
  line("  const u32 row = word / ", words, "u, column = word % ", words, "u * 2u;");
  line("  const u32 from_row = row + ", expr(i.at[0]), ", first = column + ", expr(i.at[1]), ";");
  line("  u32 v[2] = {};");
  line("  for (u32 half = 0; half < 2u; ++half) {");
  line("    if (from_row < ", limit(from.extents[0]),
       ends ? " && first + half < " + limit(from.extents[1]) : std::string(), ") {");
  line("      const u32 from_column = ",
       i.columns < 0 ? "first + half" : buffer_of(i.columns).name + "[first + half]", ";");
  if (from.windows) {
    depth_ += 3;
    window_column(*from.windows, "from_column");
    window_row(*from.windows, "from_row");
    line("if (in_image) v[half] = load_element(", source, " + place);");
    depth_ -= 3;
  } else {
    line("      v[half] = load_element(", source, " + (u64)from_row * ", from.strides[0],
         "u + from_column);");
  }
  line("    }");
  line("  }");
  if (to.is_swizzled) {
    line("  store_shared(", place_of_row(i.to), ", v[0] | v[1] << 16);");
  } else {
    const auto start = to.offset == Affine(0) ? "" : " + (" + expr(to.offset) + ")";
    line("  *(u32*)(", buffer_of(i.to).name, start, " + ", element_of_row(rows),
         ") = v[0] | v[1] << 16;");
  }
  line("}");
  if (!always) line("}");
}

}  // namespace ladder::codegen
