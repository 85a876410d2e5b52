# SPDX-License-Identifier: Apache-2.0
"""tTypes: how the weights of a layer are stored.

A tType is an element format, the block of elements that shares a scale, the formats of the scales,
and the meaning of the zero point. Its spelling is what users write and what checkpoints hold::

    uint4,group=128,scale=float16,zero=midpoint
    float6_e3m2,channel,scale=float16
    nvfp4

The table of formats is C++ (``csrc/types/table.cpp``); this module reads it.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from ladder import _library  # noqa: F401  (registers torch.ops.ladder)
from ladder.errors import InvalidArgument
from ladder.grids import Grid

_ops = torch.ops.ladder

#: What ``Element.source`` says of formats that this process registered.
USER_SOURCE = "registered by the user"

#: Elements that share a scale where only an element is named.
DEFAULT_GROUP = 128

#: What a float format is made of, beside its name.
FLOAT_FIELDS = ("exponent_bits", "mantissa_bits", "bias", "specials")

#: Dtypes of activations, and of scales of 16 and 32 bits; narrower scales are uint8 codes.
FLOAT_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def float_dtype(name: str, option: str = "dtype") -> torch.dtype:
    """The torch dtype called ``name``. Raises InvalidArgument, which calls it ``option``, unless it
    is one of activations."""
    if name not in FLOAT_DTYPES:
        raise InvalidArgument(f'{option} is "{name}", not one of {", ".join(FLOAT_DTYPES)}')
    return FLOAT_DTYPES[name]


def dtype_name(dtype: object) -> str:
    """A torch dtype as tTypes and messages spell it: "float16"."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Element:
    """How ``bits`` stored bits mean a number: one row of the table of formats."""

    name: str
    bits: int
    encoding: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str
    source: str

    @functools.cached_property
    def values(self) -> torch.Tensor:
        """[2**bits] float64: the value of every code, exact. At most 16 bits."""
        return _ops.element_table(self.name)

    def encode(self, value: float, *, saturate: bool = True) -> int:
        """Code of the value nearest to ``value``, ties to even; beyond the range the largest finite
        one, or with ``saturate=False`` infinity or NaN where the format has them."""
        return _checked(_ops.encode_one, self.name, float(value), saturate)

    @property
    def exact_targets(self) -> tuple[str, ...]:
        """Formats that hold every value of this one, narrowest first (LADDER's c_tTypes)."""
        return tuple(_ops.exact_targets(self.name).split())

    def converts_exactly(self, target: str) -> bool:
        """True when ``target`` holds every value of this format."""
        return element(target).name in self.exact_targets

    @property
    def meaning(self) -> dict[str, Any] | None:
        """What :func:`define` makes this format of in a process that does not know it: ``bits`` and
        ``values`` of a table, :data:`FLOAT_FIELDS` of a float. None for ladder's own formats."""
        if self.source != USER_SOURCE:
            return None
        if self.encoding == "table":
            return {"bits": self.bits, "values": self.values.tolist()}
        return {field: getattr(self, field) for field in FLOAT_FIELDS}

    def __reduce__(self) -> tuple[Any, ...]:
        return _defined_element, (self.name, self.meaning)


@dataclass(frozen=True)
class TType:
    """Storage type of a weight [N, K]. Made by :func:`parse`; ``str()`` gives the spelling.

    ``rows`` x ``columns`` elements share a scale; 0 means the whole dimension, so (1, 128) is
    groups of 128 along K, (1, 0) one scale per output channel, (0, 0) one per tensor. A second
    scale is one for the tensor, or one for each row where ``scale2_of_rows``, or one for each
    ``superblock``, so many columns of a row (0: no such): it multiplies the scales there, which are
    integers, and one more beside it multiplies zeros "rescale".
    """

    element: Element
    rows: int
    columns: int
    scale: str | None
    zero: str
    scale2: str | None
    scale2_of_rows: bool
    superblock: int
    spelling: str

    def __str__(self) -> str:
        return self.spelling

    @property
    def grid(self) -> Grid | None:
        """The numbers that scales and zeros are integers of, where superblocks multiply them."""
        if not self.superblock or self.scale is None:
            return None
        bits = element(self.scale).bits
        signed = element(self.scale).encoding == "signed_integer"
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return Grid(least, most, most if self.zero == "rescale" else 0)

    def superblock_objection(self, k: int) -> str:
        """Why rows of ``k`` columns cannot be quantised to superblocks; "" where they can, or the
        type has none."""
        if not self.superblock or k % self.superblock == 0:
            return ""
        return f"{self} has superblocks of {self.superblock} columns, which do not divide K, {k}"

    @property
    def bits(self) -> int:
        """Stored bits per element, metadata excluded."""
        return self.element.bits

    @property
    def group_size(self) -> int:
        """Elements along K that share a scale; -1 for all of K."""
        return self.columns or -1

    @property
    def scale_dtype(self) -> torch.dtype | None:
        """torch dtype of the stored scales; None without scales."""
        return None if self.scale is None else FLOAT_DTYPES.get(self.scale, torch.uint8)

    @property
    def has_integer_scales(self) -> bool:
        """Whether scales are unsigned integers, one to a byte, beside second scales of sums."""
        unsigned = self.scale is not None and element(self.scale).encoding == "unsigned_integer"
        return unsigned and not self.superblock

    @property
    def zeros_dtype(self) -> torch.dtype | None:
        """torch dtype of the stored zeros; None where none are stored."""
        if self.zero in ("none", "midpoint"):
            return None
        fixed = {"integer": torch.uint8, "quantized": torch.int32}
        return fixed.get(self.zero, self.scale_dtype)

    @property
    def meanings(self) -> dict[str, dict[str, Any]]:
        """:attr:`Element.meaning` of each format in the spelling that this process registered."""
        names = (self.element.name, self.scale, self.scale2)
        found = {name: element(name).meaning for name in names if name is not None}
        return {name: meaning for name, meaning in found.items() if meaning is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        return _defined_type, (self.spelling, self.meanings)

    def with_zero(self, zero: str) -> TType:
        """The same with another meaning of zero points. Raises InvalidArgument where the element
        has no such."""
        return self._with(zero=zero)

    def with_stored_zeros(self) -> TType:
        """The same, where all zero points are the midpoint and none stored, with them stored."""
        return self.with_zero("integer") if self.zero == "midpoint" else self

    def of_single_rows(self) -> TType:
        """The same with blocks of one row: a row taken by itself has a scale of its own."""
        return self if self.rows == 1 else self._with(rows=1)

    def with_second_scales_of_rows(self) -> TType:
        """The same with a second scale for each row where it has one for the tensor. Raises
        InvalidArgument where rows share scales."""
        return self._with(scale2_of_rows=True) if self.scale2_of_tensor else self

    def with_float_scales(self) -> TType:
        """The same with a float32 scale, and zero "rescale", of each group in place of superblocks,
        where it has such."""
        if not self.superblock:
            return self
        block = f"group={self.columns},scale=float32"
        return parse(f"{self.element.name},{block},zero={self.zero}")

    def _with(
        self,
        *,
        rows: int | None = None,
        zero: str | None = None,
        scale2_of_rows: bool | None = None,
    ) -> TType:
        """The same but for what is given. Every field is spelled out: a canonical spelling leaves
        out what is the default, and a named type takes no further field."""
        rows = self.rows if rows is None else rows
        if rows == 1:
            block = f"group={self.columns}" if self.columns else "channel"
        else:
            block = f"block={rows}x{self.columns}" if rows else "tensor"
        fields = [self.element.name, block, f"zero={self.zero if zero is None else zero}"]
        of_rows = self.scale2_of_rows if scale2_of_rows is None else scale2_of_rows
        scale2 = f"{self.scale2}:channel" if of_rows else self.scale2
        scale2 = f"{self.scale2}:{self.superblock}" if self.superblock else scale2
        scales = (("scale", self.scale), ("scale2", scale2))
        return parse(",".join(fields + [f"{key}={name}" for key, name in scales if name]))

    def groups(self, k: int) -> int:
        """Scales along K of a matrix with ``k`` columns; a shorter last group counts."""
        return 1 if self.columns == 0 else -(-k // self.columns)

    def block_rows(self, n: int) -> int:
        """Scales along N of a matrix with ``n`` rows."""
        return 1 if self.rows == 0 else -(-n // self.rows)

    def words(self, k: int) -> int:
        """int32 words in one packed row of ``k`` codes."""
        return -(-k * self.bits // 32)

    def zeros_shape(self, n: int, k: int) -> tuple[int, int] | None:
        """Shape of the stored zeros, None where none are stored."""
        if self.zeros_dtype is None:
            return None
        groups = self.groups(k)
        return self.block_rows(n), self.words(groups) if self.zero == "quantized" else groups

    @property
    def scale2_of_tensor(self) -> bool:
        """Whether a matrix has one second scale for all of it."""
        return self.scale2 is not None and not self.scale2_of_rows and not self.superblock

    @property
    def scales_of_superblock(self) -> int:
        """Of scales, and of zeros "rescale" behind it; 0 without superblocks."""
        return 0 if not self.superblock else 2 if self.zero == "rescale" else 1

    @property
    def scale2_dtype(self) -> torch.dtype | None:
        """torch dtype of the second scales; None without such."""
        return None if self.scale2 is None else FLOAT_DTYPES[self.scale2]

    def scale2_shape(self, n: int, k: int) -> tuple[int, ...] | None:
        """Shape of the second scales of an [n, k] matrix, None without such: those of a superblock
        follow each other."""
        if self.scale2 is None:
            return None
        if self.superblock:
            return n, self.scales_of_superblock * -(-k // self.superblock)
        return (n,) if self.scale2_of_rows else (1,)

    def bits_per_weight(self, n: int, k: int) -> float:
        """Stored bits per weight of an [n, k] matrix, with scales, zeros and second scales of
        rows and superblocks."""
        blocks = self.block_rows(n) * self.groups(k)
        scale = 0 if self.scale_dtype is None else self.scale_dtype.itemsize * 8
        zero = {"integer": 8, "quantized": self.bits, "original": scale, "rescale": scale}
        blocks_of_second = self.scales_of_superblock * -(-k // max(1, self.superblock))
        of_rows = 32 if self.scale2_of_rows else 0
        if self.scale2_dtype is not None:
            of_rows += 8 * self.scale2_dtype.itemsize * blocks_of_second
        return self.bits + (blocks * (scale + zero.get(self.zero, 0)) + n * of_rows) / (n * k)


def _defined_element(name: str, meaning: Mapping[str, Any] | None) -> Element:
    return element(name) if meaning is None else define(name, meaning)


def _defined_type(name: str, meanings: Mapping[str, Mapping[str, Any]]) -> TType:
    for own, meaning in meanings.items():
        define(own, meaning)
    return parse(name)


def _checked(op: Callable[..., Any], *arguments: Any) -> Any:
    """Call an op that throws ValueError for bad input, as an InvalidArgument."""
    try:
        return op(*arguments)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


@functools.cache
def _element(name: str) -> Element:
    return Element(**json.loads(_checked(_ops.element_info, name)))


def element(name: str | Element) -> Element:
    """The element format of this name or alias. Raises InvalidArgument naming the nearest ones."""
    return name if isinstance(name, Element) else _element(name)


@functools.cache
def _parse(text: str) -> TType:
    info = json.loads(_checked(_ops.type_info, text))
    info["element"] = Element(**info["element"])
    return TType(**info)


def parse(text: str | TType) -> TType:
    """The tType spelled ``text``, or a named one: mxfp4, mxfp6_e3m2, mxint8, nvfp4, q4_k...

    Fields after the element, in any order: ``group=G | channel | tensor | block=RxC`` (which
    elements share a scale), ``scale=NAME``, ``zero=none | midpoint | integer | quantized | original
    | rescale``, ``scale2=float32`` (one more scale for the tensor; ``scale2=float32:channel``: one
    for each row; ``scale2=float16:256``: one for 256 columns of a row). Scales that are integers
    (``scale=uint4``) want a second one.

    Raises:
        InvalidArgument: the field at fault, with its value.
    """
    if not isinstance(text, (str, TType)):
        raise InvalidArgument(f'type is {text!r}, not a spelling such as "uint4"')
    return text if isinstance(text, TType) else _parse(text)


def type_names() -> tuple[str, ...]:
    """Names of the formats that a weight can have: elements of 1 to 8 bits, those that users
    registered included, and the named block types."""
    names = [name for name in _ops.element_names().split() if _element(name).bits <= 8]
    return tuple(name for name in names if name != "e8m0") + tuple(_ops.named_types().split())


def register_type(name: str, *, bits: int, values: Sequence[float]) -> Element:
    """Make a format of your own: code ``c`` of ``bits`` bits means ``values[c]``.

    It then works wherever a built-in one does: packing, kernels, quantising, saving, loading. Model
    folders, pickles and the metadata of a ``state_dict`` have its values beside its name.

    Args:
        name: letters, digits and underscores after a letter.
        bits: 1 to 8.
        values: 2**bits different finite numbers, rounded to float32, by code, in any order.
    Raises:
        InvalidArgument: wrong count, a repeated or non-finite value, an argument of another type,
            or ``name`` taken by another meaning. Registering the same meaning again is fine.
    """
    bits = _integer("bits", bits)
    # What of these is the value of a code is a guess: a dict gives its keys, a set any order.
    if isinstance(values, (str, bytes, Mapping, Set)):
        raise InvalidArgument(f"values is {values!r}, not a sequence of numbers")
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"values is {values!r}, not a sequence of numbers") from None
    return _register(_ops.register_table, name, bits, numbers)


def float_type(
    name: str | None = None,
    *,
    exponent: int,
    mantissa: int,
    bias: int | None = None,
    specials: str = "none",
) -> Element:
    """Make a float format of 1 sign bit, ``exponent`` and ``mantissa`` bits, 3 to 8 in all.

    Args:
        name: ``float{bits}_e{exponent}m{mantissa}`` when not given.
        bias: of the exponent; 2**(exponent - 1) - 1 when not given.
        specials: "none" (every code is finite), "ieee" (infinities and NaNs in the top exponent),
            "nan_only" (all ones is NaN), "fnuz" (the code of -0 is NaN).
    Raises:
        InvalidArgument: widths out of range, an argument of another type, or ``name`` taken by
            another meaning.
    """
    exponent, mantissa = _integer("exponent", exponent), _integer("mantissa", mantissa)
    bias = None if bias is None else _integer("bias", bias)
    if not isinstance(specials, str):
        raise InvalidArgument(f"specials is {specials!r}, not a word")
    if name is None:
        name = f"float{1 + exponent + mantissa}_e{exponent}m{mantissa}"
    return _register(_ops.register_float, name, exponent, mantissa, specials, bias)


def define(name: str, meaning: Mapping[str, Any]) -> Element:
    """Make a format by its :attr:`Element.meaning`. Raises InvalidArgument where this process has
    another one of that name, with the first value that differs."""
    if "values" in meaning:
        return register_type(name, bits=meaning["bits"], values=meaning["values"])
    exponent, mantissa, bias, specials = (meaning[field] for field in FLOAT_FIELDS)
    return float_type(name, exponent=exponent, mantissa=mantissa, bias=bias, specials=specials)


def _integer(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}, not an integer") from None
    if abs(number) >= 1 << 31:
        raise InvalidArgument(f"{name} is {number}, not an integer of 32 bits")
    return number


def _register(op: Callable[..., Any], name: str, *arguments: Any) -> Element:
    if not isinstance(name, str):
        raise InvalidArgument(f"name is {name!r}, not a word")
    try:
        op(name, *arguments)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{error}{_difference(name, arguments)}") from None
    return element(name)


def _difference(name: str, arguments: Sequence[Any]) -> str:
    """What the format of that name has otherwise than ``arguments`` say; "" where it is of another
    kind."""
    if name not in _ops.element_names().split():
        return ""
    known, last = element(name), arguments[-1]
    if isinstance(last, list):
        table = known.values.tolist() if known.encoding == "table" else ()
        given = torch.tensor(last, dtype=torch.float32).tolist()
        pairs = [(f"code {i}", *pair) for i, pair in enumerate(zip(table, given, strict=False))]
    elif known.encoding == "floating":
        exponent, mantissa, specials, bias = arguments
        bias = (1 << exponent - 1) - 1 if bias is None else bias
        fields = zip(FLOAT_FIELDS, (exponent, mantissa, bias, specials), strict=True)
        pairs = [(field, getattr(known, field), value) for field, value in fields]
    else:
        return ""
    unlike = [pair for pair in pairs if pair[1] != pair[2]]
    return "; {} is {}, not {}".format(*unlike[0]) if unlike else ""


def with_defaults(
    weight_type: str | TType,
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    scale_dtype: torch.dtype = torch.float16,
) -> TType:
    """The tType that a user means by an element name and a group size.

    "uint4" becomes ``uint4,group=128,scale=float16,zero=midpoint``. A
    spelling that already has fields, and a named block type, is returned as it is, and then
    ``group_size`` and ``symmetric`` must not contradict it; so is a :class:`TType` without either.

    Args:
        group_size: elements along K that share a scale, :data:`DEFAULT_GROUP` where not given; -1
            for all of them (per channel). The last group may be shorter.
        symmetric: unsigned integers only: True (the default) for a zero point fixed at
            2**(bits - 1), False for one integer zero point per group.
        scale_dtype: float16, bfloat16 or float32.
    """
    if symmetric not in (None, True, False):
        raise InvalidArgument(f"symmetric is {symmetric!r}, not True, False or None")
    symmetric = None if symmetric is None else bool(symmetric)  # numpy's, too
    given = parse(weight_type)
    complete = isinstance(weight_type, TType) and group_size is None and symmetric is None
    # "int4,channel" is one of int4's spellings, but its group is said.
    complete = complete or (isinstance(weight_type, str) and "," in weight_type)
    spelled = complete or str(given) != given.element.name or given.element.bits > 8
    if spelled:
        if group_size is not None and given.group_size != group_size:
            raise InvalidArgument(
                f'group_size is {group_size}, but type "{given}" has groups of {given.group_size}'
            )
        fixed_zero = given.zero in ("none", "midpoint")
        if symmetric is not None and symmetric != fixed_zero:
            raise InvalidArgument(
                f'symmetric is {symmetric}, but type "{given}" has zero {given.zero}'
            )
        return given
    is_unsigned = given.element.encoding == "unsigned_integer"
    if symmetric is False and not is_unsigned:
        raise InvalidArgument(
            f"symmetric is False, but {given.element.name} is not an unsigned integer"
        )
    size = DEFAULT_GROUP if group_size is None else group_size
    block = "channel" if size == -1 else f"group={size}"
    zero = ("midpoint" if symmetric in (None, True) else "integer") if is_unsigned else "none"
    scale = dtype_name(scale_dtype)
    return parse(f"{given.element.name},{block},scale={scale},zero={zero}")
