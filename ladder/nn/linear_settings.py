# SPDX-License-Identifier: Apache-2.0
"""What a :class:`ladder.Linear` does to x before its product and to y behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ladder.cuda import kernels
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.offered import TakesActivations
from ladder.nn.packed import PackedModule
from ladder.ops import activations
from ladder.ops.gating import Activation


class LinearSettings(TakesActivations, PackedModule):
    """The properties ``activation``, ``activation_type`` and ``input_scale``."""

    @property
    def activation(self) -> str | None:
        """The activation function of y: None, or a name of :data:`ladder.ops.gating.ACTIVATIONS`
        but "linear": "relu", "silu", "gelu", "gelu_pytorch_tanh", "relu2", ... The kernels of a GPU
        take it where the sums are made, in float32, and round y once; elsewhere, and where the
        weight is dequantised for a dense product, the sums are rounded first, as by two layers.

        It is no part of the ``state_dict``; copies and pickles keep it. Gradients compute the sums
        anew. Setting it raises InvalidArgument for a name that ladder does not know, and
        Unsupported where the layer is cut over processes. What is set after
        :func:`ladder.warmup` is compiled by the next call.
        """
        return None if self._function is None else self._function.name

    @activation.setter
    def activation(self, wanted: str | None) -> None:
        function = None if wanted is None else Activation(wanted)
        if function is not None and (why := self._no_activation()):
            raise Unsupported(why)
        if function != self._function:
            self._renumber()  # merged layers become single ones before it is theirs
            self._function = function
            self._renumber()

    def _no_activation(self) -> str:
        """Why y cannot have an activation function here; "" when it can."""
        return ""

    @property
    def activation_type(self) -> str | None:
        """What x is rounded to before each product: None, as it comes, "int8", "float8_e4m3" or
        "float8_e4m3,fast_accum".

        - "int8" on the CPU: 8 bits in blocks of 32 or 128 columns with a scale each, multiplied as
          integers.
        - "int8" on a GPU, for weights of integers: more than 48 tokens are rounded to 8 bits with
          one scale for each token, multiplied as integers, exactly within a group of the weight.
        - "float8_e4m3" on a GPU of compute capability 8.9 and more, and on AMD's MI300X and
          MI355X, for weights whose values float8_e4m3 holds (itself, floats of 3 to 7 bits, mxfp4,
          integers of 1 to 4 bits and of 5 with a zero point in the middle, but not nvfp4, whose
          groups have 16 columns): the same with floats of 8 bits, summed in float32 every 128
          columns.
        - "float8_e4m3,fast_accum": the same, but that sums within a group, or a row, are left to
          the matrix unit, which keeps 14 bits of them on NVIDIA's GPUs, as ``torch._scaled_mm`` has
          it with ``use_fast_accum``. Faster from some 100 tokens on, where a row has one scale.

        Up to 48 tokens a GPU multiplies as they come: weights are what such calls wait for, so that
        rounding would cost time and accuracy. :func:`ladder.ops.linear` states the errors. Calls on
        other devices raise Unsupported, and so do calls on a GPU that has no kernels for the type.

        It is no part of the ``state_dict``; copies, pickles and the config of a model folder keep
        it. Setting it raises Unsupported for weights that it does not take. On a GPU the form that
        kernels read is the same for all of them; what is set after :func:`ladder.warmup` is
        compiled by the next call.
        """
        return self._activation_type

    @activation_type.setter
    def activation_type(self, wanted: str | None) -> None:
        if why := self.activation_objection(wanted):
            raise Unsupported(why)
        self._offered_activation_type = None
        self._change_activation_type(wanted)

    def _change_activation_type(self, wanted: str | None) -> None:
        if wanted != self._activation_type:
            self._activation_type = wanted
            self._renumber()

    def activation_objection(self, wanted: str | None) -> str:
        """Why this layer cannot have that :attr:`activation_type`, on the device where it is; ""
        when it can. Raises InvalidArgument for names that ladder does not know."""
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

    def call_objection(self, wanted: str | None) -> str:
        return "" if wanted is None else activations.device_objection(wanted, self.device.type)

    @property
    def input_scale(self) -> Tensor | None:
        """A static scale of x, float32 [1], as checkpoints store it: a GPU rounds more than 64
        tokens by it to :attr:`activation_type`, saturating, in place of a scale of each token
        (:func:`ladder.ops.activations.round_tokens`). A CPU, and a layer without an
        ``activation_type``, do not ask for it. None: there is none.

        It is a buffer, in the ``state_dict`` where it is set. A number or a tensor of one sets it.
        Raises InvalidArgument for what is not positive and finite. The number is copied.
        """
        return self._buffers.get("input_scale")

    @input_scale.setter
    def input_scale(self, scale: Tensor | float | None) -> None:
        if scale is None:
            self._buffers.pop("input_scale", None)
            return
        # Memory of its own, of no inference: state dicts are copied into it.
        with torch.inference_mode(False):
            given = torch.as_tensor(scale, dtype=torch.float32).detach().clone().reshape(-1)
            if why := activations.static_scale_objection(given):
                raise InvalidArgument(why)
            self._put_in_front("input_scale", given.to(self.device))

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module would put what is called as a buffer, or is a module, there as it is.
        if name in ("input_scale", "activation", "activation_type"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def compile_static(self, dtype: torch.dtype, m: Sequence[int]) -> None:
        """After :meth:`prepare`: compile the kernel that rounds by :attr:`input_scale`, where it is
        what ``m`` tokens need."""
        most = max(m, default=0)
        if self.input_scale is None or not self._activation_type or not self._weight_number:
            return
        if most > activations.MOST_TOKENS_AS_THEY_COME and dtype in kernels.HALVES:
            kernels.compile_scaled(self._number_of_calls(), self.device, dtype, most)
