# SPDX-License-Identifier: Apache-2.0
"""``torch.optim.swa_utils.AveragedModel`` of models with packed layers: codes are no numbers.

With ``use_buffers=True`` torch averages every buffer, the codes of packed weights among them, which
are bits; without, it copies buffers one by one, and a model on a GPU may have its codes in the form
of kernels where the average has not. So torch is shown the buffers of other modules only. Parts of
packed weights, which no optimizer changes, are copied where both have the stored form.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ladder.nn.packed import PackedModule
from ladder.nn.stack_image import StackImage

_WRAPPED = "_ladder_keeps_codes"


def register() -> None:
    """Wrap ``update_parameters``. Doing it again is harmless."""
    kind: Any = sys.modules["torch.optim.swa_utils"].AveragedModel
    theirs = kind.update_parameters
    if getattr(theirs, _WRAPPED, False):
        return

    @functools.wraps(theirs)
    def update_parameters(self: Any, model: nn.Module) -> None:
        given = _packed(model)
        if not given:
            theirs(self, model)
            return
        theirs(_Average(self), _WithoutParts(model))
        own = _packed(self.module)  # one of the two may be wrapped, as by DDP
        if len(own) == len(given):
            for pair in zip(own, given, strict=True):
                _copy_parts(*pair)

    setattr(update_parameters, _WRAPPED, True)
    kind.update_parameters = update_parameters


def _packed(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if _is_packed(module)]


def _is_packed(module: nn.Module) -> bool:
    """Whether buffers of ``module`` are parts of packed weights, and scales of x."""
    kinds: tuple[Any, ...] = (PackedModule, StackImage)
    if (of_bitblas := sys.modules.get("ladder.bitblas.linear")) is not None:
        kinds += (of_bitblas.Linear,)
    return isinstance(module, kinds)


def _copy_parts(own: nn.Module, given: nn.Module) -> None:
    parts = {name: part for name, part in given._buffers.items() if part is not None}
    there = {name: part for name, part in own._buffers.items() if part is not None}
    if _forms(parts) == _forms(there):
        for name, part in parts.items():
            there[name].detach().copy_(part.detach())


def _forms(parts: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (part.shape, part.dtype) for name, part in parts.items()}


class _WithoutParts:
    """A model as ``update_parameters`` sees it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def buffers(self) -> Iterator[Tensor]:
        seen: set[int] = set()
        for module in self._model.modules():
            for buffer in () if _is_packed(module) else module._buffers.values():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    yield buffer


class _Average:
    """An AveragedModel as its own ``update_parameters`` sees it."""

    def __init__(self, average: Any) -> None:
        self._average = average
        self.module = _WithoutParts(average.module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._average, name)
