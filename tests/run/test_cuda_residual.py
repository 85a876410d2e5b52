# SPDX-License-Identifier: Apache-2.0
"""A residual that kernels add where they make the sums, on a GPU: exact on integers, one launch, y
rounded once."""

import copy

import pytest
import torch
from drawn import exact_weight, formula, integers
from gpu import E4M3, HALVES, MARKS, UINT4, launches, prepared
from rounded import weight_of, whole
from test_cuda_gated import TYPES
from torch.nn import functional

import ladder

pytestmark = MARKS
N, K = 104, 256
#: Of decode kernels, of tiles, beyond the largest kernel, and beyond what schedules have.
TOKENS = (1, 3, 8, 16, 33, 64, 100, 257, 1500)


def residual_of(m, dtype, seed=7, n=N):
    return 16 * integers((m, n), dtype, seed).cuda() + integers((m, n), dtype, seed + 1).cuda()


def right(layer, sums, residual):
    """Of sums in float64. Where no kernel adds the residual, y was rounded before."""
    dtype = residual.dtype
    if layer.compile_for(dtype, sums.shape[:-1].numel(), residual=True):
        return (sums + residual.double()).to(dtype)
    return sums.to(dtype) + residual


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_every_type_in_every_interval(type, dtype):
    weight, bias = exact_weight(type, N, K), integers((N,), dtype, 5)
    layer, values = prepared(weight, bias), formula(weight).cuda().double()
    for m in TOKENS:
        x, residual = integers((m, K), dtype, m).cuda(), residual_of(m, dtype)
        kept = residual.clone()
        with torch.no_grad():
            y = layer(x, residual)
        want = right(layer, x.double() @ values.T + bias.cuda().double(), residual)
        assert torch.equal(y, want), m
        assert m > 64 or layer.compile_for(dtype, m, residual=True), m
        assert torch.equal(residual, kept) and y.data_ptr() != residual.data_ptr()


@pytest.mark.parametrize("n", [1, 33, 77, 4096])
def test_rows_that_begin_between_words(n):
    weight = exact_weight(UINT4, n, K)
    layer, values = prepared(weight), formula(weight).cuda().double()
    for m in (1, 5, 16, 130):
        x, residual = integers((m, K), torch.float16, m).cuda(), residual_of(m, torch.float16, 3, n)
        # Not contiguous, and not at a multiple of 16 bytes.
        strided = residual.t().contiguous().t()
        shifted = torch.cat((residual.new_zeros(1), residual.flatten()))[1:].view(m, n)
        want = right(layer, x.double() @ values.T, residual)
        with torch.no_grad():
            for given in (residual, strided, shifted):
                assert torch.equal(layer(x, given), want), (m, n)


def test_leading_dimensions_and_no_tokens():
    weight = exact_weight(UINT4, N, K)
    layer, values = prepared(weight), formula(weight).cuda().double()
    x = integers((2, 3, 5, K), torch.bfloat16, 1).cuda()
    residual = integers((2, 3, 5, N), torch.bfloat16, 2).cuda()
    with torch.no_grad():
        want = (x.double() @ values.T + residual.double()).bfloat16()
        assert torch.equal(layer(x, residual), want)
        assert layer(x[:0], residual[:0]).shape == (0, 3, 5, N)


@pytest.mark.parametrize("activation_type", ("int8", "float8_e4m3") if E4M3 else ("int8",))
def test_rounded_activations(activation_type):
    drawn = weight_of("uint4,group=64,scale=float16,zero=integer", N, K)
    layer = ladder.Linear.from_weight(drawn, activation_type=activation_type).cuda()
    assert layer.prepare()
    values = formula(drawn).cuda().double()
    for m in (4, 65, 300):
        x = whole(m, K, torch.float16, activation_type)
        residual = residual_of(m, torch.float16)
        with torch.no_grad():
            want = right(layer, x.double() @ values.T, residual)
            assert torch.equal(layer(x, residual), want), m


def test_y_is_rounded_once():
    """2049 is 2048 in float16, and so is 2048 + 1."""
    weight = ladder.Weight.from_codes(torch.ones(64, 64, dtype=torch.uint8), "uint4")
    layer = prepared(weight)
    for m in (1, 16, 64):
        # Of such a small weight a library may be expected to be faster with many tokens.
        if m > 16 and not layer.compile_for(torch.float16, m, residual=True):
            continue
        x = torch.tensor([127.0] * 16 + [17.0] + [0.0] * 47).half().cuda().expand(m, -1)
        residual = torch.ones(m, 64).half().cuda()
        with torch.no_grad():
            assert (layer(x, residual) == 2050).all(), m
            assert (layer(x) + residual == 2048).all(), m


@pytest.mark.parametrize("dependent", [False, True])
def test_one_launch_reads_what_the_layer_before_has_written(dependent):
    """As in a decoder: each residual is the result of the call before, with nothing between."""
    weight = exact_weight(UINT4, K, K)
    layer, values = prepared(weight), formula(weight).cuda().double()
    layer.dependent_launch = dependent
    ladder.warmup(layer, 4)
    assert layer.compile_for(torch.float16, 4, residual=True)
    x = integers((4, K), torch.float16, 1).cuda()
    with torch.no_grad():
        layer(x, x)
        assert len(launches(lambda: layer(x, x))) == 1
        for _ in range(20):
            hidden = want = x
            for _ in range(3):
                hidden = layer(x, hidden)
                want = (x.double() @ values.T + want.double()).half()
            assert torch.equal(hidden, want)


def test_graphs_need_the_kernel_and_replay_it():
    layer = prepared(exact_weight("uint4,group=64,scale=float16,zero=midpoint", 120, K))
    x, residual = integers((4, K), torch.float16, 1).cuda(), residual_of(4, torch.float16, 2, 120)
    ladder.warmup(layer, 4)
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(RuntimeError, match="residual=True")
    with refused, torch.no_grad(), torch.cuda.graph(graph):
        layer(x, residual)
    torch.cuda.synchronize()
    layer.compile_for(torch.float16, 4, residual=True)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(graph):
            y = layer(x, residual)
        residual.copy_(residual_of(4, torch.float16, 9, 120))
        graph.replay()
        assert torch.equal(y, layer(x, residual))


def test_a_plan_of_the_layer_serves_it_with_a_residual():
    layer = prepared(exact_weight("uint4,group=64,scale=float16,zero=midpoint", 248, 512))
    ladder.warmup(layer, 16, tune="fast")
    tuned = layer.compile_for(torch.float16, 16)
    assert layer.compile_for(torch.float16, 16, residual=True) == tuned


@pytest.mark.parametrize("activation", [None, "relu"])
def test_float32_gradients_and_compiled_code(activation):
    weight, bias = exact_weight(UINT4, N, K), integers((N,), torch.float32, 5)
    layer = ladder.Linear.from_weight(weight, bias).cuda()
    layer.activation = activation
    layer.bias.requires_grad_()
    plain = copy.deepcopy(layer)
    plain.activation = None
    dense = plain.dequantize().double().cuda()
    apply = functional.relu if activation else (lambda y: y)
    x, residual = integers((24, K), torch.float32, 1).cuda(), residual_of(24, torch.float32)
    assert torch.equal(layer(x, residual).double(), apply(dense(x.double())) + residual.double())
    torch.compiler.reset()
    for run in (layer, torch.compile(layer, fullgraph=True)):
        leaves = [x.bfloat16().requires_grad_(), residual.bfloat16().requires_grad_()]
        others = [leaf.detach().double().requires_grad_() for leaf in leaves]
        layer.bias.grad = dense.bias.grad = None
        run(*leaves).sum().backward()
        (apply(dense(others[0])) + others[1]).sum().backward()
        scale = others[0].grad.abs().max()  # eight roundings to bfloat16, of values and gradients
        assert (leaves[0].grad.double() - others[0].grad).abs().max() <= 0.03 * scale
        assert torch.equal(leaves[1].grad, torch.ones_like(leaves[1]))
        assert torch.equal(layer.bias.grad.double(), dense.bias.grad)
    with torch.no_grad():
        y = torch.compile(layer, fullgraph=True)(x.half(), residual.half())
        assert torch.equal(y, layer(x.half(), residual.half()))


def test_bad_residuals_are_refused_before_anything_runs():
    layer = prepared(exact_weight(UINT4, N, K))
    x, residual = integers((4, K), torch.float16, 1).cuda(), residual_of(4, torch.float16)
    for wrong, told in (
        (residual[:, :-1], r"residual has shape \[4, 103\], and y \[4, 104\]"),
        (residual[:1], r"residual has shape \[1, 104\], and y \[4, 104\]"),
        (residual.float(), "residual has dtype float32, and y float16"),
        (residual.cpu(), "residual is not on the device of x"),
    ):
        with pytest.raises(ladder.InvalidArgument, match=told), torch.no_grad():
            layer(x, wrong)
