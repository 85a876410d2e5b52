# SPDX-License-Identifier: Apache-2.0
"""AWQ layers, always of 4 bits: versions ``gemm``, ``gemv`` and ``gemv_fast`` (``llm-awq``).

    gemm       qweight int32 [K, N/8], qzeros int32 [G, N/8], scales float [G, N]; bits 4i..4i+3
               of a word are column 8c + (0, 2, 4, 6, 1, 3, 5, 7)[i]
    gemv       qweight int32 [N, K/8], qzeros int32 [N, Z], scales float [N, 8 Z]; natural order
    gemv_fast  qweight int16 [N/4, K], scales and qzeros (or scaled_zeros) float [8 Z, N]; four rows
               share a line of nibbles, and the stored zero is -scale * zero
    weight[n, k] = scale[n, g] * (code[n, k] - zero[n, g]),  g = k // group_size

Z words hold the zeros of G groups, padded for the kernels. Sources: AutoAWQ 0.2.9, the packers of
its linear modules; GPTQModel 7.3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ladder import ops
from ladder.checkpoints.layer import (
    SCALE_NAMES,
    Layer,
    Side,
    Stored,
    check_group_size,
    check_scales,
    config_flag,
    config_int,
    config_word,
    expect,
    fail,
    group_block,
    require,
    side_of,
)  # fmt: skip
from ladder.errors import Unsupported

PARTS = ("qweight", "qzeros", "scaled_zeros", "scales")
#: Parts of which any makes a module a quantised one; without a qweight it is damaged.
_MARKS = {"qweight", "qzeros", "scaled_zeros"}

_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)  # of columns 8c + 0 ... 8c + 7 in a gemm word
_VERSIONS = {
    "gemm": "gemm", "exllama": "gemm", "ipex": "gemm",
    "gemv": "gemv",
    "gemv_fast": "gemv_fast", "llm-awq": "gemv_fast", "llm_awq": "gemv_fast",
}  # fmt: skip
_REFUSED = ("marlin", "bitblas")


@dataclass(frozen=True)
class Config:
    """An AWQ quantization_config."""

    group_size: int = 128
    version: str = "gemm"
    bits: int = 4

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Config:
        """Read ``quantization_config`` of config.json, or quant_config.json.

        Raises:
            CheckpointError: a key has the wrong type or a value outside the format's set.
            Unsupported: the tensors were already transformed for one kernel (marlin, bitblas).
        """
        word = config_word(fields, ("version", "format", "checkpoint_format"), "gemm")
        if config_word(fields, ("backend",), "") in ("llm-awq", "llm_awq"):
            word = "llm-awq"
        if word in _REFUSED:
            raise Unsupported(
                f"quantization_config.version is {word!r}: its tensors are in the order of one "
                "kernel; repack the original AWQ checkpoint instead"
            )
        if word not in _VERSIONS:
            fail("quantization_config.version", " is ", repr(word), ", not ",
                 " or ".join(_VERSIONS))  # fmt: skip
        if (bits := config_int(fields, ("bits", "w_bit"), 4)) != 4:
            fail("quantization_config.bits", " is ", bits, ", AWQ has 4")
        config_flag(fields, "zero_point", True)  # zeros are stored either way
        group_size = check_group_size(config_int(fields, ("group_size", "q_group_size"), 128))
        return cls(group_size=group_size, version=_VERSIONS[word])

    def for_module(self, name: str) -> Config | None:
        """Return the settings of one module; AWQ has the same for all."""
        return self


def _padded_words(groups: int, group: int) -> int:
    """Words of zeros in a gemv row: a multiple of 1, 2, 4 as groups have 128, 64, 32 columns."""
    words, multiple = -(-groups // 8), 1 if group >= 128 else 2 if group >= 64 else 4
    return -(-words // multiple) * multiple


def _zero_part(parts: Mapping[str, object], config: Config) -> str:
    return "scaled_zeros" if config.version == "gemv_fast" and "scaled_zeros" in parts else "qzeros"


def codes_part(parts: Collection[str]) -> str | None:
    """See ladder.checkpoints.layer."""
    return None if _MARKS.isdisjoint(parts) else "qweight"


def measure(parts: Mapping[str, Stored], config: Config, name: str, k: int | None = None) -> Layer:
    """Check shapes and dtypes of the parts of layer ``name`` against each other and ``config``.

    ``k`` is not needed: the shapes tell it.

    Raises:
        CheckpointError: a part is missing, has another dtype or shape than the rest asks for, or
            the groups do not cover K. The message names the tensor and both values.
    """
    zero_part = _zero_part(parts, config)
    require(parts, name, ("qweight", "scales", zero_part))
    dtype, shape = parts["qweight"]
    if len(shape) != 2 or 0 in shape:
        fail(f"{name}.qweight", " has shape ", list(shape), ", not two dimensions above zero")
    word = torch.int16 if config.version == "gemv_fast" else torch.int32
    expect(parts, name, "qweight", word, shape)
    n, k = {
        "gemm": (shape[1] * 8, shape[0]),
        "gemv": (shape[0], shape[1] * 8),
        "gemv_fast": (shape[0] * 4, shape[1]),
    }[config.version]
    group = k if config.group_size == -1 else config.group_size
    if k % group:
        fail(f"{name}.qweight", " has K = ", k, ", not a multiple of group_size ", group)
    groups, padded = k // group, 8 * _padded_words(k // group, group)
    if config.version == "gemm":
        expect(parts, name, "scales", SCALE_NAMES, (groups, n))
        expect(parts, name, zero_part, torch.int32, (groups, n // 8))
    elif config.version == "gemv":
        expect(parts, name, "scales", SCALE_NAMES, (n, padded))
        expect(parts, name, zero_part, torch.int32, (n, padded // 8))
    else:
        if k % 64:
            fail(f"{name}.qweight", " has K = ", k, ", gemv_fast needs a multiple of 64")
        expect(parts, name, "scales", SCALE_NAMES, (padded, n))
        expect(parts, name, zero_part, parts["scales"].dtype, (padded, n))
    return Layer(name, n, k, 4, group, groups, group_block(config.group_size, k), config)


def canonical(part: str, tensor: Tensor, layer: Layer) -> tuple[str, Tensor]:
    """The canonical tensor that a stored one becomes, and its name; see ladder.checkpoints.layer.

    The zeros of gemv_fast stay floats, to be subtracted after scaling.
    """
    version = layer.config.version
    if part == "qweight":
        return "qweight", _codes(tensor, layer)
    if part == "scales":
        scales = _unpadded(tensor, layer)
        return "scales", (scales if version == "gemv" else scales.t()).contiguous()
    if version == "gemv":
        return "zeros", ops.unpack(tensor[:, : -(-layer.groups // 8)], layer.groups, 4)
    if version == "gemm":
        return "zeros", _nibbles(tensor).t().contiguous()
    return "zeros", (-_unpadded(tensor, layer)).t().contiguous()


def side(tensors: Mapping[str, Tensor], layer: Layer) -> Side:
    """Return scales and zeros of a layer, canonical.

    Zeros that all equal 8 become ``midpoint``. The floats of gemv_fast become ``rescale`` zeros, so
    that the weights are those of its kernels to the last bit.

    Raises:
        CheckpointError: a scale or a float zero is NaN or infinite.
    """
    kept = {part: tensors[part] for part in ("scales", _zero_part(tensors, layer.config))}
    for part, tensor in kept.items():
        if tensor.is_floating_point():
            check_scales(_unpadded(tensor, layer), f"{layer.name}.{part}")
    return side_of(dict(canonical(part, t, layer) for part, t in kept.items()), layer)


def _unpadded(tensor: Tensor, layer: Layer) -> Tensor:
    """Scales, or zeros in floats, without the groups that only fill up a word of zeros."""
    gemv = layer.config.version == "gemv"
    return tensor[:, : layer.groups] if gemv else tensor[: layer.groups]


def _nibbles(packed: Tensor) -> Tensor:
    """[R, C] int32 of gemm -> [R, 8 C] uint8 in natural order."""
    fields = torch.stack([(packed >> at & 15).to(torch.uint8) for at in _SHIFTS], dim=-1)
    return fields.reshape(packed.shape[0], -1)


def words(qweight: Tensor, layer: Layer, rows: slice) -> Tensor:
    """Return the codes of some rows as int32 [rows, ceil(K/8)], canonical.

    ``rows`` starts and ends at multiples of 8, or at the end.
    """
    first, last, _ = rows.indices(layer.n)
    version = layer.config.version
    if version == "gemm":
        return canonical("qweight", qweight[:, first // 8 : last // 8], layer)[1]
    lines = 1 if version == "gemv" else 4
    return canonical("qweight", qweight[first // lines : last // lines], layer)[1]


def _codes(qweight: Tensor, layer: Layer) -> Tensor:
    if layer.config.version == "gemv":
        return qweight.contiguous()
    return _transposed(qweight) if layer.config.version == "gemm" else _from_lines(qweight, layer.k)


def _transposed(packed: Tensor) -> Tensor:
    """[K, C] int32 of gemm, packed along N -> [8 C, ceil(K/8)], packed along K.

    Eight words of eight rows are an 8 x 8 square of nibbles; three steps swap ever smaller parts
    of it across the diagonal, as one transposes a matrix of bits.
    """
    k, c = packed.shape
    square = packed.new_zeros(-(-k // 8), 8, c)
    square.view(-1, c)[:k] = packed
    for step, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        halves = square.view(-1, 4 // step, 2, step, c)
        upper, lower = halves[:, :, 0], halves[:, :, 1]
        swapped = ((upper >> 4 * step) ^ lower) & mask
        lower ^= swapped
        upper ^= swapped << 4 * step
    return square[:, [at // 4 for at in _SHIFTS]].permute(2, 1, 0).reshape(8 * c, -1)


def _from_lines(lines: Tensor, k: int) -> Tensor:
    """[R, K] int16 of gemv_fast -> [4 R, K/8] int32.

    One line of K int16 holds, for each 64 columns, the nibbles of its four rows one row after the
    other. Within 32 columns, column 8a + 2b + c lies at place 8b + 4c + a.
    """
    nibbles = ops.unpack(lines.contiguous().view(torch.int32), k * 4, 4)
    rows = nibbles.view(-1, k // 64, 4, 64).transpose(1, 2)
    places = rows.reshape(-1, k // 32, 4, 2, 4)
    return ops.pack(places.permute(0, 1, 4, 2, 3).reshape(-1, k), 4)


def shapes(n: int, k: int, config: Config) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Shape and dtype of each part of an [n, k] layer; None is the dtype of the model."""
    group = k if config.group_size == -1 else config.group_size
    words_of_zeros = _padded_words(k // group, group)
    by_version: dict[str, dict[str, tuple[tuple[int, ...], torch.dtype | None]]] = {
        "gemm": {
            "qweight": ((k, n // 8), torch.int32),
            "qzeros": ((k // group, n // 8), torch.int32),
            "scales": ((k // group, n), None),
        },
        "gemv": {
            "qweight": ((n, k // 8), torch.int32),
            "qzeros": ((n, words_of_zeros), torch.int32),
            "scales": ((n, 8 * words_of_zeros), None),
        },
        "gemv_fast": {
            "qweight": ((n // 4, k), torch.int16),
            "scaled_zeros": ((8 * words_of_zeros, n), None),
            "scales": ((8 * words_of_zeros, n), None),
        },
    }
    return by_version[config.version]
