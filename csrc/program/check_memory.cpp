// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/integers.h"
#include "layout/digits.h"
#include "layout/weight_image.h"
#include "program/check.h"

namespace ladder {
namespace {

/// Shared views are padded to their tiles: an access that leaves one is a bug, not a border.
void check_inside(const Program& program, const Layout& tile, const View& view,
                  const std::vector<Affine>& at, Faults& faults) {
  for (std::size_t d = 0; d < at.size(); ++d) {
    if (view.extents[d] == kTokens) continue;
    const auto end = range_of(program, at[d]).high + tile.shape[d];
    if (end > view.extents[d]) {
      add(faults, "dimension ", d, " reaches ", end, " of ", view.extents[d]);
    }
  }
}

void check_to_shared(const Program& program, ViewId to, ViewId from, Faults& faults) {
  if (buffer_of(program, to).level != Level::shared ||
      buffer_of(program, from).level != Level::global) {
    add(faults, "copies go from global to shared memory");
  }
}

/// That rows are copied to `to` in whole pieces of `bytes`.
void check_rows(const View& to, Scalar scalar, int bytes, const char* pieces, Faults& faults) {
  const auto rank = to.extents.size();
  const auto run = bytes / bytes_of(scalar);
  bool whole = (rank == 2 || rank == 3) && to.strides.back() == 1 && to.strides[0] % run == 0 &&
               to.extents.back() % run == 0;
  if (rank == 3) whole = whole && to.strides[1] % run == 0;
  if (!whole) add(faults, "rows that are not whole ", pieces);
}

}  // namespace

void check_access(const Program& program, const Register& tile, ViewId id,
                  const std::vector<Affine>& at, Faults& faults) {
  const View& view = program.views[id];
  const Buffer& buffer = buffer_of(program, id);
  if (view.windows) add(faults, buffer.name, " has windows, which only copies read");
  if (tile.scalar != buffer.scalar || tile.width != 0) {
    add(faults, type_name(tile), " registers for ", name_of(buffer.scalar), " memory");
  }
  if (at.size() != view.extents.size() || at.size() != tile.layout.shape.size()) {
    add(faults, "a tile of rank ", tile.layout.shape.size(), " at ", at.size(),
        " coordinates of a view of rank ", view.extents.size());
    return;
  }
  if (view.is_swizzled) add(faults, buffer.name, " is swizzled");
  for (const Affine& index : at) {
    if (range_of(program, index).low < 0) add(faults, "a negative index");
  }
  if (buffer.level == Level::shared) check_inside(program, tile.layout, view, at, faults);
}

Faults check(const Program& program, const Load& i) {
  Faults faults;
  check_access(program, program.registers[i.to], i.from, i.at, faults);
  if (i.any_token && (buffer_of(program, i.from).level != Level::global ||
                      std::ranges::count(program.views[i.from].extents, kTokens) != 1)) {
    add(faults, "no tokens, of which some may be anything");
  }
  return faults;
}

Faults check(const Program& program, const LoadUnits& i) {
  Faults faults;
  const Register& to = program.registers[i.to];
  const View& view = program.views[i.from];
  const auto& tile = to.layout.shape;
  if (view.extents.size() != 5 || view.extents[3] != kLanes || view.extents[4] != kChunkWords ||
      view.strides[4] != 1) {
    add(faults, "words that are not chunks of lanes");
    return faults;
  }
  // Threads have parts, slots whole runs of the words of one.
  bool words = tile.size() == 5 && tile[3] == kLanes && to.layout.slot_count() % tile[4] == 0;
  for (std::int64_t slot = 0; words && slot < to.layout.slot_count(); ++slot) {
    const auto at = to.layout(0, slot);
    words = at[2] == 0 && at[4] == slot % tile[4];
  }
  if (!words) {
    add(faults, to.name, " is not words of the lanes of a warp");
    return faults;
  }
  // Words are within those of a block, of which the tile has whole ones in its other dimensions.
  Layout blocks = to.layout;
  blocks.shape[2] = ceil_div(tile[2] * tile[4], kChunkWords);
  blocks.shape[4] = kChunkWords;
  check_access(program, {to.name, to.scalar, blocks, to.width}, i.from, i.at, faults);
  for (std::size_t d = 2; d < i.at.size(); ++d) {
    if (i.at[d] != Affine(0)) add(faults, "words of a lane from the ", d, ". dimension on");
  }
  return faults;
}

Faults check(const Program& program, const Store& i) {
  Faults faults;
  check_access(program, program.registers[i.from], i.to, i.at, faults);
  return faults;
}

Faults check(const Program& program, const CopyAsync& i) {
  Faults faults;
  const View& to = program.views[i.to];
  const Scalar scalar = buffer_of(program, i.to).scalar;
  check_to_shared(program, i.to, i.from, faults);
  if (scalar != buffer_of(program, i.from).scalar) {
    add(faults, "the two sides differ in their scalar");
  }
  check_rows(to, scalar, 16, "pieces of 16 bytes", faults);
  const auto& windows = program.views[i.from].windows;
  const auto run = 16 / bytes_of(scalar);
  if (windows && (windows->channels % run != 0 || !multiple_of(i.at[1], run))) {
    add(faults, "windows of ", windows->channels, " channels, no pieces of ", run);
  }
  return faults;
}

Faults check(const Program& program, const CopyElements& i) {
  Faults faults;
  const View& to = program.views[i.to];
  const Scalar scalar = buffer_of(program, i.to).scalar;
  check_to_shared(program, i.to, i.from, faults);
  if (scalar != buffer_of(program, i.from).scalar || bits_of(scalar) != 16) {
    add(faults, "sides that are not of one scalar of 16 bits");
  }
  check_rows(to, scalar, 4, "words", faults);
  if (i.columns >= 0) {
    const Scalar columns = buffer_of(program, i.columns).scalar;
    if (columns != Scalar::u32) add(faults, "columns of ", name_of(columns), ", not u32");
  }
  return faults;
}

Faults check(const Program& program, const SplitDigits& i) {
  Faults faults;
  const View& to = program.views[i.to];
  check_to_shared(program, i.to, i.from, faults);
  if (program.views[i.from].windows) add(faults, "digits of windows");
  const Scalar from = buffer_of(program, i.from).scalar;
  if (buffer_of(program, i.to).scalar != Scalar::s8 || bits_of(from) != 16) {
    add(faults, "digits of ", name_of(from));
  }
  if (to.extents.size() != 2 || to.extents[0] < digit_count(from) || to.extents[1] % 16 != 0 ||
      to.strides[1] != 1 || to.strides[0] % 4 != 0) {
    add(faults, "rows that are not whole words of digits");
  }
  check_f32(program, i.unit, faults);
  if (i.columns >= 0 && buffer_of(program, i.columns).scalar != Scalar::u32) {
    add(faults, "columns that are not u32");
  }
  return faults;
}

Faults check(const Program& program, const CopyOwn& i) {
  Faults faults;
  const Scalar scalar = buffer_of(program, i.to).scalar;
  check_access(program, {"copy", scalar, i.to_layout}, i.to, i.to_at, faults);
  check_access(program, {"copy", scalar, i.from_layout}, i.from, i.from_at, faults);
  for (const Layout* side : {&i.to_layout, &i.from_layout}) {
    if (side->thread_count() != program.threads || side->slot_count() != i.to_layout.slot_count()) {
      add(faults, "sides that do not match");
    }
  }
  return faults;
}

Faults check(const Program& program, const AtomicAdd& i) {
  Faults faults;
  check_access(program, program.registers[i.from], i.to, i.at, faults);
  check_f32(program, i.from, faults);
  const Buffer& buffer = buffer_of(program, i.to);
  if (buffer.level != Level::global) add(faults, buffer.name, " is not in global memory");
  if (!is_bijective(program.registers[i.from].layout)) {
    add(faults, "elements that several threads would add");
  }
  return faults;
}

}  // namespace ladder
