# SPDX-License-Identifier: Apache-2.0
"""Sums of float8_e4m3 that are left to the tensor cores."""

import copy

import pytest
import torch
from gpu import E4M3, HALVES, MARKS, prepared
from rounded import INTERVALS, values_of, weight_of, whole
from torch import nn

import ladder
from ladder.ops import activations
from ladder.ops.activations import FAST_ACCUM
from ladder.testing import bound

pytestmark = [*MARKS, pytest.mark.skipif(not E4M3, reason="no products of e4m3")]
ROWS = "float8_e4m3,channel,scale=float16"
TYPES = (
    ROWS,
    "float6_e3m2,channel,scale=bfloat16",
    "int4,channel,scale=float16",
    "float8_e4m3,group=256,scale=float16",
    "uint4,group=128,scale=float16,zero=integer",
    "mxfp4",
)


def layer_of(weight: ladder.Weight, bias=None) -> ladder.Linear:
    layer = prepared(weight, bias)
    layer.activation_type = FAST_ACCUM
    return layer


@pytest.mark.parametrize("n,k", [(256, 512), (200, 1040)])
@pytest.mark.parametrize("type", TYPES)
def test_every_kind_of_type_is_exact_on_integers(type, n, k):
    weight = weight_of(type, n, k)
    layer, wanted = layer_of(weight), values_of(weight)
    for dtype in HALVES:
        for m in (17, 65, 100, 300, 1000):
            x = whole(m, k, dtype, "float8_e4m3")
            exact = (x.double() @ wanted.T).to(dtype)
            assert torch.equal(layer(x), exact), (m, dtype, layer.compile_for(dtype, m))


@pytest.mark.parametrize("m", INTERVALS)
def test_every_interval_is_exact(m):
    weight = weight_of(ROWS, 256, 512)
    bias = whole(1, 256, torch.float16)[0]
    layer, wanted = layer_of(weight, bias), values_of(weight)
    x = whole(m, 512, torch.float16, "float8_e4m3")
    assert torch.equal(layer(x), (x.double() @ wanted.T + bias.double()).half())


@pytest.mark.parametrize("dtype", HALVES)
def test_real_numbers_stay_within_the_bound_and_are_not_those_of_promoted_sums(dtype):
    torch.manual_seed(0)
    dense = nn.Linear(4096, 1024, bias=False)
    fast = ladder.Linear.from_linear(dense, ROWS, activation_type=FAST_ACCUM).cuda()
    promoted = copy.deepcopy(fast)
    promoted.activation_type = "float8_e4m3"
    values = fast.packed_weight.dequantize().double()
    for m in (1, 48, 49, 65, 500, 1500):
        x = torch.randn(m, 4096, device="cuda", dtype=dtype)
        y, other = fast(x).double(), promoted(x).double()
        if m <= activations.MOST_TOKENS_AS_THEY_COME:
            assert torch.equal(y, other)
            continue
        rounded = activations.round_tokens(x, FAST_ACCUM).double()
        exact = rounded @ values.T
        # Tensor cores of Hopper keep 14 bits, of sums that grow over all of K.
        limit = bound(rounded, values, dtype, 14) + 2.0**-22 * (rounded.abs() @ values.abs().T)
        assert bool(((y - exact).abs() <= limit).all())
        assert not torch.equal(y, other)
        # y of bfloat16 is rounded by up to 2^-9 of itself; sums have as much.
        off = (y - exact).square().mean().sqrt()
        assert off < 2.0**-8 * exact.square().mean().sqrt()


def test_it_is_named_warmed_up_kept_and_captured(tmp_path):
    weight = weight_of(ROWS, 320, 640)
    layer, wanted = layer_of(weight), values_of(weight)
    image = layer.image
    kernels = ladder.warmup(layer, m=(100,), dtype=torch.float16, tune="fast", cache=tmp_path)
    assert kernels[""][100] and layer.image is image
    assert "fast sum k=640" in (tmp_path / "plans.json").read_text()
    x = whole(100, 640, torch.float16, "float8_e4m3")
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(whole(101, 640, torch.float16, "float8_e4m3")[:100])
    graph.replay()
    assert torch.equal(y, (x.double() @ wanted.T).half())
    assert copy.deepcopy(layer).activation_type == FAST_ACCUM


def test_codes_of_x_have_the_sums_of_their_layer():
    torch.manual_seed(1)
    dense = nn.Linear(4096, 512, bias=False)
    layer = ladder.Linear.from_linear(dense, ROWS).cuda()
    x = torch.randn(300, 4096, device="cuda").to(torch.float8_e4m3fn)
    values = layer.packed_weight.dequantize().double()
    exact = x.double() @ values.T
    promoted = layer.forward_codes(x, out_dtype=torch.float32)
    layer.activation_type = FAST_ACCUM
    fast = layer.forward_codes(x, out_dtype=torch.float32)
    assert not torch.equal(fast, promoted)
    # Each of 128 steps of 32 columns cuts off less than 2^-13 of a sum: 2^-6 of one that is large
    # from the first, half of that of one that grows. On an H200 it is 5e-4.
    for y in (fast, promoted):
        off = (y.double() - exact).square().mean().sqrt()
        assert off < 2.0**-7 * exact.square().mean().sqrt()


def test_experts_are_exact_on_integers():
    from ladder.cuda import experts

    weights = [weight_of(ROWS, 256, 512, seed) for seed in range(4)]
    stack = experts.rounding(experts.stacked([w.to("cuda") for w in weights]), FAST_ACCUM)
    values = torch.stack([values_of(w) for w in weights])
    x = whole(200, 512, torch.bfloat16, "float8_e4m3")
    ids = (torch.arange(200, device="cuda") % 4).to(torch.int32)[:, None]
    codes, scales = torch.ops.ladder.rounded_codes(x, FAST_ACCUM)
    rows, of_rows, items, places = experts.route_rounded(codes, scales, ids, 4, 32)
    y = experts.expert_linear_rounded(rows, of_rows, stack, None, items, 32, torch.bfloat16)
    exact = torch.einsum("tk,tnk->tn", x.double(), values[ids[:, 0].long()])
    assert torch.equal(y[places[:, 0].long()], exact.to(torch.bfloat16))
