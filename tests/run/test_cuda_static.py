# SPDX-License-Identifier: Apache-2.0
"""Static scales of x on a GPU: exact on integers, saturating, and of more than 48 tokens alone."""

import copy

import pytest
import torch
from drawn import generator
from gpu import HALVES, MARKS, prepared
from rounded import values_of, weight_of
from torch import nn

import ladder
from ladder.ops import activations
from ladder.testing import bound

pytestmark = MARKS
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
E4M3 = CAPABILITY >= (8, 9) and not torch.version.hip
HERE = ("int8", "float8_e4m3") if E4M3 else ("int8",)
TYPES = {
    "int8": "uint4,group=128,scale=float16,zero=midpoint",
    "float8_e4m3": "float4_e2m1,group=32,scale=float16",
}


def static_layer(activation_type, scale=0.25, bias=None):
    weight = weight_of(TYPES[activation_type], 256, 512)
    layer = prepared(weight, bias)
    layer.activation_type, layer.input_scale = activation_type, scale
    return layer, values_of(weight)


def x_of(m, activation_type, dtype):
    """Multiples of a quarter, some of them too large for int8: what is rounded are whole codes."""
    most = 200 if activation_type == "int8" else 8
    x = torch.randint(-most, most + 1, (m, 512), generator=generator(m))
    return (x * 0.25).to(dtype).cuda()


def saturated(x, activation_type):
    return x.double().clamp(-32, 31.75) if activation_type == "int8" else x.double()


@pytest.mark.parametrize("m", [49, 65, 97, 300, 1025, 8193])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("activation_type", HERE)
def test_products_are_those_of_saturated_codes(activation_type, dtype, m):
    bias = torch.arange(256, device="cuda").sub(128).to(dtype)
    layer, values = static_layer(activation_type, bias=bias)
    x = x_of(m, activation_type, dtype)
    exact = saturated(x, activation_type) @ values.T + bias.double()
    assert torch.equal(layer(x), exact.to(dtype))


@pytest.mark.parametrize("activation_type", HERE)
def test_up_to_64_tokens_are_not_rounded(activation_type):
    layer, _ = static_layer(activation_type, 0.01)
    plain, own = copy.deepcopy(layer), copy.deepcopy(layer)
    plain.activation_type, own.input_scale = None, None
    for m in (1, 48, 49):
        x = torch.randn(m, 512, device="cuda").half()
        assert torch.equal(layer(x), plain(x)) == (m <= 48)
        assert torch.equal(layer(x), own(x)) == (m <= 48)


@pytest.mark.parametrize("activation_type", HERE)
def test_real_numbers_stay_within_the_bound_of_rounded_x(activation_type):
    torch.manual_seed(0)
    layer, values = static_layer(activation_type, 0.0231 if activation_type == "int8" else 0.0041)
    for dtype in HALVES:
        x = torch.randn(200, 512, device="cuda").to(dtype)
        rounded = activations.round_tokens(x, activation_type, layer.input_scale).double()
        bits = 24 if activation_type == "int8" else 14
        limit = bound(rounded, values, dtype, bits) + 2.0**-22 * (rounded.abs() @ values.abs().T)
        assert bool(((layer(x).double() - rounded @ values.T).abs() <= limit).all())


def test_nan_stays_visible_and_infinity_saturates():
    layer, values = static_layer("int8")
    x = torch.zeros(80, 512, device="cuda").half()
    x[3, 7], x[5, 0] = float("nan"), float("inf")
    y = layer(x)
    assert y[3].isnan().all()
    assert torch.equal(y[5], (31.75 * values[:, 0]).half())


@pytest.mark.parametrize("activation_type", HERE)
def test_float32_goes_through_torch(activation_type):
    layer, values = static_layer(activation_type)
    x = x_of(80, activation_type, torch.float32)
    exact = (saturated(x, activation_type) @ values.T).float()
    assert torch.equal(layer(x), exact)


@pytest.mark.parametrize("activation_type", HERE)
def test_gradients_and_transforms(activation_type):
    layer, values = static_layer(activation_type)
    layer.bias = nn.Parameter(torch.zeros(256, device="cuda").half())
    x = x_of(80, activation_type, torch.float16).requires_grad_()
    grad = torch.randint(-2, 3, (80, 256), generator=generator(1)).half().cuda()
    layer(x).backward(grad)
    assert torch.equal(x.grad, (grad.double() @ values).half())
    assert torch.equal(layer.bias.grad, grad.sum(0))
    y, _ = torch.func.jvp(layer, (x.detach(),), (torch.ones_like(x),))
    assert torch.equal(y, (saturated(x.detach(), activation_type) @ values.T).half())


def test_opcheck_and_compiled_code():
    layer, values = static_layer("int8")
    x = x_of(80, "int8", torch.float16).requires_grad_()
    arguments = (x, layer.input_scale, layer.image, None, layer._weight_number, 256)
    torch.library.opcheck(torch.ops.ladder.linear_image_scaled.default, arguments)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    for m in (2, 65, 300):
        x = x_of(m, "int8", torch.float16)
        with torch.no_grad():
            assert torch.equal(compiled(x), layer(x))
    assert len(graphs) == 1


def test_what_was_called_once_is_captured_and_the_scale_may_change():
    layer, values = static_layer("int8")
    x = x_of(80, "int8", torch.float16)
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = layer(x)
    graph.replay()
    assert torch.equal(y, (saturated(x, "int8") @ values.T).half())
    layer.input_scale.fill_(0.5)
    graph.replay()
    assert torch.equal(y, layer(x))


def test_a_weight_that_is_named_by_its_type_takes_the_scale():
    layer, _ = static_layer("int8")
    named = torch.ops.ladder.linear_prepacked
    for m in (4, 80):
        x = torch.randn(m, 512, device="cuda").half()
        with torch.no_grad():
            y = named(x, layer.image, None, layer._type_text, 256, False, "int8", layer.input_scale)
            assert torch.equal(y, layer(x))
    with pytest.raises(ValueError, match="has no activation_type"):
        named(x, layer.image, None, layer._type_text, 256, False, "", layer.input_scale)


def test_the_canonical_op_rounds_in_the_same_way():
    layer, values = static_layer("int8")
    weight = weight_of(TYPES["int8"], 256, 512).to("cuda")
    for m in (48, 80):
        x = x_of(m, "int8", torch.float16)
        y = ladder.ops.linear(
            x, weight.qweight, weight.type, scales=weight.scales, activation_type="int8",
            input_scale=layer.input_scale,
        )  # fmt: skip
        seen = saturated(x, "int8") if m > 48 else x.double()
        assert torch.equal(y, (seen @ values.T).half())
