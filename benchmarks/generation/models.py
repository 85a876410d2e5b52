# SPDX-License-Identifier: Apache-2.0
"""Models with random weights in the formats that are compared, built where they run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

import ladder

#: Shapes of LLaMA; "8b" has the vocabulary of Mistral, so that the head does not hide the layers;
#: "1b" is LLaMA 3.2's, whose head is tied to the embedding and a fifth of all weights.
PRESETS = {
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32768,
    },
    "tiny": {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    },
}  # fmt: skip


class Absent(Exception):
    """A format cannot be had here; says why."""


def llama(preset: str, layers: int | None, device: str, dtype: torch.dtype) -> nn.Module:
    """A model in evaluation mode, the same weights each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = PRESETS[preset] | ({} if layers is None else {"num_hidden_layers": layers})
    config = LlamaConfig(**shape, max_position_embeddings=4096, eos_token_id=None, pad_token_id=0)
    default = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(default)


@dataclass(frozen=True)
class Format:
    name: str
    dtype: torch.dtype  #: of activations, and of what is not packed
    #: Changes the model in place.
    pack: Callable[[nn.Module], object]
    packed_by_ladder: bool = False


def _ladder(type: str, head: str = "") -> Callable[[nn.Module], object]:
    def pack(model: nn.Module) -> object:
        of_head = {"head": True, "types": {"lm_head": head}} if head else {}
        return ladder.convert(model, type, method="nearest", **of_head)

    return pack


def _nf4(model: nn.Module) -> None:
    functional = _module("bitsandbytes.nn", "bitsandbytes")
    for name, layer in _linears(model):
        packed = functional.Linear4bit(
            layer.in_features,
            layer.out_features,
            layer.bias is not None,
            compute_dtype=layer.weight.dtype,
            quant_type="nf4",
            device="meta",
        )
        weight = functional.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
        packed.weight = weight.to(layer.weight.device)
        model.set_submodule(name, packed)


def _torchao(model: nn.Module) -> None:
    quantization = _module("torchao.quantization", "torchao")
    # The format whose kernel torch itself has (tinygemm).
    config = quantization.Int4WeightOnlyConfig(
        group_size=128, int4_packing_format="tile_packed_to_4d"
    )
    names = {name for name, _ in _linears(model)}
    quantization.quantize_(model, config, lambda module, name: name in names)


def _gptqmodel(model: nn.Module) -> None:
    _module("gptqmodel", "GPTQModel")
    raise Absent("GPTQModel makes its kernels' weights only from a checkpoint")


def _module(name: str, package: str):
    try:
        return importlib.import_module(name)
    except Exception as error:  # compiled against another torch, say
        raise Absent(f"{package}: {type(error).__name__}: {error}") from None


def _linears(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All but the head, as ladder.convert packs."""
    named = model.named_modules()
    return [(n, m) for n, m in named if type(m) is nn.Linear and n != "lm_head"]


def _same(model: nn.Module) -> None:
    pass


_GROUPS = "group=128,scale=float16"
FORMATS = {
    each.name: each
    for each in (
        Format("fp16", torch.float16, _same),
        Format("bitsandbytes NF4", torch.float16, _nf4),
        Format("torchao int4", torch.bfloat16, _torchao),
        Format("GPTQModel", torch.float16, _gptqmodel),
        Format("ladder uint4", torch.float16, _ladder("uint4,zero=midpoint," + _GROUPS), True),
        Format(
            "ladder uint4, head uint6",
            torch.float16,
            _ladder("uint4,zero=midpoint," + _GROUPS, "uint6,zero=midpoint," + _GROUPS),
            True,
        ),
        Format("ladder uint3", torch.float16, _ladder("uint3,zero=midpoint," + _GROUPS), True),
        Format("ladder float6_e3m2", torch.float16, _ladder("float6_e3m2," + _GROUPS), True),
        Format("ladder mxfp4", torch.float16, _ladder("mxfp4"), True),
    )
}  # fmt: skip


def built(
    format: Format,
    preset: str,
    layers: int | None,
    device: str,
    tokens: Sequence[int],
    *,
    optimize: bool,
    tune: bool,
) -> nn.Module:
    """A model in ``format``, warmed up for ``tokens`` where ladder packed it.

    Args:
        optimize: :func:`ladder.optimize` rather than :func:`ladder.warmup`.
    Raises:
        Absent: what the format needs is not installed, or refuses.
    """
    dtype = torch.float32 if device == "cpu" else format.dtype
    model = llama(preset, layers, device, dtype)
    try:
        format.pack(model)
    except (ImportError, NotImplementedError, AssertionError, RuntimeError) as error:
        if format.packed_by_ladder:
            raise
        raise Absent(f"{type(error).__name__}: {error}") from None
    if optimize:
        print(ladder.optimize(model, tokens, tune=tune), file=sys.stderr)
    elif format.packed_by_ladder:
        ladder.warmup(model, tokens, tune=tune)
    return model
