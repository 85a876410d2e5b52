# SPDX-License-Identifier: Apache-2.0
"""What is asked of tuning, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from ladder.errors import InvalidArgument
from ladder.types import TType


class Mode(NamedTuple):
    """``proposals`` of the scheduler are compiled for each shape and interval of tokens, and timed;
    a plan does instead that was the fastest of ``measured`` or more."""

    proposals: int
    measured: int


#: What ``tune`` may be. "off" times nothing.
MODES = {"off": Mode(1, 0), "fast": Mode(3, 0), "full": Mode(8, 8)}

#: Where a kernel is from: timed by this call; a plan of this process or a store; the scheduler's
#: first proposal; "" where there is none and the product is dense.
Origin = Literal["measured", "stored", "proposed", ""]


@dataclass(frozen=True)
class Request:
    """Kernels of one weight.

    ``weight`` is the number from :func:`ladder.cuda.image.open_weight`, ``shape`` its [N, K],
    ``dtype`` that of the activations, ``m`` the numbers of tokens, ``activation_type`` what they
    are rounded to ("": nothing). ``gated``: the weight was opened with a gating.
    """

    weight: int
    ttype: TType
    shape: tuple[int, int]
    device: torch.device
    dtype: torch.dtype
    m: tuple[int, ...]
    activation_type: str = ""
    gated: bool = False

    @property
    def columns(self) -> int:
        """Of products."""
        return self.shape[0] // 2 if self.gated else self.shape[0]


class Tuned(dict[Request, dict[int, str]]):
    """For each request and number of tokens, the schedule of the kernel; "" where the product is
    dense.

    ``origin`` says where each is from. ``late`` counts the kernels (one for each shape and interval
    of tokens) that are first proposals because the budget was spent; ``seconds`` is what all took.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origin: dict[Request, dict[int, Origin]] = {}
        self.late, self.seconds = 0, 0.0


def check_mode(mode: object) -> Mode:
    """Of MODES. Raises InvalidArgument naming them."""
    if not isinstance(mode, str) or mode not in MODES:
        raise InvalidArgument(f"tune is {mode!r}, not one of {', '.join(MODES)}")
    return MODES[mode]
