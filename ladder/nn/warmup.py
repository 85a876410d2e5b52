# SPDX-License-Identifier: Apache-2.0
"""Everything that a model on a GPU would otherwise do in its first calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from ladder.cuda import kernels
from ladder.cuda.request import Request, Tuned, check_mode
from ladder.cuda.tune import Progress, compile_in_background, tune_all
from ladder.cuda.tune_experts import Problem
from ladder.cuda.tune_experts import tune as tune_experts
from ladder.cuda.tune_items import ItemsProblem
from ladder.cuda.tune_items import tune as tune_items
from ladder.errors import Unsupported
from ladder.nn.arguments import check_cache, check_dtype, check_model, numbers_of_tokens
from ladder.nn.batched import BatchedLinear
from ladder.nn.conv import Conv2d
from ladder.nn.experts import Experts
from ladder.nn.gated_mlp import GatedMLP
from ladder.nn.linear import Linear
from ladder.nn.stack import PackedStack
from ladder.nn.stack_image import prepared


class WarmedUp(dict[str, dict[int, str]]):
    """For each layer by name, for each number of tokens, the schedule of the kernel; "" where the
    weight is dequantised for a dense product.

    ``tuned`` has the same by type and shape, and says where each kernel is from.
    """

    def __init__(self, layers: dict[str, Request], tuned: Tuned) -> None:
        super().__init__((name, tuned[request]) for name, request in layers.items())
        self.tuned = tuned


def warmup(
    model: nn.Module,
    m: int | Sequence[int] = (1, 2, 4, 8, 16),
    *,
    dtype: torch.dtype | None = None,
    tune: str | bool = "fast",
    budget: float = 20.0,
    dependent_launch: bool | None = None,
    cache: str | Path | None = None,
    trust_kernels: bool = False,
    progress: Progress | None = None,
) -> WarmedUp:
    """Bring every :class:`ladder.Linear` of ``model`` on a CUDA device into the form that kernels
    read, and compile the kernels for ``m`` tokens. The same of
    :class:`ladder.GatedMLP`, whose gate and up become one weight; of
    :class:`ladder.BatchedLinear`; and of :class:`ladder.Experts`, whose kernels for ``m`` tokens
    are compiled and timed where the model's configuration has ``num_experts_per_tok``, else by the
    first calls, untimed. Convolutions only take that form here; :meth:`ladder.Conv2d.warmup`
    compiles and times their kernels, which know the size of images.

    Needed before a CUDA graph is captured and before ``torch.compile``; otherwise the first calls
    do it. On other devices it does nothing but what ``dependent_launch`` says.

    Args:
        model: a module, or a Linear itself.
        m: numbers of tokens, or one.
        dtype: of the activations; that of each layer, where that is float32 of its scales, where
            they are not 16 bits wide either float16.
        tune: "fast" times the three best schedules that the compiler proposes, for each type, shape
            and interval of m of which no store has a plan; "full" times eight, also where a plan is
            the fastest of fewer; "off" takes the first proposal. True is "fast", False "off".
        budget: seconds for compiling and timing. When they are spent, kernels not yet timed are
            first proposals, with a warning in the log; the next call goes on with those.
        dependent_launch: sets :attr:`ladder.Linear.dependent_launch` of every layer, whose promise
            is there; None leaves it as it is. Kernels are then measured one behind the other, as in
            a chain of layers, and kept apart from those without.
        cache: folder in which kernels and plans are kept, that of the checkpoint say; the user's
            cache (``LADDER_CACHE``) otherwise.
        trust_kernels: load compiled kernels from ``cache`` whoever wrote them (docs/cuda.md).
        progress: called with a text, how many kernels are chosen, and how many there are.
    Returns:
        For each layer by name, for each m, the schedule of the kernel; "" where the weight is
        dequantised for a dense product. Layers without kernels are left out.
    Raises:
        InvalidArgument: an argument is none of these, on a CPU too.
        Unsupported: the GPU of a layer has no kernels for its ``activation_type``, naming it.
    """
    check_model(model)
    m, mode = numbers_of_tokens(m), mode_of(tune)
    check_dtype(dtype)
    if cache is not None:
        check_cache(cache)
        kernels.use_store(cache, trust_kernels=trust_kernels)
    _warm_experts(model, m, dtype, mode, budget)
    _warm_batches(model, m, dtype, mode, budget)
    layers = _requests(model, m, dtype, dependent_launch, mode)
    distinct = list(dict.fromkeys(layers.values()))
    tuned = tune_all(distinct, mode=mode, budget_s=budget, progress=progress)
    for name in layers:
        module = cast(Linear, model.get_submodule(name))
        module.compile_static(layers[name].dtype, m)
    return WarmedUp(layers, tuned)


def mode_of(tune: str | bool) -> str:
    """ "off", "fast" or "full". Raises InvalidArgument naming them."""
    if isinstance(tune, bool):
        return "fast" if tune else "off"
    check_mode(tune)
    return tune


def _requests(
    model: nn.Module,
    m: tuple[int, ...],
    dtype: torch.dtype | None,
    dependent_launch: bool | None,
    mode: str,
) -> dict[str, Request]:
    """What each layer with kernels needs. They are compiled while layers are packed."""
    layers: dict[str, Request] = {}
    known: set[Request] = set()

    def begin(layer: Linear, number: int = 0) -> Request:
        request = layer.kernel_request(dtype or _dtype_of(layer), m, number)
        if request not in known:
            known.add(request)
            compile_in_background([request], mode=mode)
        return request

    for module in model.modules():
        if isinstance(module, GatedMLP):
            module.fuse()
    for name, module in model.named_modules():
        if not isinstance(module, Linear):
            continue
        if dependent_launch is not None:
            module.dependent_launch = dependent_launch
        try:
            has_image = module.prepare(partial(begin, module))
        except Unsupported as error:
            raise Unsupported(f"{name}: {error}" if name else str(error)) from None
        if not has_image:
            if why := module.activation_objection(module.activation_type):
                raise Unsupported(f"{name}: {why}" if name else why)
            continue
        layers[name] = begin(module)
    return layers


def _warm_experts(
    model: nn.Module, m: tuple[int, ...], dtype: torch.dtype | None, mode: str, budget: float
) -> None:
    """Bring mixtures of experts into the form of kernels, and compile and time those for ``m``
    tokens where the configuration of the model says how many experts a token has."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        config = config.get_text_config()
    of_token: int = getattr(config, "num_experts_per_tok", None) or 0
    deadline, known = time.monotonic() + budget, set()
    for name, module in model.named_modules():
        if not isinstance(module, Experts):
            continue
        rounded = module.activation_type or ""
        if module.device.type == "cuda" and (why := module.activation_objection(rounded or None)):
            raise Unsupported(f"{name}: {why}" if name else why)
        if not prepared(module.gate_up, module.down):
            continue
        stacks = (module.gate_up.stack(), module.down.stack())
        for tokens in m if of_token else ():
            of = dtype or _dtype_of(module.gate_up)
            problem = Problem(*stacks, tokens, of_token, of, rounded)
            if problem.key not in known:
                known.add(problem.key)
                tune_experts(problem, check_mode(mode), deadline)


def _warm_batches(
    model: nn.Module, m: tuple[int, ...], dtype: torch.dtype | None, mode: str, budget: float
) -> None:
    """Bring batches of weights, and convolutions, into the form of kernels, and compile and time
    those of batches for ``m`` tokens."""
    deadline, known = time.monotonic() + budget, set()
    for module in model.modules():
        if isinstance(module, Conv2d):
            module.prepare()  # its kernels depend on the size of images: Conv2d.warmup
        if not isinstance(module, BatchedLinear) or not prepared(module):
            continue
        of = dtype or _dtype_of(module)
        for tokens in m:
            shape = (module.batch, tokens, module.in_features)
            problem = ItemsProblem(module.stack(), tokens, "batch", shape, of)
            if problem.key not in known:
                known.add(problem.key)
                tune_items(problem, check_mode(mode), deadline)


def _dtype_of(module: Linear | PackedStack) -> torch.dtype:
    """Of the activations of a layer, if nobody says."""
    stored = module.weight_type.scale_dtype
    return next((d for d in (module.dtype, stored) if d in kernels.HALVES), torch.float16)
