# SPDX-License-Identifier: Apache-2.0
"""The ways of a schedule that only some shapes have among their first ones, each on the GPU."""

import math
from functools import lru_cache
from itertools import product

import pytest
import torch
from drawn import exact_weight, formula, integers
from gpu import HALVES, MARKS, UINT4, always_gives, prepared, schedules
from torch import Tensor

import ladder
from ladder.testing import bound

pytestmark = MARKS
#: What a schedule's text contains, the weight and how many tokens.
WAYS = (
    *(("multicast 1", UINT4, 4096, 4096, m) for m in (1, 3, 8, 9, 16)),
    *(("multicast 2", UINT4, 4096, 4096, m) for m in (1, 3, 8, 9, 16)),
    *(("multicast 2", UINT4, 4090, 4096, m) for m in (8, 16)),
    *(("multicast 1", "uint2,group=64,scale=float16", 4096, 4096, m) for m in (3, 16)),
    *(("multicast 1", "nf4,group=64,scale=bfloat16", 4096, 4096, m) for m in (1, 16)),
    *(("activation stages 4", UINT4, 8192, 28672, m) for m in (1, 9, 16)),
    *(("activation stages 4", UINT4, 8150, 8192, m) for m in (8, 16)),
    *(("tiles per CTA", UINT4, 28672, 2048, m) for m in (1, 8, 16)),
    *(("block by block", UINT4, 8192, 8192, m) for m in (1, 8, 16)),
    *(("block by block", UINT4, 28600, 8192, m) for m in (8, 16)),
    *(
        ("digits", f"{t},group=128,scale=float16", 28672, 8192, 1)
        for t in ("uint1", "int1", "int2")
    ),
    *(("bulk copy by k-tiles, multicast 2", UINT4, n, 4096, m) for n, m in ((4096, 9), (4090, 16))),
    *(("tile ", UINT4, n, 4096, m) for n in (4096, 4090) for m in (24, 40, 64, 100, 192)),
    *(("tile ", "nf4,group=64,scale=bfloat16", 4096, 4096, m) for m in (32, 128)),
    *(("tile ", t, 1000, 8192, 64) for t in ("mxfp4", "nvfp4", "uint3,group=128,scale=float16")),
    *(("token tiles 2", UINT4, 4096, 2048, m) for m in (192, 256)),
    *(("producers", UINT4, 4096, 4096, m) for m in (40, 100, 192, 512)),
    *(
        ("tail of", t, 14336, 4096, m)
        for t in (UINT4, "nf4,group=64,scale=float16")
        for m in (512, 500)
    ),
    *(("producers", t, 4096, 4096, 100) for t in ("uint3,group=128,scale=float16", "mxfp4")),
    *(
        ("warpgroups", f"{t},group=128,scale=float16", 4090, 4096, 100)
        for t in (
            "uint1",
            "uint2",
            "uint3",
            "float6_e3m2",
            "uint4,zero=integer",
            "uint4,zero=rescale",
        )
    ),
    *(("warpgroups", t, 4096, 4096, 40) for t in ("mxfp4", "nvfp4", "nf4,group=64,scale=bfloat16")),
    *(("warpgroups", UINT4, 4096, 4096, m) for m in (40, 64, 100)),
)


@lru_cache(maxsize=2)
def made(type: str, n: int, k: int, order: bool = False) -> tuple[ladder.Weight, Tensor]:
    """A weight and its values, which take seconds at these sizes."""
    weight = exact_weight(type, n, k, act_order=order)
    return weight, formula(weight).cuda()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("way,type,n,k,m", WAYS)
def test_every_way_is_exact_whatever_lay_in_memory_before(way, type, n, k, m, dtype):
    """After a call with NaN, which stays behind in shared memory; with x at an odd address."""
    weight, wanted = made(type, n, k)
    layer = prepared(weight)
    x = integers((m, k), dtype, m).cuda()
    exact = (x.double() @ wanted.T).to(dtype)
    odd = torch.empty(m * k + 1, dtype=dtype, device="cuda")[1:].view(m, k).copy_(x)
    for name in schedules(layer, dtype, m, way):
        for view in (x, odd):
            assert bool(layer(torch.full_like(x, math.nan)).isnan().all()), name
            assert torch.equal(layer(view), exact), name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("way,type,n,k,m", [WAYS[4], WAYS[9], WAYS[16], WAYS[18], WAYS[-1]])
def test_a_thousand_calls_give_the_same_bits(way, type, n, k, m, dtype):
    layer = prepared(made(type, n, k)[0])
    x = torch.randn(m, k, device="cuda", dtype=dtype)
    for name in schedules(layer, dtype, m, way):
        assert always_gives(layer, x, layer(x), 1000), name


@pytest.mark.parametrize("order", (False, True))
def test_activations_in_stages_follow_the_order_of_columns(order):
    """Gathered through g_idx, with columns that end inside a k-tile."""
    weight, wanted = made(UINT4, 2048, 28600, order)
    layer = prepared(weight)
    for dtype, m in product(HALVES, (1, 9, 16)):
        x = integers((m, 28600), dtype, m).cuda()
        exact = (x.double() @ wanted.T).to(dtype)
        assert torch.equal(layer(x), exact)
        for name in schedules(layer, dtype, m, "activation stages"):
            assert torch.equal(layer(x), exact), name


DIGITS = tuple(
    product(
        ("uint1", "int1", "uint2", "int2", "ternary"),
        ("group=32", "group=64", "group=128", "channel"),
    )
)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("scale", ("e8m0", "float32", "bfloat16"))
@pytest.mark.parametrize("element,block", DIGITS)
def test_one_token_as_digits_is_exact_for_every_block_and_order(element, block, scale, dtype):
    for order in (False, True) if block == "group=32" else (False,):
        weight = exact_weight(f"{element},{block},scale={scale}", 1000, 1032, act_order=order)
        bias = torch.arange(1000, dtype=dtype) % 7
        layer, wanted = prepared(weight, bias), formula(weight).cuda()
        x = integers((1, 1032), dtype).cuda()
        exact = (x.double() @ wanted.T + bias.cuda().double()).to(dtype)
        assert torch.equal(layer(x), exact)
        for name in schedules(layer, dtype, 1, "digits"):
            assert torch.equal(layer(x), exact), name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("element", ("uint1", "int1", "uint2", "int2"))
def test_one_token_as_digits_at_the_ends_of_the_range(element, dtype):
    """Zeros give zeros, subnormals and numbers 2^60 apart the bound, what is not finite NaN."""
    n, k = 1000, 1032
    weight, values = made(f"{element},group=32,scale=float32", n, k)
    layer = prepared(weight)
    assert list(schedules(layer, dtype, 1, "digits"))
    assert bool((layer(torch.zeros(1, k, dtype=dtype, device="cuda")) == 0).all())
    normal = torch.randn(1, k, device="cuda")
    smallest = torch.finfo(dtype).smallest_normal
    spans = [normal * smallest / 64, normal * 2.0**-10]
    if dtype == torch.bfloat16:
        spans.append(normal * torch.exp2(torch.randint(-40, 20, (1, k), device="cuda").float()))
    for x in (span.to(dtype) for span in spans):
        y, exact = layer(x).double(), x.double() @ values.T
        least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # y's own spacing there
        assert bool(((y - exact).abs() <= bound(x, values, dtype) + least / 2).all())
    for bad in (math.inf, -math.inf, math.nan):
        x = normal.to(dtype)
        x[0, 517] = bad
        assert not bool(layer(x).isfinite().any())
