# SPDX-License-Identifier: Apache-2.0
"""Tensors that are made of others, and made anew only when those have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ladder._torch import recording, transformed


class Kept:
    """Keeps one. Copies and pickles have kept nothing yet."""

    def __init__(self) -> None:
        self._of: tuple[tuple[Any, ...], tuple[Tensor, ...], Tensor] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Kept, ())

    def __call__(
        self, tensors: Sequence[Tensor], make: Callable[[], Tensor], *more: object
    ) -> Tensor:
        """What ``make`` made of the very ``tensors``, not written since, with equal ``more``.

        A write through ``tensor.data``, which torch does not count, is not seen. Nothing is kept of
        inference tensors, whose writes it does not count either, in traces and transforms, nor
        while a CUDA graph is captured, whose memory is its own.
        """
        if torch.compiler.is_compiling() or recording() or transformed():
            return make()
        if any(tensor.is_inference() for tensor in tensors):
            return make()
        state = (*more, *((tensor.data_ptr(), tensor._version) for tensor in tensors))
        known = self._of
        if known is not None and known[0] == state and all(map(_is, known[1], tensors)):
            return known[2]
        cuda = tensors[0].is_cuda
        if cuda and torch.cuda.is_current_stream_capturing():
            return make()
        made = make()
        if cuda:  # other streams may come next
            torch.cuda.current_stream(made.device).synchronize()
        self._of = state, tuple(tensors), made
        return made


def _is(one: object, other: object) -> bool:
    return one is other
