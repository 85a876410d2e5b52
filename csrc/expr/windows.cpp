// SPDX-License-Identifier: Apache-2.0
#include "expr/windows.h"

#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

void check(const WindowAxis& axis, const char* name) {
  LADDER_REQUIRE(axis.size >= 1 && axis.taps >= 1 && axis.stride >= 1 && axis.dilation >= 1 &&
                     axis.padding >= 0,
                 "windows along ", name, ": size ", axis.size, ", kernel ", axis.taps, ", stride ",
                 axis.stride, ", padding ", axis.padding, ", dilation ", axis.dilation);
  LADDER_REQUIRE(axis.size + 2 * axis.padding > axis.dilation * (axis.taps - 1), "a window of ",
                 axis.taps, " along ", name, " does not fit ", axis.size);
}

/// The number of the image along an axis; outside the image where it is padding.
std::int64_t along(const WindowAxis& axis, std::int64_t position, std::int64_t tap) {
  return position * axis.stride + tap * axis.dilation - axis.padding;
}

AffineIndex index(int iterator) { return {{{iterator, 1}}, 0}; }
AffineIndex index(int position, int tap, const WindowAxis& axis) {
  return {{{position, axis.stride}, {tap, axis.dilation}}, -axis.padding};
}

/// Coefficients of the two iterators in `index`; nothing where there are others.
std::optional<WindowAxis> axis_of(const AffineIndex& index, const TensorExpr& expr, int position,
                                  int tap, std::int64_t size) {
  WindowAxis out{.size = size, .taps = expr.iterators[tap].extent, .padding = -index.constant};
  for (const IndexTerm& term : index.terms) {
    if (term.iterator == position) {
      out.stride = term.coefficient;
    } else if (term.iterator == tap) {
      out.dilation = term.coefficient;
    } else {
      return std::nullopt;
    }
  }
  const bool fits = out.stride >= 1 && out.dilation >= 1 && out.padding >= 0 &&
                    out.positions() == expr.iterators[position].extent;
  return fits ? std::optional(out) : std::nullopt;
}

}  // namespace

std::int64_t Windows::place(std::int64_t row, std::int64_t column) const {
  const auto at = row / x.positions();
  const auto tap = column / channels;
  const auto in_y = along(y, at % y.positions(), tap / x.taps);
  const auto in_x = along(x, row % x.positions(), tap % x.taps);
  if (in_y < 0 || in_y >= y.size || in_x < 0 || in_x >= x.size) return -1;
  return ((at / y.positions() * y.size + in_y) * x.size + in_x) * channels + column % channels;
}

void check(const Windows& windows) {
  check(windows.y, "y"), check(windows.x, "x");
  LADDER_REQUIRE(windows.channels >= 1, "images of ", windows.channels, " channels");
}

std::string to_string(const Windows& windows) {
  const auto& [y, x, channels] = windows;
  std::ostringstream out;
  out << "windows " << y.taps << 'x' << x.taps << " of " << y.size << 'x' << x.size << 'x'
      << channels << ", stride " << y.stride << 'x' << x.stride << ", padding " << y.padding << 'x'
      << x.padding;
  if (y.dilation != 1 || x.dilation != 1) out << ", dilation " << y.dilation << 'x' << x.dilation;
  return out.str();
}

TensorExpr convolution_expr(const Windows& windows, std::int64_t images, std::int64_t n,
                            const OperatorTypes& types) {
  const auto& [y, x, c] = windows;
  // Iterators: n h w f, y x c.
  TensorExpr expr{
      {{"n", images},
       {"h", y.positions()},
       {"w", x.positions()},
       {"f", n},
       {"y", y.taps, true},
       {"x", x.taps, true},
       {"c", c, true}},
      {"in",
       types.a,
       {images, y.size, x.size, c},
       {index(0), index(1, 4, y), index(2, 5, x), index(6)}},
      {"weight", types.b, {n, y.taps, x.taps, c}, {index(3), index(4), index(5), index(6)}},
      {"out",
       types.out,
       {images, y.positions(), x.positions(), n},
       {index(0), index(1), index(2), index(3)}}};
  ladder::check(expr);
  return expr;
}

// Whatever the iterators are called; they are declared in that order.
std::optional<Windows> windows_of(const TensorExpr& expr) {
  if (expr.iterators.size() != 7 || expr.a.indices.size() != 4) return std::nullopt;
  const auto y = axis_of(expr.a.indices[1], expr, 1, 4, expr.a.shape[1]);
  const auto x = axis_of(expr.a.indices[2], expr, 2, 5, expr.a.shape[2]);
  if (!y || !x) return std::nullopt;
  const Windows out{*y, *x, expr.a.shape[3]};
  TensorExpr like = convolution_expr(out, expr.a.shape[0], expr.iterators[3].extent,
                                     {expr.a.type, expr.b.type, expr.out.type});
  for (std::size_t i = 0; i < like.iterators.size(); ++i) {
    like.iterators[i].name = expr.iterators[i].name;
  }
  like.a.name = expr.a.name, like.b.name = expr.b.name, like.out.name = expr.out.name;
  return like == expr ? std::optional(out) : std::nullopt;
}

}  // namespace ladder
