# SPDX-License-Identifier: Apache-2.0
"""Activation functions where sums are made, on a GPU: as far from right as rounding once leaves
them."""

import copy

import pytest
import torch
from drawn import exact_weight, formula, integers
from gpu import E4M3, HALVES, MARKS, UINT4, launches
from rounded import weight_of, whole
from test_cuda_gated import TYPES, assert_rounded_once, small
from torch import nn

import ladder
from ladder.ops.gating import ACTIVATIONS, Gating

pytestmark = MARKS
N, K = 104, 256
NAMES = tuple(name for name in ACTIVATIONS if name != "linear")


def assert_function(y, sums, name):
    """As of a gate, times an up of 1."""
    assert_rounded_once(y, torch.cat((sums, torch.ones_like(sums)), -1), Gating(name))


def made(type, name, bias=None):
    weight = exact_weight(type, N, K)
    layer = ladder.Linear.from_weight(weight, bias).cuda()
    layer.activation = name
    return layer, formula(weight).cuda()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_every_type_in_every_interval(type, dtype):
    bias = integers((N,), dtype, 5) / 4
    layer, values = made(type, "silu", bias)
    for m in (1, 3, 16, 33, 100, 257, 1500):
        x = small((m, K), dtype, m)
        with torch.no_grad():
            assert_function(layer(x), x.double() @ values.T + bias.cuda().double(), "silu")
    assert layer.image is not None


@pytest.mark.parametrize("name", NAMES)
def test_every_function(name):
    layer, values = made(UINT4, name)
    for m in (2, 48):
        x = small((m, K), torch.float16, m)
        with torch.no_grad():
            assert_function(layer(x), x.double() @ values.T, name)


@pytest.mark.parametrize("activation_type", ("int8", "float8_e4m3") if E4M3 else ("int8",))
def test_rounded_activations(activation_type):
    drawn = weight_of("uint4,group=64,scale=float16,zero=integer", N, K)
    layer = ladder.Linear.from_weight(drawn, activation_type=activation_type).cuda()
    layer.activation = "gelu"
    for m in (4, 65, 300):
        x = whole(m, K, torch.float16, activation_type)
        x = x / (512 if activation_type == "int8" else 32)
        with torch.no_grad():
            assert_function(layer(x), x.double() @ formula(drawn).cuda().T, "gelu")


def test_float32_gradients_and_compiled_code():
    bias = integers((N,), torch.float32, 5) / 4
    layer, _ = made(UINT4, "gelu_pytorch_tanh", bias)
    layer.bias.requires_grad_()
    plain = copy.deepcopy(layer).cpu()
    plain.activation = None
    dense = nn.Sequential(plain.dequantize().double(), nn.GELU(approximate="tanh"))
    x = small((24, K), torch.float32, 1)
    want = dense(x.cpu().double())
    assert (layer(x).cpu().double() - want).abs().max() <= 1e-5 * want.abs().max()
    for run in (layer, torch.compile(layer, fullgraph=True)):
        leaf, other = x.bfloat16().requires_grad_(), x.cpu().double().requires_grad_()
        layer.bias.grad = None
        run(leaf).sum().backward()
        dense(other).sum().backward()
        scale = other.grad.abs().max()  # eight roundings to bfloat16, of values and gradients too
        assert (leaf.grad.cpu().double() - other.grad).abs().max() <= 0.03 * scale
        assert layer.bias.grad is not None
    with torch.no_grad():
        y = torch.compile(layer, fullgraph=True)(x.half())
        assert torch.equal(y, layer(x.half()))


def test_one_launch_is_all_of_it():
    layer, _ = made(UINT4, "relu2")
    ladder.warmup(layer, 4, tune="fast")
    x = small((4, K), torch.float16, 0)
    with torch.no_grad():
        layer(x)
        assert len(launches(lambda: layer(x))) == 1
