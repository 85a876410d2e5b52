# SPDX-License-Identifier: Apache-2.0
"""A Linear that notes which of its tensors a loader gave it.

transformers fills a tensor that the files lack with random or uninitialised numbers and only warns.
It assigns every tensor with ``setattr`` and marks those read from a file with
``_is_hf_initialized``; so the module itself can tell, whatever hooks accelerate adds later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ladder.checkpoints.layer import (
    Layer,
    check_input_scale,
    check_pre_scale,
    input_scale_of,
    pre_scale_of,
    unpack_layer,
)
from ladder.errors import CheckpointError, InvalidArgument, Unsupported
from ladder.nn.linear import Linear
from ladder.nn.packed import OF_X, PackedModule
from ladder.nn.parallel import NO_PARTS, Shard, become_parallel, choose
from ladder.nn.select import dense_weight, is_conv1d
from ladder.types import TType
from ladder.weight import PARTS, Weight


class LoadingLinear(Linear):
    """A :class:`Linear` until ``finish``, which checks it and makes it a plain one.

    Of a layer cut over processes it keeps the own part of each tensor it is given, which may be a
    DTensor; ``finish`` then makes it a :class:`ParallelLinear`.
    """

    _shard: Shard | None = None
    _whole: Weight | None = None

    def expect_part(self, shard: Shard, whole: Weight) -> None:
        """Keep what ``shard`` says of the parts of ``whole``, a weight on the meta device."""
        self.__dict__.update(_shard=shard, _whole=whole)

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, Tensor) or not getattr(value, "_is_hf_initialized", False):
            super().__setattr__(name, value)
            return
        self.__dict__.setdefault("_given", set()).add(name)
        to_local = getattr(value, "to_local", None)
        own = value if to_local is None else to_local().detach()
        if name in OF_X:
            self._parameters.pop(name, None)
            self._buffers[name] = own.detach()
        elif name in PARTS:
            self._parameters.pop(name, None)
            if to_local is None and self._shard is not None and self._whole is not None:
                own = getattr(self._shard.of(replace(self._whole, **{name: own.detach()})), name)
            self.register_buffer(name, own)
        elif to_local is not None:
            super().__setattr__(name, nn.Parameter(own, requires_grad=value.requires_grad))
        else:
            super().__setattr__(name, value)

    def finish(self, name: str, group: Any = None) -> None:
        """Raise CheckpointError naming a tensor that was not loaded or does not fit.

        Args:
            group: the processes that the layer is cut over.
        """
        require(self, name)
        keep_dtypes(self)
        shard, whole = self._shard, self._whole
        _settle(self)
        if shard is not None and whole is not None:
            become_parallel(self, shard, group, whole.shape)
        check_loaded(self, name)
        if self.qweight.device.type != "meta":
            if self.input_scale is not None:
                check_input_scale(self.input_scale, name)
            if self.pre_scale is not None:
                check_pre_scale(self.pre_scale, self.in_features, name)


class NotesParts(PackedModule):
    """Of a convolution or an embedding that is being loaded: notes which of its tensors a loader
    gave it, as :class:`LoadingLinear` does."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and getattr(value, "_is_hf_initialized", False):
            self.__dict__.setdefault("_given", set()).add(name)
            if name in PARTS:
                self._parameters.pop(name, None)
                part: Any = value.detach()
                # Without it transformers would have a model of the user's own draw the weight of
                # an embedding anew.
                part._is_hf_initialized = True
                self.register_buffer(name, part)
                return
        super().__setattr__(name, value)


def buffer_name(part: str) -> str:
    """What a :class:`ForeignLinear` calls a part, whose name may have dots."""
    return part.replace(".", "_")


class ForeignLinear(LoadingLinear):
    """Room for the tensors of another format; ``finish`` makes them canonical.

    Args:
        linear: the module that it replaces.
        format: of ``ladder.checkpoints``.
        config: of this module, in that format.
        parts: dtype and shape of each stored tensor.
        name: of the layer in the files, for errors.
        layer: its sizes, of that format.
        wanted: what this process is to hold of the layer, where that is cut over processes.
    """

    def __init__(
        self,
        linear: nn.Module,
        format: Any,
        config: Any,
        parts: dict[str, Any],
        name: str,
        layer: Layer,
        wanted: Shard | None = None,
    ) -> None:
        nn.Module.__init__(self)
        dense = dense_weight(linear)
        self.out_features, self.in_features = dense.shape
        self.dtype, self._conv1d = dense.dtype, is_conv1d(linear)
        self.weight_type, self._type_text = None, "not yet known"
        stored_parts = {buffer_name(part): part for part in parts if part != "bias"}
        for buffer, part in stored_parts.items():
            # not by register_buffer: a Linear has properties of some names
            dtype, shape = parts[part]
            self._buffers[buffer] = torch.empty(shape, dtype=dtype, device="meta")
        has_bias = linear.bias is not None or "bias" in parts
        bias = torch.empty(self.out_features, dtype=self.dtype, device="meta")
        self.register_parameter("bias", nn.Parameter(bias) if has_bias else None)
        self.__dict__["_foreign"] = (format, config, name, layer)
        self.__dict__["_stored_parts"] = stored_parts
        self.__dict__["_wanted"] = wanted

    @property
    def weight(self) -> Tensor:
        """The stored tensor of this name, of a format that has one, as the loader asks for it."""
        stored = self._buffers.get("weight")
        return super().weight if stored is None else stored

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # A layer that is cut is unpacked as soon as it is whole, lest this process hold all layers.
        state = self.__dict__
        if state.get("_wanted") is not None and self._buffers.keys() <= state.get("_given", set()):
            self._unpack()

    def _stored_tensors(self) -> dict[str, Tensor]:
        """The tensors of the other format, by its names of parts."""
        held = (
            (self._buffers[name], part) for name, part in self.__dict__["_stored_parts"].items()
        )
        return {part: tensor for tensor, part in held if tensor is not None}

    def _unpack(self) -> None:
        format, config, name, layer = self.__dict__.pop("_foreign")
        stored = self._stored_tensors()
        device = stored[format.codes_part(stored)].device
        tensors = {part: tensor.cpu() for part, tensor in stored.items()}
        del stored, self.__dict__["_stored_parts"]
        weight = unpack_layer(format, tensors, config, name, layer.k)
        if weight.shape != (layer.n, layer.k):  # of formats whose headers do not tell
            raise CheckpointError(
                f"{name} holds a weight of {list(weight.shape)}, not {[layer.n, layer.k]} as the "
                "model has"
            )
        scale = None
        if layer.keeps_input_scale(weight.type, act_order=weight.g_idx is not None):
            scale = input_scale_of(format, tensors, layer)
        pre_scale = pre_scale_of(format, tensors, layer)
        shape, wanted = weight.shape, self.__dict__.pop("_wanted")
        if wanted is not None:
            if pre_scale is not None:
                raise Unsupported(f"{name}: {NO_PARTS}")
            shard = choose(name, weight, wanted)
            weight = shard.of(weight)
            self.expect_part(shard, Weight(weight.type, shape, weight.qweight))
        for part in list(self._buffers):
            delattr(self, part)
        self.weight_type: TType = weight.type
        self._type_text = str(weight.type)
        for part in PARTS:
            tensor = getattr(weight, part)
            self.register_buffer(part, None if tensor is None else tensor.to(device))
        if scale is not None:
            self._put_in_front("input_scale", scale.to(device))
        if pre_scale is not None:
            self._put_in_front("pre_scale", pre_scale.to(device))

    def finish(self, name: str, group: Any = None) -> None:
        if "_foreign" in self.__dict__:
            require(self, name)
            stored = self._stored_tensors()
            codes = self.__dict__["_foreign"][0].codes_part(stored)
            if stored[codes].is_meta:
                raise Unsupported(
                    f"{name}.{codes} is offloaded in its foreign format; "
                    "run `ladder repack` first, or load without offload_buffers"
                )
            self._unpack()
        self.__dict__.setdefault("_given", set()).update((*PARTS, *OF_X))
        super().finish(name, group)


def keep_dtypes(module: PackedModule) -> None:
    """Give the parts of a weight the dtypes of its type."""
    for part, wanted in float_dtypes(module.weight_type).items():
        # transformers may keep what it takes for a weight in float32 (_keep_in_fp32_modules).
        tensor = getattr(module, part)
        if tensor is not None and tensor.is_floating_point() and tensor.dtype != wanted:
            module.register_buffer(part, tensor.to(wanted))


def float_dtypes(ttype: TType) -> dict[str, torch.dtype | None]:
    """What floating-point dtype the parts of a weight have, if they have such."""
    scale = ttype.scale_dtype
    return {"scales": scale, "zeros": scale, "scale2": ttype.scale2_dtype}


def check_loaded(module: PackedModule, name: str) -> None:
    """Raise CheckpointError naming a part of a weight that does not fit its type."""
    if module.qweight.device.type != "meta":  # else accelerate holds it on disk
        try:
            module.packed_weight.check(name)
        except InvalidArgument as error:
            raise CheckpointError(str(error)) from error


def require(module: PackedModule, name: str) -> None:
    """Raise CheckpointError naming a tensor of a loading module that no loader gave it."""
    given = module.__dict__.get("_given", set())
    tensors = {**module._buffers, **module._parameters}
    for part, tensor in tensors.items():
        if part in module._non_persistent_buffers_set:
            continue  # no file has it
        # What accelerate holds on disk is on the meta device, and nothing of a layer that is cut.
        whole = getattr(module, "_shard", None) is None
        known = tensor is None or (tensor.device.type == "meta" and whole)
        if part not in given and not known:
            raise CheckpointError(f"{name}.{part} was not loaded: it is missing, or does not fit")


def _settle(module: LoadingLinear) -> None:
    for state in ("_given", "_shard", "_whole"):
        module.__dict__.pop(state, None)
    module.__class__ = Linear
