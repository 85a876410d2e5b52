# SPDX-License-Identifier: Apache-2.0
"""quant_method "bitsandbytes": layers of 4 bits by a table (nf4, fp4), and of int8 (LLM.int8).

    4 bits
    weight                    uint8 [ceil(N K / 2), 1], or the same bytes as floats
                              (bnb_4bit_quant_storage): the codes of all rows, one row behind the
                              other, two in a byte, the first in its upper half
    weight.absmax             float32 [B], one scale for each ``blocksize`` codes; uint8 where
                              nested ("double quantisation")
    weight.quant_map          float32 [16], the values of the codes
    weight.nested_absmax      float32 [ceil(B / nested_blocksize)]
    weight.nested_quant_map   float32 [256]
    weight.quant_state.bitsandbytes__nf4 (or __fp4)
                              uint8, JSON: shape, blocksize, quant_type, nested_blocksize,
                              nested_offset, ...
    weight[n, k] = quant_map[code] * absmax[(n K + k) / blocksize]
    absmax[b] = nested_quant_map[code] * nested_absmax[b / nested_blocksize] + nested_offset

    8 bits
    weight                    int8 [N, K]
    SCB                       float32 [N], the largest magnitude of each row
    weight_format             uint8 [], 0: rows as they are
    weight[n, k] = weight[n, k] * SCB[n] / 127

All is float32, in the order written here. bitsandbytes then rounds values of 4 bits to ``dtype`` of
the state, which ladder does not. Of 8 bits it decodes (code * SCB) * float32(1 / 127), and ladder
code * float32(SCB / 127): three roundings and two of 2**-24 each.

A block of 4 bits that ends within a row is cut into parts of one size, each with its scale. What
LLM.int8 does with columns of x that are outliers changes no weight. x is taken as it comes.

Source: bitsandbytes 0.50, functional.py (QuantState, dequantize_4bit, int8_vectorwise_dequant) and
its kernels; transformers 5.23, quantizer_bnb_4bit.py and quantizer_bnb_8bit.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ladder.checkpoints.bitsandbytes_state import (
    ABSMAX,
    MAP,
    NESTED,
    STATES,
    absmax_of,
    columns_said,
)
from ladder.checkpoints.layer import (
    Layer,
    Side,
    Stored,
    check_scales,
    config_flag,
    config_word,
    expect,
    fail,
    require,
    side_of,
    words_of_bytes,
)
from ladder.errors import Unsupported

_OF_4_BITS = (ABSMAX, MAP, *NESTED, *STATES)
_OF_8_BITS = ("SCB", "weight_format")
PARTS = (*_OF_4_BITS, *_OF_8_BITS, "weight")
#: Parts that say [N, K], as :func:`columns_said` reads them.
SHAPE_PARTS = tuple(STATES)
#: Why engines cannot load such folders as they are: each tensor becomes a parameter by its name.
NOT_SERVED = "weight.absmax and its like cannot be names of parameters"

_STORAGE = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_BLOCKS = tuple(2**i for i in range(5, 13))  # 32 to 4096
#: Fewest columns of one scale.
_LEAST_GROUP = 8


@dataclass(frozen=True)
class Config:
    """A bitsandbytes quantization_config. What is quantised, and how, the tensors say."""

    bits: int | None = None  #: None: it does not say
    block: int = 0  #: codes of a layer of 4 bits that share a scale, as :func:`measure` finds it

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
        """
        four, eight = (
            config_flag(fields, f"load_in_{bits}bit", False)
            or config_flag(fields, f"_load_in_{bits}bit", False)
            for bits in (4, 8)
        )
        if four and eight:
            fail("quantization_config.load_in_4bit", " is True, and load_in_8bit too")
        kind = config_word(fields, ("bnb_4bit_quant_type",), "nf4")
        if kind not in STATES.values():
            fail("quantization_config.bnb_4bit_quant_type", " is ", repr(kind), ", not ",
                 " or ".join(STATES.values()))  # fmt: skip
        return cls(4 if four else 8 if eight else None)

    def for_module(self, name: str) -> Config | None:
        """The settings of one module: the same for all that have codes."""
        return self


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    return None if {*_OF_4_BITS, *_OF_8_BITS}.isdisjoint(parts) else "weight"


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Args:
        k: needed for 4 bits, whose codes lie in one row.
    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
        Unsupported: blocks of a size that leaves scales to single columns, or codes in an order of
            one kernel.
    """
    require(parts, name, ("weight",))
    is_of_8 = not set(parts).isdisjoint(_OF_8_BITS)
    found = 8 if is_of_8 else 4
    if is_of_8 and (other := next((p for p in _OF_4_BITS if p in parts), None)):
        fail(f"{name}.{other}", " is of 4 bits, and ", name, " has parts of 8 bits too")
    if config.bits not in (None, found):
        fail(f"{name}.weight", " is of ", found, " bits, and quantization_config says ",
             config.bits)  # fmt: skip
    return _of_8_bits(parts, config, name) if is_of_8 else _of_4_bits(parts, config, name, k)


def _of_8_bits(parts: Mapping[str, Stored], config: Config, name: str) -> Layer:
    require(parts, name, ("SCB",))
    shape = parts["weight"].shape
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.weight", " has shape ", list(shape), ", not two dimensions above zero")
    n, k = shape
    expect(parts, name, "weight", torch.int8, shape)
    expect(parts, name, "SCB", torch.float32, (n,))
    if "weight_format" in parts:
        expect(parts, name, "weight_format", torch.uint8, ())
    return Layer(name, n, k, 8, k, 1, "channel", config, "int8")


def _of_4_bits(parts: Mapping[str, Stored], config: Config, name: str, k: int | None) -> Layer:
    require(parts, name, (ABSMAX, MAP))
    states = [part for part in STATES if part in parts]
    if not states:
        fail(f"{name}.{next(iter(STATES))}", " is missing, and no other quant_state is there")
    if len(states) > 1:
        fail(f"{name}.{states[1]}", " is there, and ", name, ".", states[0], " too")
    dtype, shape = parts["weight"]
    if len(shape) != 2 or shape[1] != 1 or 0 in shape:
        fail(f"{name}.weight", " has shape ", list(shape), ", not one column of bytes")
    expect(parts, name, "weight", _STORAGE, shape)
    assert isinstance(dtype, torch.dtype)
    if k is None:
        fail(f"{name}.{states[0]}", " does not say the shape [N, K] of the weight")
    octets = shape[0] * dtype.itemsize
    n = 2 * octets // k
    if n == 0 or octets != -(-n * k // 2):
        fail(f"{name}.weight", " has ", 2 * octets, " codes, not some rows of ", k)
    is_nested = parts[ABSMAX].dtype == torch.uint8
    blocks = parts[ABSMAX].shape
    size = next((b for b in _BLOCKS if blocks == (-(-n * k // b),)), None)
    if size is None:
        fail(f"{name}.{ABSMAX}", " has shape ", list(blocks), ", which no size of blocks gives a "
             "weight of ", [n, k])  # fmt: skip
    expect(parts, name, ABSMAX, (torch.float32, torch.uint8), blocks)
    expect(parts, name, MAP, torch.float32, (16,))
    if is_nested:
        require(parts, name, NESTED)
        expect(parts, name, NESTED[1], torch.float32, (256,))
    elif extra := next((part for part in NESTED if part in parts), None):
        fail(f"{name}.{extra}", " is there, but ", ABSMAX, " is float32, of scales as they are")
    codes, config = STATES[states[0]], replace(config, block=size)
    if k % 2:
        raise Unsupported(f"{name}.weight has K = {k}: ladder reads rows of whole bytes")
    if blocks == (1,):
        return Layer(name, n, k, 4, k, 1, "tensor", config, codes)
    group = math.gcd(size, k)
    if group < _LEAST_GROUP:
        raise Unsupported(
            f"{name}.weight has K = {k} and blocks of {size} codes, which share only {group} "
            f"columns of a row: ladder has scales of {_LEAST_GROUP} or more"
        )
    return Layer(name, n, k, 4, group, k // group, f"group={group}", config, codes)


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer.
    ``weight.absmax`` is one that is not nested."""
    if part == "weight" and layer.bits == 8:
        return "qweight", words_of_bytes(tensor)
    if part == "weight":
        octets = tensor.contiguous().view(torch.uint8).reshape(-1, layer.k // 2)
        return "qweight", words_of_bytes(octets >> 4 | octets << 4)
    if part == "SCB":
        return "scales", (tensor / 127).reshape(-1, 1)
    if part == ABSMAX and layer.block == "tensor":
        return "scales", tensor.reshape(1, 1)
    if part == ABSMAX:
        scales = tensor.repeat_interleave(layer.config.block // layer.group)
        return "scales", scales[: layer.n * layer.groups].reshape(layer.n, layer.groups)
    return "", tensor


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return the scales of a layer, canonical.

    Raises:
        CheckpointError: a scale is NaN or infinite, or the state contradicts the other tensors.
        Unsupported: rows of 8 bits in the order of one kernel.
    """
    if layer.bits == 8:
        if "weight_format" in tensors and (order := int(tensors["weight_format"])) != 0:
            raise Unsupported(
                f"{layer.name}.weight_format is {order}, not 0: its codes are in the order of one "
                "kernel"
            )
        check_scales(tensors["SCB"], f"{layer.name}.SCB")
        return side_of(dict([canonical("SCB", tensors["SCB"], layer)]), layer)
    absmax = absmax_of(tensors, layer)
    check_scales(absmax, f"{layer.name}.{ABSMAX}")
    return side_of(dict([canonical(ABSMAX, absmax, layer)]), layer)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K * bits / 32)], canonical."""
    if layer.bits == 8:
        return canonical("weight", qweight[rows], layer)[1]
    octets = qweight.contiguous().view(torch.uint8).reshape(-1)
    first, last, _ = rows.indices(layer.n)
    return canonical("weight", octets[first * layer.k // 2 : last * layer.k // 2], layer)[1]


__all__ = [
    "NOT_SERVED", "PARTS", "SHAPE_PARTS", "Config", "canonical", "codes_part", "columns_said",
    "measure", "side", "words",
]  # fmt: skip
