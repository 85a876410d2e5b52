# SPDX-License-Identifier: Apache-2.0
"""``ladder.Linear``: a drop-in for ``torch.nn.Linear`` whose weight is packed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ladder import image as images
from ladder import ops
from ladder.errors import InvalidArgument, Unsupported
from ladder.quantize import quantize
from ladder.tune import tune
from ladder.types import TType, parse, with_defaults
from ladder.weight import PARTS, Weight, check_columns

_log = logging.getLogger("ladder")


class Linear(nn.Module):
    """``y = x @ value(weight).T + bias`` with the weight stored as its tType says.

    The parts of the weight are buffers named as in checkpoints (``qweight``, ``scales``, ...), so
    ``state_dict`` round-trips and ``.to(device)`` moves them. Casting the module to another float
    dtype leaves them as they are stored: the activations choose the dtype of the result.

    On a CUDA device with kernels for the type, the first call or :func:`ladder.warmup` turns
    ``qweight`` into the image that kernels read (``image``; ``qweight`` is then None), so that the
    codes are held once. Saving, moving, copying and ``packed_weight`` give the canonical form.

    Args:
        in_features: K.
        out_features: N.
        bias: adds a bias [N] of ``dtype``.
        weight_type: element name completed by ``group_size`` and ``symmetric``, or full spelling.
        act_order: make room for ``g_idx``.
        dtype: of the bias, and of ``.weight`` as other code sees it.
    """

    # Of the image, while there is one: on the class, because loaders make instances in other ways.
    _weight_number = 0
    _has_kernels: bool | None = None  # of this device; None: not asked yet

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        act_order: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise InvalidArgument(
                f"in_features is {in_features} and out_features {out_features}, not both positive"
            )
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        self.in_features, self.out_features = in_features, out_features
        self.weight_type = ttype
        self._type_text = str(ttype)
        self.dtype = dtype or torch.get_default_dtype()
        n, k = out_features, in_features
        self._add("qweight", (n, ttype.words(k)), torch.int32, device)
        self._add("scales", (ttype.block_rows(n), ttype.groups(k)), ttype.scale_dtype, device)
        self._add("zeros", ttype.zeros_shape(n, k), ttype.zeros_dtype, device)
        self._add("scale2", (1,), torch.float32 if ttype.scale2 else None, device)
        self._add("g_idx", (k,), torch.int32 if act_order else None, device)
        self.bias = nn.Parameter(torch.zeros(n, device=device, dtype=self.dtype)) if bias else None

    def _add(self, name: str, shape, dtype: torch.dtype | None, device) -> None:
        part = None if dtype is None else torch.zeros(shape, dtype=dtype, device=device)
        self.register_buffer(name, part)

    @classmethod
    def from_weight(cls, weight: Weight, bias: Tensor | None = None) -> Linear:
        """A module that holds ``weight`` (not a copy) and ``bias`` [N]."""
        n, k = weight.shape
        dtype = bias.dtype if bias is not None else None
        module = cls(
            k,
            n,
            bias is not None,
            weight.type,
            act_order=weight.g_idx is not None,
            device="meta",
            dtype=dtype,
        )
        module.set_weight(weight)
        if bias is not None:
            if tuple(bias.shape) != (n,):
                raise InvalidArgument(f"bias has shape {list(bias.shape)}, not [{n}]")
            module.bias = nn.Parameter(bias.detach(), requires_grad=bias.requires_grad)
        return module

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        method: str = "search",
    ) -> Linear:
        """Quantise an ``nn.Linear``; arguments as :func:`ladder.quantize`. The bias is shared."""
        weight = quantize(
            linear.weight, weight_type, group_size=group_size, symmetric=symmetric, method=method
        )
        module = cls.from_weight(weight, linear.bias)
        module.dtype = linear.weight.dtype
        return module.train(linear.training)

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
        self._buffers.pop("image", None)
        if image is not None:  # moved and counted with the module, never saved
            self._buffers["image"] = image
            self._non_persistent_buffers_set.add("image")
        self._weight_number, self._has_kernels = number, None if image is None else True

    def prepare(self) -> bool:
        """Give the codes the form that kernels of this device read, if it has any for the type.

        The canonical codes are let go: peak memory is that of one layer more. Returns whether the
        weight is in that form.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        if self.image is None and self._has_kernels is None:
            with images.changing:
                self._prepare()
        return self.image is not None

    def _prepare(self) -> None:
        if self.image is not None or self._has_kernels is not None:
            return  # another thread was faster
        device, (n, k) = self.qweight.device, (self.out_features, self.in_features)
        # accelerate moves the parts of an offloaded module by the names that they had at first.
        offloaded = getattr(getattr(self, "_hf_hook", None), "offload", False)
        if device.type != "cuda" or offloaded:
            self._has_kernels = False
            return
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
            if images.objection(self._type_text, n, k, gather, device.index):
                self._has_kernels = False
                return
            number = images.open_weight(self._type_text, n, k, gather)
            image = images.pack(weight, number, order)
        torch.cuda.current_stream(device).synchronize()  # other streams may come next
        self._set_image(image, number)
        self.register_buffer("qweight", None)

    def compile_for(self, dtype: torch.dtype, m: int) -> str:
        """Compile what ``m`` tokens need, after :meth:`prepare`; see :func:`ladder.warmup`."""
        return images.compile_for(self._weight_number, self.image.device, dtype, m)

    def tune_for(self, dtype: torch.dtype, m: Sequence[int]) -> None:
        """Measure the kernels of each interval in which some of ``m`` lies, after
        :meth:`prepare`; what this process or a store has measured is not measured again."""
        intervals: dict[int, list[int]] = {}
        for tokens in sorted(set(m)):
            intervals.setdefault(images.interval(tokens), []).append(tokens)
        intervals.pop(0, None)  # multiplied densely
        shape = (self.out_features, self.in_features)
        for same in intervals.values():
            tune(self._weight_number, self.weight_type, shape, self.image.device, dtype, same)

    def _canonical_codes(self) -> Tensor:
        if self.image is None:
            return self.qweight
        n, k = self.out_features, self.in_features
        return images.unpack(self.image, self._weight_number, self.weight_type, n, k)

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

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Linear:
        """An ``nn.Linear`` with the weight's values, in ``self.dtype`` unless given."""
        dtype = dtype or self.dtype
        with torch.device("meta"):
            dense = nn.Linear(self.in_features, self.out_features, self.bias is not None)
        dense.weight = nn.Parameter(self.packed_weight.dequantize(dtype))
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().to(dtype))
        return dense.train(self.training)

    @property
    def weight(self) -> Tensor:
        """Shape, dtype and device of the dense weight, for code that asks a Linear for them. It has
        no data (an expanded scalar): :meth:`dequantize` gives values."""
        shape = (self.out_features, self.in_features)
        return torch.zeros((), dtype=self.dtype, device=self._device()).expand(shape)

    def _device(self) -> torch.device:
        return (self.qweight if self.image is None else self.image).device

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] to [..., N], in the dtype of ``x``, or of autocast where that is on."""
        if torch.compiler.is_compiling():
            self._prepare_for_trace()
            return self._forward(x)
        # As attributes, buffers and parameters cost a look through the module.
        image, bias = self._buffers.get("image"), self._parameters.get("bias")
        if bias is None:
            bias = self.bias
        fits = bias is None or bias.dtype is x.dtype
        if image is not None and fits and not torch.is_autocast_enabled("cuda"):
            return images.linear(x, image, bias, self._weight_number, self.out_features)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        # meta has no autocast, and the compiler of torch 2.11 cannot trace the question whether.
        if device != "meta" and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        check_columns(x, self.in_features)
        bias = self.bias
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if device == "cuda" and not torch.compiler.is_compiling():
            self.prepare()
        image = self.image
        if image is not None:
            return images.linear(x, image, bias, self._weight_number, self.out_features)
        return ops.linear(
            x,
            self.qweight,
            self._type_text,
            scales=self.scales,
            zeros=self.zeros,
            scale2=self.scale2,
            g_idx=self.g_idx,
            bias=bias,
        )

    def _prepare_for_trace(self) -> None:
        """:meth:`prepare`, once, while ``torch.compile`` traces. An exported program keeps the
        canonical form, which any machine can run; tensors without data cannot change theirs."""
        if not torch.compiler.is_exporting() and type(self.qweight) is Tensor:
            self.prepare()

    # What torch.compiler.assume_constant_result does, without importing the compiler: the function
    # runs when it is traced, on the module itself, before anything else of it is looked at.
    _prepare_for_trace._dynamo_marked_constant = True

    def repack_from_gptq(self, module: nn.Module) -> None:
        """Take the weight of a GPTQ v1 layer (``qweight``, ``qzeros``, ``scales``, ``g_idx``),
        whose stored zeros are one less than the zeros. The type becomes what the layer holds."""
        self._repack(module, "gptq", "gptq")

    def repack_from_gptq_v2(self, module: nn.Module) -> None:
        """The same for GPTQ v2, whose stored zeros are the zeros."""
        self._repack(module, "gptq", "gptq_v2")

    def repack_from_awq(self, module: nn.Module) -> None:
        """Take the weight of an AWQ (gemm) layer."""
        self._repack(module, "awq", "gemm")

    def _repack(self, module: nn.Module, family: str, variant: str) -> None:
        from ladder.checkpoints.modules import weight_from_module

        weight = weight_from_module(module, family, variant, bits=self.weight_type.bits)
        self.weight_type, self._type_text = weight.type, str(weight.type)
        self.set_weight(weight)
        bias = getattr(module, "bias", None)
        if bias is not None:
            self.bias = nn.Parameter(bias.detach().to(self.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        # .half() and .to(dtype) would round scales to another format than the type says.
        self._restore()
        kept = {name: getattr(self, name) for name in PARTS}
        probe = fn(torch.zeros((), dtype=self.dtype, device=self.qweight.device))
        super()._apply(fn, recurse)
        for name, part in kept.items():
            if part is not None and getattr(self, name).dtype != part.dtype:
                self.register_buffer(name, part.to(probe.device))
        self.dtype = probe.dtype
        return self

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.image is not None:
            destination[prefix + "qweight"] = self._canonical_codes()

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs) -> None:
        self._restore()
        # g_idx comes and goes with the checkpoint: act-order is a fact of the weight.
        given = state_dict.get(prefix + "g_idx")
        if given is not None and self.g_idx is None:
            self.register_buffer("g_idx", torch.zeros_like(given, device=self.qweight.device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weight_type={self._type_text}"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "weight_type": self._type_text}
        if self.image is not None:
            buffers = {**self._buffers, "qweight": self._canonical_codes()}
            del buffers["image"]
            state |= {"_buffers": buffers, "_weight_number": 0}
        return state | {"_has_kernels": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "weight_type": parse(state["weight_type"])})
