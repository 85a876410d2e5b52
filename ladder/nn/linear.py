# SPDX-License-Identifier: Apache-2.0
"""``ladder.Linear``: a drop-in for ``torch.nn.Linear`` whose weight is packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import is_autocast_enabled as _autocasting
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling

from ladder import ops
from ladder._torch import forward_levels as _forward_levels
from ladder._torch import func_level as _func_level
from ladder.cuda import kernels
from ladder.cuda.epilogue import linear_then
from ladder.cuda.linear import linear_image, linear_image_scaled
from ladder.cuda.linear import linear_no_grad as _linear_no_grad
from ladder.cuda.linear import linear_with_grad as _linear_with_grad
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.arguments import check_integers
from ladder.nn.given_codes import TakesCodes
from ladder.nn.metadata import metadata
from ladder.nn.offered import TakesActivations
from ladder.nn.packed import PackedModule
from ladder.nn.pre_scale import ScalesColumns, scaled
from ladder.nn.residual import with_residual
from ladder.nn.select import dense_weight, is_conv1d, is_linear
from ladder.ops import activations
from ladder.ops.gating import Activation
from ladder.ops.transforms import autocast, check_tensor
from ladder.quantization import quantize
from ladder.types import TType, with_defaults
from ladder.weight import Weight, check_columns

_absent = object()
_linear = torch.ops.ladder.linear.default


class Linear(TakesActivations, ScalesColumns, TakesCodes):
    """``y = x @ value(weight).T + bias`` with the weight stored as its tType says.

    The parts of the weight are buffers named as in checkpoints (``qweight``, ``scales``, ...), so
    ``state_dict`` round-trips, refusing parts of another type where it names one, and
    ``.to(device)`` moves them. Casting the module to another float dtype leaves them as they are
    stored: the activations choose the dtype of the result.

    On a CUDA device with kernels for the type, the first call or :func:`ladder.warmup` turns
    ``qweight`` into the image that kernels read (``image``; ``qweight`` is then None), so that the
    codes are held once. Saving, moving, copying and ``packed_weight`` give the canonical form.

    Args:
        in_features: K.
        out_features: N.
        bias: adds a bias [N] of ``dtype``.
        weight_type: element name completed by ``group_size`` and ``symmetric``, or full spelling.
        act_order: make room for ``g_idx``.
        activation_type: see the property.
        activation: see the property.
        dtype: of the bias, and of ``.weight`` as other code sees it. A bias that has not the dtype
            of x is converted in each call, a launch more on a GPU: it may be trained or written to,
            so no copy is kept. Casting the module casts the bias alone.
    """

    adds_residual = True  #: calls take a residual
    _conv1d = False  #: whether the dense form is a Conv1D of transformers, its weight [K, N]

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
        activation_type: str | None = None,
        activation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_integers(in_features=in_features, out_features=out_features)
        if in_features < 1 or out_features < 1:
            raise InvalidArgument(
                f"in_features is {in_features} and out_features {out_features}, not both positive"
            )
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        dtype = dtype or torch.get_default_dtype()
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InvalidArgument(f"dtype is {dtype!r}, not a floating-point one of torch's")
        super().__init__(in_features, out_features, ttype, act_order, device, dtype)
        zeros = torch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if zeros is None else nn.Parameter(zeros))
        self.activation_type = activation_type
        self.activation = activation

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
        - "int8" on a GPU, for weights of integers: more than 64 tokens are rounded to 8 bits with
          one scale for each token, multiplied as integers, exactly within a group of the weight.
        - "float8_e4m3" on a GPU of compute capability 8.9 and more, and on AMD's MI300X and
          MI355X, for weights whose values float8_e4m3 holds (itself, floats of 3 to 7 bits, mxfp4,
          integers of 1 to 4 bits and of 5 with a zero point in the middle, but not nvfp4, whose
          groups have 16 columns): the same with floats of 8 bits, summed in float32 every 128
          columns.
        - "float8_e4m3,fast_accum": the same, but that sums within a group, or a row, are left to
          the matrix unit, which keeps 14 bits of them on NVIDIA's GPUs, as ``torch._scaled_mm`` has
          it with ``use_fast_accum``. Faster from some 100 tokens on, where a row has one scale.

        Up to 64 tokens a GPU multiplies as they come: weights are what such calls wait for, so that
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

    @classmethod
    def from_weight(
        cls, weight: Weight, bias: Tensor | None = None, *, activation_type: str | None = None
    ) -> Linear:
        """A module that holds ``weight`` (not a copy) and ``bias`` [N]."""
        n, k = weight.shape
        dtype = bias.dtype if bias is not None else None
        module = cls(
            k,
            n,
            bias is not None,
            weight.type,
            act_order=weight.g_idx is not None,
            activation_type=activation_type,
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
        linear: nn.Module,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        method: str = "search",
        activation_type: str | None = None,
    ) -> Linear:
        """Quantise an ``nn.Linear``, or a Conv1D of transformers; arguments as
        :func:`ladder.quantize`. The bias shares the memory of ``linear``'s.

        Raises:
            InvalidArgument: ``linear`` is something else, a packed layer included.
            Unsupported: ``activation_type`` does not take such weights.
        """
        if isinstance(linear, PackedModule):
            raise InvalidArgument(
                f"linear is packed already, as {linear.weight_type}: quantise linear.dequantize()"
            )
        if not is_linear(linear):
            raise InvalidArgument(f"linear is of {type(linear).__name__}, not nn.Linear")
        dense, bias = dense_weight(linear), cast("Tensor | None", linear.bias)
        weight = quantize(
            dense, weight_type, group_size=group_size, symmetric=symmetric, method=method
        )
        module = cls.from_weight(weight, bias, activation_type=activation_type)
        module.dtype, module._conv1d = dense.dtype, is_conv1d(linear)
        return module.train(linear.training)

    def dequantize(self, dtype: torch.dtype | None = None) -> nn.Module:
        """An ``nn.Linear`` with the weight's values, in ``self.dtype`` unless given; a Conv1D of
        transformers where this module replaced one. A :attr:`pre_scale` is multiplied into its
        columns, rounded once with them."""
        if self._function is not None:
            raise Unsupported(
                f"the layer ends with its activation, {self.activation}, which nn.Linear has not: "
                "set layer.activation to None, and call the function behind it"
            )
        dtype = dtype or self.dtype
        if self.pre_scale is None:
            values = self.packed_weight.dequantize(dtype)
        else:
            values = (self.packed_weight.dequantize() * self.pre_scale).to(dtype)
        with torch.device("meta"):
            dense: Any = nn.Linear(self.in_features, self.out_features, self.bias is not None)
            if self._conv1d:
                from transformers.pytorch_utils import Conv1D

                dense, values = Conv1D(self.out_features, self.in_features), values.T.contiguous()
        dense.weight = nn.Parameter(values)
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().to(dtype))
        return dense.train(self.training)

    @property
    def weight(self) -> Tensor:
        """Shape [N, K], dtype and device of the dense weight, for code that asks a Linear for
        them. It has no elements: arithmetic with it raises Unsupported, and :meth:`dequantize`
        gives values."""
        like = self.qweight if self.image is None else self.image
        return metadata(like, self.out_features, self.in_features, self.dtype)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[..., K] to [..., N], in the dtype of ``x``, or of autocast where that is on.

        Args:
            residual: [..., N], of the shape, dtype and device of the result, which is
                ``activation(x @ value(weight).T + bias) + residual`` then, in memory of its own, as
                the end of a block of a transformer has it. A GPU with kernels, and a CPU for a
                layer without an activation, add it in float32 where the sums are made and round y
                once; elsewhere, and where the weight is dequantised for a dense product, y is
                rounded before, as by two ops. The kernels are compiled by the first call with a
                residual, or by :meth:`compile_for`.
        Raises:
            InvalidArgument: ``x`` or ``residual`` does not fit; the message has both values.
        """
        if residual is not None:
            return with_residual(self, x, residual)
        if _is_compiling():
            self._prepare_for_trace()
            return self._forward(x)
        # A microsecond counts here, so what is common comes first, and from dictionaries:
        # attributes of modules are looked up slowly. All else goes through _forward.
        state = self.__dict__
        buffers, bias = state["_buffers"], state["_parameters"].get("bias", _absent)
        if (
            bias is _absent
            or "input_scale" in buffers
            or "pre_scale" in buffers
            or _autocasting()
            or _func_level() is not None
            or _forward_levels._current_level >= 0
        ):
            return self._forward(x)
        image = buffers.get("image")
        if image is None:
            return self._by_codes_on_cpu(x, bias)
        number, n = state["_weight_number"], state["out_features"]
        try:
            if bias is None:
                wanted = x.requires_grad
            elif bias.dtype is not x.dtype:
                return self._forward(x)
            else:
                wanted = x.requires_grad or bias.requires_grad
            if wanted and _grad_enabled():
                if self._function is not None:
                    return self._forward(x)
                return _linear_with_grad(x, image, bias, number, n)
            return _linear_no_grad(x, image, bias, number, n)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        except AttributeError:
            check_tensor(x)
            raise
        except RuntimeError:
            if not self._leave_kernels():
                raise
            return self._forward(x)

    def _by_codes_on_cpu(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """What :meth:`_forward` gives where it has nothing to do but to call the op, which takes a
        third of its time for one token of a small layer."""
        if (
            type(x) is not Tensor
            or x.device.type != "cpu"
            or _autocasting("cpu")
            or x.dim() == 0
            or x.shape[-1] != self.in_features
            or (bias is not None and bias.dtype is not x.dtype)
            or self._activation_type is not None
            or self._function is not None
            or type(self)._by_codes is not _by_codes
        ):
            return self._forward(x)
        part = self.__dict__["_buffers"].get
        try:
            return _linear(
                x,
                part("qweight"),
                part("scales"),
                part("zeros"),
                part("scale2"),
                part("g_idx"),
                bias,
                self._type_text,
            )
        except ValueError as error:
            raise InvalidArgument(str(error)) from None

    def _forward(self, x: Tensor) -> Tensor:
        return self._with_bias(x, self.bias)

    def _with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """:meth:`forward` with another bias [N] than the module's."""
        return self._multiplied(x, bias, self._by_image, self._by_codes)

    def _multiplied(
        self,
        x: Tensor,
        bias: Tensor | None,
        by_image: Callable[[Tensor, Tensor | None], Tensor],
        by_codes: Callable[[Tensor, Tensor | None], Tensor],
    ) -> Tensor:
        """``by_image`` where kernels have the weight, else ``by_codes``, of x and the bias as
        products take them."""
        check_tensor(x)
        device, x = x.device.type, autocast(x)
        check_columns(x, self.in_features)
        pre_scale = self.pre_scale
        if pre_scale is not None:
            x = scaled(x, pre_scale)
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if device == "cuda" and not torch.compiler.is_compiling():
            self.prepare()
        if self.image is not None:
            if torch.compiler.is_compiling():
                return by_image(x, bias)
            try:
                return by_image(x, bias)
            except RuntimeError:
                if not self._leave_kernels():
                    raise
        return by_codes(x, bias)

    def _by_image(self, x: Tensor, bias: Tensor | None) -> Tensor:
        image: Any = self.image
        number, n, scale = self._weight_number, self.out_features, self._scale_of_x()
        if self._function is not None:
            return linear_then(x, image, bias, number, n, self._function, scale)
        if scale is None:
            return linear_image(x, image, bias, number, n)
        return linear_image_scaled(x, scale, image, bias, number, n)

    def _scale_of_x(self) -> Tensor | None:
        return self.input_scale if self._activation_type else None

    def _by_codes(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y = self._sums_by_codes(x, bias, None)
        return y if self._function is None else self._function.of_sums(y)

    def _sums_by_codes(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        return ops.linear(
            x,
            self.qweight,
            self._type_text,
            scales=self.scales,
            zeros=self.zeros,
            scale2=self.scale2,
            g_idx=self.g_idx,
            bias=bias,
            residual=residual,
            activation_type=self._activation_type,
            input_scale=self.input_scale,
        )

    def _prepare_for_trace(self) -> None:
        """:meth:`prepare`, once, while ``torch.compile`` traces. An exported program keeps the
        canonical form, which any machine can run; tensors without data cannot change theirs."""
        if not torch.compiler.is_exporting() and type(self.qweight) is Tensor:
            self.prepare()

    # What torch.compiler.assume_constant_result does, without importing the compiler: the function
    # runs when it is traced, on the module itself, before anything else of it is looked at.
    _prepare_for_trace._dynamo_marked_constant = True  # type: ignore[attr-defined]

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

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weight_type={self._type_text}"
            + (f", activation={self.activation}" if self.activation else "")
            + (f", activation_type={self.activation_type}" if self.activation_type else "")
            + (", static" if self.activation_type and self.input_scale is not None else "")
            + (", pre_scale" if self.pre_scale is not None else "")
            + (", dependent_launch=True" if self.dependent_launch else "")
        )


_by_codes = Linear._by_codes  # of classes that have not replaced it
