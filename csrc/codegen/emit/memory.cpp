// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/emit/emitter.h"
#include "device/device.h"
#include "layout/weight_image.h"
#include "program/access.h"

namespace ladder::codegen {
namespace {

// Of a load-matrix whose addresses are computed one by one: those of up to 32 tokens, whose decode
// kernels were measured so.
constexpr std::int64_t kFewMatrices = 8;

const char* loader(Cache cache) {
  switch (cache) {
    case Cache::once: return "load_once";
    case Cache::now: return "load_now";
    case Cache::many: return "load_constant";
  }
  return "?";
}

/// The first of `pieces` that loads what `piece`, one of them, does.
const Piece& first_alike(const std::vector<Piece>& pieces, const Piece& piece) {
  return *std::ranges::find_if(pieces, [&](const Piece& one) {
    return one.offset == piece.offset && one.width == piece.width && one.guard == piece.guard;
  });
}

std::string guarded_by(const std::string& guard, const std::string& action) {
  return guard.empty() ? action : "if (" + guard + ") { " + action + " }";
}

/// C++ for what the warp digits of `tile`, those outside the lanes, add to dimension `dim`, times
/// `factor`.
std::string warp_part(const Layout& tile, int dim, std::int64_t factor) {
  std::int64_t inner = tile.thread_count();
  std::string out;
  for (const Digit& digit : tile.threads) {
    inner /= digit.extent;
    if (inner < kLanes || digit.stride == 0 || digit.dim != dim) continue;
    out += "(thread / " + std::to_string(inner) + " % " + std::to_string(digit.extent) + ") * " +
           std::to_string(digit.stride * factor) + " + ";
  }
  return out;
}

}  // namespace

// The first slot has the least index in every dimension.
std::string Emitter::inside(const Within& part) const {
  const auto access = plan_access(program_, reg(part.tile).layout, reg(part.tile).scalar,
                                  program_.views[part.view], part.at, unrolled_);
  const auto& guard = access.pieces.front().guard;
  return guard.empty() ? "true" : guard;
}

void Emitter::load(const Load& i) {
  const Register& to = reg(i.to);
  const Buffer& from = buffer_of(i.from);
  const auto access =
      plan_access(program_, to.layout, to.scalar, program_.views[i.from], i.at, unrolled_);
  const int size = bytes_of(to.scalar);
  line("const ", type_of(to.scalar), "* const from = ", from.name, " + (", access.base, ");");
  if (i.remote) line("const u32 address = peer_address(shared_address(from), ", expr(i.rank), ");");
  const auto there = from.optional ? from.name + " != nullptr" : std::string();
  // All pieces inside or none: one branch, where zeros to start from would cost a move per word.
  const auto& whole = access.pieces.front().guard;
  const bool together =
      !whole.empty() && !i.any_token && there.empty() && access.pieces.front().width * size >= 4 &&
      std::ranges::all_of(access.pieces, [&](const Piece& piece) { return piece.guard == whole; });
  if (together) line("if (", whole, ") {");
  for (const Piece& piece : access.pieces) {
    const auto count = piece.width * size / 4;
    const auto guard =
        together ? std::string()
                 : there + (there.empty() || piece.guard.empty() ? "" : " && ") + piece.guard;
    // A compiler does not join loads of what may change, and would hold each in a register.
    const Piece& same = first_alike(access.pieces, piece);
    const auto word_at = [&](std::int64_t byte) {
      return to.name + "[" + std::to_string(byte / 4) + "]";
    };
    if (count == 0) {  // 16 bits: an element, or two bytes
      const auto byte = piece.slot * size;
      // A preceding kernel may have written what is not constant.
      const bool fresh = from.level == Level::global && !from.constant;
      if (i.remote || piece.width * size != 2 || (fresh && size != 2)) {
        fail<Unsupported>(to.name, " would be loaded in pieces of ", piece.width * size, " bytes");
      }
      const auto word = word_at(byte);
      const auto offset = std::to_string(piece.offset);
      const auto element = fresh       ? "load_element(from + " + offset + ")"
                           : size == 2 ? "from[" + offset + "]"
                                       : "*(const u16*)(from + " + offset + ")";
      const auto known = same.slot * size;
      const auto begin =
          known != byte
              ? "u32 element = " + word_at(known) + (known % 4 != 0 ? " >> 16;" : " & 0xffffu;")
              : "u32 element = 0; " + guarded_by(guard, "element = " + element + ";");
      line("{ ", begin, " ", word, " = ",
           byte % 4 != 0 ? "(" + word + " & 0xffffu) | element << 16" : "element", "; }");
      continue;
    }
    if (same.slot != piece.slot) {
      for (std::int64_t w = 0; w < 4 * count; w += 4) {
        line(word_at(piece.slot * size + w), " = ", word_at(same.slot * size + w), ";");
      }
      continue;
    }
    const auto type = "Words" + std::to_string(count);
    const auto at = "(const " + type + "*)(from + " + std::to_string(piece.offset) + ")";
    // What is there at first, where there is no such token: no branch, and no zeros.
    const bool any = i.any_token && piece.by_tokens && there.empty() && !guard.empty();
    std::string action;
    if (any) {
      action =
          "v = load_fresh(" + guard + " ? " + at + " : (const " + type + "*)" + from.name + ");";
    } else if (i.remote) {
      action = "load_peer(v, address + " + std::to_string(piece.offset * size) + ");";
    } else if (from.level == Level::shared) {
      action = "v = *" + at + ";";
    } else if (!from.constant) {
      action = "v = load_fresh(" + at + ");";
    } else {
      action = std::string("v = ") + loader(i.cache) + "(" + at + ");";
    }
    const auto initial = guard.empty() || any ? "" : " = {}";
    line("{ ", type, " v", initial, "; ", guarded_by(any ? "" : guard, action),
         assign(i.to, piece.slot * size / 4, count), " }");
  }
  if (together) {
    line("} else {");
    for (std::int64_t w = 0; w < words(i.to); ++w) line("  ", to.name, "[", w, "] = 0;");
    line("}");
  }
  if (i.cache == Cache::now && !within_) line("keep_order();");  // which all of a warp meet
}

std::string Emitter::assign(RegisterId id, std::int64_t first, std::int64_t count) const {
  std::ostringstream out;
  for (std::int64_t w = 0; w < count; ++w) {
    const auto word = "v.w[" + std::to_string(w) + "]";
    out << ' ' << reg(id).name << '[' << first + w
        << "] = " << (reg(id).scalar == Scalar::f32 ? "as_float(" + word + ")" : word) << ';';
  }
  return out.str();
}

std::string Emitter::word_of(RegisterId id, std::int64_t index) const {
  const auto text = reg(id).name + "[" + std::to_string(index) + "]";
  return reg(id).scalar == Scalar::f32 ? "as_bits(" + text + ")" : text;
}

void Emitter::store(const Store& i) {
  const Register& from = reg(i.from);
  const Buffer& to = buffer_of(i.to);
  const auto access =
      plan_access(program_, from.layout, from.scalar, program_.views[i.to], i.at, unrolled_);
  const int size = bytes_of(from.scalar);
  line(type_of(from.scalar), "* const to = ", to.name, " + (", access.base, ");");
  for (const Piece& piece : access.pieces) {
    const auto count = piece.width * size / 4;
    std::ostringstream action;
    if (count == 0) {  // an element of 8 or 16 bits, or two bytes
      const auto byte = piece.slot * size;
      const bool pair = piece.width > 1;
      action << (pair ? "*(u16*)(to + " : "to[") << piece.offset << (pair ? ")" : "]") << " = ("
             << (piece.width * size == 1 ? "u8" : "u16") << ")(" << word_of(i.from, byte / 4);
      if (byte % 4 != 0) action << " >> " << byte % 4 * 8;
      action << ");";
    } else {
      action << "*(Words" << count << "*)(to + " << piece.offset << ") = {{";
      for (std::int64_t w = 0; w < count; ++w) {
        action << (w ? ", " : "") << word_of(i.from, piece.slot * size / 4 + w);
      }
      action << "}};";
    }
    line(guarded_by(piece.guard, action.str()));
  }
}

void Emitter::atomic_add(const AtomicAdd& i) {
  const Register& from = reg(i.from);
  const auto access =
      plan_access(program_, from.layout, from.scalar, program_.views[i.to], i.at, unrolled_);
  line("float* const to = ", buffer_of(i.to).name, " + (", access.base, ");");
  for (const Piece& piece : access.pieces) {
    for (std::int64_t e = 0; e < piece.width; ++e) {
      line(guarded_by(piece.guard, "atomic_add_f32(to + " + std::to_string(piece.offset + e) +
                                       ", " + from.name + "[" + std::to_string(piece.slot + e) +
                                       "]);"));
    }
  }
}

void Emitter::load_matrix(const LoadMatrix& i) {
  const Register& to = reg(i.to);
  const View& view = program_.views[i.from];
  // Lane l gives the address of row l % 8 of matrix l / 8: token 8 (matrix / 2), columns
  // of 16 bytes.
  Affine origin = view.offset;
  std::string base;
  for (std::size_t d = 0; d < view.strides.size(); ++d) {
    origin = origin + times(i.at[d], view.strides[d]);
    base += warp_part(to.layout, static_cast<int>(d), view.strides[d]);
  }
  const auto matrices = words(i.to);
  line("const u32 lane = thread % 32;");
  if (matrices > kFewMatrices) {
    // One address, and distances that the instruction adds itself.
    const auto size = bytes_of(to.scalar);
    line("const u32 from = shared_address(", buffer_of(i.from).name, " + (", base,
         "(lane / 16 * 8 + lane % 8) * ", view.strides[1], " + lane / 8 % 2 * ", 16 / size, " + ",
         expr(origin), "));");
    for (std::int64_t first = 0; first < matrices; first += 4) {
      const auto distance = first / 2 * i.row->n * view.strides[1] * size;
      if (matrices - first >= 4) {
        line("load_matrix<4>(", to.name, " + ", first, ", from + ", distance, "u);");
      } else {  // lanes of the second half point at the rows of the first, whose matrices they are
        line("load_matrix<2>(", to.name, " + ", first, ", from - lane / 16 * ",
             8 * view.strides[1] * size, "u + ", distance, "u);");
      }
    }
    return;
  }
  for (std::int64_t first = 0; first < matrices;) {
    const int count = matrices - first >= 4 ? 4 : 2;
    line("load_matrix<", count, ">(", to.name, " + ", first, ", shared_address(",
         buffer_of(i.from).name, " + (", base, "(lane / 16 % ", count / 2, " * 8 + lane % 8 + ",
         first / 2 * i.row->n, ") * ", view.strides[1], " + lane / 8 % 2 * ",
         16 / bytes_of(to.scalar), " + ", expr(origin), ")));");
    first += count;
  }
}

void Emitter::load_units(const LoadUnits& i) {
  const Register& to = reg(i.to);
  const View& view = program_.views[i.from];
  const bool global = buffer_of(i.from).level == Level::global;
  const auto words = to.layout.shape[4], width = width_of_units(words);
  std::string base = expr(origin_of(view, i.at));
  for (const int d : {0, 1, 3}) {
    if (const auto part = thread_part(to.layout, d, view.strides[d]); !part.empty()) {
      base += " + " + part;
    }
  }
  const auto part = thread_part(to.layout, 2, words);
  line("const u32* const from = ", buffer_of(i.from).name, " + (", base, ");");
  line("const u32 first = ", part.empty() ? "0u" : part, ";");
  const auto guarded = guarded_dimensions(program_, to.layout, view, i.at);
  for (std::int64_t slot = 0; slot < to.layout.slot_count(); slot += width) {
    const auto at = to.layout(0, slot);
    const auto w = at[4];
    std::int64_t distance = 0;
    std::string guard;
    for (const int d : {0, 1, 3}) {
      distance += at[d] * view.strides[d];
      if (!global || !guarded[d]) continue;
      const auto part = thread_part(to.layout, d, 1);
      guard += joined(guard.empty() ? "" : " && ", part, part.empty() ? "" : " + ",
                      expr(i.at[d] + Affine(at[d])), " < ", view.extents[d], "u");
    }
    const auto from =
        joined("(const Words", width, "*)(from + ", distance == 0 ? "" : joined(distance, "u + "),
               "(first + ", w, "u) / ", kChunkWords, "u * ", view.strides[2], "u + (first + ", w,
               "u) % ", kChunkWords, "u)");
    const auto load = global ? joined("v = load_once(", from, ");") : joined("v = *", from, ";");
    line("{ Words", width, guard.empty() ? " v; " : " v = {}; ", guarded_by(guard, load),
         assign(i.to, slot, width), " }");
  }
}

void Emitter::ticket(const Ticket& i) {
  line(dialect_.shared, " u32 before;");
  line(program_.variables[i.result].name, " = ticket(", buffer_of(i.counters).name, " + ",
       expr(i.at[0] + program_.views[i.counters].offset), ", ", i.expected, "u, &before);");
}

}  // namespace ladder::codegen
