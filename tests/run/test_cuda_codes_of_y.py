# SPDX-License-Identifier: Apache-2.0
"""y that leaves a kernel as codes of 8 bits, on a GPU: those of the float32 result."""

import pytest
import torch
from coded import CASES, DTYPES, HERE, TYPES, scales_of, times, x_of
from drawn import generator
from gpu import E4M3, MARKS, prepared
from rounded import values_of, weight_of
from torch import Tensor

import ladder
from ladder.ops import activations

pytestmark = MARKS


def same_codes(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.float(), b.float())


def codes_of(y: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Of ``y`` that float32 holds, on the CPU, which tests/run/test_codes.py compares with all
    codes."""
    return activations.nearest_codes(y.float().cpu(), scale.cpu(), dtype).cuda()


#: Ties and results beyond the codes; quotients that are no products with the inverse; zeros.
OUT_SCALES = (2.0, 0.125, 0.7, 256.0)
CODED = (torch.int8, torch.float8_e4m3fn)


@pytest.mark.parametrize("n,k", [(256, 512), (201, 1040)])
@pytest.mark.parametrize("activation_type,type", CASES)
def test_codes_of_every_type_are_the_nearest(activation_type, type, n, k):
    ttype = ladder.ttype(type)
    if why := activations.gpu_objection(activation_type, str(ttype), n, k, 0):
        pytest.skip(why)
    weight = weight_of(type, n, k)
    layer, values = prepared(weight), values_of(weight)
    turn = 0
    for m, kind in ((1, "none"), (2, "static"), (16, "each"), (33, "static"), (300, "each")):
        x, scale = x_of(m, k, activation_type), scales_of(m, kind)
        for out in CODED:
            turn += 1
            out_scale = torch.tensor([OUT_SCALES[turn % 4]], device="cuda")
            y = layer.forward_codes(x, scale, out_dtype=out, out_scale=out_scale)
            assert same_codes(y, codes_of(times(x, scale, values), out_scale, out)), (m, out)
    assert layer._number_for_codes(DTYPES[activation_type]) is not None


@pytest.mark.parametrize("m", [1, 2, 16, 17, 33, 257, 1025, 8193])
@pytest.mark.parametrize("out", CODED)
@pytest.mark.parametrize("activation_type", HERE)
def test_codes_of_every_number_of_tokens_are_the_nearest_beside_a_bias(activation_type, out, m):
    weight = weight_of(TYPES[activation_type], 256, 512)
    bias = torch.arange(256, device="cuda").sub(128)
    x, scale = x_of(m, 512, activation_type, 7), scales_of(m, "each")
    exact = times(x, scale, values_of(weight)) + bias
    for turn, dtype in enumerate((torch.float16, torch.bfloat16, torch.float32)):
        layer = prepared(weight, bias.to(dtype))
        out_scale = torch.tensor(OUT_SCALES[turn], device="cuda")
        y = layer.forward_codes(x, scale, out_dtype=out, out_scale=out_scale)
        assert same_codes(y, codes_of(exact, out_scale, out)), dtype


@pytest.mark.parametrize("out", CODED)
def test_codes_are_those_of_the_float32_result(out):
    """Real numbers, whose sums of integers are exact in any order: the steps behind are the
    same."""
    torch.manual_seed(0)
    dense = torch.nn.Linear(1024, 768)
    layer = ladder.Linear.from_linear(dense, "int4,channel,scale=float32", method="nearest").cuda()
    for m in (1, 40, 500):
        x = torch.randint(-128, 128, (m, 1024), generator=generator(m)).to(torch.int8).cuda()
        scale = torch.rand(m, 1, device="cuda") / 64
        y = layer.forward_codes(x, scale, out_dtype=torch.float32)
        for out_scale in (y.abs().amax() / 100, y.std() / 300, y.std() * 3):
            given = layer.forward_codes(x, scale, out_dtype=out, out_scale=out_scale)
            assert same_codes(given, codes_of(y, out_scale, out))


def test_layers_go_from_codes_to_codes():
    weights = weight_of(TYPES["int8"], 256, 512), weight_of(TYPES["int8"], 128, 256)
    first, second = map(prepared, weights)
    of_first, of_second = map(values_of, weights)
    sy = torch.tensor([0.7], device="cuda")
    for m in (1, 40, 300):
        x, sx = x_of(m, 512, "int8"), scales_of(m, "static")
        between = first.forward_codes(x, sx, out_dtype=torch.int8, out_scale=sy)
        held = codes_of(times(x, sx, of_first), sy, torch.int8)
        assert torch.equal(between, held)
        y = second.forward_codes(between, sy, out_dtype=torch.float32)
        sums = held.double() @ of_second.T
        assert torch.equal(y, sums.float() * sy)


def test_codes_of_no_number_are_nan_or_zero():
    if not E4M3:
        pytest.skip("needs compute capability 8.9")
    layer = prepared(weight_of(TYPES["float8_e4m3"], 256, 512))
    x, one = x_of(40, 512, "float8_e4m3"), torch.ones(1, device="cuda")
    x.view(torch.uint8)[3, 7] = 0x7F
    y = layer.forward_codes(x, out_dtype=torch.float8_e4m3fn, out_scale=one).float()
    assert y[3].isnan().all() and y[[0, 1, 2, *range(4, 40)]].isfinite().all()
    assert (layer.forward_codes(x, out_dtype=torch.int8, out_scale=one)[3] == 0).all()


def test_a_graph_and_compiled_code_give_codes():
    weight = weight_of(TYPES["int8"], 256, 512)
    layer, values = prepared(weight), values_of(weight)
    x, scale = x_of(24, 512, "int8"), scales_of(24, "static")
    out_scale = torch.tensor([2.0], device="cuda")

    def call() -> Tensor:
        return layer.forward_codes(x, scale, out_dtype=torch.int8, out_scale=out_scale)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = call()
    for seed in (25, 26):
        x.copy_(x_of(seed, 512, "int8")[:24])
        out_scale.mul_(0.5)
        graph.replay()
        assert same_codes(y, codes_of(times(x, scale, values), out_scale, torch.int8))
    number = layer._number_for_codes(torch.int8)
    for bias in (None, torch.zeros(256, device="cuda").half(), torch.zeros(256, device="cuda")):
        arguments = (x, scale, layer.image, bias, number, 256, torch.int8, out_scale)
        torch.library.opcheck(torch.ops.ladder.linear_codes.default, arguments)
    compiled = torch.compile(layer.forward_codes, fullgraph=True, backend="eager", dynamic=True)
    for m in (2, 40):
        x = x_of(m, 512, "int8")
        y = compiled(x, scale, out_dtype=torch.int8, out_scale=out_scale)
        assert same_codes(y, codes_of(times(x, scale, values), out_scale, torch.int8))


def test_a_scale_of_y_that_does_not_fit_is_refused():
    layer = prepared(weight_of(TYPES["int8"], 256, 512))
    number = layer._number_for_codes(torch.int8)
    op, x, one = torch.ops.ladder.linear_codes, x_of(4, 512, "int8"), torch.ones(1).cuda()
    refused = {
        "out_scale is missing, and y has dtype int8": (torch.int8, None),
        "out_scale is given, and y has dtype float16": (torch.float16, one),
        "out_scale is 2 numbers of float32, not one": (torch.int8, torch.ones(2).cuda()),
        "out_scale is 1 numbers of float16": (torch.int8, one.half()),
        "out_scale is 1 numbers of float32, not one of float32 on the": (torch.int8, one.cpu()),
    }
    for message, (dtype, scale) in refused.items():
        with pytest.raises(ValueError, match=message):
            op(x, None, layer.image, None, number, 256, dtype, scale)
    with pytest.raises(ladder.InvalidArgument, match="out_scale is on cpu, and x on cuda:0"):
        layer.forward_codes(x, out_dtype=torch.int8, out_scale=one.cpu())
