# SPDX-License-Identifier: Apache-2.0
"""Scales that are powers of two (e8m0): which one is taken, and where they end."""

import logging

import pytest
import torch

import ladder
from ladder.types import element, parse, type_names

#: Formats of single numbers.
ELEMENTS = [name for name in type_names() if name in torch.ops.ladder.element_names().split()]
MX = [name for name in type_names() if name.startswith("mx")]


@pytest.mark.parametrize("type", ["int2,tensor", "ternary,group=32", "int3,channel"])
def test_weights_of_one_magnitude_stay_what_they_are(type):
    """The power above the largest was twice as large as they are, and they became zero."""
    torch.manual_seed(0)
    weight = 1000 + 40 * torch.rand(16, 128)
    for method in ("nearest", "search"):
        packed = ladder.quantize(weight, f"{type},scale=e8m0", method=method)
        assert torch.equal(packed.dequantize(), torch.full_like(weight, 1024)), method


def error_with(power, values, weight):
    near = (weight[..., None] / power - values).abs().amin(-1)
    return (near * power).norm()


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_power_is_the_better_of_the_two_beside_the_largest_magnitude(name):
    generator = torch.Generator().manual_seed(0)
    values = element(name).values
    values = values[values.isfinite()]
    for factor in (0.6, 0.8, 1.1, 1.4):
        weight = factor * torch.randn(8, 64, generator=generator).abs().double() + 0.1
        above = torch.exp2(torch.log2(weight.max() / values.max()).ceil())
        best = min(error_with(power, values, weight) for power in (above, above / 2))
        packed = ladder.quantize(weight, f"{name},tensor,scale=e8m0", method="nearest")
        assert (packed.dequantize() - weight).norm() <= best * (1 + 1e-5)


@pytest.mark.parametrize("name", MX)
def test_powers_of_mx_blocks_cover_the_largest_magnitude(name):
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    values = parse(name).element.values
    largest = weight.view(8, 2, 32).abs().amax(-1) / values[values.isfinite()].max()
    packed = ladder.quantize(weight, name, method="nearest")
    assert torch.equal(packed.scales - 127.0, torch.log2(largest).ceil())


@pytest.mark.parametrize("name", MX)
def test_numbers_below_the_least_power_become_zero_with_a_warning(name, caplog):
    """A block of magnitudes that the least scale, 2^-127, is too large for."""
    ttype = parse(name)
    values = ttype.element.values
    least = values[values.isfinite() & (values > 0)].min().item() * 2.0**-127
    weight = torch.ones(4, 64)
    weight[1, 32:] = 0
    weight[2, :32] = least / 4
    if not weight[2, 0]:
        pytest.skip("nothing lies below it that float32 has")
    with caplog.at_level(logging.WARNING, logger="ladder"):
        packed = ladder.quantize(weight, name)
    expected = torch.ones(4, 64)
    expected[1, 32:] = expected[2, :32] = 0
    assert torch.equal(packed.dequantize(), expected)
    (record,) = caplog.records
    assert record.message.startswith("32 of 256 numbers of a weight [4, 64] have magnitudes up to")
    assert "which scales of e8m0" in record.message


def test_numbers_that_round_to_zero_beside_larger_ones_are_no_cause_for_a_warning(caplog):
    weight = torch.full((4, 64), 2.0**-125)  # four times the least power
    weight[:, ::2] = 2.0**-130
    with caplog.at_level(logging.WARNING, logger="ladder"):
        packed = ladder.quantize(weight, "mxfp4")
    assert not packed.dequantize()[:, ::2].any() and packed.dequantize()[:, 1::2].all()
    assert not caplog.records


@pytest.mark.parametrize("name", [*type_names(), "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (0, 0)])
def test_a_weight_without_numbers_is_refused_for_every_type(name, shape):
    why = rf"^weight has shape \[{shape[0]}, {shape[1]}\]: nothing to quantise$"
    with pytest.raises(ladder.InvalidArgument, match=why):
        ladder.quantize(torch.zeros(shape), name)
