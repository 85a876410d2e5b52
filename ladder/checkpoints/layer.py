# SPDX-License-Identifier: Apache-2.0
"""One quantised layer on its way from a foreign format to the canonical one.

A format module (``gptq``, ``awq``, ``compressed_tensors``, ``fp8``) offers the same functions, all
pure:

    Config.from_dict(fields)           its quantization_config, checked
    codes_part(parts)                  the part that holds the codes, or should; None of a module
                                       that is not quantised. ``parts`` is ``stored`` or ``tensors``
    measure(stored, config, name, k)   shapes and dtypes, checked without reading any tensor
    canonical(part, tensor, layer)     name and canonical form of one stored tensor
    side(tensors, layer)               scales, zeros and g_idx, canonical and checked; small
    words(qweight, layer, rows)        the codes of some rows, packed canonically; large

``PARTS``, the names that parts can have, and where the default does not fit

    SHAPE_PARTS, columns_said(tensor)  parts that say [N, K], and K by one of them; else
                                       ``weight_shape`` does, where there is one
    INPUT_SCALES, PRE_SCALES           what it calls scales of x, and of the columns of x
    NOT_SERVED                         why vLLM and SGLang cannot load its folders as they are
    PICKLES                            how pickled files differ from a state dict (shards.Pickles)
    decoded_dtype(layer)               the dtype of its package's values, of formats whose quantised
                                       embeddings are decoded to them
    is_decoded(module, parts)          which modules are, where it is not all embeddings by name
    opened(shards)                     the files, as tensors of layers, where they have others
    sized(source)                      the folder with K of its model, of formats that do not say it
    experts_of(name, stored)           tensors of experts of which a tensor of the files is made
    check_headers(headers)             refuses what transformers cannot load of files as they are
    check_source(source, layers)       refuses a folder that is of no model of transformers
    check_whole(model, names, below)   refuses files that lack a tensor of a model of transformers
    KEYS                               keys of config.json that a ladder folder must not have
    LEFT_OUT                           last parts of names of tensors that are left out
    settings.with_metadata(metadata)   the same Config, of formats that say in the metadata of files
                                       what tensors are
    settings.with_tensors(shards)      likewise, of formats of which small tensors say it

``stored`` and ``tensors`` map a part ("qweight", "scales", ...) to what is known of it. ``k`` is K
where the caller knows it, as in_features of a model: rows of whole words leave it open.

``canonical`` works on the device of the tensor and looks at no value, so it does not wait for a
GPU, except where codes are packed anew, which ops.pack checks (planes, whole codes in each word,
int8 of fewer bits). Of the codes it takes any rows. It gives one of

    ("qweight", int32 [N, words])
    ("scales", [R, G] as stored)       R rows of blocks, N but for blocks; codes of 8 bits as uint8
    ("zeros", uint8 [R, G])            the zero points that are subtracted; or floats, which are of
                                       the kind Layer.float_zero
    ("scale2", float32 [1])            one more scale, of the whole tensor
    ("g_idx", int32 [K])               the group of each column
    ("input_scale", float32 [1])       the static scale of x, of Layer.is_static
    ("pre_scale", float32 [K])         by what columns of x are multiplied before
    ("", tensor)                       nothing of the weight

``side`` and ``words`` are made of it; ``side`` also leaves out what need not be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from ladder.checkpoints.header import TORCH_DTYPES
from ladder.errors import CheckpointError
from ladder.ops.activations import (
    objection_of_all,
    pre_scale_objection,
    static_scale_objection,
)
from ladder.types import FLOAT_DTYPES, TType, dtype_name, parse
from ladder.weight import Weight

#: dtypes that scales may have, and how a tType spells them.
SCALE_NAMES = {dtype: name for name, dtype in FLOAT_DTYPES.items()}
#: What a tensor of codes or scales of 8 bits may be.
BYTES = {"float8_e4m3": (torch.float8_e4m3fn,), "e8m0": (torch.uint8, torch.float8_e8m0fnu)}
_EMBEDDINGS = ("embed", "wte", "wpe", "wordembeddings", "sharedembed")


class Stored(NamedTuple):
    """What a file's header says of one tensor."""

    dtype: torch.dtype | str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Sizes of one layer, of which every part has been checked."""

    name: str
    n: int
    k: int
    bits: int
    group: int  #: columns that share a scale, at most k
    groups: int
    block: str  #: what shares a scale, as tTypes spell it
    config: Any
    element: str | None = None  #: format of the codes; None: unsigned integers of ``bits``
    scale: str | None = None  #: format of scales that are stored as codes
    scale2: bool = False
    float_zero: str = "rescale"  #: the kind of zeros that are floats

    @property
    def activation_type(self) -> str | None:
        """What the config would have x rounded to; None of formats that say nothing of it."""
        wanted: str | None = getattr(self.config, "activation_type", None)
        return wanted

    @property
    def is_static(self) -> bool:
        """Whether the config would have x rounded by a scale that is stored."""
        scheme = getattr(self.config, "activations", None)
        return scheme is not None and scheme.is_static

    def keeps_input_scale(self, ttype: TType, *, act_order: bool) -> bool:
        """Whether a static scale is of use with weights of ``ttype``."""
        return self.is_static and bool(self.activation_type_for(ttype, act_order=act_order))

    def activation_type_for(self, ttype: TType, *, act_order: bool) -> str | None:
        """:attr:`activation_type`, or None where there is an :meth:`activation_objection`."""
        why = self.activation_objection(ttype, act_order=act_order)
        return None if why else self.activation_type

    def activation_objection(self, ttype: TType, *, act_order: bool) -> str:
        """Why no device that ladder knows has kernels for :attr:`activation_type` with weights of
        ``ttype``; "" when one has. ``act_order``: their columns are in another order."""
        return objection_of_all(self.activation_type, ttype, self.k, act_order=act_order)

    @property
    def fixed_zero(self) -> str:
        """The kind of zero of which nothing is stored."""
        return "midpoint" if self.element is None else "none"

    @property
    def midpoint(self) -> int:
        """The zero point of symmetric codes."""
        return 1 << (self.bits - 1)

    @property
    def words(self) -> int:
        """32-bit words in one canonical row."""
        return (self.k * self.bits + 31) // 32


@dataclass(frozen=True)
class Side:
    """The small parts of a layer, canonical."""

    scales: Tensor  #: [R, G] in the checkpoint's dtype; uint8 codes of formats of 8 bits
    zero: str  #: none, midpoint, integer, original or rescale
    zeros: Tensor | None = None  #: [R, G]; uint8 for integer, else the scales' dtype
    g_idx: Tensor | None = None  #: [K] int32, only when it is not column // group
    scale2: Tensor | None = None  #: [1] float32
    input_scale: Tensor | None = None  #: [1] float32: of x, no part of the weight
    pre_scale: Tensor | None = None  #: [K] float32: of the columns of x, likewise

    def tensors(self) -> dict[str, Tensor]:
        """The parts that are present, as a Weight names them."""
        parts = {"scales": self.scales, "zeros": self.zeros, "scale2": self.scale2,
                 "g_idx": self.g_idx}  # fmt: skip
        return {part: tensor for part, tensor in parts.items() if tensor is not None}


def of_bytes(tensor: Any) -> bool:
    """Whether the elements of a tensor, or of one that a header states, are one byte each."""
    dtype: torch.dtype | str = tensor.dtype
    if isinstance(dtype, str):
        return dtype.startswith("F8")
    return dtype.itemsize == 1


def refuse_bare_codes(name: str, weight: Stored) -> None:
    """Raise CheckpointError where ``name``.weight, to which no scale belongs, holds codes of bytes:
    as numbers they would be another weight."""
    if isinstance(weight.dtype, torch.dtype) and of_bytes(weight):
        fail(f"{name}.weight", " is ", dtype_name(weight.dtype), ", and no scale is beside it")


def stored_as(dtype: str, shape: Sequence[int]) -> Stored:
    """Of a tensor as a header states it; a dtype that quantised parts never have stays a name."""
    return Stored(TORCH_DTYPES.get(dtype, dtype), tuple(shape))


def stored(tensors: Mapping[str, Tensor]) -> dict[str, Stored]:
    return {part: Stored(t.dtype, tuple(t.shape)) for part, t in tensors.items()}


def is_embedding(module: str) -> bool:
    """Whether a module is an embedding, by its name: no header tells it from a Linear."""
    last = module.split(".")[-1].lower().replace("_", "")
    if last == "shared":  # of T5; shared_expert_gate is a linear layer
        return True
    return any(last.startswith(word) for word in _EMBEDDINGS) or last.endswith("embeddings")


def split(name: str, parts: Collection[str]) -> tuple[str, str]:
    """Module and part of a tensor called ``name``, of a format whose parts are ``parts``: by its
    last dot, where it ends with none of those that have dots themselves."""
    dotted = (part for part in parts if "." in part and name.endswith(f".{part}"))
    module, _, part = name.rpartition(".")
    if (found := next(dotted, None)) is not None:
        module, part = name.removesuffix(f".{found}"), found
    return module, part


def shape_part(format: Any, parts: Collection[str]) -> str | None:
    """Which of ``parts`` says [N, K], of formats that have such a one."""
    said = getattr(format, "SHAPE_PARTS", ("weight_shape",))
    return next((part for part in said if part in parts), None)


def columns_said(format: Any, shape: Tensor) -> int | None:
    """K by a tensor that is to say [N, K], None where it says something else."""
    if hasattr(format, "columns_said"):
        k: int | None = format.columns_said(shape)
        return k
    fits = tuple(shape.shape) == (2,) and not shape.is_floating_point()
    return int(shape[1]) if fits else None


def fail(name: str, *what: object) -> NoReturn:
    raise CheckpointError(name + "".join(str(part) for part in what))


def require(parts: Mapping[str, Stored], name: str, needed: tuple[str, ...]) -> None:
    for part in needed:
        if part not in parts:
            fail(f"{name}.{part}", " is missing; ", name, " has ", ", ".join(sorted(parts)))


def expect(parts: Mapping[str, Stored], name: str, part: str, dtypes: object,
           shape: tuple[int, ...]) -> None:  # fmt: skip
    """Raise CheckpointError unless a part has this shape and one of these dtypes."""
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)  # type: ignore[arg-type]
    dtype, found = parts[part]
    if dtype not in allowed:
        wanted = " or ".join(map(dtype_name, allowed))
        fail(f"{name}.{part}", " is ", dtype_name(dtype), ", not ", wanted)
    if found != shape:
        fail(f"{name}.{part}", " has shape ", list(found), ", not ", list(shape))


#: What formats call a static scale of x.
INPUT_SCALES = ("input_scale", "activation_scale")


def expect_input_scale(parts: Mapping[str, Stored], layer: str, is_static: bool) -> None:
    """Raise CheckpointError unless a static scale of x, where there is one, is one float."""
    for part in INPUT_SCALES:
        if is_static and part in parts:
            found = parts[part].shape
            expect(parts, layer, part, SCALE_NAMES, found if found == () else (1,))


def check_input_scale(scale: Tensor, name: str) -> None:
    """Raise CheckpointError unless the static scale [1] of x of layer ``name`` is positive and
    finite, and its inverse as well."""
    if why := static_scale_objection(scale):
        fail(f"{name}.", why)


def input_scale_of(format: Any, tensors: Mapping[str, Tensor], layer: Layer) -> Tensor | None:
    """The static scale of x [1] among the stored ``tensors`` of a layer; None where there is none.
    Raises CheckpointError as :func:`check_input_scale`."""
    for part in getattr(format, "INPUT_SCALES", INPUT_SCALES):
        if layer.is_static and part in tensors:
            scale: Tensor = format.canonical(part, tensors[part], layer)[1]
            check_input_scale(scale, layer.name)
            return scale
    return None


#: What formats call numbers by which columns of x are multiplied.
PRE_SCALES = ("pre_quant_scale",)


def pre_scale_of(format: Any, tensors: Mapping[str, Tensor], layer: Layer) -> Tensor | None:
    """The numbers [K] of the columns of x among the stored ``tensors`` of a layer; None where there
    are none. Raises CheckpointError as :func:`check_pre_scale`."""
    for part in getattr(format, "PRE_SCALES", PRE_SCALES):
        if part in tensors:
            scale: Tensor = format.canonical(part, tensors[part], layer)[1]
            check_pre_scale(scale, layer.k, layer.name)
            return scale
    return None


def check_pre_scale(scale: Tensor, k: int, name: str) -> None:
    """Raise CheckpointError unless ``scale`` is one finite float for each of the K columns of x of
    layer ``name``."""
    if why := pre_scale_objection(scale, k):
        fail(f"{name}.", why)


def check_scales(scales: Tensor, name: str) -> None:
    """Raise CheckpointError at the first entry of ``scales`` that is NaN or infinite."""
    finite = torch.isfinite(scales)
    if not finite.all():
        at = torch.nonzero(~finite)[0].tolist()
        fail(name, at, " is ", scales[tuple(at)].item(), ", a scale or zero must be finite")


def group_block(group_size: int, k: int) -> str:
    """How a tType spells groups of ``group_size`` columns, -1 for all, in a row of ``k``."""
    return "channel" if group_size == -1 or group_size > k else f"group={group_size}"


def type_of(layer: Layer, *, zero: str, scale_dtype: torch.dtype) -> TType:
    """The tType of a layer.

    Args:
        zero: kind of its zeros: "none", "midpoint", "integer", "original" or "rescale".
        scale_dtype: of its canonical scales; another float than the stored one where they are
            converted.
    """
    scale = SCALE_NAMES.get(scale_dtype, layer.scale)
    text = f"{layer.element or f'uint{layer.bits}'},{layer.block},scale={scale},zero={zero}"
    return parse(text + (",scale2=float32" if layer.scale2 else ""))


def ttype_of(layer: Layer, side: Side) -> TType:
    return type_of(layer, zero=side.zero, scale_dtype=side.scales.dtype)


def column_groups(layer: Layer, like: Tensor) -> Tensor:
    """[K] int32 on the device of ``like``: the group of each column that no g_idx moves."""
    return torch.arange(layer.k, dtype=torch.int32, device=like.device) // layer.group


def side_of(parts: Mapping[str, Tensor], layer: Layer, g_idx: str = "g_idx") -> Side:
    """Sort canonical tensors into a Side, leaving out what need not be stored: zeros that all are
    the midpoint, or 0 of signed codes, and a g_idx that is column // group.

    Args:
        g_idx: what the format calls it, for messages.
    Raises:
        CheckpointError: g_idx names a group that does not exist.
    """
    zero, zeros, order = layer.fixed_zero, parts.get("zeros"), parts.get("g_idx")
    if zeros is not None and zeros.is_floating_point():
        usual = 0 if layer.element is not None else layer.midpoint
        fixed = layer.element is not None or layer.float_zero == "original"
        zero = layer.fixed_zero if fixed and bool((zeros == usual).all()) else layer.float_zero
    elif zeros is not None and not bool((zeros == layer.midpoint).all()):
        zero = "integer"
    if order is not None:
        outside = (order < 0) | (order >= layer.groups)
        if outside.any():
            at = int(torch.nonzero(outside)[0])
            fail(f"{layer.name}.{g_idx}[{at}]", " is ", int(order[at]), ", not one of the ",
                 layer.groups, " groups")  # fmt: skip
        if torch.equal(order, column_groups(layer, order)):
            order = None
    kept = None if zero == layer.fixed_zero else zeros
    input_scale = parts.get("input_scale")
    return Side(parts["scales"], zero, kept, order, parts.get("scale2"), input_scale,
                parts.get("pre_scale"))  # fmt: skip


def words_of_bytes(codes: Tensor) -> Tensor:
    """[R, K] codes of one byte each -> their bits as int32 [R, ceil(K / 4)]."""
    octets = codes.contiguous().view(torch.uint8)
    return pad(octets, (0, -octets.shape[1] % 4)).view(torch.int32)


def spans(layer: Layer, codes: int) -> list[slice]:
    """Cut the rows of a layer into pieces of about ``codes`` codes that can be unpacked alone."""
    step = max(codes // max(layer.k, 1) // 32, 1) * 32
    return [slice(n, min(n + step, layer.n)) for n in range(0, layer.n, step)]


def assemble(layer: Layer, side: Side, words: Tensor) -> Weight:
    weight = Weight(
        type=ttype_of(layer, side),
        shape=(layer.n, layer.k),
        qweight=words,
        **side.tensors(),
    )
    weight.check(name=layer.name)
    return weight


def unpack_layer(
    format: Any, tensors: Mapping[str, Tensor], config: Any, name: str, k: int | None = None
) -> Weight:
    """Turn the tensors of one layer into a canonical weight.

    Args:
        format: one of the modules named above.
        tensors: of its ``PARTS``, those that there are; others are ignored.
        config: its Config; of this module, where that has ``for_module``.
        name: of the module, for messages.
        k: columns, where the caller knows them and no tensor says it.
    Raises:
        CheckpointError: as ``measure`` and ``side``.
    """
    tensors = {part: tensors[part] for part in format.PARTS if part in tensors}
    shape = shape_part(format, tensors)
    k = k if shape is None else columns_said(format, tensors[shape])
    layer = format.measure(stored(tensors), config, name, k)
    codes = tensors[format.codes_part(tensors)]
    return assemble(layer, format.side(tensors, layer), format.words(codes, layer, slice(None)))


def config_int(fields: Mapping[str, Any], keys: tuple[str, ...], default: int | None = None) -> int:
    """Return the first of ``keys`` that is set. Raises CheckpointError unless it is an int."""
    for key in keys:
        if fields.get(key) is not None:
            value = fields[key]
            if type(value) is not int:
                fail(f"quantization_config.{key}", " is ", repr(value), ", not an integer")
            return value
    if default is None:
        fail(f"quantization_config.{keys[0]}", " is missing")
    return default


def config_flag(fields: Mapping[str, Any], key: str, default: bool) -> bool:
    value = fields.get(key)
    if value is not None and type(value) is not bool:
        fail(f"quantization_config.{key}", " is ", repr(value), ", not true or false")
    return default if value is None else value


def config_word(fields: Mapping[str, Any], keys: tuple[str, ...], default: str) -> str:
    for key in keys:
        if fields.get(key) is not None:
            if not isinstance(fields[key], str):
                fail(f"quantization_config.{key}", " is ", repr(fields[key]), ", not a word")
            return fields[key].lower()
    return default


def check_group_size(group_size: int) -> int:
    if group_size != -1 and group_size < 8:
        fail("quantization_config.group_size", " is ", group_size, ", not -1 or at least 8")
    return group_size
