# SPDX-License-Identifier: Apache-2.0
"""What merging adapters into packed layers says of rounding: one warning for all layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import Tensor

from ladder.types import TType

#: Without numbers, so that Python shows it once.
_ROUNDED = "adapters are merged into packed weights, which rounds each sum to the weight's type"


@dataclass
class _Tally:
    """Of all layers that were rounded: sums of squares."""

    layers: int = 0
    types: set[str] = field(default_factory=set)
    error: float = 0.0
    change: float = 0.0

    def text(self) -> str:
        share = math.sqrt(self.error / self.change) if self.change else 0.0
        return (
            f"adapters were merged into {self.layers} packed layers, rounded to {self._kinds()}: "
            f"rounding moves the weights by {share:.2g} of what the adapters change (root mean "
            "square). `ladder merge --calibration` chooses codes by data "
            "(docs/transformers.md#merging)"
        )

    def _kinds(self) -> str:
        first = sorted(self.types)[0]
        return first if len(self.types) == 1 else f"{len(self.types)} types, one of them {first}"


_tally: ContextVar[_Tally | None] = ContextVar("what is merged into a model", default=None)


@contextmanager
def telling(layers: Sized) -> Iterator[None]:
    """Have the rounding of all layers told by one warning, after the last."""
    if not layers:
        yield
        return
    tally = _Tally()
    token = _tally.set(tally)
    try:
        yield
    finally:
        _tally.reset(token)
    if tally.layers:
        warnings.warn(tally.text(), stacklevel=4)


def tell(ttype: TType, error: Tensor, change: Tensor) -> None:
    """Note what rounding a layer has cost; without :func:`telling` it is warned of at once.

    Args:
        error, change: [N, K] float32, what rounding and the adapters change of the weight.
    """
    tally = _tally.get()
    if tally is None:
        warnings.warn(_ROUNDED, stacklevel=4)
        return
    tally.layers += 1
    tally.types.add(str(ttype))
    tally.error += error.double().square().sum().item()
    tally.change += change.double().square().sum().item()
