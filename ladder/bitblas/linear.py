# SPDX-License-Identifier: Apache-2.0
"""``Linear``: an ``nn.Module`` over :class:`Matmul`, with BitBLAS' buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ladder.bitblas import codes
from ladder.bitblas.cache import global_operator_cache
from ladder.bitblas.config import TORCH_DTYPES, MatmulConfig
from ladder.bitblas.matmul import Matmul
from ladder.checkpoints.modules import weight_from_module
from ladder.errors import InvalidArgument
from ladder.types import dtype_name, parse
from ladder.weight import Weight


class Linear(nn.Module):
    """``y = x @ value(W).T + bias``, arguments and defaults as BitBLAS has them.

    Buffers: ``weight`` [N, K] where A and W have one dtype; else ``qweight`` int8
    [N, K * bits / 8], ``scales`` [N, G], ``zeros`` [N, G] (zeros_mode "quantized": int8
    [G, N * bits / 8]) and, for a weight in act-order, ``g_idx`` int32 [K]. ``bias`` [N].
    """

    opt_M: int | Sequence[int] = [1, 16, 32, 64, 128, 256, 512]
    STORAGE_DTYPE = "int8"

    weight: Tensor
    qweight: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    bias: Tensor | None
    g_idx: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        A_dtype: str = "float16",
        W_dtype: str = "float16",
        accum_dtype: str = "float16",
        out_dtype: str = "float16",
        group_size: int = -1,
        with_scaling: bool | None = None,
        with_zeros: bool = False,
        zeros_mode: str | None = None,
        opt_M: int | Sequence[int] = opt_M,
        enable_tuning: bool = True,
        fast_decoding: bool | None = None,
        propagate_b: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.opt_M, self.group_size = opt_M, -1 if group_size is None else group_size
        config = MatmulConfig(
            M=opt_M if isinstance(opt_M, int) else tuple(opt_M),
            N=out_features,
            K=in_features,
            A_dtype=A_dtype,
            W_dtype=W_dtype,
            out_dtype=out_dtype,
            accum_dtype=accum_dtype,
            storage_dtype=self.STORAGE_DTYPE,
            with_scaling=with_scaling,
            with_zeros=with_zeros,
            group_size=group_size,
            fast_decoding=fast_decoding,
            with_bias=bias,
            propagate_b=propagate_b,
            zeros_mode=zeros_mode,
        )
        self.bitblas_matmul = _operator(config, enable_tuning)
        self.torch_dtype = TORCH_DTYPES[A_dtype]
        self._unpacked: tuple[Tensor, int, Tensor] | None = None
        self._add_buffers(config)

    def _add_buffers(self, config: MatmulConfig) -> None:
        n, k = config.N, config.K
        shape = self.bitblas_matmul.retrieve_weight_shape()
        for name in ("scales", "zeros", "bias", "g_idx"):
            self.register_buffer(name, None)
        if config.is_dense:
            self.register_buffer("weight", torch.zeros(shape, dtype=TORCH_DTYPES[config.W_dtype]))
        else:
            self.register_buffer("qweight", torch.zeros(shape, dtype=torch.int8))
            ttype = config.weight_type()
            groups = ttype.groups(k)
            if config.with_scaling:
                self.scales = torch.zeros(n, groups, dtype=ttype.scale_dtype)
            if config.with_zeros and config.zeros_mode == "quantized":
                self.zeros = torch.zeros(groups, -(-n * self.bits // 8), dtype=torch.int8)
            elif config.with_zeros:
                self.zeros = torch.zeros(n, groups, dtype=ttype.scale_dtype)
        if config.with_bias:
            self.bias = torch.zeros(n, dtype=TORCH_DTYPES[config.out_dtype])

    @property
    def bits(self) -> int:
        return self.bitblas_matmul.bit

    @property
    def source_format(self) -> str:
        return self.bitblas_matmul.source_format

    @property
    def consistent(self) -> bool:
        """A and W have one dtype: nothing is decoded."""
        config = self.bitblas_matmul.config
        return config.A_dtype == config.W_dtype

    def init_params(self) -> None:
        """Nothing to prepare: no pointers are kept."""

    def warmup(self, topk: int = 20) -> None:
        """Nothing to tune."""
        self.bitblas_matmul.hardware_aware_finetune(topk)

    def forward(self, A: Tensor, output: Tensor | None = None) -> Tensor:
        """[..., K] to [..., N] in ``out_dtype``."""
        if self.bitblas_matmul.config.is_dense:
            return self.bitblas_matmul(A, self.weight, bias=self.bias, output=output)
        return self.bitblas_matmul(
            A, self.qweight, scale=self.scales, zeros=self._unpacked_zeros(), bias=self.bias,
            output=output, g_idx=self.g_idx,
        )  # fmt: skip

    def _unpacked_zeros(self) -> Tensor | None:
        """``zeros`` as the operator wants them. Those of "quantized" are unpacked once, not by each
        call, which would cost as much as half of a product with one row."""
        zeros, config = self.zeros, self.bitblas_matmul.config
        if zeros is None or config.zeros_mode != "quantized":
            return zeros
        traced = torch.compiler.is_compiling() or zeros.is_inference()
        if not traced and self._unpacked is not None:
            source, version, unpacked = self._unpacked
            if source is zeros and version == zeros._version:
                return unpacked
        if traced:
            return codes.unpack_zeros(zeros, config.N, zeros.shape[0], self.bits)
        groups = config.weight_type().groups(config.K)
        with torch.inference_mode(False):  # what is kept has to count its changes
            unpacked = codes.unpack_zeros(zeros, config.N, groups, self.bits)
            self._unpacked = (zeros, zeros._version, unpacked)
        return unpacked

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unpacked": None}

    @property
    def packed_weight(self) -> Weight:
        """The parts as a :class:`ladder.Weight`: values, or a ``ladder.Linear`` from them."""
        return self.bitblas_matmul.packed_weight(self.qweight, self.scales, self.zeros, self.g_idx)

    def load_and_transform_weight(
        self,
        weight: Tensor,
        scales: Tensor | None = None,
        zeros: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Pack a weight [N, K] as :meth:`Matmul.transform_weight` and take over the other parts.

        Scales and float zeros are cast to the dtype of their buffer. Raises InvalidArgument for a
        part that is missing, unexpected, misshapen or beyond the dtype of its buffer.
        """
        packed = self.bitblas_matmul.transform_weight(weight)
        name = "weight" if self.bitblas_matmul.config.is_dense else "qweight"
        if packed.shape != getattr(self, name).shape:
            raise InvalidArgument(
                f"weight has shape {list(weight.shape)}, not "
                f"{[self.out_features, self.in_features]}"
            )
        parts = {"scales": scales, "zeros": zeros, "bias": bias}
        for part, given in parts.items():
            buffer = getattr(self, part)
            if given is None and buffer is not None and part != "bias":
                raise InvalidArgument(f"{part} is missing")
            if given is not None and (buffer is None or given.shape != buffer.shape):
                wanted = None if buffer is None else list(buffer.shape)
                raise InvalidArgument(f"{part} has shape {list(given.shape)}, not {wanted}")
        taken = {name: _cast(name, packed, getattr(self, name))}
        for part, given in parts.items():
            if given is not None:
                taken[part] = _cast(part, given, getattr(self, part)).contiguous()
        for part, tensor in taken.items():
            setattr(self, part, tensor)
        self.g_idx = None

    # --- other packages' layers ------------------------------------------------------------------

    def repack_from_gptq(self, gptq_module: nn.Module, device: str | None = None) -> None:
        """Take the weight of a GPTQ v1 layer: 2, 3, 4 or 8 bits, symmetric or not, in act-order or
        not. ``device`` is where to leave it; where it was unless given.

        Raises:
            InvalidArgument: ``W_dtype``, ``with_zeros`` or the groups of this layer cannot hold it.
        """
        self._repack(gptq_module, "gptq", "gptq", device)

    def repack_from_gptq_v2(self, gptq_module: nn.Module, device: str | None = None) -> None:
        """The same for GPTQ v2, whose stored zeros are the zeros."""
        self._repack(gptq_module, "gptq", "gptq_v2", device)

    def repack_from_awq(self, awq_module: nn.Module, device: str | None = None) -> None:
        """The same for an AWQ (gemm) layer."""
        self._repack(awq_module, "awq", "gemm", device)

    def _repack(self, module: nn.Module, family: str, variant: str, device: str | None) -> None:
        config = self.bitblas_matmul.config
        weight = weight_from_module(module, family, variant, bits=self.bits)
        if weight.type.bits != self.bits:
            raise InvalidArgument(f"the module has {weight.type.bits} bits, this layer {self.bits}")
        if weight.shape != (self.out_features, self.in_features):
            raise InvalidArgument(
                f"the module is {list(weight.shape)}, not {[self.out_features, self.in_features]}"
            )
        ttype = config.weight_type(weight.scales.dtype)
        if not config.with_scaling or ttype.groups(self.in_features) != weight.scales.shape[1]:
            raise InvalidArgument(
                f"the module has groups of {weight.type.group_size}; this layer has group_size "
                f"{config.group_size} and with_scaling {config.with_scaling}"
            )
        if parse(config.W_dtype).element.encoding not in ("unsigned_integer", "signed_integer") or (
            self.bits == 8 and config.W_dtype == "int8"
        ):
            raise InvalidArgument(f"W_dtype is {config.W_dtype}; the module holds uint{self.bits}")
        if not config.with_zeros and (ttype.zero, weight.type.zero) != ("midpoint", "midpoint"):
            raise InvalidArgument(
                f"the module has zeros ({weight.type.zero}); with W_dtype {config.W_dtype} and "
                "with_zeros False there is no room for them"
            )
        bias = getattr(module, "bias", None)
        if bias is not None and not config.with_bias and bool(bias.any()):
            raise InvalidArgument("the module has a bias, but with_bias is False")
        target: torch.device | str = device or _device_of(module)
        self.qweight = weight.qweight.view(torch.int8).to(target)
        self.scales = weight.scales.to(target)
        zeros = _zeros(weight, config, self.bits)
        self.zeros = None if zeros is None else zeros.to(target)
        self.g_idx = None if weight.g_idx is None else weight.g_idx.to(target)
        if config.with_bias:
            found = torch.zeros_like(self.bias) if bias is None else bias.detach()
            self.bias = found.to(target, self.bias.dtype)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Act-order, and the dtype of the scales, are facts of the weight that was stored.
        for name in ("scales", "zeros", "g_idx"):
            given, own = state_dict.get(prefix + name), getattr(self, name)
            if given is not None and (own is not None or name == "g_idx"):
                device = self.qweight.device if hasattr(self, "qweight") else given.device
                setattr(self, name, torch.zeros_like(given, device=device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        config = self.bitblas_matmul.config
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={config.with_bias}, A_dtype={config.A_dtype}, W_dtype={config.W_dtype}, "
            f"group_size={self.group_size}"
        )


def _device_of(module: nn.Module) -> torch.device:
    """Where the tensors of another package's layer are."""
    qweight = module.qweight
    return qweight.device if isinstance(qweight, Tensor) else torch.device("cpu")


def _cast(name: str, given: Tensor, buffer: Tensor) -> Tensor:
    """``given`` in the dtype of ``buffer``, which must hold what is finite."""
    cast = given.to(buffer)
    if given.dtype != cast.dtype and given.is_floating_point():
        beyond = given.isfinite() & ~cast.isfinite().to(given.device)
        if bool(beyond.any()):
            most = given[beyond].abs().max().item()
            raise InvalidArgument(f"{name} has {most:.3g}, beyond {dtype_name(cast.dtype)}")
    return cast


def _zeros(weight: Weight, config: MatmulConfig, bits: int) -> Tensor | None:
    """Zeros of a repacked weight in the form of ``zeros_mode``."""
    if not config.with_zeros:
        return None
    zeros = weight.zeros
    if weight.type.zero == "midpoint":
        zeros = torch.full_like(weight.scales, 1 << (bits - 1), dtype=torch.uint8)
    if config.zeros_mode == "quantized":
        return codes.pack_zeros(zeros, bits)
    original = zeros.to(weight.scales.dtype)
    return original if config.zeros_mode == "original" else original * weight.scales


def _operator(config: MatmulConfig, enable_tuning: bool) -> Matmul:
    found = global_operator_cache.get(config)
    if found is None:
        found = Matmul(config, enable_tuning=enable_tuning)
        global_operator_cache.add(config, found)
    return cast(Matmul, found)
