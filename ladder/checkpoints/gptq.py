# SPDX-License-Identifier: Apache-2.0
"""GPTQ layers: formats ``gptq`` (v1), ``gptq_v2`` and the planar ``gptq_p``.

    qweight  int32 [K*b/32, N]        codes of one column of N, a little-endian bit stream along K
    qzeros   int32 [G, ceil(N*b/32)]  zero points, a little-endian bit stream along N
    scales   float [G, N]
    g_idx    int32 [K]                group of each column, optional
    weight[n, k] = scales[g, n] * (code[k, n] - zero[g, n]),  g = g_idx[k]

v1 stores zero - 1 and v2 stores zero. The canonical code stream of a row is therefore the very same
words, transposed, except in gptq_p, where 32 codes are cut into bit planes.

Sources: GPTQModel 7.3 and AutoGPTQ 0.7, the packers of their quantised linear modules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.layer import (
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_group_size,
    check_scales,
    column_groups,
    config_flag,
    config_int,
    config_word,
    expect,
    fail,
    group_block,
    require,
    side_of,
)  # fmt: skip
from ladder.errors import CheckpointError, InvalidArgument, Unsupported

PARTS = ("qweight", "qzeros", "scales", "g_idx")
#: Parts of which any makes a module a quantised one; without a qweight it is damaged.
_MARKS = {"qweight", "qzeros", "g_idx"}

_BITS = {"gptq": (2, 3, 4, 8), "gptq_v2": (2, 3, 4, 8), "gptq_p": (2, 3, 4, 5, 6, 7, 8)}
#: Widths of the bit planes of gptq_p, low bits first; other widths are one plane.
_PLANES = {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}
_REFUSED = ("marlin", "bitblas", "exl3", "qqq")


@dataclass(frozen=True)
class Config:
    """A GPTQ quantization_config, of the model or, after ``for_module``, of one module.

    ``v1_zeros`` says how zero - 1 is undone in v1. Writers differ where a zero is 0: "word" is the
    inverse of GPTQModel, which subtracts from whole 32-bit words; "field" adds one to each field
    alone, modulo 2**bits, as AutoGPTQ's kernels do; "uncut" is "field" without the modulo, as
    AutoRound does. They agree when no zero is 0.
    """

    bits: int
    group_size: int = -1
    format: str = "gptq"
    dynamic: Mapping[str, Any] = field(default_factory=dict)
    v1_zeros: str = "word"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], *, v1_zeros: str = "word") -> Config:
        """Read ``quantization_config`` of config.json, or quantize_config.json.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
            InvalidArgument: ``v1_zeros`` is neither "word" nor "field".
            Unsupported: the tensors were already transformed for one kernel (marlin, bitblas).
        """
        if v1_zeros not in ("word", "field"):
            raise InvalidArgument(f"v1_zeros is {v1_zeros!r}, not 'word' or 'field'")
        form = config_word(fields, ("format", "checkpoint_format"), "gptq")
        if form in _REFUSED or fields.get("is_marlin_format") is True:
            raise Unsupported(
                f"checkpoint_format is {form!r}: its tensors are in the order of one kernel; "
                "repack the original GPTQ checkpoint instead"
            )
        if form not in _BITS:
            fail("quantization_config.format", " is ", repr(form), ", not ", " or ".join(_BITS))
        if (pack_dtype := config_word(fields, ("pack_dtype",), "int32")) != "int32":
            raise Unsupported(
                f"quantization_config.pack_dtype is {pack_dtype!r}, ladder reads int32"
            )
        config_flag(fields, "desc_act", False)  # what the tensors say in g_idx decides
        dynamic = fields.get("dynamic") or {}
        if not isinstance(dynamic, Mapping):
            fail("quantization_config.dynamic", " is ", repr(dynamic), ", not an object")
        config = cls(
            bits=config_int(fields, ("bits", "w_bit")),
            group_size=check_group_size(config_int(fields, ("group_size", "q_group_size"), -1)),
            format=form,
            dynamic=dict(dynamic),
            v1_zeros=v1_zeros,
        )
        config._check_bits()
        for pattern in config.dynamic:
            config._overrides(pattern)
        return config

    def _check_bits(self) -> None:
        allowed = _BITS[self.format]
        if self.bits not in allowed:
            fail("quantization_config.bits", " is ", self.bits, f", {self.format} has ",
                 ", ".join(map(str, allowed)))  # fmt: skip

    def for_module(self, name: str) -> Config | None:
        """Return the settings of one module, or None when ``dynamic`` leaves it unquantised.

        The first matching pattern decides. A pattern matches from the start of the name; "-:"
        excludes the module and "+:", or no prefix, overrides its settings.
        """
        for pattern in self.dynamic:
            expression, overrides = self._overrides(pattern)
            if expression.match(name):
                if overrides is None:
                    return None
                changed = replace(
                    self,
                    bits=config_int(overrides, ("bits",), self.bits),
                    group_size=check_group_size(
                        config_int(overrides, ("group_size",), self.group_size)
                    ),
                )
                changed._check_bits()
                return changed
        return self

    def _overrides(self, pattern: str) -> tuple[re.Pattern[str], Mapping[str, Any] | None]:
        where, overrides = f"quantization_config.dynamic[{pattern!r}]", self.dynamic[pattern]
        try:
            expression = re.compile(re.sub(r"^[+-]:", "", pattern))
        except (re.error, RecursionError, OverflowError) as error:
            raise CheckpointError(f"{where} is not a regular expression: {error}") from error
        if pattern.startswith("-:"):
            return expression, None
        if not isinstance(overrides, Mapping):
            fail(where, " is ", repr(overrides), ", not an object of overrides")
        return expression, overrides


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    return None if _MARKS.isdisjoint(parts) else "qweight"


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Args:
        k: columns, where the caller knows them; without a g_idx the words of a row can hold more.
    Raises:
        CheckpointError: a part is missing, has another dtype or shape than the rest asks for, or
            the groups do not cover K. The message names the tensor and both values.
    """
    require(parts, name, ("qweight", "scales", "qzeros"))
    bits, qweight, scales = config.bits, parts["qweight"].shape, parts["scales"].shape
    if len(qweight) != 2 or len(scales) != 2:
        bad = "qweight" if len(qweight) != 2 else "scales"
        fail(f"{name}.{bad}", " has shape ", list(parts[bad].shape), ", not two dimensions")
    n = qweight[1]
    if k is None or (k * bits + 31) // 32 != qweight[0]:
        k = qweight[0] * 32 // bits
    if "g_idx" in parts:
        shape = parts["g_idx"].shape
        if len(shape) != 1 or (shape[0] * bits + 31) // 32 != qweight[0]:
            fail(f"{name}.g_idx", " has shape ", list(shape), ", but the ", qweight[0],
                 f" rows of qweight hold {k} codes of {bits} bits")  # fmt: skip
        k = shape[0]
        expect(parts, name, "g_idx", torch.int32, (k,))
    if n == 0 or k == 0:
        fail(f"{name}.qweight", " has shape ", list(qweight), ", a weight has no empty side")
    if config.format == "gptq_p" and bits in _PLANES and (n % 32 or k % 32):
        fail(f"{name}.qweight", f" is {n} x {k}, but gptq_p cuts blocks of 32 codes both ways")
    group = k if config.group_size == -1 else min(config.group_size, k)
    groups = -(-k // group)
    expect(parts, name, "qweight", torch.int32, ((k * bits + 31) // 32, n))
    if scales[0] != groups:
        fail(f"{name}.scales", " has ", scales[0], " groups, but K = ", k, " in groups of ", group,
             " needs ", groups)  # fmt: skip
    expect(parts, name, "scales", SCALE_NAMES, (groups, n))
    expect(parts, name, "qzeros", torch.int32, (groups, (n * bits + 31) // 32))
    block = group_block(config.group_size, k)
    return Layer(name, n, k, bits, group, groups, block, config)


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name; see ladder.checkpoints.layer.

    A g_idx that is all zero, as in a buffer that was never filled, becomes column // group.
    """
    if part == "qweight":
        return "qweight", _codes(tensor, layer)
    if part == "scales":
        return "scales", tensor.t().contiguous()
    if part == "qzeros":
        return "zeros", _zeros(tensor, layer)
    return "g_idx", torch.where(tensor.any(), tensor, column_groups(layer, tensor))


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return scales, zeros and g_idx of a layer, canonical.

    Zeros that all equal 2**(bits - 1) become ``midpoint``, for which nothing is stored. A g_idx
    that is column // group, or all zero as in a buffer that was never filled, is dropped.

    Raises:
        CheckpointError: a scale is NaN or infinite, or g_idx names a group that does not exist.
    """
    check_scales(tensors["scales"], f"{layer.name}.scales")
    return side_of(dict(canonical(part, t, layer) for part, t in tensors.items()), layer)


def _zeros(qzeros: Tensor, layer: Layer) -> Tensor:
    """[N, G] uint8. See Config for the two rules of v1."""
    bits, config = layer.bits, layer.config
    minus_one = config.format == "gptq"
    whole_word = minus_one and config.v1_zeros == "word" and 32 % bits == 0
    if whole_word:
        ones = sum(1 << at for at in range(0, 32, bits))
        qzeros = ((qzeros.long() + ones + (1 << 31)) % (1 << 32) - (1 << 31)).int()
    zeros = _fields(qzeros.contiguous(), layer.n, layer)
    if minus_one and not whole_word:
        if config.v1_zeros != "uncut":
            zeros = (zeros + 1) & ((1 << bits) - 1)
        elif bits == 8 and not zeros.is_meta and bool((zeros == 255).any()):
            fail(f"{layer.name}.qzeros", " has a zero of 256, and zeros are at most 255")
        else:
            zeros = zeros + 1
    return zeros.t().contiguous()


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K*b/32)], canonical."""
    return canonical("qweight", qweight[:, rows], layer)[1]


def _codes(qweight: Tensor, layer: Layer) -> Tensor:
    stream = qweight.t().clone(memory_format=torch.contiguous_format)
    if layer.config.format == "gptq_p" and layer.bits in _PLANES:
        return ops.pack(_fields(stream, layer.k, layer), layer.bits)
    if spare := layer.words * 32 - layer.k * layer.bits:
        stream[:, -1] &= (1 << (32 - spare)) - 1  # bits past K are not promised to be zero
    return stream


def _fields(stream: Tensor, count: int, layer: Layer) -> Tensor:
    """[R, W] int32 -> the first ``count`` fields of each row, uint8 [R, count]."""
    if layer.config.format != "gptq_p" or layer.bits not in _PLANES:
        return ops.unpack(stream, count, layer.bits)
    return _planes(stream, layer.bits)[:, :count].contiguous()


def _planes(stream: Tensor, bits: int) -> Tensor:
    """Blocks of ``bits`` words hold 32 codes; a plane of width w is w words of 32 / w fields."""
    rows, width = stream.shape
    spare = -width % bits
    blocks = torch.nn.functional.pad(stream, (0, spare)).reshape(-1, bits).contiguous()
    codes = blocks.new_zeros(blocks.shape[0], 32, dtype=torch.uint8)
    at = 0
    for plane in _PLANES[bits]:
        codes |= ops.unpack(blocks[:, at : at + plane].contiguous(), 32, plane) << at
        at += plane
    return codes.reshape(rows, -1)


def shapes(n: int, k: int, config: Config) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer; None is the dtype of the model."""
    groups = 1 if config.group_size == -1 else -(-k // min(config.group_size, k))
    return {
        "qweight": (((k * config.bits + 31) // 32, n), torch.int32),
        "qzeros": ((groups, (n * config.bits + 31) // 32), torch.int32),
        "scales": ((groups, n), None),
        "g_idx": ((k,), torch.int32),
    }
