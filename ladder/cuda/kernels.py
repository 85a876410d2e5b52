# SPDX-License-Identifier: Apache-2.0
"""Which weights have kernels on a GPU; compiling and keeping those kernels."""

from __future__ import annotations

import functools
import importlib.util
import logging
from pathlib import Path

import torch

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)

_ops = torch.ops.ladder
_log = logging.getLogger("ladder")

#: More tokens than any kernel serves.
MANY_TOKENS = 1 << 30


@functools.cache
def find_compiler() -> None:
    """Tells the library where pip put NVRTC, which no loader searches."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for folder in ("cu13/lib", "cuda_nvrtc/lib"):
            if (Path(root) / folder).is_dir():
                _ops.add_nvrtc_directory(str(Path(root) / folder))


@functools.cache
def objection(type: str, n: int, k: int, gather: bool, device: int) -> str:
    """Why a weight [n, k] of ``type`` has no kernels on CUDA device ``device``; "" when it has.

    ``gather``: its image has the columns in another order.
    """
    find_compiler()
    why = _ops.image_objection(type, n, k, gather, device)
    if why:
        _log.info("%s [%d, %d] goes through torch on cuda:%d: %s", type, n, k, device, why)
    return why


def compile_for(weight: int, device: torch.device, dtype: torch.dtype, m: int) -> str:
    """Compile what ``m`` tokens of ``dtype`` need. Returns the schedule of their kernel, or "" when
    they are multiplied densely."""
    schedule = _ops.warm_up(weight, device.index or 0, dtype, m)
    for line in _ops.take_notices().splitlines():
        _log.warning("%s", line)
    return schedule


def interval(m: int) -> int:
    """The most tokens that the kernel for ``m`` tokens serves; 0 when there is none."""
    return _ops.token_interval(m)


def use_store(folder: str | Path, *, trust_kernels: bool = False) -> None:
    """Look for kernels and plans in ``folder`` before the user's cache, and keep new ones there.

    Args:
        trust_kernels: load compiled kernels from it even if another user owns it. They are native
            code; without this they are compiled again from the plans.
    """
    _ops.use_store(str(folder), trust_kernels)
