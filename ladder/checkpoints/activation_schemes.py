# SPDX-License-Identifier: Apache-2.0
"""What the configs of other packages say of activations, and what ladder makes of it.

ladder rounds each token to 8 bits with one scale of its own, found while the model runs, or all by
a static scale of the whole tensor, without zero points (:mod:`ladder.ops.activations`). A scheme of
8 bits with other scales (one for each group of columns) or with zero points is rounded with scales
of tokens, too. A scheme of other widths leaves activations as they come, which is more accurate.
The log says both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ladder.checkpoints.layer import Layer, config_flag, config_int, config_word, fail
from ladder.nn.offered import say_left
from ladder.types import TType

_log = logging.getLogger("ladder")

#: Tensors of schemes that are static, wholly or in part. Of those the first is kept where it is all
#: that there is, as the static scale of x; others are left out.
INPUT_PARTS = ("input_scale", "input_zero_point", "input_global_scale")
#: type of a scheme of 8 bits -> activation_type
_OF_8_BITS = {"int": "int8", "float": "float8_e4m3"}


@dataclass(frozen=True)
class ActivationScheme:
    """How the x of some layers is to be rounded."""

    kind: str  #: int or float
    bits: int
    dynamic: bool | str  #: "local": scales of groups alone, not that of the tensor
    strategy: str  #: what shares a scale: token, tensor, group, tensor_group, block, ...
    group_size: int = 0  #: columns, of groups
    symmetric: bool = True

    @classmethod
    def from_dict(cls, where: str, fields: Mapping[str, Any]) -> ActivationScheme:
        """Read QuantizationArgs of compressed-tensors.

        Args:
            where: of the config they are, for messages.
        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
        """
        dynamic = fields.get("dynamic") or False
        if dynamic not in (False, True, "local"):
            fail(f"{where}.dynamic", " is ", repr(dynamic), ", not true, false or 'local'")
        kind = config_word(fields, ("type",), "int")
        if kind not in _OF_8_BITS:
            fail(f"{where}.type", " is ", repr(kind), ", not ", " or ".join(_OF_8_BITS))
        size = config_int(fields, ("group_size",), 0)
        strategy = config_word(fields, ("strategy",), "group" if size > 0 else "tensor")
        bits = config_int(fields, ("num_bits",), 8)
        return cls(kind, bits, dynamic, strategy, size, config_flag(fields, "symmetric", True))

    def __str__(self) -> str:
        when = "static" if not self.dynamic else "dynamic"
        if self.dynamic == "local":
            when = "dynamic in groups"
        of = f" of {self.group_size} columns" if self.group_size > 0 else ""
        zero = "" if self.symmetric else ", with zero points"
        return f"{self.kind}{self.bits}, {when}, per {self.strategy.replace('_', ' ')}{of}{zero}"

    @property
    def activation_type(self) -> str | None:
        """What ladder rounds x to instead; None: it takes x as it comes."""
        return _OF_8_BITS[self.kind] if self.bits == 8 else None

    @property
    def is_static(self) -> bool:
        """Whether a stored scale is that of all of x, as ladder's kernels of GPUs take it."""
        whole = self.strategy == "tensor" and not self.dynamic and self.symmetric
        return whole and self.activation_type is not None

    @property
    def is_exact(self) -> bool:
        """Whether ladder's kernels of GPUs round as the scheme says."""
        if self.is_static:
            return True
        each = self.strategy == "token" and self.dynamic is True and self.symmetric
        return each and self.activation_type is not None

    @property
    def parts(self) -> tuple[str, ...]:
        """The tensors that a layer has for it, of INPUT_PARTS."""
        if self.strategy == "tensor_group":
            return ("input_global_scale",)
        if self.dynamic:
            return ()
        return INPUT_PARTS[:1] if self.symmetric else INPUT_PARTS[:2]

    def say(self, where: str, parts: Sequence[str] | None = None) -> None:
        """Log what ladder does otherwise than ``where`` of the config says.

        Args:
            parts: the names of the tensors that are left out, where they are not :attr:`parts`.
        """
        if self.is_exact:
            return
        parts = self.parts if parts is None else parts
        does = "takes activations as they come"
        if self.activation_type is not None:
            does = f"rounds each token to {self.activation_type} with a scale of its own"
        left = f", and leaves out {' and '.join(parts)}" if parts else ""
        _log.warning("%s is %s: ladder %s%s", where, self, does, left)


def say_without_scale(names: Sequence[str]) -> None:
    """Log which layers have no static scale, although their scheme is static."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        _log.warning(
            "%s%s: input_scale is missing, though activations are static: ladder rounds each token "
            "with a scale of its own", names[0], more,
        )  # fmt: skip


def say_of_experts(name: str, scales: Tensor) -> None:
    """Log that the experts of stack ``name`` have static scales [E, 1] that differ, where they do:
    tokens are rounded before they go to their experts, by the largest."""
    low, high = scales.min().item(), scales.max().item()
    if low != high:
        _log.info(
            "%s: static scales of x are from %.6g to %.6g: ladder rounds by the largest, for all "
            "experts", name, low, high,
        )  # fmt: skip


def recorded(layers: Iterable[tuple[str, Layer, TType, bool]]) -> dict[str, str | None]:
    """What a ladder folder says of the activations of layers of another package: what their config
    asks for, or None where no device that ladder knows has kernels for it. The log says why.

    Args:
        layers: name, layer, type of the weight, and whether its columns are in another order.
    """
    types: dict[str, str | None] = {}
    left: dict[str, list[str]] = {}
    for name, layer, ttype, act_order in layers:
        why = layer.activation_objection(ttype, act_order=act_order)
        types[name] = None if why else layer.activation_type
        if why:
            left.setdefault(why, []).append(name)
    say_left(left)
    return types


__all__ = ["INPUT_PARTS", "ActivationScheme", "recorded", "say_of_experts", "say_without_scale"]
