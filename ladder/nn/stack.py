# SPDX-License-Identifier: Apache-2.0
"""The weights of all experts for one product, each quantised in its own right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ladder import ops
from ladder.cuda import image, kernels
from ladder.cuda.experts import padded_bias
from ladder.cuda.linear import linear_image
from ladder.errors import InvalidArgument
from ladder.nn.kept import Kept
from ladder.nn.stack_image import StackImage
from ladder.nn.stored_state import check_state, note_type
from ladder.ops import activations
from ladder.types import TType
from ladder.weight import PARTS, Weight


class PackedStack(StackImage):
    """E weights [N, K] of one tType, and maybe a bias [E, N].

    Each part that :class:`ladder.Weight` has for the type is a buffer with one dimension more in
    front: ``qweight`` [E, N, words], ``scales`` [E, block_rows, groups], ``zeros`` [E, ...],
    ``scale2`` [E, 1], [E, N] or [E, N, ...], ``g_idx`` [E, K]. Part ``e`` of each is a part of
    expert e's weight. A cast of the module changes ``dtype`` and the bias; the parts stay as the
    type says. On a GPU, ``images`` takes the place of ``qweight`` from the first call on;
    ``state_dict`` and copies have ``qweight`` still. :attr:`input_scale` is a buffer, too, where
    there is one.

    Args:
        experts, out_features, in_features: E, N, K.
        ttype: of every weight; the parts are zeros at first.
        act_order: make room for ``g_idx``.
        dtype: of the bias, and of the dense form.
    """

    qweight: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    scale2: Tensor | None
    g_idx: Tensor | None
    bias: nn.Parameter | None
    activation_type: str | None = None  # on the class: loaders make instances in other ways

    def __init__(
        self,
        experts: int,
        out_features: int,
        in_features: int,
        ttype: TType,
        bias: bool = False,
        *,
        act_order: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.experts, self.out_features, self.in_features = experts, out_features, in_features
        self.weight_type, self._type_text = ttype, str(ttype)
        self.dtype = dtype or torch.get_default_dtype()
        n, k = out_features, in_features
        parts: dict[str, tuple[tuple[int, ...] | None, torch.dtype | None]] = {
            "qweight": ((n, ttype.words(k)), torch.int32),
            "scales": ((ttype.block_rows(n), ttype.groups(k)), ttype.scale_dtype),
            "zeros": (ttype.zeros_shape(n, k), ttype.zeros_dtype),
            "scale2": (ttype.scale2_shape(n, k), ttype.scale2_dtype),
            "g_idx": ((k,), torch.int32 if act_order else None),
        }
        for name, (shape, of) in parts.items():
            there = shape is not None and of is not None
            part = torch.zeros((experts, *shape), dtype=of, device=device) if there else None  # type: ignore[misc]
            self.register_buffer(name, part)
        zeros = torch.zeros(experts, n, device=device, dtype=self.dtype) if bias else None
        self.register_parameter("bias", None if zeros is None else nn.Parameter(zeros))

    def weight_of(self, expert: int) -> Weight:
        """The weight [N, K] of one expert, which shares this module's memory; its codes are a copy
        where the module has them in the form of kernels."""
        parts = {name: getattr(self, name) for name in PARTS if name != "qweight"}
        own: Any = {n: None if part is None else part[expert] for n, part in parts.items()}
        own["qweight"] = self._codes_of(expert)
        return Weight(self.weight_type, (self.out_features, self.in_features), **own)

    def set_weights(self, weights: Iterable[Weight]) -> None:
        """Take copies of E weights. The first decides the device. Where some have a ``g_idx``, so
        has the stack.

        Raises:
            InvalidArgument: not E weights, or one of another type or shape.
        """
        self._restore()
        self.register_buffer("g_idx", None)
        in_order = torch.arange(self.in_features, dtype=torch.int32)
        in_order //= self.weight_type.columns or self.in_features
        shape, count = (self.out_features, self.in_features), 0
        for count, weight in enumerate(weights, start=1):
            if weight.type != self.weight_type or weight.shape != shape:
                raise InvalidArgument(
                    f"weight {count - 1} is {list(weight.shape)} of type {weight.type}, not "
                    f"{list(shape)} of type {self.weight_type}"
                )
            if count > self.experts:
                break
            for name, part in weight.tensors().items():
                if name == "g_idx" and self.g_idx is None:
                    with torch.inference_mode(False):
                        of_all = in_order.to(part.device).repeat(self.experts, 1)
                    self.register_buffer(name, of_all)
                elif count == 1:  # one buffer for all, filled as the weights come
                    with torch.inference_mode(False):  # training may follow inference
                        whole = part.new_zeros((self.experts, *part.shape))
                    self.register_buffer(name, whole)
                getattr(self, name)[count - 1] = part
        if count != self.experts:
            more = "more than " if count > self.experts else ""
            raise InvalidArgument(
                f"there are {more}{min(count, self.experts)} weights for {self.experts} experts"
            )
        self.check()

    def check(self, name: str = "weight") -> None:
        """As :meth:`ladder.Weight.check`, of each expert."""
        for part in PARTS:
            tensor = self._all_codes() if part == "qweight" else getattr(self, part)
            if tensor is not None and tensor.shape[:1] != (self.experts,):
                raise InvalidArgument(
                    f"{name}.{part} has shape {list(tensor.shape)}, not {self.experts} experts "
                    "in front"
                )
        for expert in range(self.experts):
            self.weight_of(expert).check(f"{name}[{expert}]")
        if self.input_scale is not None:
            self._check_input_scale(self.input_scale, f"{name}.input_scale")

    @property
    def input_scale(self) -> Tensor | None:
        """Static scales of x, float32 [E, 1], one for each expert, as checkpoints store them; None:
        each token has a scale of its own. A GPU rounds tokens before they go to their experts, so
        by one scale for all: the largest, with which no expert's numbers are cut off. Setting it
        takes a copy. It raises InvalidArgument where a scale is not positive and finite."""
        return self._buffers.get("input_scale")

    @input_scale.setter
    def input_scale(self, scale: Tensor | None) -> None:
        if scale is None:
            self._buffers.pop("input_scale", None)
            return
        # As ladder.Linear has its own.
        with torch.inference_mode(False):
            given = scale.detach().to(self.device, torch.float32, copy=True)
            self._check_input_scale(given, "input_scale")
            if "input_scale" not in self._buffers:
                others = dict(self._buffers)
                self._buffers.clear()
                self._buffers.update({"input_scale": None, **others})
            self._buffers["input_scale"] = given

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module would put what is called as a buffer there as it is.
        if name == "input_scale":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _check_input_scale(self, scale: Tensor, name: str) -> None:
        if tuple(scale.shape) != (self.experts, 1):
            raise InvalidArgument(f"{name} has shape {list(scale.shape)}, not {[self.experts, 1]}")
        for expert, each in enumerate(scale if scale.is_meta else scale.cpu()):
            if why := activations.static_scale_objection(each):
                raise InvalidArgument(f"{name}[{expert}]: {why}")

    def static_scale(self) -> Tensor | None:
        """[1]: by what rows are rounded, the largest of :attr:`input_scale`; None where each has a
        scale of its own."""
        scale = self.input_scale if self.activation_type else None
        if scale is None:
            return None
        return self._kept("static_scale", (scale,), lambda: scale.amax().reshape(1))

    def placed_bias(self, dtype: torch.dtype) -> Tensor | None:
        """The bias as kernels read it (:func:`ladder.cuda.experts.padded_bias`), made anew where it
        has changed. Without a gradient."""
        bias = self.bias
        if bias is None:
            return None
        made = partial(padded_bias, bias, dtype, self.gated)
        return self._kept("bias", (bias,), made, dtype, self.gated)

    def _kept(
        self, name: str, of: Sequence[Tensor], make: Callable[[], Tensor], *more: object
    ) -> Tensor:
        if torch.compiler.is_compiling():
            return make()
        kept: dict[str, Kept] = self.__dict__.setdefault("_kept_tensors", {})
        return kept.setdefault(name, Kept())(of, make, *more)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts; the bias is none."""
        parts = (getattr(self, name) for name in PARTS if name != "qweight")
        codes = self.experts * self.out_features * self.weight_type.words(self.in_features)
        return 4 * codes + sum(p.numel() * p.itemsize for p in parts if p is not None)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values, [E, N, K], in ``self.dtype`` unless given."""
        dtype = dtype or self.dtype
        shape = (self.experts, self.out_features, self.in_features)
        values = torch.empty(shape, dtype=dtype, device=self.device)
        for expert in range(self.experts):
            values[expert] = self.weight_of(expert).dequantize(dtype)
        return values

    def activation_objection(self, wanted: str | None) -> str:
        """Why these weights take no such activations on the device where they are; "" when they
        do. Raises InvalidArgument for names that ladder does not know."""
        device, n, k = self.device, self.out_features, self.in_features
        why = activations.objection(wanted, self.weight_type, k, device.type)
        if wanted is None or why:
            return why
        if self.g_idx is not None:
            return activations.no_g_idx(wanted)
        if not kernels.possible(device) or not torch.cuda.is_available():
            return ""
        why = activations.gpu_objection(wanted, self._type_text, n, k, device.index or 0)
        return why or activations.zeros_objection(wanted, self.weight_type, self.zeros)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Multiply rows by the weights of their experts.

        Args:
            x: [S, K], those of expert 0 first, then those of expert 1, ...
            counts: E numbers of rows, whose sum is S.
        Returns:
            [S, N] in the dtype of ``x``, with the expert's bias. Gradients flow to ``x`` and bias.
        Error:
            As :func:`ladder.ops.linear`, row by row. Rows on a GPU are multiplied as they come: a
            layer of experts rounds its tokens before.
        """
        parts = x.split(list(counts))
        made = [self._product(rows, e) for e, rows in enumerate(parts) if rows.shape[0]]
        return torch.cat(made) if made else self._product(x, 0)

    def _product(self, x: Tensor, expert: int) -> Tensor:
        bias = None if self.bias is None else self.bias[expert].to(x.dtype)
        if self.images is not None:
            n, rows = self.out_features, self._rows()
            if rows is None:
                return linear_image(x, self.images[expert], bias, self._weight_number, n)
            # Both halves, and their order back.
            of = image.open_weight(self._type_text, n, self.in_features, self._gathers())
            in_turn = None if bias is None else bias[rows]
            return linear_image(x, self.images[expert], in_turn, of, n)[:, rows.argsort()]
        weight = self.weight_of(expert)
        return ops.linear(
            x,
            weight.qweight,
            self._type_text,
            scales=weight.scales,
            zeros=weight.zeros,
            scale2=weight.scale2,
            g_idx=weight.g_idx,
            bias=bias,
            activation_type=None if x.is_cuda else self.activation_type,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedStack:
        self._restore()
        # .half() and .to(dtype) would round scales to another format than the type says.
        kept = {name: self._buffers.get(name) for name in (*PARTS, "input_scale")}
        probe = fn(torch.zeros((), dtype=self.dtype, device=self.device))
        super()._apply(fn, recurse)
        for name, part in kept.items():
            now = self._buffers.get(name)
            if part is not None and now is not None and now.dtype != part.dtype:
                self._buffers[name] = part.to(probe.device)
        self.dtype = probe.dtype
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        note_type(destination, prefix, self.weight_type)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        check_state(state_dict, prefix, local_metadata, self._buffers, self.weight_type)
        # As ladder.Linear: act-order is a fact of the weights.
        given = state_dict.get(prefix + "g_idx")
        if given is None and prefix + "qweight" in state_dict:
            self.register_buffer("g_idx", None)
        elif given is not None and self.g_idx is None:
            self.register_buffer("g_idx", torch.zeros_like(given, device=self.device))
        # So is whether the scale of x is static.
        if (scale := state_dict.get(prefix + "input_scale")) is not None:
            self._check_input_scale(scale, f"{prefix}input_scale")
            self.input_scale = scale
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)

    def extra_repr(self) -> str:
        return (
            f"experts={self.experts}, in_features={self.in_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}, "
            f"weight_type={self._type_text}"
        )
