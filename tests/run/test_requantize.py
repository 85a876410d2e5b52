# SPDX-License-Identifier: Apache-2.0
"""A packed weight whose values change a little moves as far along the change as it is to."""

from dataclasses import replace

import pytest
import torch

import ladder
from ladder.nn.requantize import requantized

TYPES = ("uint4,group=64,scale=float16,zero=integer", "nf4,group=64,scale=float16", "mxfp4",
         "uint2,group=64,scale=float16,zero=integer", "int8,channel,scale=float16",
         "q4_k")  # fmt: skip


def case(ttype, size, n=64, k=512):
    """A weight, and a change of rank 4 of ``size`` times the mean distance between its values."""
    source = torch.Generator().manual_seed(1)
    weight = ladder.quantize(torch.randn(n, k, generator=source), ttype)
    values = weight.dequantize()
    step = values[:, :64].sort(1).values.diff(dim=1).amax(1).mean()
    change = torch.randn(n, 4, generator=source) @ torch.randn(4, k, generator=source)
    return weight, values, change / change.square().mean().sqrt() * step * size


@pytest.mark.parametrize("size", (0.05, 0.2, 1.0))
@pytest.mark.parametrize("ttype", TYPES)
def test_rows_move_along_their_change_as_far_as_it_goes(ttype, size):
    weight, values, change = case(ttype, size)
    moved = requantized(values + change, weight).dequantize() - values
    along = (moved * change).sum(1) / change.square().sum(1)
    assert (along.mean() - 1).abs() < 0.01 and (along - 1).abs().max() < 0.3
    if size < 0.1 and "int8" not in ttype:  # of 8 bits other scales are found, which tells more
        nearest = ladder.quantize(values + change, weight.type).dequantize() - values
        assert ((nearest * change).sum(1) / change.square().sum(1)).mean() < 0.2


def grid(weight):
    """[codes, N, K]: what each code is worth everywhere, in order."""
    n, k = weight.shape
    codes = (torch.full((n, k), code, dtype=torch.uint8) for code in range(1 << weight.type.bits))
    packed = (replace(weight, qweight=ladder.ops.pack(c, weight.type.bits)) for c in codes)
    return torch.stack([each.dequantize() for each in packed]).sort(0).values


@pytest.mark.parametrize("ttype", TYPES)
def test_codes_go_on_by_one_factor_of_the_row(ttype):
    """By one: those of which the change times the factor is past the middle of the way."""
    weight, values, change = case(ttype, 0.2, n=16, k=256)
    made = requantized(values + change, weight)
    nearest = ladder.quantize(values + change, weight.type)
    for name, part in nearest.tensors().items():
        assert name == "qweight" or torch.equal(part, made.tensors()[name])
    near, far, every = nearest.dequantize(), made.dequantize(), grid(made)
    up = every.where(every > near, torch.inf).amin(0)
    down = every.where(every < near, -torch.inf).amax(0)
    towards = torch.where(change > 0, up, down)
    on = far != near
    assert on.any() and torch.equal(far[on], towards[on])
    factor = ((near + towards) / 2 - values) / change
    for row, goes in zip(factor, on, strict=True):
        assert not goes.any() or row[goes].max() <= row[~goes].min() + 1e-5


def test_a_change_of_nothing_in_a_row_moves_no_code_by_itself():
    weight, values, change = case(TYPES[0], 0.2)
    change[3] = 0
    made = requantized(values + change, weight)
    again = ladder.quantize(values, weight.type)
    assert torch.equal(made.codes()[3], again.codes()[3])


def test_types_of_more_than_eight_bits_are_rounded_to_the_nearest():
    values = torch.randn(4, 32)
    weight = ladder.quantize(values, "float16")
    made = requantized(weight.dequantize() + 0.5, weight)
    assert torch.equal(made.dequantize(), (weight.dequantize() + 0.5).half().float())
