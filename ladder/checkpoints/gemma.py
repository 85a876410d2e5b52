# SPDX-License-Identifier: Apache-2.0
"""quant_method "gemma" (Google's Gemma, quantised before it was published): layers of 2, 4 and 8
bits with a scale for each row, and embeddings.

    num_bits   weight, embedding_quantized
    2          uint8 [N, ceil(K/4)]: code + 2 of four columns in a byte, the first lowest
    4          uint8 [N, ceil(K/2)]: code + 8 of two columns, likewise
    8          int8 [N, K]

    weight_scale              float32 [N, 1]
    embedding_scale           float32 [N, G]: a scale for each K / G columns of an embedding
    input_activation_scale    float32 []: x is rounded to int8 by it; 0 where there is none
    output_activation_scale   float32 []: y likewise
    weight[n, k] = code * scale

A layer whose ``input_activation_scale`` is 0 takes x as it comes, others have it as the static
scale of x. y stays as it is, which the log says. The last byte of a row may have codes past K; K is
then that of the model. Embeddings are decoded to float32, and exact in it: transformers rounds
their scales and values to the dtype of the model. Scales of a cache of keys and values
(``k_cache_scale``, ``v_cache_scale``) and multipliers of audio residuals (``rqv2_muls``) are left
out, as no model of transformers has a place for them.

``module_quant_configs`` says num_bits by regular expressions, of which transformers takes the one
that matches furthest left in the name, and of several there the first.

Source: transformers 5.24, integrations/gemma_quant.py and quantizers/quantizer_gemma.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.gemma_config import OF_X, OF_Y, ROOT, Config, Module, some
from ladder.checkpoints.layer import (
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_scales,
    expect,
    fail,
    group_block,
    require,
    side_of,
    words_of_bytes,
)
from ladder.checkpoints.model import meta_model, placer
from ladder.checkpoints.shards import ShardSet
from ladder.errors import CheckpointError, Unsupported

_LINEAR, _TABLE = ("weight", "weight_scale"), ("embedding_quantized", "embedding_scale")
INPUT_SCALES = (OF_X,)
PARTS = (_LINEAR[1], _LINEAR[0], *_TABLE, OF_X, OF_Y)
#: Tensors that no model has, by the last part of their names.
LEFT_OUT = ("k_cache_scale", "v_cache_scale", "rqv2_muls")
#: Why engines cannot load such folders as they are.
NOT_SERVED = "embeddings are packed, too, and a scale of x that is 0 means none"
_FEWEST = 8  #: columns that share a scale
_log = logging.getLogger("ladder")


def is_decoded(module: str, parts: Collection[str]) -> bool:
    """Whether a module is to be dense in a ladder folder, by its parts."""
    return not set(_TABLE).isdisjoint(parts)


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    if is_decoded("", parts):
        return _TABLE[0]
    return None if {_LINEAR[1], OF_X, OF_Y}.isdisjoint(parts) else _LINEAR[0]


def measure(parts: Mapping[str, Stored], config: Module, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Args:
        k: columns, where the caller knows them. Else they are those of the model, where that is
            known, or all that a row has room for.
    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
        Unsupported: an embedding with a scale for fewer than 8 columns.
    """
    table = is_decoded(name, parts)
    codes, scale = _TABLE if table else _LINEAR
    require(parts, name, (codes, scale))
    if table and not config.tables:
        fail(f"{name}.{codes}", " is there, but ", ROOT, ".quantize_embeddings is False")
    for part in (*_LINEAR, OF_X, OF_Y):
        if table and part in parts:
            fail(f"{name}.{part}", " is there, and ", name, ".", codes, " too")
    shape, bits = parts[codes].shape, config.bits
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.{codes}", " has shape ", list(shape), ", not two dimensions above zero")
    expect(parts, name, codes, torch.int8 if bits == 8 else torch.uint8, shape)
    n, k = shape[0], k or config.k or shape[1] * 8 // bits
    if shape[1] != -(-k * bits // 8):
        fail(f"{name}.{codes}", " has rows of ", shape[1], f" bytes, and {k} codes of {bits} bits "
             f"are {-(-k * bits // 8)}")  # fmt: skip
    for part in (OF_X, OF_Y):
        if part in parts:
            expect(parts, name, part, SCALE_NAMES, () if parts[part].shape == () else (1,))
    groups = 1
    if table and len(parts[scale].shape) == 2 and parts[scale].shape[1]:
        groups = parts[scale].shape[1]
    expect(parts, name, scale, SCALE_NAMES, (n, groups))
    if k % groups:
        fail(f"{name}.{scale}", " has shape ", list(parts[scale].shape), f", and {k} columns are "
             f"no multiple of {groups}")  # fmt: skip
    if k // groups < _FEWEST < k:
        raise Unsupported(
            f"{name}.{scale} has shape {list(parts[scale].shape)}, a scale for {k // groups} "
            f"columns, and ladder's are for {_FEWEST} or more"
        )
    block = group_block(-1 if groups == 1 else k // groups, k)
    return Layer(name, n, k, bits, k // groups, groups, block, config, f"int{bits}")


def decoded_dtype(layer: Layer) -> torch.dtype:
    """The dtype of an embedding that is decoded, which holds its values."""
    return torch.float32


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer."""
    if part in (_LINEAR[0], _TABLE[0]):
        return "qweight", words_of_bytes(_codes(tensor, layer))
    if part in (_LINEAR[1], _TABLE[1]):
        return "scales", tensor.contiguous()
    if part == OF_X and layer.is_static:
        return "input_scale", tensor.reshape(-1).to(torch.float32)
    return "", tensor


def _codes(tensor: Tensor, layer: Layer) -> Tensor:
    """The bytes of codes in two's complement, of those past K zeros."""
    octets, bits = tensor.contiguous().view(torch.uint8), layer.bits
    if bits == 8:
        return octets
    octets = octets ^ (0xFF // ((1 << bits) - 1) * layer.midpoint)
    if spare := octets.shape[1] * 8 - layer.k * bits:
        octets[:, -1] &= 0xFF >> spare
    return octets


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return the scales of a layer, canonical.

    Raises CheckpointError for a scale that is NaN or infinite.
    """
    small = [part for part in (_LINEAR[1], _TABLE[1], OF_X) if part in tensors]
    check_scales(tensors[small[0]], f"{layer.name}.{small[0]}")
    return side_of(dict(canonical(part, tensors[part], layer) for part in small), layer)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K*b/32)], canonical."""
    return words_of_bytes(_codes(qweight[rows], layer))


def is_left(name: str) -> bool:
    """Whether a tensor is one of LEFT_OUT."""
    return name.rpartition(".")[2] in LEFT_OUT


def check_headers(headers: Iterable[str]) -> None:
    """Log which tensors are left out."""
    if left := sorted(filter(is_left, headers)):
        _log.info("%s: left out, as no model of transformers has such tensors", some(left))


def opened(shards: ShardSet) -> ShardSet:
    """The same files without the tensors that are left out."""
    check_headers(shards.home)
    home = {name: index for name, index in shards.home.items() if not is_left(name)}
    return replace(shards, home=home)


def sized(source: Any) -> Any:
    """The same :class:`ladder.checkpoints.source.Source` with K of its modules as the model of
    transformers has them; where transformers is not installed, or knows no such model, ``source``.
    """
    try:
        model = meta_model(source.folder)
    except (CheckpointError, Unsupported):
        return source
    place, state, columns = placer(model), model.state_dict(), {}
    for name in (*source.modules, *source.embeddings):
        target, pattern = place(f"{name}.weight")
        if pattern is None and target in state and state[target].dim() == 2:
            columns[name] = state[target].shape[1]
    return replace(source, settings=replace(source.settings, columns=columns))


__all__ = [
    "INPUT_SCALES", "LEFT_OUT", "NOT_SERVED", "PARTS", "Config", "canonical", "check_headers",
    "codes_part", "decoded_dtype", "is_decoded", "measure", "opened", "side", "sized", "words",
]  # fmt: skip
