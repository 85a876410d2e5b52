# SPDX-License-Identifier: Apache-2.0
"""MLPs of vLLM's models on ladder folders, and what plays their kernels on this processor.

Importing this module imports nothing of vLLM.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from layers import HIDDEN, INTERMEDIATE, Stored, activations, load, prefix, quantization, write
from torch import Tensor, nn

from ladder.nn.gated import GatedLinear
from ladder.ops.gating import Gating

MODULES = ("gate_proj", "up_proj", "down_proj")
ZEROS = "uint4,group=32,scale=float16,zero=integer"

#: Functions of vLLM's compiled code that its activations look up when they are made, and that no
#: layer here calls.
_OPS: list[torch.library.Library] = []


def name_activations() -> None:
    """Have ``torch.ops._C`` know vLLM's activations by name."""
    for name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
        if not hasattr(torch.ops._C, name):
            _OPS.append(torch.library.Library("_C", "FRAGMENT"))
            _OPS[-1].define(f"{name}(Tensor! out, Tensor x) -> ()")


@contextlib.contextmanager
def engine(**options: Any) -> Iterator[Any]:
    """Layers made inside are of an engine of their own, with these options of ladder's."""
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config()
    given = {"ladder": options} if options else {}
    for name in ("_ladder_warmer", "_ladder_gated_mlps"):
        vars(config).pop(name, None)
    with mock.patch.object(config, "additional_config", given):
        yield config
    for name in ("_ladder_warmer", "_ladder_gated_mlps"):
        vars(config).pop(name, None)


def stored_mlp(type: str = ZEROS, **more: Any) -> Stored:
    return Stored.drawn(dict.fromkeys(MODULES, type), **more)


def make_mlp(config: Any, kind: str = "llama.LlamaMLP", **more: Any) -> nn.Module:
    """An MLP of vLLM's model files, without its weights."""
    name_activations()
    module, _, name = kind.rpartition(".")
    found = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE}
    how = {"quant_config": config, "prefix": prefix("").rstrip(".")} | more
    return found(**sizes, **how)


def fill(mlp: nn.Module, stored: Stored, config: Any) -> None:
    for name in ("gate_up_proj", "down_proj"):
        load(getattr(mlp, name), name, stored.tensors(), config)


def finish(mlp: nn.Module) -> None:
    """As vLLM does when all is loaded."""
    for _, module in mlp.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)


def serve_mlp(folder: Path, stored: Stored, kind: str = "llama.LlamaMLP", **more: Any) -> nn.Module:
    """An MLP of a ladder folder, loaded and ready to run."""
    write(folder, stored.tensors(), stored.config())
    config = quantization(folder)
    dtype = more.pop("dtype", torch.float32)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        mlp = make_mlp(config, kind, **more)
    finally:
        torch.set_default_dtype(before)
    fill(mlp, stored, config)
    finish(mlp)
    return mlp


def sums(stored: Stored, x: Tensor) -> Tensor:
    """[tokens, 2I] float64 of gate and up, exact."""
    halves = []
    for name in ("gate_proj", "up_proj"):
        y = x.double() @ stored.dense(name).T
        halves.append(y + stored.biases[name].double() if name in stored.biases else y)
    return torch.cat(halves, -1)


def x_of(tokens: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    """[tokens, HIDDEN] small integers, by a power of two: sums are where functions bend."""
    return (activations("gate_up_proj", tokens) / 256).to(dtype)


def image_rows(n: int) -> Tensor:
    """The row of a weight that each row of its image is: of two halves eight in turn."""
    return torch.arange(n).view(2, -1, 8).transpose(0, 1).flatten()


@contextlib.contextmanager
def played_kernels() -> Iterator[list[tuple[Any, ...]]]:
    """Layers of gate and up have images, which are their values in turn, and an op that multiplies
    by those: float64 inside, rounded once. Gives the arguments of its calls."""
    from ladder.integrations.vllm.warm import Warmer

    calls: list[tuple[Any, ...]] = []

    def prepare(layer: GatedLinear) -> bool:
        values = layer.packed_weight.dequantize(torch.float32)
        rows = image_rows(layer.out_features)
        layer._set_image(values[rows].view(torch.int32).flatten(), 1)
        return True

    def multiply(
        x: Tensor, image: Tensor, bias: Tensor | None, type: str, n: int, dependent: bool = False,
        rounded: str = "", x_scale: Tensor | None = None, gate: str = "", limit: float = 0.0,
        alpha: float = 0.0,
    ) -> Tensor:  # fmt: skip
        calls.append((type, n, dependent, rounded, x_scale, gate, limit, alpha))
        assert image.dim() == (2 if gate else 1)
        values = image.view(torch.float32).view(2 * n, x.shape[-1]).double()
        y = x.double() @ values.T
        y = y if bias is None else y + bias.double()
        in_order = y[..., image_rows(2 * n).argsort()]
        return Gating(gate, limit, alpha)(in_order).to(x.dtype)

    library = torch.library.Library("ladder", "IMPL")
    library.impl("linear_prepacked", multiply, "CPU")
    with (
        mock.patch.object(GatedLinear, "prepare", prepare),
        mock.patch.object(Warmer, "__call__", lambda self, module: None),
    ):
        yield calls
    library._destroy()
