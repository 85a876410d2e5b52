# SPDX-License-Identifier: Apache-2.0
"""Which weights have kernels on a GPU; compiling and keeping those kernels."""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path

import torch

from ladder import _library
from ladder.errors import InvalidArgument

_ops = torch.ops.ladder
_log = logging.getLogger("ladder")

#: Of activations that kernels multiply; and that a kernel dequantises weights for.
HALVES = (torch.float16, torch.bfloat16)
ACTIVATION_DTYPES = (torch.float32, *HALVES)


def possible(device: torch.device) -> bool:
    """Whether anything on ``device`` can have kernels."""
    return device.type == "cuda"


@functools.cache
def objection(
    type: str, n: int, k: int, gather: bool, device: int, activation_type: str = ""
) -> str:
    """Why a weight [n, k] of ``type`` has no kernels on CUDA device ``device``; "" when it has.

    A missing or too old compiler or a driver that fails is logged once, as a warning.

    ``gather``: its image has the columns in another order. ``activation_type``: what activations
    are rounded to, "" as they come.
    """
    _library.find_compiler()
    why = _ops.image_objection(type, n, k, gather, device, activation_type)
    _library.log_notices()
    if why:
        _log.info("%s [%d, %d] goes through torch on cuda:%d: %s", type, n, k, device, why)
    return why


def load_transforms(weight: int, device: torch.device, dtype: torch.dtype) -> str:
    """Compile and load what brings a weight into its image, out of it, and to dense values of
    ``dtype`` (float16 where that is no dtype of activations). Returns why that fails, or "".

    After it has succeeded, the canonical codes can be let go: whatever fails later,
    :func:`ladder.cuda.image.unpack` has them.
    """
    wanted = dtype if dtype in ACTIVATION_DTYPES else torch.float16
    why = _ops.load_transforms(weight, device.index or 0, wanted)
    _library.log_notices()
    return why


def failure(device: torch.device) -> str:
    """What a compiler or driver said when it refused kernels that every weight on ``device`` needs;
    "" while none has. It does not change back."""
    return _ops.device_failure(device.index or 0) if possible(device) else ""


def compile_for(
    weight: int, device: torch.device, dtype: torch.dtype, m: int, residual: bool = False
) -> str:
    """Compile what ``m`` tokens of ``dtype`` need, of calls with a residual or without. Returns the
    schedule of their kernel, or "" when they are multiplied densely."""
    schedule = _ops.warm_up(weight, device.index or 0, dtype, m, residual)
    _library.log_notices()
    return schedule


def compile_scaled(weight: int, device: torch.device, dtype: torch.dtype, m: int) -> None:
    """Compile what ``m`` tokens need that are rounded by a static scale."""
    _ops.warm_scaled(weight, device.index or 0, dtype, m)
    _library.log_notices()


def interval(m: int, activation_type: str = "") -> int:
    """The most tokens that the kernel for ``m`` tokens serves, or one of its passes has."""
    return _ops.token_interval(m, activation_type)


def use_store(folder: str | Path, *, trust_kernels: bool = False) -> None:
    """Look for kernels and plans in ``folder`` before the user's cache, and keep new ones there.

    Args:
        trust_kernels: load compiled kernels from it whoever wrote them. They are native code;
            without this only what this user's ladder wrote is loaded, and all else compiled again
            from the plans.
    """
    _ops.use_store(str(folder), trust_kernels)
    _library.log_notices()


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """What :func:`clean_cache` left and removed; bytes of files."""

    folder: str
    kept_kernels: int
    kept_bytes: int
    removed_kernels: int
    removed_bytes: int


def clean_cache(*, older_than_days: float | None = None, everything: bool = False) -> Cleaned:
    """Bring the user's cache of kernels under its limit (1 GiB, least recently used first) and
    remove what processes left that died. What a process is about to compile stays.

    Args:
        older_than_days: remove kernels, too, that were not used for so many days.
        everything: remove all kernels and plans. The user's key stays: it is what kernels kept
            beside models were written with.

    Raises:
        InvalidArgument: ``older_than_days`` is negative or no number of days.
    """
    if older_than_days is not None and not 0 <= older_than_days <= 1e6:
        raise InvalidArgument(f"older_than_days is {older_than_days}, not 0 to 1000000")
    seconds = -1 if older_than_days is None else int(older_than_days * 86400)
    counts = _ops.clean_cache(seconds, everything).split()
    return Cleaned(_ops.cache_folder(), *map(int, counts))
