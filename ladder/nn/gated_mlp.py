# SPDX-License-Identifier: Apache-2.0
"""``ladder.GatedMLP``: the MLP of LLaMA and its kin, its weights packed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ladder.cuda import kernels
from ladder.errors import InvalidArgument
from ladder.nn.arguments import check_model
from ladder.nn.gated import GatedWeight, objection
from ladder.nn.gated_form import Form, form_of
from ladder.nn.linear import Linear
from ladder.nn.residual import added_to
from ladder.nn.select import dense_weight, is_linear
from ladder.ops.gating import Gating
from ladder.ops.transforms import check_tensor
from ladder.quantization import quantize
from ladder.types import TType, with_defaults


class GatedMLP(nn.Module):
    """``y = down_proj(function(gate_proj(x)) * up_proj(x))``, [..., H] to [..., H]; a call with a
    ``residual`` [..., H] adds it, as :meth:`ladder.Linear.forward` of ``down_proj`` does.

    ``gate_proj`` and ``up_proj`` [I, H] and ``down_proj`` [H, I] are :class:`ladder.Linear`, so
    that ``state_dict`` has ``gate_proj.qweight``, ``gate_proj.scales``, ..., as a LLaMA of packed
    layers. On a CUDA device with kernels for the type :meth:`fuse`, which the first call and
    :func:`ladder.warmup` do, makes the product of gate and up part of the launch that makes their
    sums. Saving, copying, moving and adapters of PEFT see the layers as if nothing was.

    Args:
        hidden_size: H.
        intermediate_size: I; one weight of gate and up needs a multiple of 8.
        bias: all three products add a bias of ``dtype``.
        weight_type, group_size, symmetric: as :class:`ladder.Linear`, of gate and up.
        down_type: another type of ``down_proj``, completed by the same two.
        activation, limit, alpha: the function of the gate, as
            :class:`ladder.ops.gating.Gating`: "silu", "gelu", "gelu_pytorch_tanh", "relu2", ...
        act_order: make room for ``g_idx``. Gate and up of unlike orders stay two products.
        activation_type: of all three, as :attr:`ladder.Linear.activation_type`.
        dtype: of the biases, and of the dense form.
    Raises:
        InvalidArgument: a size that is not positive, an unknown type or activation.
        Unsupported: ``activation_type`` does not take such weights.
    Error:
        :func:`ladder.cuda.epilogue.linear_then` where gate and up are one weight on a GPU.
        Elsewhere gate and up are rounded to the dtype of x first, as of three layers.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        down_type: str | TType | None = None,
        activation: str = "silu",
        limit: float | None = None,
        alpha: float = 1.702,
        act_order: bool = False,
        activation_type: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gating = Gating(activation, limit, alpha)

        def layer(k: int, n: int, type: str | TType) -> Linear:
            return Linear(
                k,
                n,
                bias,
                type,
                group_size,
                symmetric,
                act_order=act_order,
                activation_type=activation_type,
                device=device,
                dtype=dtype,
            )

        self.gate_proj = layer(hidden_size, intermediate_size, weight_type)
        self.up_proj = layer(hidden_size, intermediate_size, weight_type)
        self.down_proj = layer(intermediate_size, hidden_size, down_type or weight_type)
        self._left: str | None = None  # why gate and up stay apart; None: nobody has asked

    @classmethod
    def from_layers(
        cls, gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module, *, gating: Gating
    ) -> GatedMLP:
        """A module of these three layers, the very ones.

        Raises:
            InvalidArgument: ``gating`` is none, a layer is no module, or their sizes do not fit.
        """
        if not isinstance(gating, Gating):
            raise InvalidArgument(f"gating is {gating!r}, not a ladder.ops.gating.Gating")
        _check_sizes(gate_proj=gate_proj, up_proj=up_proj, down_proj=down_proj)
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.gating, module._left = gating, None
        module.gate_proj, module.up_proj, module.down_proj = gate_proj, up_proj, down_proj  # type: ignore[assignment]
        return module.train(gate_proj.training)

    @classmethod
    def from_dense(
        cls,
        module: nn.Module,
        weight_type: str | TType = "uint4",
        group_size: int | None = None,
        symmetric: bool | None = None,
        *,
        method: str = "search",
        activation_type: str | None = None,
    ) -> GatedMLP:
        """Quantise a gated MLP of dense layers, whatever its class and names are: what its forward
        does is seen. Arguments as :meth:`ladder.Linear.from_linear`.

        Raises:
            InvalidArgument: the forward of ``module`` is another, which the message explains.
            Unsupported: ``activation_type`` does not take such weights.
        """
        check_model(module, "module")
        form = form_of(module)
        if isinstance(form, str):
            raise InvalidArgument(f"{type(module).__name__} is no gated MLP: {form}")
        for name in (*form.layers, form.down):
            layer = module.get_submodule(name)
            if not is_linear(layer):
                raise InvalidArgument(f"{name} is of {type(layer).__name__}, not nn.Linear")
        layers = [module.get_submodule(name) for name in (form.gate, form.up, form.down)]
        if len(form.layers) == 1:
            layers[:2] = _halves(layers[0], form.up_first)
        ttype = with_defaults(weight_type, group_size=group_size, symmetric=symmetric)
        how: Any = {"method": method, "activation_type": activation_type}
        packed = [Linear.from_linear(layer, ttype, **how) for layer in layers]
        if ttype.scale2_of_tensor:
            gate, up = map(dense_weight, layers[:2])
            weight = quantize(torch.cat((gate, up)), ttype, method=method)
            for place, rows in enumerate((gate.shape[0], up.shape[0])):
                packed[place].set_weight(weight.narrow_rows(place * gate.shape[0], rows))
        return cls.from_layers(*packed, gating=form.gating).train(module.training)

    @property
    def form(self) -> Form:
        """The names of the layers, and what lies between them."""
        return Form("gate_proj", "up_proj", "down_proj", self.gating)

    def fuse(self) -> str:
        """Make gate and up one weight where they are on a GPU. Returns why they stay apart; "" when
        they do not. What moves or loads the module, and whatever asks for the sums of gate or up,
        gives them their own weights again."""
        if "_gated" in self.__dict__:
            return ""
        device = getattr(self.gate_proj, "device", torch.device("cpu"))
        if not kernels.possible(device):
            return f"{device.type} has no kernels"
        self._left = objection(self, self.form)
        if not self._left:
            GatedWeight(self, self.form)
        return self._left

    adds_residual = True

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        check_tensor(x, jagged=True)
        if x.is_cuda and self._left is None and not torch.compiler.is_compiling():
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "gate and up cannot become one weight while a CUDA graph is being captured: "
                    "call ladder.warmup(model) before the capture"
                )
            if not self.fuse():
                return type(self).forward(self, x, residual)
        product = self.gating.product(self.gate_proj(x), self.up_proj(x))
        return added_to(residual, self.down_proj, product)

    def _apply(self, *args: Any, **kwargs: Any) -> GatedMLP:
        self._left = None
        moved: GatedMLP = super()._apply(*args, **kwargs)
        return moved

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._left = None
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_left": None}

    def extra_repr(self) -> str:
        return str(self.gating)


def _check_sizes(**layers: Any) -> None:
    for name, layer in layers.items():
        if not isinstance(layer, nn.Module):
            raise InvalidArgument(f"{name} is of {type(layer).__name__}, not torch.nn.Module")
    kinds = ("in_features", "out_features")
    gate, up, down = (
        tuple(getattr(layer, kind, None) for kind in kinds) for layer in layers.values()
    )
    if None in (*gate, *up, *down):
        return  # a layer of another kind, which says its own
    if gate != up or down[0] != gate[1]:
        raise InvalidArgument(
            "in_features and out_features are {} of gate_proj, {} of up_proj and {} of down_proj, "
            "which do not fit".format(*map(list, (gate, up, down)))
        )


def _halves(both: nn.Module, up_first: bool) -> list[nn.Module]:
    """A gate and an up of one layer of both, which share its memory."""
    bias: Any = getattr(both, "bias", None)
    biases = (None, None) if bias is None else bias.detach().chunk(2)
    halves: list[nn.Module] = []
    for weight, its in zip(dense_weight(both).chunk(2), biases, strict=True):
        half = nn.Linear(weight.shape[1], weight.shape[0], its is not None, device="meta")
        half.weight = nn.Parameter(weight.detach(), requires_grad=False)
        if its is not None:
            half.bias = nn.Parameter(its, requires_grad=bias.requires_grad)
        halves.append(half.train(both.training))
    return halves[::-1] if up_first else halves
