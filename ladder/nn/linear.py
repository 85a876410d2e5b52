# SPDX-License-Identifier: Apache-2.0
"""``ladder.Linear``: a drop-in for ``torch.nn.Linear`` whose weight is packed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import is_autocast_enabled as _autocasting
from torch import is_grad_enabled as _grad_enabled
from torch.compiler import is_compiling as _is_compiling

from ladder._torch import forward_levels as _forward_levels
from ladder._torch import func_level as _func_level
from ladder.cuda.linear import linear_no_grad as _linear_no_grad
from ladder.cuda.linear import linear_with_grad as _linear_with_grad
from ladder.errors import InvalidArgument
from ladder.nn.arguments import check_integers, named_input
from ladder.nn.given_codes import TakesCodes
from ladder.nn.linear_forms import LinearForms
from ladder.nn.linear_products import LinearProducts
from ladder.nn.residual import with_residual
from ladder.ops.transforms import check_tensor
from ladder.types import TType, with_defaults

_absent = object()
_linear = torch.ops.ladder.linear.default


class Linear(LinearProducts, LinearForms, TakesCodes):
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

    def forward(
        self, x: Tensor | None = None, residual: Tensor | None = None, *, input: Any = None
    ) -> Tensor:
        """[..., K] to [..., N], in the dtype of ``x``, or of autocast where that is on. Rows of
        several lengths (nested tensors of layout ``torch.jagged``) keep their lengths.

        Args:
            input: another name of ``x``, which it has in ``nn.Linear``.
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
        if x is None or input is not None:
            x = named_input(x, input)
            check_tensor(x, jagged=True)
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
            check_tensor(x, jagged=True)
            raise
        except RuntimeError:
            check_tensor(x, jagged=True)
            if not x.is_nested and not self._leave_kernels():
                raise
            return self._forward(x)

    def _by_codes_on_cpu(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """What :meth:`_forward` gives where it has nothing to do but to call the op, which takes a
        third of its time for one token of a small layer."""
        part = self.__dict__["_buffers"].get
        try:
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
        except RuntimeError:
            check_tensor(x, jagged=True)  # sparse and nested ones are Tensors, too
            raise

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
