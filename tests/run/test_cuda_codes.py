# SPDX-License-Identifier: Apache-2.0
"""Activations that are codes of 8 bits already, on a GPU: exact on integers from one token on, then
within the bound."""

import copy

import pytest
import torch
from coded import CASES, DTYPES, HERE, TYPES, scales_of, times, x_of
from drawn import generator
from gpu import E4M3, HALVES, MARKS, prepared
from rounded import values_of, weight_of

import ladder
from ladder import Unsupported
from ladder.ops import activations
from ladder.testing import bound
from ladder.types import parse

pytestmark = MARKS
OUT = (*HALVES, torch.float32)
#: Without scales, whose sums float32 holds for K of 512, and of 8 bits for K of 4096 no longer.
WHOLE = ("int1", "uint2,zero=midpoint", "int2", "ternary", "uint4", "int4", "uint4,zero=integer",
         "int8", "uint8", "uint8,zero=midpoint")  # fmt: skip


@pytest.mark.parametrize("n,k", [(256, 512), (200, 1040)])  # whole blocks; ragged rows and columns
@pytest.mark.parametrize("activation_type,type", CASES)
def test_every_type_is_exact_on_integers(activation_type, type, n, k):
    ttype = ladder.ttype(type)
    if why := activations.gpu_objection(activation_type, str(ttype), n, k, 0):
        pytest.skip(why)
    weight = weight_of(type, n, k)
    layer, values = prepared(weight), values_of(weight)
    for out in OUT:
        for m, kind in ((1, "none"), (2, "static"), (16, "each"), (33, "static"), (300, "each")):
            x, scale = x_of(m, k, activation_type), scales_of(m, kind)
            y = layer.forward_codes(x, scale, out_dtype=out)
            assert y.dtype == out
            assert torch.equal(y, times(x, scale, values).to(out)), (m, kind, out)
    assert layer._number_for_codes(DTYPES[activation_type]) is not None


@pytest.mark.parametrize("m", [1, 2, 8, 16, 17, 32, 33, 64, 257, 1025, 8192, 8193])
@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("activation_type", HERE)
def test_every_number_of_tokens_is_exact_with_a_bias(activation_type, out, m):
    weight = weight_of(TYPES[activation_type], 256, 512)
    bias = torch.arange(256, device="cuda").sub(128)
    layer = prepared(weight, bias.float())
    x, scale = x_of(m, 512, activation_type, 7), scales_of(m, "each")
    exact = times(x, scale, values_of(weight)) + bias
    assert torch.equal(layer.forward_codes(x, scale, out_dtype=out), exact.to(out))
    many = layer.forward_codes(x.view(1, m, 512), scale.view(1, m, 1), out_dtype=out)
    assert torch.equal(many[0], exact.to(out))


def test_a_part_of_a_tensor_and_no_token_at_all():
    weight = weight_of(TYPES["int8"], 256, 512)
    layer, values = prepared(weight), values_of(weight)
    wide = x_of(40, 1024 + 8, "int8")
    x = wide[:, 8:520]  # rows that are no neighbours, and begin between two pieces of 16 bytes
    assert torch.equal(layer.forward_codes(x), times(x, None, values).half())
    y = layer.forward_codes(x[:0], scales_of(1, "static"))
    assert y.shape == (0, 256) and y.dtype == torch.float16


@pytest.mark.parametrize("k", [512, 4096])
@pytest.mark.parametrize("type", WHOLE)
def test_int32_are_the_exact_sums(type, k):
    ttype = parse(type)
    rng = generator(k)
    stored = torch.randint(0, 1 << ttype.bits, (200, k), generator=rng)
    stored = stored.clamp(max=2) if ttype.element.name == "ternary" else stored
    stored[0] = stored.max()
    parts = {}
    if ttype.zero == "integer":
        shape = ttype.zeros_shape(200, k)
        parts["zeros"] = torch.randint(0, 1 << ttype.bits, shape, generator=rng).to(torch.uint8)
    weight = ladder.Weight.from_codes(stored.to(torch.uint8), ttype, **parts)
    layer, values = prepared(weight), values_of(weight)
    for m in (1, 16, 17, 100):
        x = torch.randint(-128, 128, (m, k), generator=rng).to(torch.int8).cuda()
        x[0] = -128
        y = layer.forward_codes(x, out_dtype=torch.int32)
        assert y.dtype == torch.int32 and torch.equal(y.double(), x.double() @ values.T), m


@pytest.mark.parametrize("activation_type", HERE)
def test_real_numbers_stay_within_the_bound(activation_type):
    torch.manual_seed(0)
    name = {"int8": "uint4", "float8_e4m3": "mxfp4"}[activation_type]
    dense = torch.nn.Linear(4096, 1024, bias=False)
    layer = ladder.Linear.from_linear(dense, name, method="nearest").cuda()
    values = layer.packed_weight.dequantize().double()
    for m in (1, 16, 200):
        x = (torch.randn(m, 4096, device="cuda") * 40).clamp(-127, 127)
        x = (x.round() if activation_type == "int8" else x).to(DTYPES[activation_type])
        scale = torch.rand(m, 1, device="cuda") / 64
        numbers = x.double() * scale.double()
        for out in OUT:
            bits = 24 if activation_type == "int8" else 14  # Hopper's sums of e4m3
            limit = bound(numbers, values, out, bits) + 2.0**-22 * (numbers.abs() @ values.abs().T)
            y = layer.forward_codes(x, scale, out_dtype=out).double()
            assert bool(((y - numbers @ values.T).abs() <= limit).all()), (m, out)


def test_a_code_of_nan_stays_visible():
    if not E4M3:
        pytest.skip("needs compute capability 8.9")
    layer = prepared(weight_of(TYPES["float8_e4m3"], 256, 512))
    x = x_of(40, 512, "float8_e4m3")
    x.view(torch.uint8)[3, 7] = 0x7F
    y = layer.forward_codes(x)
    assert y[3].isnan().all() and y[[0, 1, 2, *range(4, 40)]].isfinite().all()


@pytest.mark.parametrize("k", [128, 1008, 1040, 11008, 66048])
@pytest.mark.parametrize("activation_type", HERE)
def test_the_kernel_places_codes_and_rounds_by_given_scales(activation_type, k):
    format = DTYPES[activation_type]
    place = torch.arange(k, device="cuda")
    place = place // 16 * 16 + 4 * (place // 2 % 4) + 2 * (place % 2) + place // 8 % 2
    x, scale = x_of(9, k, activation_type), scales_of(9, "each").view(-1)
    found, scales = torch.ops.ladder.rounded_codes(x, activation_type, scale)
    assert torch.equal(found[:, place], x.view(torch.uint8)) and torch.equal(scales, scale)
    torch.manual_seed(k)
    for dtype in HALVES:
        numbers = torch.randn(9, k, device="cuda").to(dtype) * 3
        numbers[2, k // 2], numbers[3, k - 1] = float("inf"), float("nan")
        for given in (torch.tensor([0.0123], device="cuda"), scales_of(9, "each").view(-1)):
            found, scales = torch.ops.ladder.rounded_codes(numbers, activation_type, given)
            rounded = found[:, place].view(format).float() * scales[:, None]
            wanted = activations.round_tokens(
                numbers, activation_type, given if given.numel() == 1 else given[:, None]
            )
            assert torch.equal(rounded.nan_to_num(7e30), wanted.nan_to_num(7e30))
            assert scales[3].isnan() and scales[[0, 1, 2, 4]].isfinite().all()


def test_the_kernels_of_codes_leave_the_layer_as_it_is():
    layer = prepared(weight_of(TYPES["int8"], 256, 512))
    image, number = layer.image, layer._weight_number
    x, numbers = x_of(4, 512, "int8"), torch.randn(4, 512, device="cuda").half()
    before = layer(numbers)
    y = layer.forward_codes(x)
    assert layer.image is image and layer._weight_number == number
    assert torch.equal(layer(numbers), before)
    for twin in (copy.deepcopy(layer), layer.cpu().cuda()):
        assert torch.equal(twin.forward_codes(x), y)


def test_act_order_and_other_formats_decode_the_weight():
    from drawn import exact_weight, formula

    for weight in (
        exact_weight("uint4,group=32,scale=float16,zero=midpoint", 64, 256, act_order=True),
        weight_of(TYPES["float8_e4m3"], 64, 256),  # floats by int8
    ):
        layer, values = prepared(weight), formula(weight).cuda()
        x = x_of(5, 256, "int8", 7)
        assert layer._number_for_codes(torch.int8) is None
        assert torch.equal(layer.forward_codes(x), (x.double() @ values.T).half())


def test_what_was_called_once_is_captured():
    weight = weight_of(TYPES["int8"], 264, 640)
    layer, values = prepared(weight), values_of(weight)
    x, scale = x_of(24, 640, "int8"), scales_of(24, "each")
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(RuntimeError, match="before the capture")
    with torch.inference_mode(), torch.cuda.graph(graph), refused:
        layer.forward_codes(x, scale)
    layer.forward_codes(x, scale)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = layer.forward_codes(x, scale)
    for seed in (25, 26):
        x.copy_(x_of(seed, 640, "int8")[:24])
        scale.mul_(0.5)
        graph.replay()
        assert torch.equal(y, times(x, scale, values).half())


def test_opcheck_and_compiled_code():
    weight = weight_of(TYPES["int8"], 256, 512)
    layer, values = prepared(weight), values_of(weight)
    number = layer._number_for_codes(torch.int8)
    x, scale = x_of(40, 512, "int8"), scales_of(40, "each")
    for bias in (None, torch.zeros(256, device="cuda").half()):
        arguments = (x, scale, layer.image, bias, number, 256, torch.float16)
        torch.library.opcheck(torch.ops.ladder.linear_codes.default, arguments)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer.forward_codes, fullgraph=True, backend=backend, dynamic=True)
    for m in (2, 17, 40, 300):
        x, scale = x_of(m, 512, "int8"), scales_of(m, "each")
        assert torch.equal(compiled(x, scale), times(x, scale, values).half())
    assert len(graphs) == 1


def test_merged_layers_give_their_own_rows():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            dense = [torch.nn.Linear(512, n, bias=False).half() for n in (256, 64)]
            self.q, self.k = (
                ladder.Linear.from_linear(each, "uint4", method="nearest") for each in dense
            )

        def forward(self, x):
            return self.q(x), self.k(x)

    block = Block().cuda()
    x, scale = x_of(5, 512, "int8"), scales_of(5, "each")
    before = [layer.forward_codes(x, scale) for layer in (block.q, block.k)]
    ladder.optimize(block)
    after = [layer.forward_codes(x, scale) for layer in (block.q, block.k)]
    assert all(map(torch.equal, before, after))


def test_what_does_not_fit_is_refused():
    layer = prepared(weight_of(TYPES["int8"], 256, 512))
    number = layer._number_for_codes(torch.int8)
    op, x = torch.ops.ladder.linear_codes, x_of(4, 512, "int8")
    refused = {
        "x has dtype uint8, not int8": (x.view(torch.uint8), None, None, number),
        "x has 511 columns; the weight has 512": (x[:, 1:], None, None, number),
        "x_scale is 3 numbers of float32, not 1 or 4": (x, torch.ones(3).cuda(), None, number),
        "x_scale is 1 numbers of float16": (x, torch.ones(1).cuda().half(), None, number),
        "bias is 256 numbers of float32": (x, None, torch.ones(256).cuda(), number),
        "opened without an activation_type": (x, None, None, layer._weight_number),
    }
    for message, (given, scale, bias, weight) in refused.items():
        with pytest.raises(ValueError, match=message):
            op(given, scale, layer.image, bias, weight, 256, torch.float16)
    with pytest.raises(Unsupported, match="x_scale asks for a gradient"):
        layer.forward_codes(x, torch.ones(1, device="cuda", requires_grad=True))
