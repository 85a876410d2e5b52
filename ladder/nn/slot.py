# SPDX-License-Identifier: Apache-2.0
"""Keeps a result from the first call of merged layers for the others (ladder/nn/merged.py)."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling

from ladder._torch import any_autocast as _any_autocast
from ladder.ops.transforms import autocast_dtype

#: An input, how gradients and autocast were switched, and the parts of the result not yet taken.
Result = tuple[Tensor, tuple[Any, ...], tuple[Tensor | None, ...]]


class _OfThread(threading.local):
    #: None while the parent does not run, () while there is no result.
    result: Result | tuple[()] | None = None


class _Traced:
    """torch.compile traces one thread at a time, and not what belongs to a thread."""

    result: Result | tuple[()] | None = None


class Slot:
    """Keeps one result while a parent runs. Copies and pickles of a parent have one that keeps
    nothing for nobody."""

    def __init__(self) -> None:
        self.of_thread, self.traced = _OfThread(), _Traced()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Slot, ())

    def set(self, result: tuple[()] | None) -> None:
        (self.traced if _is_compiling() else self.of_thread).result = result

    def is_open(self) -> bool:
        """Whether the parent runs, on this thread or in this trace."""
        return (self.traced if _is_compiling() else self.of_thread).result is not None

    def open(self, *_: Any) -> None:
        """Forward pre-hook of the parent."""
        self.set(())

    def close(self, *_: Any) -> None:
        """Forward hook of the parent, after exceptions too."""
        self.set(None)


def modes_of(x: Tensor) -> tuple[Any, ...]:
    """What decides, beside ``x``, whether a result will do for another call."""
    # The compiler cannot trace counts of writes; inference tensors have none.
    compiling = _is_compiling()
    version = None if compiling or x.is_inference() else x._version
    if not compiling and not _any_autocast():
        return _grad_enabled(), version
    return _grad_enabled(), version, autocast_dtype(x)
