# SPDX-License-Identifier: Apache-2.0
"""``MatmulConfig``: what one multiplication is, by BitBLAS' names and defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from ladder.errors import InvalidArgument, Unsupported
from ladder.types import TType, dtype_name, element, parse


class OptimizeStrategy(IntEnum):
    """Which M BitBLAS would tune for. Accepted; ladder chooses a kernel for each M that comes."""

    SingleBatchDecodeOnly = 0
    ContigousBatching = 1


class TransformKind(IntEnum):
    """How BitBLAS would permute a weight. Accepted; ladder keeps the canonical order."""

    NonTransform = 0
    InterWarpTransform = 1
    IntraWarpTransform = 2
    LDMatrixTransform = 3


#: torch dtype in which tensors of each activation, output or dense weight dtype arrive.
TORCH_DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16,
    "bfloat16": torch.bfloat16, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16,
    "int8": torch.int8, "uint8": torch.uint8, "int4": torch.int8, "uint4": torch.int8,
    "e4m3_float8": torch.float8_e4m3fn, "e5m2_float8": torch.float8_e5m2,
    "float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
FLOATS = ("float64", "float32", "float16", "bfloat16")
FP8 = ("e4m3_float8", "e5m2_float8", "float8_e4m3", "float8_e5m2")
#: zeros_mode -> the kind of zero points of a tType.
_ZEROS = {"original": "original", "rescale": "rescale", "quantized": "integer"}
ZEROS_MODES = tuple(_ZEROS)
LAYOUTS = ("nn", "nt", "tn", "tt")
_DEFAULT_M = (1, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class OperatorConfig:
    """Base of the configurations of operators."""


@dataclass(frozen=True)
class MatmulConfig(OperatorConfig):
    """``C[M, N] = A[M, K] @ W[N, K].T`` with W stored as ``W_dtype``.

    Fields, defaults and order are BitBLAS'. ``W_dtype`` may also be any ladder type name.
    ``accum_dtype``, ``fast_decoding``, ``propagate_a``, ``propagate_b``, ``storage_dtype`` and
    ``optimize_stratety`` are accepted and change no result: sums are float32, of integers exact.

    Raises:
        InvalidArgument: N or K missing, or a field outside its set; the message has its value.
    """

    M: int | tuple[int, ...] | None = None
    N: int | None = None
    K: int | None = None
    A_dtype: str = "float16"
    W_dtype: str = "float16"
    out_dtype: str = "float16"
    accum_dtype: str = "float16"
    layout: str = "nt"
    with_bias: bool = False
    group_size: int = -1
    with_scaling: bool = False
    with_zeros: bool = False
    zeros_mode: str = "original"
    storage_dtype: str = "int8"
    fast_decoding: bool | None = None
    propagate_a: TransformKind | None = None
    propagate_b: TransformKind | None = None
    optimize_stratety: int | OptimizeStrategy = OptimizeStrategy.SingleBatchDecodeOnly

    def __post_init__(self) -> None:
        self._set("optimize_stratety", OptimizeStrategy(self.optimize_stratety))
        self._set("M", self._legal_m())
        for name, default in (("with_bias", False), ("group_size", -1), ("with_scaling", False),
                              ("with_zeros", False), ("zeros_mode", "original")):  # fmt: skip
            if getattr(self, name) is None:
                self._set(name, default)
        # What is compared below are names: "half" and "INT4" are other spellings of some of them.
        if self.W_dtype not in (*TORCH_DTYPES, "fp4_e2m1"):
            self._set("W_dtype", str(parse(self.W_dtype)))
        for name in ("propagate_a", "propagate_b"):
            self._set(name, _legal_kind(name, getattr(self, name)))
        self._check()
        same = self.A_dtype == self.W_dtype
        if same and self.W_dtype in ("float16", "bfloat16", "int8", *FP8):
            self._set("storage_dtype", self.W_dtype)
        if self.fast_decoding is None:
            self._set("fast_decoding", self._would_decode_fast())

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _legal_m(self) -> int | tuple[int, ...]:
        if self.M is None:
            batching = self.optimize_stratety == OptimizeStrategy.ContigousBatching
            return _DEFAULT_M[1:] if batching else _DEFAULT_M
        m = tuple(self.M) if isinstance(self.M, Iterable) else self.M
        for value in m if isinstance(m, tuple) else (m,):
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"M has {value!r}, not a positive integer")
        if m == ():
            raise InvalidArgument("M is an empty sequence")
        return m

    def _check(self) -> None:
        for name in ("N", "K"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"{name} is {value!r}, not a positive integer")
        for name in ("A_dtype", "out_dtype"):
            if getattr(self, name) not in TORCH_DTYPES:
                raise InvalidArgument(
                    f'{name} is "{getattr(self, name)}", not one of {", ".join(TORCH_DTYPES)}'
                )
        if self.zeros_mode not in ZEROS_MODES:
            raise InvalidArgument(
                f'zeros_mode is "{self.zeros_mode}", not one of {", ".join(ZEROS_MODES)}'
            )
        if self.layout not in LAYOUTS:
            raise InvalidArgument(f'layout is "{self.layout}", not one of {", ".join(LAYOUTS)}')
        if type(self.group_size) is not int or (self.group_size != -1 and self.group_size < 1):
            raise InvalidArgument(f"group_size is {self.group_size!r}, not -1 or positive")
        if self.is_dense:
            if self.with_scaling or self.with_zeros:
                raise InvalidArgument(
                    f"with_scaling is {self.with_scaling} and with_zeros {self.with_zeros}, but a "
                    f"W of {self.W_dtype} has neither"
                )
            return
        if self.layout[1] == "n":
            raise InvalidArgument(
                f'layout is "{self.layout}", but a packed W of {self.W_dtype} lies along K: "nt"'
            )
        unsigned = parse(self.W_dtype).element.encoding == "unsigned_integer"
        if self.with_zeros and not unsigned:
            raise InvalidArgument(
                f"with_zeros is True, but W_dtype {self.W_dtype} is not an unsigned integer"
            )
        self.weight_type()

    def _would_decode_fast(self) -> bool:
        integers = "int" in self.W_dtype and self.W_dtype not in ("int8", "uint8")
        w4a8 = self.W_dtype in ("int4", "uint4") and self.A_dtype == "int8"
        return bool(
            integers and self.W_dtype != self.A_dtype and not w4a8 and self.A_dtype != "bfloat16"
        )

    @property
    def is_dense(self) -> bool:
        """W is an ordinary tensor: a float dtype of torch, or the integers that A has, unscaled."""
        return self.W_dtype in FLOATS or (
            self.W_dtype == self.A_dtype
            and self.W_dtype in ("int8", "uint8", "int32")
            and not (self.with_scaling or self.with_zeros)
        )

    @property
    def has_integer_activations(self) -> bool:
        return "int" in self.A_dtype

    def weight_type(self, scale: torch.dtype | None = None) -> TType:
        """The tType of a packed W whose scales have dtype ``scale`` (else that of A).

        Signed integers of 2 to 7 bits are stored as BitBLAS stores them, 2**(bits - 1) added.
        """
        ttype = parse(self.W_dtype)
        if str(ttype) != ttype.element.name:
            if ttype.scale2 is not None:
                raise Unsupported(f"{ttype} has a second scale, for which forward has no argument: "
                                  "use ladder.Linear")  # fmt: skip
            self._check_parts(ttype)
            if self.group_size not in (-1, ttype.group_size):
                raise InvalidArgument(
                    f"group_size is {self.group_size}, but {ttype} has {ttype.group_size}"
                )
            return parse(f"u{ttype},zero=midpoint") if self._has_offset(ttype) else ttype
        name, zero = ttype.element.name, "none"
        if self._has_offset(ttype):
            name, zero = f"u{name}", "midpoint"
        if self.with_zeros:
            zero = _ZEROS[self.zeros_mode]
        block = "channel" if self.group_size == -1 else f"group={self.group_size}"
        if not (self.with_scaling or zero in ("original", "rescale", "integer")):
            return parse(f"{name},zero={zero}")
        if scale is None:
            known = self.A_dtype in ("float16", "bfloat16")
            scale = TORCH_DTYPES[self.A_dtype] if known else torch.float32
        return parse(f"{name},{block},scale={dtype_name(scale)},zero={zero}")

    def _has_offset(self, ttype: TType) -> bool:
        """Whether codes are stored with 2**(bits - 1) added: unsigned, with a fixed zero point."""
        signed = ttype.element.encoding == "signed_integer"
        return signed and ttype.bits < 8 and not self.is_native

    def _check_parts(self, ttype: TType) -> None:
        """Raise InvalidArgument unless a W_dtype with fields has what the other fields say."""
        if self.with_scaling != (ttype.scale is not None):
            has = "no scales" if ttype.scale is None else "scales"
            raise InvalidArgument(f"with_scaling is {self.with_scaling}, but {ttype} has {has}")
        if ttype.zeros_dtype is not None or self.with_zeros:
            zero = _ZEROS[self.zeros_mode] if self.with_zeros else "none or midpoint"
            if ttype.zero != zero:
                raise InvalidArgument(
                    f"with_zeros is {self.with_zeros} and zeros_mode {self.zeros_mode}, which is "
                    f"zero={zero}, but {ttype} has zero={ttype.zero}"
                )

    @property
    def is_native(self) -> bool:
        """A and W have the same format, so that W is two's complement also below 8 bits."""
        if self.A_dtype in ("float64", "int64", "int32", "int16"):
            return self.A_dtype == self.W_dtype
        return element(self.A_dtype) == parse(self.W_dtype).element


@dataclass(frozen=True)
class MatmulConfigWithSplitK(MatmulConfig):
    """The same with ``k_split``, how many parts of K BitBLAS would sum apart. Changes no result."""

    k_split: int = 1


def _legal_kind(name: str, value: Any) -> TransformKind:
    if value is None or value is False:
        return TransformKind.NonTransform
    if value is True:
        return TransformKind.LDMatrixTransform
    try:
        return TransformKind(value)
    except ValueError:
        raise InvalidArgument(f"{name} is {value!r}, not a bool or a TransformKind") from None
