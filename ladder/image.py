# SPDX-License-Identifier: Apache-2.0
"""Weight images: the order in which kernels of a GPU read the codes of a weight.

An image has the bits of the canonical codes (docs/format.md) in another order, rows and columns
padded to multiples of 64; it is made on the device in one pass and gives the canonical form back
to the bit. What is stored on disk is always canonical.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from pathlib import Path

import torch
from torch import Tensor

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.errors import InvalidArgument
from ladder.types import TType, _checked

_ops = torch.ops.ladder
_linear_image = torch.ops.ladder.linear_image.default
_linear_image_no_grad = torch.ops.ladder.linear_image_no_grad.default
_log = logging.getLogger("ladder")

#: Rows and columns of the blocks of an image.
BLOCK = 64
#: More tokens than any kernel serves.
MANY_TOKENS = 1 << 30
#: Held while a weight changes its form.
changing = threading.Lock()


@functools.cache
def _find_compiler() -> None:
    """Tells the library where pip put NVRTC, which no loader searches."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for folder in ("cu13/lib", "cuda_nvrtc/lib"):
            if (Path(root) / folder).is_dir():
                _ops.add_nvrtc_directory(str(Path(root) / folder))


@functools.cache
def objection(type: str, n: int, k: int, device: int) -> str:
    """Why a weight [n, k] of ``type`` has no kernels on CUDA device ``device``; "" when it has."""
    _find_compiler()
    why = _ops.image_objection(type, n, k, device)
    if why:
        _log.info("%s [%d, %d] goes through torch on cuda:%d: %s", type, n, k, device, why)
    return why


def open_weight(type: str, n: int, k: int) -> int:
    """The number by which ops know weights of this type and shape, the same in every process."""
    return _ops.open_weight(type, n, k)


def pack(qweight: Tensor, weight: int) -> Tensor:
    """The image of canonical codes, on their CUDA device; ``weight`` from :func:`open_weight`."""
    return _checked(_ops.pack_image, qweight, weight)


def unpack(image: Tensor, weight: int, ttype: TType, n: int, k: int) -> Tensor:
    """The inverse of :func:`pack`, bit for bit."""
    return _checked(_ops.unpack_image, image, weight, n, ttype.words(k))


def pack_scales(scales: Tensor) -> Tensor:
    """[N, groups] to [groups, ceil(N / 64), 8, 8]: element [g][j] of a block is row g + 8 j. Rows
    beyond N have scale 0."""
    n, groups = scales.shape
    blocks = -(-n // BLOCK)
    padded = torch.nn.functional.pad(scales.t(), (0, blocks * BLOCK - n))
    return padded.view(groups, blocks, 8, 8).transpose(2, 3).contiguous()


def linear(
    x: Tensor, image: Tensor, scales: Tensor | None, bias: Tensor | None, weight: int, n: int
) -> Tensor:
    """:func:`ladder.ops.linear` on an image.

    Args:
        x: [..., K] float32, float16 or bfloat16 on the device of ``image``, any strides.
        image: from :func:`pack`.
        scales: from :func:`pack_scales`.
        bias: [n] in the dtype of ``x``.
        weight: from :func:`open_weight`.
    Error:
        Up to 16 tokens in the dtype of the scales: within :func:`ladder.testing.bound`, the bias
        added with one more rounding. Otherwise the values of the weight are first rounded to the
        dtype of ``x``.
    """
    if torch.compiler.is_compiling() or (
        torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    ):
        return _checked(_linear_image, x, image, scales, bias, weight, n)
    # Nothing asks for a gradient: torch's autograd of Python ops would cost more than the kernel.
    try:
        return _linear_image_no_grad(x, image, scales, bias, weight, n)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


# --- fakes and gradients -------------------------------------------------------------------------


@torch.library.register_fake("ladder::linear_image_no_grad")
@torch.library.register_fake("ladder::linear_image")
def _(x, image, scales, bias, weight: int, n: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], n))


@torch.library.register_fake("ladder::pack_image")
def _(qweight: Tensor, weight: int) -> Tensor:
    raise NotImplementedError("an image is made outside of traced code: call ladder.warmup first")


@torch.library.register_fake("ladder::unpack_image")
def _(image: Tensor, weight: int, n: int, words: int) -> Tensor:
    return image.new_empty((n, words))


@torch.library.register_fake("ladder::dequantize_image")
def _(image, scales, weight: int, n: int, k: int, dtype: torch.dtype) -> Tensor:
    return image.new_empty((n, k), dtype=dtype)


def _setup_context(ctx, inputs, output) -> None:
    x, image, scales, _bias, weight, n = inputs
    ctx.save_for_backward(image, scales)
    ctx.weight, ctx.n, ctx.k = weight, n, x.shape[-1]


def _backward(ctx, grad: Tensor):
    image, scales = ctx.saved_tensors
    grad_x = grad_bias = None
    if ctx.needs_input_grad[0]:
        values = _ops.dequantize_image(image, scales, ctx.weight, ctx.n, ctx.k, grad.dtype)
        grad_x = grad @ values
    if ctx.needs_input_grad[3]:
        grad_bias = grad.flatten(0, -2).sum(0) if grad.dim() > 1 else grad
    return grad_x, None, None, grad_bias, None, None


torch.library.register_autograd("ladder::linear_image", _backward, setup_context=_setup_context)


# --- before the first call -----------------------------------------------------------------------


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
