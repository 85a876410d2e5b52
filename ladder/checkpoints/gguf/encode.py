# SPDX-License-Identifier: Apache-2.0
"""Weights as blocks of GGUF files: which format holds a type, and what its blocks are to hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.gguf import writers
from ladder.checkpoints.gguf.block import TABLES
from ladder.checkpoints.gguf.blocks import BLOCKS
from ladder.errors import Unsupported
from ladder.types import TType, element
from ladder.weight import Weight


@dataclass(frozen=True)
class Form:
    """One format that weights are written in.

    Attributes:
        number: of the format (BLOCKS).
        write: what blocks hold -> blocks as bytes.
        middle: the code of 0, where the format has no minima of its own, or these are made of it.
        group: elements with one scale.
        minima: whether blocks have a number beside the scale: "free" (added to all elements), or
            "middle" (``middle`` times the scale).
        scales: of blocks of 256, the largest number that stands for a group's scale; else 0.
    """

    number: int
    write: Callable[[writers.Content], Tensor]
    middle: int = 0
    group: int = 32
    minima: str = ""
    scales: int = 0

    @property
    def name(self) -> str:
        return BLOCKS[self.number].name

    @property
    def elements(self) -> int:
        return BLOCKS[self.number].elements

    def shape(self, n: int, k: int) -> tuple[int, int]:
        """Of a matrix [n, k], as bytes."""
        return n, k // self.elements * BLOCKS[self.number].nbytes


#: Of integers around their middle, by bits of theirs.
_SYMMETRIC = {
    4: Form(2, writers.scale_and_nibbles, 8),
    5: Form(6, writers.q5_0, 16),
    8: Form(8, writers.q8_0),
}
#: Of unsigned integers with zero points.
_WITH_MINIMA = {
    4: Form(3, writers.two_and_nibbles, minima="free"), 5: Form(7, writers.q5_1, minima="free"),
}  # fmt: skip
#: Of integers around their middle whose scales are integers times one scale.
_TWO_LEVELS = {
    2: Form(10, writers.q2_k, 2, 16, "middle", 15),
    3: Form(11, writers.q3_k, 4, 16, "", 31),
    4: Form(12, writers.q4_k, 8, 32, "middle", 63),
    5: Form(13, writers.q5_k, 16, 32, "middle", 63),
    6: Form(14, writers.q6_k, 32, 16, "", 127),
}
#: Of types that are these very formats: nothing is rounded.
_SAME = {form.name: form for form in _TWO_LEVELS.values()}
_TERNARY = Form(35, writers.tq2_0, 1, 256)
_IQ4_NL = Form(20, writers.scale_and_nibbles)
_MXFP4, _NVFP4 = Form(39, writers.scale_and_nibbles), Form(40, writers.nvfp4, group=16)
FORMS = (
    *_SYMMETRIC.values(), *_WITH_MINIMA.values(), *_TWO_LEVELS.values(), _TERNARY, _IQ4_NL, _MXFP4,
    _NVFP4,
)  # fmt: skip

_KNOWN = (
    "it has q2_k to q6_k, integers around their middle of up to 8 bits, and with zero points of up "
    "to 5, whose scales are floats for 32 columns or more, or integers of 4 to 7 bits beside a "
    "second scale; ternary, mxfp4, iq4_nl, and NVFP4 without a second scale"
)


def form_of(ttype: TType, k: int) -> Form:
    """The smallest format that holds the weights of a type in rows of ``k``.

    Raises:
        Unsupported: there is none, and why.
    """
    why = []
    if (same := _SAME.get(str(ttype))) is not None:
        if objection := ttype.superblock_objection(k):
            raise Unsupported(objection)
        return same
    if ttype.scale2 is None or ttype.has_integer_scales:
        for form in _candidates(ttype):
            shared = ttype.columns if 0 < ttype.columns < k else 0
            if k % form.elements:
                why.append(f"{form.name} has blocks of {form.elements}, which do not divide K, {k}")
            elif shared % form.group:
                why.append(f"{form.name} has a scale for {form.group} columns, not for {shared}")
            else:
                return form
    raise Unsupported("; ".join(why) or _KNOWN)


def _candidates(ttype: TType) -> Iterable[Form]:
    kind, bits = ttype.element.encoding, ttype.bits
    around_zero = kind == "signed_integer" or ttype.zero == "midpoint"
    if str(ttype) == "mxfp4":
        return (_MXFP4,)
    if str(ttype) == BLOCKS[_NVFP4.number].text:
        return (_NVFP4,)
    if ttype.has_integer_scales:
        most = (1 << element(ttype.scale or "").bits) - 1
        found = (form for own, form in _TWO_LEVELS.items() if bits <= own and most <= form.scales)
        return tuple(found) if around_zero and ttype.scale2 is not None else ()
    if ttype.scale not in ("float16", "bfloat16", "float32"):
        return ()
    if ttype.element.name == "ternary":
        return (_TERNARY, _SYMMETRIC[4])
    if kind in ("signed_integer", "unsigned_integer"):
        forms = _SYMMETRIC if around_zero else _WITH_MINIMA
        return tuple(form for own, form in forms.items() if bits <= own)
    same = ttype.element.values.tolist() == list(TABLES["iq4_nl"]) and ttype.zero == "none"
    return (_IQ4_NL,) if same else ()


def blocks_of(weight: Weight, form: Form) -> Tensor:
    """The blocks of a weight whose rows have scales of their own, uint8 :meth:`Form.shape`. Scales
    and minima are rounded to float16, where the format has such; they may become infinite."""
    ttype, (n, k) = weight.type, weight.shape
    assert weight.scales is not None
    if ttype.superblock:
        return _superblocks(weight, form)
    of_group = _groups(ttype, k, form.group, weight.scales.device)
    codes = _codes(weight, form).reshape(-1, form.elements)
    blocks = len(codes)
    if form in (_MXFP4, _NVFP4):
        scale = weight.scales[:, of_group].reshape(blocks, -1)
        return form.write(writers.Content(codes, scale)).reshape(form.shape(n, k))
    small = None
    if form.scales:
        small = weight.scales[:, of_group].reshape(blocks, -1)
        assert weight.scale2 is not None
        per_row = weight.scale2.expand(n)[:, None].half()
        scale = per_row.expand(n, blocks // n).reshape(blocks, 1)
    else:
        scale = weight.scales.float()[:, of_group].half().reshape(blocks, -1)[:, :1]
    other = scale * form.middle if form.minima == "middle" else None
    if form.minima == "free":
        other = _minima(weight)[:, of_group].half().reshape(blocks, 1)
    minima = small if form.minima == "middle" else None  # the group's scale stands for both
    content = writers.Content(codes, scale, other, small, minima)
    return form.write(content).reshape(form.shape(n, k))


def _superblocks(weight: Weight, form: Form) -> Tensor:
    """As :func:`blocks_of`, of a type that is the format: not a bit is lost."""
    ttype, codes = weight.type, weight.codes().reshape(-1, form.elements)
    assert weight.scales is not None and weight.scale2 is not None and ttype.scale is not None
    blocks = len(codes)
    integers = element(ttype.scale).values.to(weight.scales.device)[weight.scales.long()]
    scales = (integers.to(torch.int16) & 255).to(torch.uint8)  # two's complement of eight bits
    halves = weight.scale2.reshape(blocks, -1)
    content = writers.Content(
        codes,
        halves[:, :1],
        other=halves[:, 1:] if weight.zeros is not None else None,
        scales=scales.reshape(blocks, -1),
        minima=None if weight.zeros is None else weight.zeros.reshape(blocks, -1),
    )
    return form.write(content).reshape(form.shape(*weight.shape))


def _groups(ttype: TType, k: int, group: int, device: torch.device) -> Tensor:
    """[k / group]: the scale of the type that each group of the format has."""
    first = torch.arange(0, k, group, device=device)
    return first // (ttype.columns or k)


def _codes(weight: Weight, form: Form) -> Tensor:
    """[N, K] uint8: the codes as the format has them."""
    codes, ttype = weight.codes(), weight.type
    middle = 1 << ttype.bits - 1
    if ttype.element.name == "ternary":
        return codes + form.middle - 1
    if ttype.element.encoding == "signed_integer":
        codes = codes ^ middle  # of two's complement, counted from the least
    elif ttype.zero != "midpoint":
        return codes
    return codes + (form.middle - middle) % 256


def _minima(weight: Weight) -> Tensor:
    """[N, G] float32: what is added to the product of codes and scales."""
    assert weight.scales is not None
    scales, zeros, kind = weight.scales.float(), weight.zeros, weight.type.zero
    if zeros is None:
        return torch.zeros_like(scales)
    if kind == "quantized":
        zeros = ops.unpack(zeros, scales.shape[1], weight.type.bits)
    return -zeros.float() if kind == "rescale" else -scales * zeros.float()
