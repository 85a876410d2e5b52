# SPDX-License-Identifier: Apache-2.0
"""Whether a type holds the weights that were quantised to it: what it cuts off, or what becomes
zero, is refused or told by name."""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

from ladder.errors import InvalidArgument
from ladder.types import TType, element
from ladder.weight import Weight

_log = logging.getLogger("ladder")


def check_float32(weight: Tensor, source: Tensor) -> None:
    """Raise InvalidArgument where a float64 is finite and its float32 is not."""
    if type(source) is not Tensor or source.is_meta:
        return
    beyond = (weight.isfinite() & source.isinf()).nonzero()
    if len(beyond):
        row, column = beyond[0].tolist()
        raise InvalidArgument(
            f"weight at row {row}, column {column} is {weight[row, column].item():.3g}, beyond "
            f"float32, which ends at {torch.finfo(torch.float32).max:.3g}"
        )


def _read_scales(scales: Tensor | None, ttype: TType) -> Tensor | None:
    """Values of scales whose format ends before weights do: float16, floats of 8 bits and integers.
    None for those that reach as far as weights (bfloat16, float32, e8m0) and for tensors of
    tracing, which have no numbers."""
    if scales is None or type(scales) is not Tensor or scales.is_meta:
        return None
    if scales.dtype == torch.float16:
        return scales.to(torch.float64)
    if scales.dtype != torch.uint8 or element(str(ttype.scale)).encoding == "exponent":
        return None
    return element(str(ttype.scale)).values.to(scales.device)[scales.long()]


@functools.cache
def _ends(scale: str) -> tuple[float, float, float]:
    """Of a format of scales the least number above zero, the second largest and the largest."""
    values = element(scale).values
    numbers = values[values.isfinite() & (values > 0)].sort().values
    return numbers[0].item(), numbers[-2:][0].item(), numbers[-1].item()


def _most(source: Tensor) -> float:
    """The largest magnitude, without a copy of all."""
    low, high = (end.item() for end in source.aminmax())
    return max(-low, high)


def _code_values(ttype: TType) -> Tensor:
    values = ttype.element.values[ttype.element.values.isfinite()]
    return values - 2 ** (ttype.bits - 1) if ttype.zero == "midpoint" else values


def _which_do(ttype: TType) -> str:
    second = "" if ttype.scale2 or ttype.scale == "float16" else ", or a second scale"
    return f"scales of bfloat16 or float32 do{second}"


def check_range(source: Tensor, scales: Tensor | None, ttype: TType) -> None:
    """Raise InvalidArgument where a scale was cut off at the largest number of its format, so that
    the weights of its block would come back far too small."""
    values = _read_scales(scales, ttype)
    # With a second scale the largest scale is the largest number.
    if values is None or ttype.scale2:
        return
    _, second, largest = _ends(str(ttype.scale))
    if values.max().item() < largest:
        return
    codes = _code_values(ttype)
    if ttype.zero in ("none", "midpoint"):
        asked = _most(source) / codes.abs().max().item()
    else:
        low, high = (end.item() for end in source.aminmax())
        asked = (max(high, 0) - min(low, 0)) / (codes.max() - codes.min()).item()
    if asked <= largest + (largest - second) / 2:  # it is the nearest
        return
    raise InvalidArgument(
        f"weight has magnitudes up to {_most(source):.3g}, for which scales of "
        f'{ttype.scale} in type "{ttype}" do not suffice: {_which_do(ttype)}'
    )


def _became_zero(source: Tensor, packed: Weight, of_blocks: Tensor) -> Tensor:
    """Which numbers of the blocks [R, G] that are True were none and are zero now. Zeros of a block
    may make up for its scale."""
    ttype, (n, k) = packed.type, packed.shape
    rows, columns = ttype.rows or n, ttype.columns or k
    there = of_blocks.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
    return there & (source != 0) & (packed.dequantize() == 0)


def _least_scale(source: Tensor, packed: Weight, gone: Tensor) -> float:
    """Above zero, of the row that has the largest of the numbers that are ``gone``, with the second
    one."""
    least, second = _ends(str(packed.type.scale))[0], packed.scale2
    if second is None:
        return least
    row = int((source.abs() * gone).argmax()) // packed.shape[1]
    return least * second[row if packed.type.scale2_of_rows else 0].item()


def _nothing_left(packed: Weight, scales: Tensor) -> Tensor:
    """Which blocks [R, G] have scales of zero; of integers, which quantising gives a scale of 1 or
    more, those that have 1 and no value but zero."""
    (n, k), ttype = packed.shape, packed.type
    if not ttype.has_integer_scales or not (scales == 1).any():
        return scales == 0
    rows, columns = ttype.rows or n, ttype.columns or k
    blocks = torch.nn.functional.pad(packed.dequantize() != 0, (0, -k % columns, 0, -n % rows))
    blocks = blocks.view(scales.shape[0], rows, scales.shape[1], columns)
    return (scales == 1) & ~blocks.any(3).any(1)


def check_zeros(source: Tensor, packed: Weight, whose: str) -> None:
    """Raise InvalidArgument where all of a weight would be zero, because scales are too small for
    their format or because values of one sign do not serve it; warn where some would."""
    ttype, (n, k) = packed.type, packed.shape
    scales = _read_scales(packed.scales, ttype)
    if scales is None or not (nothing := _nothing_left(packed, scales)).any():
        return
    gone = _became_zero(source, packed, nothing)
    if not gone.any():
        return
    most, least = _most(source[gone]), _least_scale(source, packed, gone)
    values = _code_values(ttype)
    if most <= least * values.abs().max().item() or ttype.zero not in ("none", "midpoint"):
        why = (
            f"magnitudes up to {most:.3g}, for which scales of {ttype.scale} in type "
            f'"{ttype}", {least:.3g} or more, are too large: they become zero; {_which_do(ttype)}'
        )
    else:
        why = (
            f'magnitudes up to {most:.3g}, for which no scale of type "{ttype}" is better than '
            f"zero: its values go from {values.min().item():g} to {values.max().item():g}"
        )
    if gone.sum() == (source != 0).sum():
        raise InvalidArgument(f"weight has {why}")
    count = int(gone.sum())
    _log.warning("%s%d of %d numbers of a weight [%d, %d] have %s", whose, count, n * k, n, k, why)


def _largest_scale(packed: Weight) -> float:
    """With the second one: no scale is larger."""
    scales = packed.scales
    if scales is None:
        return 1.0
    if not scales.is_floating_point():
        scales = element(str(packed.type.scale)).values.to(scales.device)[scales.long()]
    return _most(scales) * (1.0 if packed.scale2 is None else _most(packed.scale2))


def check_ends(source: Tensor, packed: Weight) -> None:
    """Raise InvalidArgument where a weight is so near an end of float32 that it is not finite with
    any scale, or nothing of it is left."""
    if type(source) is not Tensor or source.is_meta or not source.numel():
        return
    most = _most(source)
    if most == 0:
        return
    # Scales are about as large as weights divided by values, which a table of a user's may have
    # anywhere, and on one side of zero only. Ranges are wide enough in between.
    largest = _code_values(packed.type).abs().max().item()
    if 2.0**-100 < most < 2.0**120 and _largest_scale(packed) * max(largest, 1) < 2.0**120:
        return
    # The distance of the largest from the least, of which zero points are made, overflows.
    far = most >= 2.0**126 and packed.type.zero not in ("none", "midpoint")
    values = packed.dequantize()
    if not far and values.any() and values.isfinite().all():
        return
    what = "large" if most > min(1, largest) else "small"
    raise InvalidArgument(
        f'weight has magnitudes up to {most:.3g}, too {what} for type "{packed.type}", whose codes '
        f"mean up to {largest:.3g}: scales and values are computed in float32"
    )


def check_least(source: Tensor, packed: Weight, whose: str) -> None:
    """Warn where numbers became zero because their block wants a smaller power of two than e8m0
    has."""
    ttype, (n, k), scales = packed.type, packed.shape, packed.scales
    if type(scales) is not Tensor or scales.is_meta or ttype.scale is None:
        return
    if element(ttype.scale).encoding != "exponent" or scales.all():  # code 0 is the least
        return
    rows, columns = ttype.rows or n, ttype.columns or k
    blocks = torch.nn.functional.pad(source.abs(), (0, -k % columns, 0, -n % rows))
    blocks = blocks.view(scales.shape[0], rows, scales.shape[1], columns)
    least = _ends(ttype.scale)[0]
    reach = least * _code_values(ttype).abs().max().item()
    small = (scales == 0) & (blocks.amax((1, 3)) <= reach / 2)
    gone = _became_zero(source, packed, small)
    if count := int(gone.sum()):
        _log.warning(
            "%s%d of %d numbers of a weight [%d, %d] have magnitudes up to %.3g, for which scales "
            'of %s in type "%s", %.3g or more, are too large: they become zero; scales of float32 '
            "do",
            *(whose, count, n * k, n, k, _most(source[gone]), ttype.scale, ttype, least),
        )


def check_unscaled(source: Tensor, packed: Weight) -> None:
    """Raise InvalidArgument where a type without scales does not reach a weight, or leaves nothing
    of it."""
    if type(packed.qweight) is not Tensor or packed.qweight.is_meta or not source.numel():
        return
    ttype, values = packed.type, packed.dequantize()
    # Between its ends a type is at most half of its widest gap away, whatever the zero points.
    gap = _code_values(ttype).sort().values.diff().max().item()
    far = ((source - values).abs() > gap * 0.5001).nonzero()
    which = f'type "{ttype}", of no scales'
    if len(far):
        row, column = far[0].tolist()
        what = (
            f"weight at row {row}, column {column} is {source[row, column].item():.6g}, beyond its "
            f"values in {which}, of which {values[row, column].item():.6g} is the nearest"
        )
    elif source.any() and not values.any():
        what = (
            f"weight has magnitudes up to {_most(source):.3g}, which in {which}, are too small: "
            "all would be zero"
        )
    else:
        return
    raise InvalidArgument(f'{what}: name scales, as in "scale=float16"')


def check_cast(weight: Tensor, cast: Tensor, ttype: TType) -> None:
    """Raise InvalidArgument for a number that is not finite, or not in the format of ``cast``, and
    where nothing is left of all."""
    if type(cast) is not Tensor or cast.is_meta:
        return
    bad = (~cast.isfinite()).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        value = weight[row, column]
        why = "not finite"
        if value.isfinite():
            why = f"beyond {ttype}, which ends at {torch.finfo(cast.dtype).max:.3g}"
        raise InvalidArgument(f"weight at row {row}, column {column} is {value.item():.3g}, {why}")
    if weight.any() and not cast.any():
        raise InvalidArgument(
            f"weight has magnitudes up to {_most(weight):.3g}, all of which are zero in {ttype}"
        )
