# SPDX-License-Identifier: Apache-2.0
"""``Matmul``: one multiplication as an object."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.bitblas import codes
from ladder.bitblas.config import TORCH_DTYPES, MatmulConfig, MatmulConfigWithSplitK
from ladder.bitblas.images import Images, Parts, on_gpu
from ladder.bitblas.operator import Operator, integer_product, nibbles, random_arguments
from ladder.cuda.codes import linear_codes_image
from ladder.cuda.linear import linear_image
from ladder.errors import InvalidArgument
from ladder.ops.codes import (
    CODE_DTYPES,
    are_exact_in_float32,
    has_whole_values,
    largest_sum,
)
from ladder.types import parse
from ladder.weight import Weight

_SCALE_DTYPES = (None, torch.float16, torch.bfloat16, torch.float32)
#: A_dtype -> the dtype of codes that kernels of a GPU multiply; A of 4 bits comes as int8.
_CODES = {
    **dict.fromkeys(("int8", "int4", "uint4"), torch.int8),
    **dict.fromkeys(("e4m3_float8", "float8_e4m3"), torch.float8_e4m3fn),
}


class Matmul(Operator):
    """``C[..., N] = A[..., K] @ value(W)[N, K].T + bias``, see :class:`MatmulConfig`.

    Integer A and integer W without scales give the exact integer sum; everything else is summed in
    float32. ``enable_tuning``, ``from_database`` and ``backend`` are accepted.
    """

    def __init__(
        self,
        config: MatmulConfig,
        name: str = "matmul",
        target: str | None = None,
        enable_tuning: bool = True,
        from_database: bool = False,
        backend: str = "tl",
    ) -> None:
        super().__init__(name, config, target)
        self.backend = backend
        self.torch_output_dtype = TORCH_DTYPES[config.out_dtype]
        self.dynamic_range = {"m": list(config.M)} if isinstance(config.M, tuple) else {}
        self.ladder_permutate_a = self.ladder_permutate_b = None
        self.weight_compress = self.lop3_permutate = None
        self.source_format, self.lut = source_format(config.W_dtype), None
        self._images = Images(_CODES.get(config.A_dtype))
        if config.is_dense:
            self.bit = TORCH_DTYPES[config.W_dtype].itemsize * 8
            return
        row = parse(config.W_dtype).element
        self.bit = row.bits
        # By dtype of the scales, so that no call parses a spelling (torch.compile cannot).
        self._types = {kind: config.weight_type(kind) for kind in _SCALE_DTYPES}
        self.lut = row.values.to(torch.float32) if row.encoding == "table" else None

    def __getattr__(self, name: str) -> Any:
        # M, N, K, A_dtype, ..., zeros_mode: the fields of the configuration.
        config = self.__dict__.get("config")
        if config is not None and name in type(config).__dataclass_fields__:
            return getattr(config, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    # --- weights ---------------------------------------------------------------------------------

    def retrieve_weight_shape(self) -> list[int]:
        """Shape of what :meth:`transform_weight` gives."""
        if self.config.is_dense:
            return [self.K, self.N] if self.layout[1] == "n" else [self.N, self.K]
        return codes.packed_shape(self.N, self.K, self.bit)

    def transform_weight(
        self,
        weight: Tensor,
        scale: Tensor | None = None,
        zeros: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Pack a weight [N, K] with one number per element; a dense one is returned as it is.

        Signed integers are values, the others codes. ``scale``, ``zeros`` and ``bias`` are accepted
        and go to :meth:`forward` as they are.

        Returns:
            int8 [N, K * bits / 8], rows padded to 32 bits, codes low bits first along K.
        Raises:
            InvalidArgument: wrong shape, or a code that ``W_dtype`` does not have.
        """
        if self.config.is_dense:
            return weight.contiguous()
        packed = [self.N, self.K * self.bit // 8]
        if self.config.is_native and self.bit < 8 and list(weight.shape) == packed:
            return weight  # BitBLAS' users of int4 x int4 compress it themselves
        self._require_shape(weight, [self.N, self.K], "weight")
        return codes.pack_bytes(codes.codes_of_values(weight, self.config), self.bit)

    @property
    def weight_transform(self) -> Callable[[Tensor], Tensor] | None:
        """Packs stored codes [N, K]: those of signed integers have 2**(bits - 1) added."""
        return None if self.config.is_dense else self._pack_codes

    def _pack_codes(self, stored: Tensor) -> Tensor:
        self._require_shape(stored, [self.N, self.K], "weight")
        return codes.pack_bytes(codes.checked_codes(stored, self.bit), self.bit)

    def transform_input(self, input_tensor: Tensor) -> Tensor:
        """The activations as they are: none are permuted."""
        return input_tensor

    @property
    def input_transform(self) -> None:
        return None

    def _require_shape(self, tensor: Tensor, shape: list[int], name: str) -> None:
        if list(tensor.shape) != shape:
            raise InvalidArgument(f"{name} has shape {list(tensor.shape)}, not {shape}")

    def packed_weight(self, W: Tensor, scale: Tensor | None = None, zeros: Tensor | None = None,
                      g_idx: Tensor | None = None) -> Weight:  # fmt: skip
        """The parts as a :class:`ladder.Weight`; ``scale`` and ``zeros`` as :meth:`forward`."""
        config = self.config
        for given, wanted, name in ((scale, config.with_scaling, "scale"),
                                    (zeros, config.with_zeros, "zeros")):  # fmt: skip
            if wanted != (given is not None):
                raise InvalidArgument(
                    f"{name} is {'missing' if wanted else 'given'}, but with_"
                    f"{'scaling' if name == 'scale' else name} is {wanted}"
                )
        if zeros is not None and scale is None:
            groups = self._types[None].groups(self.K)
            kind = zeros.dtype if zeros.is_floating_point() else torch.float32
            scale = torch.ones(self.N, groups, dtype=kind, device=W.device)
        if zeros is not None and zeros.is_floating_point() and zeros.dtype != scale.dtype:
            scale, zeros = scale.float(), zeros.float()
        dtype = None if scale is None or scale.dtype == torch.uint8 else scale.dtype
        if dtype not in self._types:
            raise InvalidArgument(f"scale has dtype {dtype}, not float16, bfloat16 or float32")
        ttype = self._types[dtype]
        groups = ttype.groups(self.K)
        if ttype.zero == "integer":
            zeros = codes.unpack_zeros(zeros, self.N, groups, ttype.bits)
        qweight = codes.words(W, self.N, self.K, ttype.bits)
        parts = {"scales": scale, "zeros": zeros}
        for name, part in parts.items():
            if part is not None:
                self._require_shape(part, [self.N, groups], name)
        parts = {name: None if p is None else p.contiguous() for name, p in parts.items()}
        return Weight(ttype, (self.N, self.K), qweight, **parts, g_idx=g_idx)

    # --- the product -----------------------------------------------------------------------------

    def forward(
        self,
        A: Tensor,
        W: Tensor,
        scale: Tensor | None = None,
        zeros: Tensor | None = None,
        bias: Tensor | None = None,
        output: Tensor | None = None,
        *,
        g_idx: Tensor | None = None,
    ) -> Tensor:
        """[..., N] in ``out_dtype``.

        Args:
            A: [..., K] in ``A_dtype``; with a fixed M, exactly M rows.
            W: from :meth:`transform_weight`.
            scale: [N, G], G = ceil(K / group_size); any float dtype.
            zeros: [N, G] float; int8 [G, N * bits / 8] for zeros_mode "quantized".
            bias: [N].
            output: written and returned when given.
            g_idx: [K] int32, the group of each column (act-order).
        Raises:
            InvalidArgument: a shape or dtype that does not fit, with both values; never a wrong
                read.
        """
        config = self.config
        if config.with_bias != (bias is not None):
            raise InvalidArgument(
                f"bias is {'given' if bias is not None else 'missing'}, but with_bias is "
                f"{config.with_bias}"
            )
        if bias is not None:
            self._require_shape(bias, [self.N], "bias")
        x = self._activations(A)
        if config.is_dense:
            if scale is not None or zeros is not None:
                raise InvalidArgument(f"scale or zeros given, but W of {self.W_dtype} has neither")
            y = self._dense(x, W, bias)
        else:
            y = self._packed(x, (W, scale, zeros, g_idx), bias)
        if bias is not None and not x.is_floating_point():
            y = y.double() + bias.double()
        y = y.to(self.torch_output_dtype)
        if output is None:
            return y
        self._require_shape(output, list(y.shape), "output")
        return output.copy_(y)

    def _activations(self, A: Tensor) -> Tensor:
        """A checked, as [..., K] in the dtype to compute in."""
        config, dtype = self.config, TORCH_DTYPES[self.config.A_dtype]
        x = A.transpose(-1, -2) if self.layout[0] == "t" else A
        narrow = config.A_dtype in ("int4", "uint4")
        if narrow and x.dim() and x.shape[-1] * 2 == self.K:
            x = nibbles(x, signed=config.A_dtype == "int4")
        if A.dtype != dtype and not (narrow and A.dtype in (torch.int8, torch.uint8)):
            raise InvalidArgument(f"A has dtype {A.dtype}, not {dtype} as A_dtype says")
        if x.dim() < 1 or x.shape[-1] != self.K:
            raise InvalidArgument(f"A has shape {list(A.shape)}; K is {self.K}")
        rows = x.numel() // self.K
        if isinstance(self.M, int) and rows != self.M:
            raise InvalidArgument(f"A has {rows} rows; M is fixed at {self.M}")
        if config.has_integer_activations or config.A_dtype == "float64":
            return x
        if x.dtype == torch.float8_e4m3fn and not config.is_dense and on_gpu(x):
            return x  # codes, as those of int8
        if config.A_dtype == config.out_dtype and dtype in ops.ACTIVATION_DTYPES:
            return x
        return x.to(torch.float32)

    def _dense(self, x: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
        """With the bias when ``x`` is float, as :meth:`_packed`."""
        dtype = TORCH_DTYPES[self.W_dtype]
        self._require_shape(W, self.retrieve_weight_shape(), "W")
        if W.dtype != dtype:
            raise InvalidArgument(f"W has dtype {W.dtype}, not {dtype} as W_dtype says")
        if W.device != x.device:
            raise InvalidArgument(f"A is on {x.device}, W on {W.device}")
        values = W.t() if self.layout[1] == "n" else W
        if not x.is_floating_point():
            return integer_product(x, values)
        kind = torch.promote_types(x.dtype, values.dtype)
        bias = None if bias is None else bias.to(kind)
        return torch.nn.functional.linear(x.to(kind), values.to(kind), bias)

    def _packed(self, x: Tensor, parts: Parts, bias: Tensor | None) -> Tensor:
        """``parts`` are W, scale, zeros and g_idx. With the bias when ``x`` is float; integers
        without scales give exact whole numbers."""
        if x.dtype in CODE_DTYPES and not (x.requires_grad and torch.is_grad_enabled()):
            y = self._by_bytes(x, parts, bias)
            if y is not None:
                return y
            x = x.to(torch.float32) if x.is_floating_point() else x
        if x.is_floating_point() and x.dtype != torch.float64:
            return self._float(x, parts, None if bias is None else bias.to(x.dtype))
        weight = self.packed_weight(*parts)
        if x.is_floating_point():
            return x @ weight.dequantize(torch.float64).t() + (0 if bias is None else bias.double())
        values = weight.type.element.values
        exact = weight.type.scale is None and bool((values == values.round()).all())
        largest = 2.0 ** (8 * x.dtype.itemsize - (x.dtype != torch.uint8))
        # Sums of integers below 2**24 are exact in float32, below 2**53 in float64.
        if self.K * largest * float(values.abs().max()) < 2**24:
            y = self._float(x.to(torch.float32), parts, None)
        else:
            y = x.double() @ weight.dequantize(torch.float64).t()
        return y.to(torch.int64) if exact else y

    def _by_bytes(self, x: Tensor, parts: Parts, bias: Tensor | None) -> Tensor | None:
        """By the kernels of a GPU that multiply codes of 8 bits; None where it has none. With the
        bias when ``x`` is float.

        The exact sum of whole numbers is rounded once, or comes as int32.
        """
        image = None
        if on_gpu(x) and on_gpu(parts[0]):
            image = self._images.of(parts, lambda: self.packed_weight(*parts))
        if image is None or image.for_codes is None:
            return None
        kind = self.torch_output_dtype
        if kind not in ops.ACTIVATION_DTYPES or bias is not None:
            kind = torch.float32
        if x.dtype == torch.int8 and has_whole_values(image.ttype):
            if largest_sum(image.ttype, self.K) >= 2**31:
                return None
            exact = are_exact_in_float32(image.ttype, self.K)
            if not exact or self.torch_output_dtype not in ops.ACTIVATION_DTYPES:
                kind = torch.int32
        try:
            y = linear_codes_image(
                x, None, image.words, None, image.ttype, self.N,
                plain=image.number, number=image.for_codes, out_dtype=kind,
            )  # fmt: skip
        except RuntimeError:
            if not self._images.leave(x.device):
                raise
            return None
        # Not by the kernel, so that a bias may have its gradient.
        return y if bias is None or not x.is_floating_point() else y + bias.to(kind)

    def _float(self, x: Tensor, parts: Parts, bias: Tensor | None) -> Tensor:
        """By kernels on a GPU that has them: the image of the weight is made by the first call with
        these tensors, and again after a change of one (ladder/bitblas/images.py)."""
        image = None
        if on_gpu(x) and on_gpu(parts[0]):
            image = self._images.of(parts, lambda: self.packed_weight(*parts))
        if image is not None:
            bias = None if bias is None else bias.contiguous()
            try:
                return linear_image(x, image.words, bias, image.number, self.N)
            except RuntimeError:
                if not self._images.leave(x.device):
                    raise
        return self.packed_weight(*parts).linear(x, bias)

    def cleanup(self) -> None:
        """Let the images of weights go. The next call makes them again, also after a change of a
        weight that torch does not count, such as a write through ``.data``."""
        self._images.clear()

    # --- what it costs, what it is ---------------------------------------------------------------

    def profile_latency(self, dynamic_symbolic_constraints: dict[str, int] | None = None) -> float:
        """Milliseconds of one call, the median of repeated calls on random data, on a GPU when
        there is one. M is ``dynamic_symbolic_constraints["m"]``, else the fixed or first one."""
        m = self.M if isinstance(self.M, int) else self.M[0]
        if isinstance(self.M, tuple):
            m = (dynamic_symbolic_constraints or {}).get("m", m)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        arguments = [part.to(device) for part in random_arguments(self, m)]
        names = ("A", "W", *("scale",) * self.with_scaling, *("zeros",) * self.with_zeros,
                 *("bias",) * self.with_bias)  # fmt: skip
        call = dict(zip(names, arguments, strict=True))
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < 5 or (len(times) < 100 and time.perf_counter() - begin < 0.2):
            start = time.perf_counter()
            self.forward(**call)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return 1e3 * sorted(times)[len(times) // 2]

    def get_source(self, target: str | None = None, kenrel_only: bool = False) -> str:
        """What runs, in words: kernels of ladder are not generated per operator."""
        config = self.config
        weight = config.W_dtype if config.is_dense else str(config.weight_type())
        return (
            f"// C[M, {self.N}] {config.out_dtype} = A[M, {self.K}] {config.A_dtype} * "
            f"W[{self.N}, {self.K}]^T, W stored as {weight}\n"
            f"// torch.ops.ladder.linear on {target or self.target}\n"
        )


class MatmulWithSplitK(Matmul):
    """:class:`Matmul` by another name; ``k_split`` is accepted and changes no result."""

    def __init__(self, config: MatmulConfigWithSplitK, name: str = "matmul", *args: Any,
                 **kwargs: Any) -> None:  # fmt: skip
        super().__init__(config, name, *args, **kwargs)


def source_format(w_dtype: str) -> str:
    """BitBLAS' word for a family of formats."""
    special = {"nf4": "nf", "e4m3_float8": "fp_e4m3", "e5m2_float8": "fp_e5m2", "bfloat16": "bf"}
    for word in ("uint", "int"):
        if w_dtype.startswith(word):
            return word
    return special.get(w_dtype, "fp")
