// SPDX-License-Identifier: Apache-2.0
//
// The windows of a convolution, channels last, as the rows of a matrix (im2col) that nobody writes:
// row m is the window of one place of the output, column k one number of a window.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "expr/tensor_expr.h"

namespace ladder {

/// Of the two dimensions of an image, one.
struct WindowAxis {
  std::int64_t size;  ///< of the image
  std::int64_t taps;  ///< of a window
  std::int64_t stride = 1, padding = 0, dilation = 1;

  /// Windows side by side.
  std::int64_t positions() const {
    return (size + 2 * padding - dilation * (taps - 1) - 1) / stride + 1;
  }
  auto operator<=>(const WindowAxis&) const = default;
};

/// Of images [size of y, size of x, channels].
struct Windows {
  WindowAxis y, x;
  std::int64_t channels;

  /// Rows of one image.
  std::int64_t positions() const { return y.positions() * x.positions(); }
  std::int64_t columns() const { return y.taps * x.taps * channels; }
  /// Numbers of one image.
  std::int64_t numbers() const { return y.size * x.size * channels; }
  /// Where in the images [., y, x, channels] element [row, column] lies; -1: it is a zero outside.
  std::int64_t place(std::int64_t row, std::int64_t column) const;
  auto operator<=>(const Windows&) const = default;
};

/// Throws InvalidArgument, with the values, for windows that do not fit the image.
void check(const Windows& windows);

/// "windows 3x3 of 56x56x64, stride 2x2, padding 1x1"; a dilation where there is one.
std::string to_string(const Windows& windows);

/// Those of an expression that is convolution_expr(), up to names; nothing of others.
std::optional<Windows> windows_of(const TensorExpr& expr);

/// The operator of so many images, of `n` features: [images, y, x, n].
TensorExpr convolution_expr(const Windows& windows, std::int64_t images, std::int64_t n,
                            const OperatorTypes& types);

}  // namespace ladder
