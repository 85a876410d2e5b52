# SPDX-License-Identifier: Apache-2.0
"""A Linear that notes which of its tensors a loader gave it.

transformers fills a tensor that the files lack with random or uninitialised numbers and only warns.
It assigns every tensor with ``setattr`` and marks those read from a file with
``_is_hf_initialized``; so the module itself can tell, whatever hooks accelerate adds later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.linear import Linear
from ladder.nn.select import dense_weight, is_conv1d
from ladder.types import TType
from ladder.weight import PARTS, Weight


class LoadingLinear(Linear):
    """A :class:`Linear` until ``finish``, which checks it and makes it a plain one."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, Tensor) and getattr(value, "_is_hf_initialized", False):
            self.__dict__.setdefault("_given", set()).add(name)

    def finish(self, name: str) -> None:
        """Raise CheckpointError naming a tensor that was not loaded or does not fit."""
        _require(self, name)
        wanted = self.weight_type.scale_dtype
        for part in ("scales", "zeros"):
            # transformers may keep what it takes for a weight in float32 (_keep_in_fp32_modules).
            tensor = getattr(self, part)
            if tensor is not None and tensor.is_floating_point() and tensor.dtype != wanted:
                self.register_buffer(part, tensor.to(wanted))
        if self.qweight.device.type != "meta":  # else accelerate holds it on disk
            try:
                self.packed_weight.check(name)
            except InvalidArgument as error:
                raise CheckpointError(str(error)) from error
        _settle(self)


class ForeignLinear(LoadingLinear):
    """Room for the tensors of another format; ``finish`` makes them canonical.

    Args:
        linear: the module that it replaces.
        format: of ``ladder.checkpoints``.
        config: of this module, in that format.
        parts: dtype and shape of each stored tensor.
    """

    def __init__(self, linear: nn.Module, format: Any, config: Any, parts: dict[str, Any]) -> None:
        nn.Module.__init__(self)
        dense = dense_weight(linear)
        self.out_features, self.in_features = dense.shape
        self.dtype, self._conv1d = dense.dtype, is_conv1d(linear)
        self.weight_type, self._type_text = None, "not yet known"
        for part, (dtype, shape) in parts.items():
            if part != "bias":
                self.register_buffer(part, torch.empty(shape, dtype=dtype, device="meta"))
        has_bias = linear.bias is not None or "bias" in parts
        bias = torch.empty(self.out_features, dtype=self.dtype, device="meta")
        self.register_parameter("bias", nn.Parameter(bias) if has_bias else None)
        self.__dict__["_foreign"] = (format, config)

    @property
    def weight(self) -> Tensor:
        """The stored tensor of this name, of a format that has one, as the loader asks for it."""
        stored = self._buffers.get("weight")
        return super().weight if stored is None else stored

    def finish(self, name: str) -> None:
        _require(self, name)
        codes = self.__dict__["_foreign"][0].codes_part(self._buffers)
        if self._buffers[codes].is_meta:
            raise Unsupported(
                f"{name}.{codes} is offloaded to disk in its foreign format; "
                "run `ladder repack` first, or load without offload_buffers"
            )
        format, config = self.__dict__.pop("_foreign")
        tensors = {part: tensor.cpu() for part, tensor in self._buffers.items()}
        self._become(format.unpack_layer(tensors, config, name), self._buffers[codes].device)

    def _become(self, weight: Weight, device: torch.device) -> None:
        for part in list(self._buffers):
            delattr(self, part)
        self.weight_type: TType = weight.type
        self._type_text = str(weight.type)
        for part in PARTS:
            tensor = getattr(weight, part)
            self.register_buffer(part, None if tensor is None else tensor.to(device))
        _settle(self)


def _require(module: LoadingLinear, name: str) -> None:
    given = module.__dict__.get("_given", set())
    tensors = {part: t for part, t in module._buffers.items() if t is not None}
    if module.bias is not None:
        tensors["bias"] = module.bias
    for part, tensor in tensors.items():
        if part not in given and tensor.device.type != "meta":
            raise CheckpointError(f"{name}.{part} was not loaded: it is missing, or does not fit")


def _settle(module: LoadingLinear) -> None:
    module.__dict__.pop("_given", None)
    module.__class__ = Linear
