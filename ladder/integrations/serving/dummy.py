# SPDX-License-Identifier: Apache-2.0
"""Random tensors of weights, for engines that time models without files."""

from __future__ import annotations

import torch
from torch import Tensor

from ladder import ops
from ladder.nn.packed import OF_X
from ladder.types import Element, TType, element

#: Up to this magnitude values are drawn, about: sums of some thousand fit float16.
_LARGEST = 0.08


def fill(values: Tensor, kind: str, ttype: TType | None) -> None:
    """Random numbers in ``values`` that the tensor ``kind`` of a weight could have.

    Args:
        kind: of :data:`ladder.weight.PARTS`, of what x is scaled by, or "weight".
        ttype: of the weight; None of one that is not packed.
    """
    if kind == "g_idx":
        columns = torch.arange(values.numel(), device=values.device)
        values.copy_(columns // ((ttype and ttype.columns) or values.numel()))
    elif kind in OF_X:
        values.fill_(1)
    elif kind == "scale2":
        # As of files that are made for engines, the second scale is the same in all parts.
        values.fill_(_second_scale(ttype))
    elif kind == "scales" and values.is_floating_point() and ttype is not None:
        most = _LARGEST / _largest(ttype.element)
        values.uniform_(-most, most)
    elif values.is_floating_point():
        values.uniform_(-0.01, 0.01)
    elif kind == "zeros" and ttype is not None and ttype.zero == "integer":
        values.random_(0, 1 << ttype.bits)
    elif ttype is not None and _are_integers(kind, ttype):
        values.random_(1, 1 << element(str(ttype.scale)).bits)
    elif kind == "scales":  # codes of 2**-8, or so
        values.fill_(119 if ttype is not None and ttype.scale == "e8m0" else 8)
    else:
        values.random_(-(2**31), 2**31 - 1)
        if ttype is not None and kind == "qweight" and not ttype.element.values.isfinite().all():
            values.copy_(_finite_codes(values, ttype))


def _largest(format: Element) -> float:
    return float(format.values[format.values.isfinite()].abs().max())


def _has_integers(ttype: TType) -> bool:
    return ttype.has_integer_scales or ttype.superblock > 0


def _are_integers(kind: str, ttype: TType) -> bool:
    """Whether a part of a weight is scales, or zeros "rescale", that are integers."""
    return _has_integers(ttype) and (
        kind == "scales" or (kind == "zeros" and ttype.zero == "rescale")
    )


def _second_scale(ttype: TType | None) -> float:
    if ttype is None or not _has_integers(ttype):
        return 1.0
    return _LARGEST / (_largest(ttype.element) * _largest(element(str(ttype.scale))))


def _finite_codes(words: Tensor, ttype: TType) -> Tensor:
    """Random codes in as many words, without those of NaN and infinity."""
    n, k = words.shape[0], words.shape[1] * 32 // ttype.bits
    codes = torch.empty(n, k, dtype=torch.uint8, device=words.device)
    codes.random_(0, 1 << ttype.bits)
    for code in (~ttype.element.values.isfinite()).nonzero().flatten().tolist():
        codes.masked_fill_(codes == code, 0)
    return ops.pack(codes, ttype.bits)
