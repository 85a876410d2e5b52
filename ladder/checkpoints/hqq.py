# SPDX-License-Identifier: Apache-2.0
"""quant_method "hqq": integers of 1 to 8 bits with scales and zero points that are floats.

    W_q    uint8 [T / p, g]          the codes of T groups of g, one group in a row: p = 1, 2, 4 or
                                     8 rows lie in the bits of one, the first in the highest
           int32 [ceil(T / 10), g]   of 3 bits: ten rows in one, the first in bits 27 to 29
           floats                    the same bytes, of view_as_float
    scale  float [T, 1], or []        one for each group, or one for all
    zero   likewise
    shape  int64 [2]                  [N, K]
    nbits, group_size, axis           int32 [] (nbits may be a float: 1.58)
    packing, compute_dtype, unpack_view_dtype
                                      uint8: the letters of a word
    quant_scale, quant_zero, view_as_float, offload_meta, channel_wise, optimize, round_zero,
    encoded_state_dict, stores_quant_config
                                      uint8 []
    weight[n, k] = (code - zero[t]) * scale[t],  t = (n K + k) / g

So it is of axis 1, where groups lie along the flat weight. Groups of axis 0 have one column each,
and every N / g-th row. Codes of 5 and 6 bits lie in bytes.

hqq computes in ``compute_dtype``, which is that of scales and zeros, and rounds after the
difference and after the product. ladder computes the same in float32.

Source: hqq 0.2.8, core/quantize.py, core/bitpack.py, core/utils.py; transformers 4.57, HqqConfig.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints import hqq_files
from ladder.checkpoints.hqq_config import Config, Module
from ladder.checkpoints.layer import (
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_scales,
    expect,
    fail,
    require,
    side_of,
)
from ladder.errors import Unsupported

_NUMBERS = ("nbits", "group_size", "axis")
_WORDS = ("packing", "compute_dtype", "unpack_view_dtype")
_FLAGS = ("quant_scale", "quant_zero", "view_as_float", "offload_meta", "channel_wise", "optimize",
          "round_zero", "encoded_state_dict", "stores_quant_config")  # fmt: skip
PARTS = ("W_q", "scale", "zero", "shape", *_NUMBERS, *_WORDS, *_FLAGS, *hqq_files.NESTED)
#: Parts by which a module is one of hqq; others may be those of other modules.
_OWN = {"W_q", "nbits", "packing", *_FLAGS}
SHAPE_PARTS = ("shape",)
PICKLES = hqq_files.PICKLES
#: Why engines cannot load such folders as they are.
NOT_SERVED = "a byte has codes of rows that are far apart, and tensors have names such as shape"

_LEAST_GROUP = 8  #: fewest columns of one scale
_TEN, _THREE = 10, 3  #: codes in a word of int32, and their bits
#: Bits of the codes of p rows in a byte.
_BITS = {1: 8, 2: 4, 4: 2, 8: 1}
_PACKINGS = {8: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    return None if _OWN.isdisjoint(parts) else "W_q"


def measure(parts: Mapping[str, Stored], config: Module, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    Raises:
        CheckpointError: a part is missing, or has another dtype or shape than the rest asks for.
            The message names the tensor and both values.
        Unsupported: groups that ladder has not, and scales that are quantised or offloaded.
    """
    for part in hqq_files.NESTED:
        if part in parts:
            raise Unsupported(
                f"{name}.{part} is there: ladder reads scales and zeros that are neither quantised "
                "nor offloaded (quant_scale, quant_zero, offload_meta)"
            )
    require(parts, name, ("W_q", "scale", "zero"))
    if k is None or k < 1:
        fail(f"{name}.shape", " does not say [N, K]")
    scale, codes = parts["scale"].shape, parts["W_q"].shape
    if len(codes) != 2 or 0 in codes:
        fail(f"{name}.W_q", " has shape ", list(codes), ", not two dimensions above zero")
    if len(scale) == 2 and scale[0] == 1 and scale != (1, 1):
        raise Unsupported(
            f"{name}.W_q has groups along axis 0, each of one column and of rows that are far "
            f"apart; ladder has scales of {_LEAST_GROUP} or more columns of a row: quantise with "
            "axis=1"
        )
    whole = scale == ()
    if not whole and (len(scale) != 2 or scale[1] != 1):
        fail(f"{name}.scale", " has shape ", list(scale), ", not [groups, 1]")
    bits, stored, width = _packing(parts["W_q"], None if whole else scale[0], k, config, name)
    groups = codes[0] * _in_a_row(stored) if whole else scale[0]
    if groups * width % k:
        fail(f"{name}.W_q", " has ", groups * width, " codes, not some rows of ", k)
    n = groups * width // k
    for part in ("scale", "zero"):
        expect(parts, name, part, parts["scale"].dtype if part == "zero" else SCALE_NAMES, scale)
    group = math.gcd(width, k)
    if group < min(_LEAST_GROUP, k):
        raise Unsupported(
            f"{name}.W_q has K = {k} and groups of {width} codes, which share only {group} columns "
            f"of a row: ladder has scales of {_LEAST_GROUP} or more"
        )
    spelled = "tensor" if whole else "channel" if group == k else f"group={group}"
    return Layer(name, n, k, bits, k if whole else group, 1 if whole else k // group, spelled,
                 Module(config.bits, width, stored), float_zero="original")  # fmt: skip


def _packing(codes: Stored, groups: int | None, k: int, config: Module, name: str
             ) -> tuple[int, int, int]:  # fmt: skip
    """Bits of a code, bits in which it is stored, and codes in a row of the unpacked matrix."""
    dtype, (rows, columns) = codes
    if dtype not in (torch.uint8, torch.int32, *SCALE_NAMES):
        fail(f"{name}.W_q", " is ", dtype, ", not uint8, int32 or a float")
    assert isinstance(dtype, torch.dtype)
    octets = columns * dtype.itemsize
    wanted = None if config.bits is None else math.ceil(config.bits)
    found = []
    for stored in _PACKINGS:
        kept = torch.int32 if stored == _THREE else torch.uint8
        if dtype not in (kept, *SCALE_NAMES) or octets % kept.itemsize:
            continue
        width = octets // kept.itemsize
        held = rows * _in_a_row(stored)
        if groups is None:  # of one scale, rows of codes are those of the weight
            fits = width == k
        else:
            fits = held == groups or (stored == _THREE and rows == -(-groups // _TEN))
        if fits and groups != 0:
            bits = wanted if stored == 8 and wanted in (5, 6, 7) else stored
            found.append((bits, stored, width))
    chosen = [each for each in found if each[0] == wanted] if wanted else found
    if len(chosen) == 1:
        return chosen[0]
    said = f"; quantization_config says {config.bits} bits" if config.bits else ""
    if found:
        fits_bits = " or ".join(str(bits) for bits, _, _ in found)
        fail(f"{name}.W_q", " has shape ", [rows, columns], f", as codes of {fits_bits} bits of ",
             groups, " groups", said)  # fmt: skip
    fail(f"{name}.W_q", " has shape ", [rows, columns], f" of {dtype}, which no packing gives ",
         groups, " groups", said)  # fmt: skip


def _in_a_row(stored: int) -> int:
    """Rows of codes that lie in the bits of one."""
    return _TEN if stored == _THREE else 8 // stored


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name: ladder.checkpoints.layer. Of
    the codes it takes all rows."""
    if part == "W_q":
        return "qweight", words(tensor, layer, slice(None))
    if part in ("scale", "zero"):
        return f"{part}s", _each(tensor, layer)
    return "", tensor


def _each(tensor: Tensor, layer: Layer) -> Tensor:
    """A number of each group -> [N, groups of a row]."""
    if layer.block == "tensor":
        return tensor.reshape(1, 1)
    return (
        tensor.flatten()
        .repeat_interleave(layer.config.group_size // layer.group)
        .reshape(layer.n, layer.groups)
    )


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return scales and zeros of a layer, canonical.

    Raises:
        CheckpointError: a scale or zero is NaN or infinite, or a number beside the codes says other
            than their shapes.
    """
    _check_numbers(tensors, layer)
    for part in ("scale", "zero"):
        check_scales(tensors[part], f"{layer.name}.{part}")
    return side_of(dict(canonical(part, tensors[part], layer) for part in ("scale", "zero")), layer)


def _check_numbers(tensors: Mapping[str, Tensor], layer: Layer) -> None:
    config: Module = layer.config
    numbers = {"axis": 1, "group_size": config.group_size, "quant_scale": 0, "quant_zero": 0,
               "offload_meta": 0}  # fmt: skip
    if layer.block == "tensor":
        del numbers["axis"], numbers["group_size"]  # of no meaning there
    for part, wanted in numbers.items():
        if part in tensors and tensors[part].flatten().tolist() != [wanted]:
            fail(f"{layer.name}.{part}", " is ", tensors[part].tolist(), ", not ", wanted)
    if "shape" in tensors and tensors["shape"].tolist() != [layer.n, layer.k]:
        fail(f"{layer.name}.shape", " is ", tensors["shape"].tolist(), ", and W_q is of ",
             [layer.n, layer.k])  # fmt: skip
    said = tensors["nbits"].flatten().tolist() if "nbits" in tensors else [layer.bits]
    held = (5, 6, 7, 8) if config.stored == 8 and config.bits is None else (layer.bits,)
    if len(said) != 1 or not math.isfinite(said[0]) or math.ceil(said[0]) not in held:
        fail(f"{layer.name}.nbits", " is ", tensors["nbits"].tolist(), ", and W_q is of ",
             layer.bits, " bits")  # fmt: skip
    if "packing" in tensors:
        word = bytes(tensors["packing"].to(torch.uint8).flatten().tolist()).decode("latin1")
        if word != _PACKINGS[config.stored]:
            fail(f"{layer.name}.packing", " is ", repr(word), ", and W_q is of ",
                 repr(_PACKINGS[config.stored]))  # fmt: skip


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K*b/32)], canonical; ``qweight`` is whole.

    Raises CheckpointError for a code that is beyond the bits of the layer.
    """
    first, last, _ = rows.indices(layer.n)
    stored, width = layer.config.stored, layer.config.group_size
    held = qweight.contiguous().view(torch.int32 if stored == _THREE else torch.uint8)
    begin, end = first * layer.k // width, -(-last * layer.k // width)
    at = torch.arange(begin, end, device=held.device)
    plane = at // held.shape[0]
    shifts = ((_in_a_row(stored) - 1 - plane) * stored).to(held.dtype)
    codes = held[at % held.shape[0]] >> shifts[:, None]
    codes = (codes & (1 << stored) - 1).to(torch.uint8).flatten()
    cut = first * layer.k - begin * width
    codes = codes[cut : cut + (last - first) * layer.k].reshape(last - first, layer.k)
    if layer.bits < stored and bool((beyond := codes >> layer.bits != 0).any()):
        row, column = torch.nonzero(beyond)[0].tolist()
        fail(f"{layer.name}.W_q", " has the code ", int(codes[row, column]), " in row ",
             first + row, ", beyond ", layer.bits, " bits")  # fmt: skip
    return ops.pack(codes, layer.bits)


__all__ = [
    "NOT_SERVED", "PARTS", "PICKLES", "SHAPE_PARTS", "Config", "canonical", "codes_part",
    "measure", "side", "words",
]  # fmt: skip
