# SPDX-License-Identifier: Apache-2.0
"""Weight images of the tensors that BitBLAS' users hold, made when they are first multiplied.

BitBLAS' API passes a weight to each call as tensors that the caller owns and may change. An image
is therefore kept by those tensors, as long as all of them live, and made again after a change that
torch counts: any in-place operation, and an assignment to ``.data``. Not counted, as in autograd,
are writes through ``tensor.data`` and by other packages (DLPack, Triton): :meth:`Images.clear`.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ladder._library import log_notices
from ladder.cuda import image as images
from ladder.cuda import kernels
from ladder.cuda.codes import number_for_codes, takes_codes
from ladder.errors import Unsupported
from ladder.ops.transforms import transformed
from ladder.types import TType
from ladder.weight import Weight

_log = logging.getLogger("ladder")

#: W, scale, zeros, g_idx.
Parts = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


class Image(NamedTuple):
    """What :func:`ladder.cuda.linear.linear_image` and
    :func:`ladder.cuda.codes.linear_codes_image` read. ``for_codes`` is None where no kernels take
    codes."""

    words: Tensor
    number: int
    ttype: TType
    for_codes: int | None


class _Kept(NamedTuple):
    """``image`` is None where the weight has no kernels."""

    states: tuple[tuple[int, int] | None, ...]
    storages: list[torch.UntypedStorage]  # held, so that no other memory gets their address
    references: list[weakref.ref[Tensor]]
    image: Image | None


def on_gpu(x: Tensor) -> bool:
    """Whether kernels may read a tensor. Traced code and transforms take torch's own ops: they know
    nothing of tensors that are kept beside those that they see."""
    return x.is_cuda and not torch.compiler.is_compiling() and not transformed()


class Images:
    """The images of one operator. Safe to use from several threads.

    Args:
        codes: the dtype of activations that are codes (:data:`ladder.ops.codes.CODE_DTYPES`).
    """

    def __init__(self, codes: torch.dtype | None = None) -> None:
        self._codes = codes
        self._failed = False  # a compiler or driver refused what every weight needs
        self._kept: dict[tuple[int, ...], _Kept] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Images], tuple[torch.dtype | None]]:
        return Images, (self._codes,)  # copies and pickles make their own

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Let all images go; the next calls make new ones."""
        with self._lock:
            self._kept.clear()

    def leave(self, device: torch.device) -> bool:
        """After an error of a kernel: where the device has failed, no image any more. Returns
        whether that is so; otherwise the error is the caller's."""
        if not kernels.failure(device):
            return False
        log_notices()
        self._failed = True
        self.clear()
        return True

    def of(self, parts: Parts, weight: Callable[[], Weight]) -> Image | None:
        """The image of a weight on a CUDA device.

        Args:
            parts: the tensors that the caller holds.
            weight: makes the weight of them; its errors pass.
        Returns:
            None where there are no kernels for it, the device has failed, or torch counts no
            changes of a part: of tensors that were made in inference mode.
        Raises:
            RuntimeError: a CUDA graph is being captured, and there is no image yet.
        """
        if self._failed:
            return None
        key = tuple(map(id, parts))
        kept = self._kept.get(key)
        if kept is not None and _unchanged(kept.states, parts):
            return kept.image
        if any(part is not None and part.is_inference() for part in parts):
            return None
        with self._lock:
            kept = self._kept.get(key)
            states = tuple(None if part is None else _state(part) for part in parts)
            if kept is None or kept.states != states:
                before = None if kept is None else kept.image
                kept = self._keep(key, states, parts, _made(weight(), before, self._codes))
            return kept.image

    def _keep(
        self,
        key: tuple[int, ...],
        states: tuple[tuple[int, int] | None, ...],
        parts: Parts,
        image: Image | None,
    ) -> _Kept:
        own = weakref.ref(self)

        def forget(_: weakref.ref[Tensor]) -> None:
            mine = own()
            if mine is not None:  # without the lock, which this thread may hold
                mine._kept.pop(key, None)

        present = [part for part in parts if part is not None]
        references = [weakref.ref(part, forget) for part in present]
        storages = [part.untyped_storage() for part in present]
        self._kept[key] = kept = _Kept(states, storages, references, image)
        return kept


def _state(part: Tensor) -> tuple[int, int]:
    return part._version, part.data_ptr()


def _unchanged(states: tuple[tuple[int, int] | None, ...], parts: Parts) -> bool:
    for state, part in zip(states, parts, strict=True):
        if state is not None and part is not None and _state(part) != state:
            return False
    return True


def _made(weight: Weight, before: Image | None, codes: torch.dtype | None) -> Image | None:
    """The image, in the memory of ``before`` where that fits: captured graphs read it there."""
    type_, (n, k), device = str(weight.type), weight.shape, weight.qweight.device
    if _capturing():
        raise RuntimeError(
            "a weight cannot be brought into the form of kernels while a CUDA graph is being "
            "captured: call the operator once before, with the same tensors"
        )
    with torch.inference_mode(False), torch.no_grad():  # training may follow inference
        try:
            order = images.column_order(weight)
        except Unsupported as error:
            _log.info("%s [%d, %d] goes through torch: %s", type_, n, k, error)
            return None
        if kernels.objection(type_, n, k, order is not None, device.index or 0):
            return None
        number = images.open_weight(type_, n, k, order is not None)
        if why := kernels.load_transforms(number, device, torch.float16):
            _log.info("%s [%d, %d] goes through torch: %s", type_, n, k, why)
            return None
        for_codes = None
        if codes is not None and takes_codes(weight.type, weight.zeros, weight.g_idx, codes):
            for_codes = number_for_codes(type_, n, k, device.index or 0, codes)
        words = images.pack(weight, number, order)
        if before is not None and before.number == number and before.words.device == device:
            words = before.words.copy_(words)
    _wait(device)  # kernels of other streams may come next
    return Image(words, number, weight.type, for_codes)


def _capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def _wait(device: torch.device) -> None:
    torch.cuda.current_stream(device).synchronize()
