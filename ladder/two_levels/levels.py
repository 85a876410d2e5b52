# SPDX-License-Identifier: Apache-2.0
"""What becomes of superblocks that are quantised."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Levels:
    """Of B superblocks of G groups.

    Attributes:
        codes: uint8 [B, columns].
        many: whole numbers [B, G]: scales in units of the first of ``seconds``.
        less: the same of zeros "rescale", in units of the second one; of stored integer zeros
            uint8; None without stored zeros.
        seconds: [B, 1 or 2] in the format of second scales.
    """

    codes: Tensor
    many: Tensor
    less: Tensor | None
    seconds: Tensor
