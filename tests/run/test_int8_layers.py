# SPDX-License-Identifier: Apache-2.0
"""Layers with activations of 8 bits: gradients, torch.compile, copies, models, and what is refused
by name."""

import copy
import pickle

import pytest
import torch
from drawn import TWO_LEVELS
from torch import nn

import ladder
from ladder import InvalidArgument, Unsupported
from ladder.ops import activations
from ladder.testing import assert_linear_close, bound

N, K = 24, 160
TYPES = (
    "uint4,group=32,scale=float16,zero=integer",
    "int8,channel,scale=float32",
    "nvfp4",
    "nf4",
    TWO_LEVELS,
)


def layer_of(type="uint4", bias=True, dtype=torch.float32, n=N, **options):
    torch.manual_seed(0)
    linear = nn.Linear(K, n, bias=bias, dtype=dtype)
    return ladder.Linear.from_linear(linear, type, activation_type="int8", **options)


def assert_int8(layer, x, y) -> None:
    """That ``y`` is the product of rounded x. Types by whole numbers only."""
    x8 = activations.round_activations(x, layer.weight_type).double()
    w = layer.packed_weight.dequantize(torch.float64)
    exact = x8 @ w.T + (0 if layer.bias is None else layer.bias.double())
    limit = bound(x8, w, x.dtype) + 2.0**-22 * (1 + exact.abs())
    assert ((y.double() - exact).abs() <= limit).all()
    assert not torch.equal(y, torch.nn.functional.linear(x, w.to(x.dtype), layer.bias))


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("type", TYPES[:3])
def test_layers_round_x_only_when_asked_to(type, m):
    layer, x = layer_of(type), torch.randn(m, K)
    assert_int8(layer, x, layer(x))
    layer.activation_type = None
    weight = layer.packed_weight.dequantize()
    assert_linear_close(layer(x), x, weight, layer.bias)
    layer.activation_type = "int8"
    assert_int8(layer, x, layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_go_straight_through_the_rounding(dtype):
    layer = layer_of(dtype=dtype)
    x = torch.randn(5, K).to(dtype).requires_grad_()
    grad = torch.randn(5, N).to(dtype)
    layer(x).backward(grad)
    assert_linear_close(x.grad, grad, layer.packed_weight.dequantize(dtype).T)
    assert_linear_close(layer.bias.grad, torch.ones(5), grad.T)


@pytest.mark.parametrize("type", TYPES[:3])
@pytest.mark.parametrize("m", [0, 1, 5])
def test_opcheck_of_linear_int8(type, m):
    layer = layer_of(type)
    w, x = layer.packed_weight, torch.randn(m, K, requires_grad=True)
    bias = torch.randn(N, requires_grad=True)
    args = (x, w.qweight, w.scales, w.zeros, w.scale2, w.g_idx, bias, str(w.type))
    torch.library.opcheck(torch.ops.ladder.linear_int8.default, args)


def test_compile_makes_one_graph_for_any_batch():
    model = nn.Sequential(layer_of(), nn.ReLU())
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=True)
    for m in (2, 3, 7):
        x = torch.randn(m, K)
        assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 1


def test_transforms_see_the_rounded_product():
    layer, x = layer_of(), torch.randn(3, K)
    y = torch.func.vmap(layer)(x)
    assert_int8(layer, x, y)
    grad = torch.func.grad(lambda x: layer(x).sum())(x)
    assert_linear_close(grad, torch.ones(3, N), layer.packed_weight.dequantize().T)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("type", TYPES)
def test_copies_and_casts_keep_it(type, again):
    layer, x = layer_of(type), torch.randn(3, K)
    twin = again(layer).to(torch.float64).to(torch.float32)
    assert twin.activation_type == "int8" and "activation_type=int8" in repr(twin)
    assert torch.equal(twin(x), layer(x))
    assert "activation_type" not in repr(ladder.Linear(8, 8))


def test_merged_layers_agree_on_it():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = layer_of(n=16), layer_of()

        def forward(self, x):
            return self.q_proj(x), self.k_proj(x)

    from ladder.nn.joined import objection
    from ladder.nn.merged import MergedWeight

    block, x = Block(), torch.randn(2, K)
    wanted = block(x)
    block.k_proj.activation_type = None
    assert "activation types differ: int8, None" in objection([block.q_proj, block.k_proj])
    block.k_proj.activation_type = "int8"
    assert objection([block.q_proj, block.k_proj]) == ""
    MergedWeight(block, [block.q_proj, block.k_proj])
    assert all(torch.equal(a, b) for a, b in zip(block(x), wanted, strict=True))
    block.q_proj.activation_type = None  # each has its own weight again
    assert type(block.k_proj) is ladder.Linear and block.k_proj.activation_type == "int8"


def test_models_are_set_as_a_whole_or_not_at_all():
    model = nn.Sequential(nn.Linear(K, 64), nn.ReLU(), nn.Linear(64, 8))
    ladder.convert(model, "uint4", 32, activation_type="int8")
    assert [model[0].activation_type, model[2].activation_type] == ["int8", "int8"]
    assert ladder.set_activation_type(model, None) == ["0", "2"]
    model[2] = ladder.Linear(64, 8, weight_type="float8_e4m3,channel,scale=float32")
    with pytest.raises(Unsupported, match="2: activation_type int8 does not take float8_e4m3"):
        ladder.set_activation_type(model, "int8")
    assert model[0].activation_type is None
    assert ladder.set_activation_type(model, "int8", skip="2") == ["0"]
    with pytest.raises(InvalidArgument, match='^skip has "3", which names no module of the model'):
        ladder.set_activation_type(model, None, skip=["2", "3"])
    assert model[0].activation_type == "int8"  # nothing was changed
    with pytest.raises(Unsupported, match="0: activation_type int8 does not take float8_e5m2"):
        ladder.convert(nn.Sequential(nn.Linear(8, 8)), "float8_e5m2", activation_type="int8")


@pytest.mark.parametrize(
    ("type", "why"),
    [
        ("float8_e4m3,channel,scale=float32", "code 127 is not a finite number"),
        ("uint4,group=12,scale=float16", "groups of a multiple of 8 columns, not of 12"),
        ("nf4", "wants a scale for each row or group; nf4 has none"),
        ("nf4,tensor,scale=float32", "wants a scale for each row or group"),
        ("bfloat16", "weights of 1 to 8 bits, not bfloat16"),
    ],
)
def test_weights_that_it_does_not_take_are_refused_by_name(type, why):
    layer = ladder.Linear(K, N, weight_type=ladder.ttype(type))
    with pytest.raises(Unsupported, match=why):
        layer.activation_type = "int8"
    w, x = layer.packed_weight, torch.randn(1, K)
    with pytest.raises(Unsupported, match=why):
        ladder.ops.linear(x, w.qweight, w.type, scales=w.scales, activation_type="int8")


def test_act_order_is_refused_by_name():
    with pytest.raises(Unsupported, match="g_idx: the columns of a group are no neighbours"):
        ladder.Linear(K, N, act_order=True, activation_type="int8")
    layer = layer_of()
    layer.register_buffer("g_idx", torch.zeros(K, dtype=torch.int32))
    with pytest.raises(Unsupported, match="g_idx"):
        layer(torch.randn(2, K))


def test_other_names_are_refused_with_those_that_there_are():
    known = '"int8", "float8_e4m3", "float8_e4m3,fast_accum" or None'
    with pytest.raises(InvalidArgument, match=f'"int4", not {known}'):
        layer_of().activation_type = "int4"


def test_numbers_that_are_not_finite_stay_visible():
    layer = layer_of("uint4", bias=False)
    for bad in (float("nan"), float("inf"), -float("inf")):
        for m in (1, 9):
            x = torch.ones(m, K)
            x[0, 5] = bad
            y = layer(x)
            assert not y[0].isfinite().any() and y[1:].isfinite().all()
