# SPDX-License-Identifier: Apache-2.0
"""The windows of a convolution, as kernels are told of them."""

from __future__ import annotations

from typing import NamedTuple


class Axis(NamedTuple):
    """Of the two dimensions of an image, one, as ``torch.nn.Conv2d`` calls its numbers."""

    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def positions(self) -> int:
        """Windows side by side."""
        return (
            self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        ) // self.stride + 1


class Windows(NamedTuple):
    """Of images [H, W, C]."""

    y: Axis
    x: Axis
    channels: int

    @property
    def spelled(self) -> str:
        """What csrc/expr/windows_text.h reads."""
        return ",".join(str(number) for number in (*self.y, *self.x, self.channels))
