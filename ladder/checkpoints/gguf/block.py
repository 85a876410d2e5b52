# SPDX-License-Identifier: Apache-2.0
"""What a block format of GGUF files is, and the bits that most of them have in common.

Elements of a block: "run j" means elements that follow each other and share a bit field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ladder.types import TType, parse, register_type

_MAGNITUDES_2 = (8, 25, 43, 61)
_MAGNITUDES_3 = (4, 12, 20, 28, 36, 44, 52, 62)
#: llama.cpp's tables of values, by code: user's types of ladder. Of the narrow ones no file has the
#: values +-61 (iq2), 15 and 17 (iq1_m), which make codes of whole bits.
TABLES: dict[str, tuple[int, ...]] = {
    "iq1_m": (-9, -7, -1, 1, 7, 9, 15, 17),
    "iq2": (*_MAGNITUDES_2, *(-value for value in _MAGNITUDES_2)),
    "iq3_s": (*range(1, 16, 2), *range(-1, -16, -2)),
    "iq3_xxs": (*_MAGNITUDES_3, *(-value for value in _MAGNITUDES_3)),
    "iq4_nl": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
}
_WORDS = (torch.int64, torch.int32, torch.uint8)


class Parts(NamedTuple):
    """What B blocks hold, E elements in G groups each."""

    codes: Tensor  #: uint8 [B, E]
    scales: Tensor  #: [B, G] float16, or uint8 codes
    zeros: Tensor | None = None  #: [B, G] in the dtype of the scales, subtracted after scaling
    scale2: Tensor | None = None  #: [B, 1] that scales are integers of, or zeros too: [B, 2]


@dataclass(frozen=True)
class Block:
    """One block format.

    Attributes:
        number: of the format in the file.
        name: llama.cpp's.
        elements, nbytes: of one block.
        ttype: what holds its values exactly.
        parts: blocks as bytes [B, nbytes] -> what they hold.
    """

    number: int
    name: str
    elements: int
    nbytes: int
    text: str
    parts: Callable[[Tensor], Parts]

    @cached_property
    def ttype(self) -> TType:
        name = self.text.partition(",")[0]
        if (values := TABLES.get(name)) is not None:
            register_type(name, bits=(len(values) - 1).bit_length(), values=values)
        return parse(self.text)

    @property
    def narrow(self) -> TType:
        """With float16 scales, which round the products of both levels."""
        exact = self.ttype
        if not exact.superblock:
            return exact
        zero = f",zero={exact.zero}"
        return parse(f"{exact.element.name},group={exact.columns},scale=float16{zero}")


def half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte ``at`` of each block, [B, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def runs(octets: Tensor, bits: int) -> Tensor:
    """[..., W] bytes -> [..., 8 / bits, W]: run j has bits [j bits, (j + 1) bits) of every byte."""
    count, width = 8 // bits, octets.shape[-1]
    # Eight bytes at once, or as many as divide W.
    word = next(t for t in _WORDS if width % t.itemsize == 0)
    words = octets.contiguous().view(word)
    mask = int.from_bytes(bytes([(1 << bits) - 1]) * word.itemsize, "little")
    found = torch.empty((*words.shape[:-1], count, words.shape[-1]), dtype=word)
    for j in range(count):
        torch.bitwise_and(words >> (j * bits), mask, out=found[..., j, :])
    return found.view(torch.uint8)


def nibbles(octets: Tensor) -> Tensor:
    """[..., W] bytes -> [..., 2 W]: the low halves, then the high ones."""
    return runs(octets, 4).flatten(-2)
