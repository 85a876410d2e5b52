# SPDX-License-Identifier: Apache-2.0
"""Every type through a compiled kernel: exact on integers, then within the derived bound."""

import dataclasses
import math

import pytest
import torch
from drawn import (
    TWO_LEVELS,
    exact_weight,
    formula,
    generator,
    grouped,
    integers,
    stored_types,
    whole,
)
from gpu import HALVES, MARKS, compiled_graphs, prepared
from torch import Tensor, nn

import ladder
from ladder.testing import SIGNIFICANT_BITS
from ladder.types import parse

pytestmark = MARKS
# Rows and columns: ragged rows with whole columns; fewer rows than a block and ragged columns; and
# rows of activations that end inside 16 bytes, with a last group of 5.
SHAPES = ((200, 256), (40, 1000), (72, 101))
TOKENS = (1, 3, 8, 9, 16, 17, 40, 65, 100, 257, 1537)

TYPES = stored_types()


def declined(type: str, dtype: torch.dtype) -> bool:
    """Formats whose values no float16 tells apart have kernels for bfloat16 only: half their
    range, with exponents of 6 bits and more."""
    element = parse(type).element
    return dtype == torch.float16 and element.encoding == "floating" and element.exponent_bits > 5


def magnitude(weight: ladder.Weight) -> Tensor:
    """[N, K] of what a kernel adds up for each weight: floating zeros are summed on their own."""
    if weight.type.zero not in ("original", "rescale"):
        return formula(weight).abs()
    without = formula(dataclasses.replace(weight, zeros=torch.zeros_like(weight.zeros)))
    return without.abs() + (without - formula(weight)).abs()


def limit(x: Tensor, weight: ladder.Weight, bias: Tensor, rounded: bool) -> tuple[Tensor, Tensor]:
    """What is right in float64, and how far a kernel may be from it: :func:`ladder.testing.bound`
    with a bias, floating zeros as terms of their own, values of tables, and with ``rounded`` those
    of the weight, rounded to the dtype of x, and results without a normal number of the dtype."""
    dtype, k = x.dtype, x.shape[-1]
    x, bias = x.double(), bias.double()
    exact = x @ formula(weight).cuda().T + bias
    added = x.abs() @ magnitude(weight).cuda().T
    allowed = 6 * math.sqrt(k + 1) * 2.0**-24 * (added + bias.abs())
    allowed += 2.0 ** -SIGNIFICANT_BITS[dtype] * exact.abs()
    table = weight.type.element.encoding == "table"
    allowed += (table + rounded) * 2.0 ** -SIGNIFICANT_BITS[dtype] * added
    info = torch.finfo(dtype)
    return exact, allowed + info.smallest_normal * info.eps


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_every_type_is_exact_on_integers(type, dtype):
    """A wrong code, zero point or scale changes an integer, so nothing here needs a tolerance."""
    for n, k in SHAPES:
        weight = exact_weight(type, n, k)
        bias = integers((n,), dtype, 7).cuda()
        plain, biased = prepared(weight), prepared(weight, bias)
        wanted = formula(weight).cuda()
        for m in TOKENS:
            schedule = plain.compile_for(dtype, m)
            # From 257 tokens on some are dequantised where that is expected to be faster.
            if m <= 256 or declined(type, dtype):
                assert (schedule == "") == declined(type, dtype), (n, k, m)
            x = integers((m, k), dtype, m).cuda()
            exact = x.double() @ wanted.T
            assert torch.equal(plain(x), exact.to(dtype)), (n, k, m, schedule)
            assert torch.equal(biased(x), (exact + bias.double()).to(dtype)), (n, k, m, schedule)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", ["float8_e4m3", "float8_e5m2", "float6_e3m2"])
def test_every_code_is_its_value_infinity_and_nan_too(type, dtype):
    """Rows of one code, the other columns of zero: infinity stays one, and NaN in its row."""
    bits = parse(type).bits
    codes = torch.zeros(1 << bits, 128, dtype=torch.uint8)
    codes[:, 5] = torch.arange(1 << bits)
    scales = torch.ones(1 << bits, 1, dtype=dtype)
    weight = ladder.Weight.from_codes(
        codes, f"{type},channel,scale={str(dtype)[6:]}", scales=scales
    )
    wanted = weight.dequantize()[:, 5].to(dtype).cuda()
    layer = ladder.Linear.from_weight(weight).cuda()
    for m in (1, 16, 40):
        y = layer(torch.ones(m, 128, dtype=dtype, device="cuda"))
        assert torch.equal(y.nan_to_num(7e4), wanted.nan_to_num(7e4).expand(m, -1)), m
        assert torch.equal(y.isnan(), wanted.isnan().expand(m, -1)), m


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", ["mxfp4", "mxfp8_e5m2", "mxint8", "nvfp4"])
def test_every_scale_of_one_byte_is_its_value(type, dtype):
    """One scale a row, from the smallest to the largest, times a weight and an activation of 1."""
    k, ttype = 128, parse(type)
    one = (ttype.element.values == 1).nonzero()[0, 0]
    values = ladder.types.element(ttype.scale).values
    finite = values.isfinite().nonzero()[:, 0]
    n = len(finite)
    scales = finite.to(torch.uint8)[:, None].repeat(1, ttype.groups(k))
    second = {"scale2": torch.tensor([1.0])} if ttype.scale2 is not None else {}
    codes = torch.full((n, k), int(one), dtype=torch.uint8)
    layer = prepared(ladder.Weight.from_codes(codes, ttype, scales=scales, **second))
    wanted = values[finite].to(dtype)
    for m in (1, 16):
        x = torch.zeros(m, k, dtype=dtype, device="cuda")
        x[:, 5] = 1
        assert torch.equal(layer(x).cpu(), wanted.expand(m, n)), m


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_real_numbers_stay_within_the_bound(type, dtype):
    if declined(type, dtype):
        pytest.skip("float16 has not the range of the format")
    n, k = 136, 1024
    rng = generator(3)
    dense = torch.randn(n, k, generator=rng) / 8
    weight = ladder.quantize(dense, type, method="nearest")
    bias = torch.randn(n, generator=rng).to(dtype).cuda()
    layer = prepared(weight, bias)
    for m in (1, 7, 16, 90, 300):
        x = torch.randn(m, k, generator=rng).to(dtype).cuda()
        schedule = layer.compile_for(dtype, m)
        exact, allowed = limit(x, weight, bias, "rounded operands" in schedule or schedule == "")
        worst = ((layer(x).double() - exact).abs() / allowed).max().item()
        assert worst <= 1, (m, worst, schedule)


@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
@pytest.mark.parametrize("type", TYPES)
def test_dequantising_an_image_gives_the_canonical_values(type, dtype):
    """Every step rounded as docs/format.md says, so the last bit agrees."""
    for n, k in SHAPES:
        k = whole(type, k)
        weight = ladder.quantize(torch.randn(n, k, generator=generator(5)), type, method="nearest")
        layer = prepared(weight)
        values = torch.ops.ladder.dequantize_image(layer.image, layer._weight_number, n, k, dtype)
        assert torch.equal(values.cpu(), weight.dequantize().to(dtype)), (n, k)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "type",
    [
        "uint4,group=32,scale=float16,zero=midpoint",
        "uint4,group=32,scale=float16,zero=integer",
        "uint3,group=64,scale=bfloat16,zero=original",
        "uint8,group=64,scale=float16,zero=quantized",
        "nf4,group=64,scale=float16",
        "uint1,group=64,scale=float16,zero=midpoint",
    ],
)
def test_columns_in_the_order_of_their_groups(type, dtype):
    """Act-order: the image has them sorted, everything else gives them back as they were."""
    for n, k in ((200, 256), (40, 1024)):
        weight = exact_weight(type, n, k, act_order=True)
        layer, wanted = prepared(weight), formula(weight).cuda()
        for m in TOKENS:
            x = integers((m, k), dtype, m).cuda()
            if m <= 256:
                assert layer.compile_for(dtype, m) != "", (n, k, m)
            assert torch.equal(layer(x), (x.double() @ wanted.T).to(dtype)), (n, k, m)
        x = integers((2, k), dtype).cuda().requires_grad_()
        grad = integers((2, n), dtype, 5).cuda()
        layer(x).backward(grad)
        assert torch.equal(x.grad, (grad.double() @ wanted).to(dtype))
        values = torch.ops.ladder.dequantize_image(layer.image, layer._weight_number, n, k, dtype)
        assert torch.equal(values, wanted.to(dtype))
        assert torch.equal(layer.packed_weight.qweight.cpu(), weight.qweight)
        assert torch.equal(layer.state_dict()["g_idx"].cpu(), weight.g_idx)


def test_groups_of_other_lengths_go_through_torch_and_say_so(caplog):
    weight = exact_weight("uint4,group=32,scale=float16", 64, 128)
    g_idx = torch.randint(0, 4, (128,), generator=generator()).to(torch.int32)
    weight = dataclasses.replace(weight, g_idx=g_idx)
    layer = ladder.Linear.from_weight(weight).cuda()
    x = integers((3, 128), torch.float16).cuda()
    with caplog.at_level("INFO", "ladder"):
        assert not layer.prepare()
    assert "32 columns to each group" in caplog.text
    assert torch.equal(layer(x), (x.double() @ formula(weight).cuda().T).half())


@pytest.mark.parametrize("type", TYPES)
def test_the_canonical_codes_come_back(type):
    for n, k in SHAPES:
        k = whole(type, k)
        weight = ladder.quantize(torch.randn(n, k, generator=generator(9)), type, method="nearest")
        layer = prepared(weight)
        assert layer.qweight is None
        for name, part in weight.tensors().items():
            assert torch.equal(layer.state_dict()[name].cpu(), part), name
        assert torch.equal(layer.cpu().qweight, weight.qweight)


def test_a_model_is_warmed_up_whatever_its_types(tmp_path):
    """Tuning measures with metadata of its own making for each kind."""
    types = ("mxfp4", "nvfp4", "nf4", "uint4,group=64,scale=float32,zero=rescale", "ternary")
    types = (*types, TWO_LEVELS)
    layers = [ladder.Linear.from_linear(nn.Linear(256, 192), grouped(t)) for t in types]
    act_order = exact_weight("uint4,group=32,scale=bfloat16,zero=integer", 192, 256, act_order=True)
    model = nn.ModuleList([*layers, ladder.Linear.from_weight(act_order)]).cuda()
    kernels = ladder.warmup(model, m=(1, 12, 100), cache=tmp_path)
    assert len(kernels) == len(model)
    assert all(schedule for row in kernels.values() for schedule in row.values()), kernels


def test_compiling_a_model_before_its_first_call_brings_it_to_its_kernels():
    weight = exact_weight("uint4,group=32,scale=float16,zero=integer", 96, 256)
    layer, wanted = ladder.Linear.from_weight(weight).cuda(), formula(weight).cuda()
    graphs = compiled_graphs(layer, wanted)
    assert len(graphs) == 1 and layer.image is not None
    assert "linear_image" in str(graphs[0].code)
