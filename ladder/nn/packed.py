# SPDX-License-Identifier: Apache-2.0
"""Modules that hold a packed weight, in the form of checkpoints or in that of kernels."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ladder._library import log_notices
from ladder.cuda import image as images
from ladder.cuda import kernels
from ladder.cuda.request import Request
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.metadata import WeightMetadata
from ladder.nn.quick_call import QuickCall
from ladder.nn.stored_state import check_state, note_type
from ladder.ops.activations import pre_scale_objection, static_scale_objection, zeros_objection
from ladder.ops.gating import Activation, Gating
from ladder.types import TType
from ladder.weight import PARTS, Weight

_log = logging.getLogger("ladder")
#: Buffers that are no parts of a weight: scales of x, where there are any.
OF_X = ("pre_scale", "input_scale")
#: Held while a weight changes its form.
_changing = threading.Lock()


class PackedModule(QuickCall):
    """The parts of a weight as buffers, named as in checkpoints, and what moves and saves them.

    Args:
        in_features: K.
        out_features: N.
        ttype: of the weight, whose parts are zeros at first.
        act_order: make room for ``g_idx``.
        dtype: what a cast of the module changes; the parts stay as the type says.
    """

    in_features: int
    out_features: int
    weight_type: TType
    dtype: torch.dtype
    # Canonical: absent while there is an image, which Linear asks for first.
    qweight: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    scale2: Tensor | None
    g_idx: Tensor | None
    # Of the image, while there is one: on the class, because loaders make instances in other ways.
    _weight_number = 0
    _has_kernels: bool | None = None  # of this device; None: not asked yet
    _dependent_launch = False
    _activation_type: str | None = None
    #: Of a weight of gate and up, the gate in front, whose product kernels give.
    _gating: Gating | None = None
    #: An activation function of the sums, which kernels take, too.
    _function: Activation | None = None
    _numbers_for_codes: Mapping[tuple[torch.dtype, bool], int | None] = MappingProxyType({})

    def __init__(
        self,
        in_features: int,
        out_features: int,
        ttype: TType,
        act_order: bool,
        device: torch.device | str | None,
        dtype: torch.dtype,
    ) -> None:
        nn.Module.__init__(self)  # of an embedding another class would be next
        self.in_features, self.out_features = in_features, out_features
        self.weight_type = ttype
        self._type_text = str(ttype)
        self.dtype = dtype

        def add(name: str, shape: tuple[int, ...] | None, dtype: torch.dtype | None) -> None:
            part = None
            if shape is not None and dtype is not None:
                part = torch.zeros(shape, dtype=dtype, device=device)
            self.register_buffer(name, part)

        n, k = out_features, in_features
        add("qweight", (n, ttype.words(k)), torch.int32)
        add("scales", (ttype.block_rows(n), ttype.groups(k)), ttype.scale_dtype)
        add("zeros", ttype.zeros_shape(n, k), ttype.zeros_dtype)
        add("scale2", ttype.scale2_shape(n, k), ttype.scale2_dtype)
        add("g_idx", (k,), torch.int32 if act_order else None)

    def __setattr__(self, name: str, value: Any) -> None:
        # Layers of other packages' files have one until it is repacked.
        if name == "weight" and name not in self._buffers and name not in self._parameters:
            raise Unsupported(
                f"weight is packed, as {self._type_text}, and cannot be assigned: set_weight takes "
                "a ladder.Weight, which ladder.quantize makes"
            )
        super().__setattr__(name, value)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        # torch.nn.utils.prune registers the weight that it found under another name.
        if isinstance(param, WeightMetadata):
            raise Unsupported(
                f"{name}: the weight is packed, as {self._type_text}, and cannot be a parameter: "
                "prune the dense layer, make it permanent (prune.remove), and pack that"
            )
        super().register_parameter(name, param)

    def set_weight(self, weight: Weight) -> None:
        """Take over the parts of ``weight``. Raises InvalidArgument when type or shape differ."""
        if weight.type != self.weight_type or weight.shape != (self.out_features, self.in_features):
            raise InvalidArgument(
                f"weight is {list(weight.shape)} of type {weight.type}, not "
                f"{[self.out_features, self.in_features]} of type {self.weight_type}"
            )
        weight.check()
        self._set_image(None, 0)
        for name in PARTS:
            self.register_buffer(name, getattr(weight, name))

    @property
    def image(self) -> Tensor | None:
        """The codes in the form that kernels read; None while they are canonical."""
        return self._buffers.get("image")

    def _set_image(self, image: Tensor | None, number: int) -> None:
        # In this order: other threads take an image to have its number, and, without one, wait in
        # prepare() until it is known whether there are kernels.
        self._buffers.pop("image", None)
        self._weight_number, self._numbers_for_codes = number, {}
        if image is not None:  # moved and counted with the module, never saved
            self._non_persistent_buffers_set.add("image")
            self._buffers["image"] = image
        self._has_kernels = None if image is None else True

    def _put_in_front(self, name: str, scale: Tensor) -> None:
        """Let a scale of x be a buffer, as it is."""
        # In front: torch.export miscounts buffers that are behind those that are None.
        if name not in self._buffers:
            others = dict(self._buffers)
            self._buffers.clear()
            self._buffers.update({name: None, **others})
        self._buffers[name] = scale

    def prepare(self, numbered: Callable[[int], object] | None = None) -> bool:
        """Give the codes the form that kernels of this device read, if it has any for the type.

        The canonical codes are let go: peak memory is that of one layer more. Returns whether the
        weight is in that form.

        Args:
            numbered: called with the weight's number, which :meth:`kernel_request` takes, before
                the kernels that bring it into that form are compiled.
        Raises:
            RuntimeError: a CUDA graph is being captured.
            Unsupported: the zero points are none that kernels of the ``activation_type`` take.
        """
        if self.image is None and self._has_kernels is None:
            with _changing:
                self._prepare(numbered)
        return self.image is not None

    def _prepare(self, numbered: Callable[[int], object] | None) -> None:
        if self.image is not None or self._has_kernels is not None:
            return  # another thread was faster
        device, (n, k) = self.qweight.device, (self.out_features, self.in_features)
        # accelerate moves the parts of an offloaded module by the names that they had at first.
        offloaded = getattr(getattr(self, "_hf_hook", None), "offload", False)
        if not kernels.possible(device) or offloaded:
            self._has_kernels = False
            return
        activation_type = self._activation_type or ""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a weight cannot be brought into the form of kernels while a CUDA graph is being "
                "captured: call ladder.warmup(model) before the capture"
            )
        weight = self.packed_weight
        with torch.inference_mode(False), torch.no_grad():  # training may follow inference
            try:
                order = images.column_order(weight)
            except Unsupported as error:
                _log.info("%s [%d, %d] goes through torch: %s", self._type_text, n, k, error)
                self._has_kernels = False
                return
            gather = order is not None
            index = device.index or 0
            if kernels.objection(self._type_text, n, k, gather, index, activation_type):
                self._has_kernels = False
                return
            if why := zeros_objection(activation_type, weight.type, weight.zeros):
                raise Unsupported(why)
            number = self._number(gather)
            if numbered is not None:
                numbered(number)
            if why := kernels.load_transforms(number, device, self.dtype):
                _log.info("%s [%d, %d] goes through torch: %s", self._type_text, n, k, why)
                self._has_kernels = False
                return
            image = images.pack(weight, number, order, self._image_rows())
        # Other streams may come next, and kernels that read the image before others have ended.
        torch.cuda.current_stream(device).synchronize()
        self._set_image(image, number)
        self.register_buffer("qweight", None)

    def _leave_kernels(self) -> bool:
        """After an error of a kernel: where the device has failed, back to the canonical form, for
        good. Returns whether that is so; otherwise the error is the caller's."""
        if not kernels.failure(self.device):
            return False
        log_notices()
        with _changing:
            self._restore()
            self._has_kernels = False
        return True

    def _number(self, gather: bool, function: Activation | None = None) -> int:
        function = function or self._function
        return images.open_weight(
            self._type_text,
            self.out_features,
            self.in_features,
            gather,
            dependent_launch=self._dependent_launch,
            activation_type=self._activation_type or "",
            gating=self._gating,
            function="" if function is None else function.name,
        )

    def _number_of_calls(self, plain: int = 0) -> int:
        """Whose kernels :func:`ladder.warmup` compiles, of the weight ``plain``; 0: its own."""
        return plain or self._weight_number

    def _image_rows(self) -> Tensor | None:
        """As :func:`ladder.cuda.image.pack` takes them."""
        return None if self._gating is None else images.gate_rows(self.out_features, self.device)

    def _renumber(self) -> None:
        """After a change of what decides kernels, but not the image."""
        with _changing:
            if self.image is None:
                self._has_kernels = None  # prepare() asks again
            else:
                gather = "gather" in images.parts(self._weight_number).parts
                self._weight_number = self._number(gather)

    @property
    def dependent_launch(self) -> bool:
        """Whether kernels of this layer may start while those before them on the stream still run
        (programmatic dependent launch), so that their first weights are there when x is; no at
        first. For up to 16 tokens, on devices of compute capability 9.0 and more; it changes no
        result, and nothing elsewhere.

        Such kernels read ``image`` before the others have ended; x and the bias, and all that they
        write, are touched afterwards. So it is a promise that nobody writes into ``image``. The
        module itself waits for the stream when it has made one; loading, moving and training are
        none of the caller's concern. After writing into ``image`` by hand, wait for the stream
        before the next call.

        It is no part of the ``state_dict``; copies and pickles keep it. What is set after
        :func:`ladder.warmup` is compiled by the next call.
        """
        return self._dependent_launch

    @dependent_launch.setter
    def dependent_launch(self, wanted: bool) -> None:
        self._dependent_launch = bool(wanted)
        self._renumber()

    def compile_for(self, dtype: torch.dtype, m: int, *, residual: bool = False) -> str:
        """Compile what ``m`` tokens need, after :meth:`prepare`; see :func:`ladder.warmup`.
        ``residual``: of calls with one, whose kernels take the plan of those without, where one was
        stored."""
        return kernels.compile_for(self._number_of_calls(), self.device, dtype, m, residual)

    def kernel_request(self, dtype: torch.dtype, m: Sequence[int], number: int = 0) -> Request:
        """What :func:`ladder.cuda.tune.tune_all` takes, after :meth:`prepare`; or, with the
        ``number`` that it gives, what is compiled meanwhile."""
        shape = (self.out_features, self.in_features)
        return Request(
            self._number_of_calls(number),
            self.weight_type,
            shape,
            self.device,
            dtype,
            tuple(m),
            self._activation_type or "",
            self._gating is not None,
        )

    def _canonical_codes(self) -> Tensor:
        if self.image is None:
            return self.qweight
        n, k = self.out_features, self.in_features
        rows = self._image_rows()
        return images.unpack(self.image, self._weight_number, self.weight_type, n, k, rows)

    def _restore(self) -> None:
        """Back to the canonical form, before something reads or writes the parts."""
        if self.image is not None:
            self.register_buffer("qweight", self._canonical_codes())
        self._set_image(None, 0)

    @property
    def packed_weight(self) -> Weight:
        """The weight as a value that shares this module's tensors; the codes are a copy where the
        module has them in the form of kernels."""
        parts = {name: getattr(self, name) for name in PARTS}
        parts["qweight"] = self._canonical_codes()
        return Weight(self.weight_type, (self.out_features, self.in_features), **parts)

    @property
    def device(self) -> torch.device:
        """Where the codes are, in whatever form."""
        return (self.qweight if self.image is None else self.image).device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedModule:
        # .half() and .to(dtype) would round scales to another format than the type says.
        self._restore()
        kept = {name: getattr(self, name, None) for name in (*PARTS, *OF_X)}
        probe = fn(torch.zeros((), dtype=self.dtype, device=self.qweight.device))
        super()._apply(fn, recurse)
        for name, part in kept.items():
            if part is not None and getattr(self, name).dtype != part.dtype:
                self.register_buffer(name, part.to(probe.device))
        self.dtype = probe.dtype
        return self

    def _replicate_for_data_parallel(self) -> PackedModule:
        # Each call copies the image to it just before: kernels might read too soon.
        replica = super()._replicate_for_data_parallel()
        replica.dependent_launch = False
        return replica

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        note_type(destination, prefix, self.weight_type)
        if self.image is not None:
            destination[prefix + "qweight"] = self._canonical_codes()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._restore()
        key = prefix + "input_scale"
        if key in state_dict and (why := static_scale_objection(state_dict[key])):
            raise InvalidArgument(f"{prefix}{why}")
        pre_scale = state_dict.get(prefix + "pre_scale")
        if pre_scale is not None and (why := pre_scale_objection(pre_scale, self.in_features)):
            raise InvalidArgument(f"{prefix}{why}")
        check_state(state_dict, prefix, local_metadata, self._buffers, self.weight_type)
        # g_idx comes and goes with the checkpoint: act-order is a fact of the weight.
        given = state_dict.get(prefix + "g_idx")
        if given is None and prefix + "qweight" in state_dict:
            self.register_buffer("g_idx", None)
        elif given is not None and self.g_idx is None:
            self.register_buffer("g_idx", torch.zeros_like(given, device=self.qweight.device))
        # So is whether the scale of x is static, and whether columns of x have numbers.
        if key in state_dict and "input_scale" not in self._buffers:
            self._put_in_front("input_scale", torch.ones(1, device=self.qweight.device))
        if pre_scale is not None and "pre_scale" not in self._buffers:
            ones = torch.ones(self.in_features, device=self.qweight.device)
            self._put_in_front("pre_scale", ones)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # nn.Module's leaves out what module.compile() made, which would call the module it was of.
        state = super().__getstate__()
        if self.image is not None:
            buffers = {**self._buffers, "qweight": self._canonical_codes()}
            del buffers["image"]
            state |= {"_buffers": buffers, "_weight_number": 0}
        return state | {"_has_kernels": None, "_numbers_for_codes": {}}
