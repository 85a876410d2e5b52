# SPDX-License-Identifier: Apache-2.0
"""Activations of 8 bits on a GPU: exact on integers, then within the bound of rounded x."""

import copy
import pickle

import pytest
import torch
from gpu import E4M3, HALVES, MARKS, prepared, schedules
from rounded import INTERVALS, types_of, values_of, weight_of, whole
from torch import Tensor, nn

import ladder
from ladder import Unsupported
from ladder.cuda import image
from ladder.ops import activations
from ladder.testing import bound

pytestmark = MARKS
HERE = ("int8", "float8_e4m3") if E4M3 else ("int8",)
#: One kind of weight for each, for what does not depend on the type.
TYPES = {
    "int8": "uint4,group=128,scale=float16,zero=midpoint",
    "float8_e4m3": "float4_e2m1,group=32,scale=float16",
}
CASES = [(activation_type, type) for activation_type in HERE for type in types_of(activation_type)]


def layer_of(weight: ladder.Weight, activation_type: str = "int8", bias: Tensor | None = None):
    layer = prepared(weight, bias)
    layer.activation_type = activation_type
    return layer


def exact_layer(activation_type: str, n: int = 256, k: int = 512):
    weight = weight_of(TYPES[activation_type], n, k)
    return layer_of(weight, activation_type), values_of(weight)


@pytest.mark.parametrize("n,k", [(256, 512), (200, 1040)])  # whole blocks; ragged rows and columns
@pytest.mark.parametrize("activation_type,type", CASES)
def test_every_type_is_exact_on_integers(activation_type, type, n, k):
    """Below and above the first interval, and where tiles of many tokens begin."""
    ttype = ladder.ttype(type)
    if activations.gpu_objection(activation_type, str(ttype), n, k, 0):
        pytest.skip(activations.gpu_objection(activation_type, str(ttype), n, k, 0))
    weight = weight_of(type, n, k)
    layer, wanted = layer_of(weight, activation_type), values_of(weight)
    for dtype in HALVES:
        for m in (17, 65, 100, 300, 1000):
            x = whole(m, k, dtype, activation_type)
            exact = (x.double() @ wanted.T).to(dtype)
            assert torch.equal(layer(x), exact), (m, dtype, layer.compile_for(dtype, m))


@pytest.mark.parametrize("m", INTERVALS)
@pytest.mark.parametrize("activation_type", HERE)
def test_every_interval_is_exact(activation_type, m):
    """8193 tokens are two passes, the second of one token, rounded too."""
    layer, wanted = exact_layer(activation_type)
    bias = whole(1, 256, torch.float16)[0]
    layer.bias = nn.Parameter(bias)
    x = whole(m, 512, torch.float16, activation_type)
    assert torch.equal(layer(x), (x.double() @ wanted.T + bias.double()).half())


@pytest.mark.skipif(not E4M3, reason="no products of e4m3")
@pytest.mark.parametrize(
    "type,n,m",
    [
        ("float8_e4m3,channel,scale=float16", 4096, 4096),
        ("float8_e4m3,group=128,scale=bfloat16", 4090, 500),
        ("mxfp4", 1000, 1100),
        ("int4,group=128,scale=float16", 2048, 1000),
    ],
)
def test_tokens_in_parts_are_exact(type, n, m):
    weight = weight_of(type, n, 2048)
    layer, wanted = layer_of(weight, "float8_e4m3"), values_of(weight)
    for dtype in HALVES:
        x = whole(m, 2048, dtype, "float8_e4m3")
        exact = (x.double() @ wanted.T).to(dtype)
        for name in schedules(layer, dtype, m, "token parts"):
            assert torch.equal(layer(x), exact), name


@pytest.mark.parametrize("activation_type", HERE)
def test_up_to_48_tokens_are_not_rounded(activation_type):
    layer, _ = exact_layer(activation_type)
    plain = copy.deepcopy(layer)
    plain.activation_type = None
    for m in (1, 16, 48, 49):
        x = torch.randn(m, 512, device="cuda").half()
        assert torch.equal(layer(x), plain(x)) == (m <= 48)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("k", [128, 1008, 1040, 4096, 11008, 40960, 66048, 131072])
@pytest.mark.parametrize("activation_type", HERE)
def test_the_kernel_rounds_as_its_reference_does(activation_type, k, dtype):
    """Of warps and of blocks, held in registers and read twice: to the bit."""
    torch.manual_seed(k)
    sizes = torch.exp2(torch.arange(21, device="cuda") % 9 - 4.0)
    x = (torch.randn(21, k, device="cuda") * sizes[:, None]).to(dtype)
    x[1] = 0
    x[2, k // 2], x[3, k - 1] = float("inf"), float("nan")
    codes, scales = torch.ops.ladder.rounded_codes(x, activation_type)
    place = torch.arange(k, device="cuda")
    place = place // 16 * 16 + 4 * (place // 2 % 4) + 2 * (place % 2) + place // 8 % 2
    format = torch.int8 if activation_type == "int8" else torch.float8_e4m3fn
    rounded = codes[:, place].view(format).float() * scales[:, None]
    wanted = activations.round_tokens(x, activation_type)
    assert torch.equal(rounded.nan_to_num(7e30), wanted.nan_to_num(7e30))
    assert scales[1] == 0 and scales[2:4].isnan().all() and scales[4:].isfinite().all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "activation_type,name",
    [("int8", "uint4"), *(("float8_e4m3", t) for t in ("mxfp4", "uint4", "int4") if E4M3)],
)
def test_real_numbers_stay_within_the_bound_of_rounded_x(activation_type, name, dtype):
    torch.manual_seed(0)
    dense = nn.Linear(4096, 1024, bias=False)
    layer = ladder.Linear.from_linear(dense, name, method="nearest").cuda()
    layer.activation_type = activation_type
    values = layer.packed_weight.dequantize().double()
    for m in (65, 128, 200, 1500):
        x = torch.randn(m, 4096, device="cuda", dtype=dtype)
        rounded = activations.round_tokens(x, activation_type).double()
        # Tensor cores of Hopper keep 14 bits of sums of e4m3.
        bits = 24 if activation_type == "int8" else 14
        limit = bound(rounded, values, dtype, bits) + 2.0**-22 * (rounded.abs() @ values.abs().T)
        y = layer(x).double()
        assert bool(((y - rounded @ values.T).abs() <= limit).all())
        most = x.double().abs().amax(-1, keepdim=True)
        away = (
            most / 254 if activation_type == "int8" else 2.0**-4 * x.double().abs() + most * 2**-18
        )
        far = away.expand_as(x) @ values.abs().T
        assert bool(((y - x.double() @ values.T).abs() <= 1.001 * far + limit).all())


def test_numbers_that_are_not_finite_stay_visible():
    layer, _ = exact_layer("int8")
    x = torch.ones(80, 512, device="cuda").half()
    x[3, 7], x[5, 0], x[6] = float("nan"), float("inf"), 0
    y = layer(x)
    assert y[[3, 5]].isnan().all() and (y[6] == 0).all()
    assert y[[0, 1, 2, 4, *range(7, 80)]].isfinite().all()


@pytest.mark.parametrize("activation_type", HERE)
def test_float32_is_rounded_and_multiplied_densely(activation_type):
    layer, wanted = exact_layer(activation_type)
    x = whole(80, 512, torch.float32, activation_type)
    assert torch.equal(layer(x), (x.double() @ wanted.T).float())
    x = torch.randn(80, 512, device="cuda")
    rounded = activations.round_tokens(x, activation_type)
    assert torch.equal(layer(x), nn.functional.linear(rounded, wanted.float()))


@pytest.mark.parametrize("activation_type", HERE)
def test_the_image_is_the_same_and_is_kept(activation_type):
    layer, wanted = exact_layer(activation_type)
    x = whole(80, 512, torch.float16, activation_type)
    exact, form, number = (x.double() @ wanted.T).half(), layer.image, layer._weight_number
    assert image.activation_type_of(number) == activation_type
    layer.activation_type = None
    assert layer.image is form and layer._weight_number != number
    assert torch.equal(layer(x), exact)
    layer.activation_type = activation_type
    assert layer.image is form and layer._weight_number == number
    assert torch.equal(layer(x), exact)


@pytest.mark.parametrize("activation_type", HERE)
def test_copies_state_and_pickles(activation_type):
    layer, _ = exact_layer(activation_type)
    x = torch.randn(50, 512, device="cuda").half()
    y = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.cpu().cuda()):
        assert twin.activation_type == activation_type and torch.equal(twin(x), y)
    fresh = ladder.Linear(
        512, 256, False, TYPES[activation_type], activation_type=activation_type, device="cuda"
    )
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), y)


@pytest.mark.parametrize("dependent_launch", [False, True])
@pytest.mark.parametrize("m", [24, 100, 1000])
def test_what_is_warmed_up_is_captured(m, dependent_launch):
    layer, wanted = exact_layer("int8", 640 + 8 * m, 640)  # a shape of its own
    ladder.warmup(layer, m=(m,), dtype=torch.float16, tune="off", dependent_launch=dependent_launch)
    x = whole(m, 640, torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = layer(layer(x)[:, :640].clamp(-1, 1).round())  # one layer behind the other
        y = layer(x)
    for seed in (1, 2):
        x.copy_(whole(m + seed, 640, torch.float16)[:m])
        graph.replay()
        assert torch.equal(y, (x.double() @ wanted.T).half())


def test_what_is_not_warmed_up_is_refused_in_a_capture():
    layer, _ = exact_layer("int8", 264, 512)
    x = whole(90, 512, torch.float16)
    graph, refused = torch.cuda.CUDAGraph(), pytest.raises(RuntimeError, match="ladder.warmup")
    with torch.inference_mode(), torch.cuda.graph(graph), refused:
        layer(x)


@pytest.mark.parametrize("activation_type", HERE)
def test_gradients_go_straight_through_the_rounding(activation_type):
    layer, wanted = exact_layer(activation_type)
    layer.bias = nn.Parameter(torch.zeros(256, device="cuda").half())
    for m in (4, 80):
        x = torch.randn(m, 512, device="cuda").half().requires_grad_()
        grad = whole(m, 256, torch.float16, "float8_e4m3").clamp(-2, 2)
        layer.bias.grad = None
        layer(x).backward(grad)
        assert torch.equal(x.grad, (grad.double() @ wanted).half())
        assert torch.equal(layer.bias.grad, grad.sum(0))


@pytest.mark.parametrize("activation_type", HERE)
def test_transforms_see_the_rounded_product(activation_type):
    layer, wanted = exact_layer(activation_type)
    x = whole(80, 512, torch.float16, activation_type)
    y, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
    assert torch.equal(y, (x.double() @ wanted.T).half())
    assert torch.equal(tangent, (torch.ones_like(x).double() @ wanted.T).half())


def test_compiled_code_has_one_graph_for_any_number_of_tokens():
    layer, wanted = exact_layer("int8")
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    for m in (2, 17, 80, 300):
        x = whole(m, 512, torch.float16)
        with torch.no_grad():
            assert torch.equal(compiled(x), (x.double() @ wanted.T).half())
    assert len(graphs) == 1


def test_opcheck_of_the_op_with_rounded_activations():
    layer, _ = exact_layer("int8")
    bias = torch.randn(256, device="cuda").half().requires_grad_()
    x = torch.randn(80, 512, device="cuda").half().requires_grad_()
    torch.library.opcheck(
        torch.ops.ladder.linear_image.default, (x, layer.image, bias, layer._weight_number, 256)
    )


def test_a_weight_that_is_named_by_its_type_is_the_same():
    named, type = torch.ops.ladder.linear_prepacked, str(ladder.ttype(TYPES["int8"]))
    layer, wanted = exact_layer("int8")
    for m in (4, 80, 400):
        x = torch.randn(m, 512, device="cuda").half()
        with torch.no_grad():
            y = named(x, layer.image, None, type, 256, False, "int8")
            assert torch.equal(y, layer(x))
    with pytest.raises(ValueError, match='activation_type is "int3"'):
        named(x, layer.image, None, type, 256, False, "int3")


def test_the_op_on_canonical_codes_rounds_in_the_same_way():
    """By torch's ops, and once more to the dtype of x."""
    weight = weight_of(TYPES["int8"], 256, 512)
    for m in (48, 80):
        x = whole(m, 512, torch.float16)
        parts = weight.to("cuda")
        y = ladder.ops.linear(
            x, parts.qweight, weight.type, scales=parts.scales, activation_type="int8"
        )
        assert torch.equal(y, (x.double() @ values_of(weight).T).half())


def test_merged_layers_share_the_rounding():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            linear = [nn.Linear(512, n, bias=False).half() for n in (256, 64)]
            options = {"activation_type": "int8", "method": "nearest"}
            self.q, self.k = (
                ladder.Linear.from_linear(x, TYPES["int8"], **options) for x in linear
            )

        def forward(self, x):
            return self.q(x), self.k(x)

    from ladder.nn.merged import MergedWeight

    block = Block().cuda()
    x = torch.randn(70, 512, device="cuda").half()
    with torch.no_grad():
        wanted = block(x)
        merged = MergedWeight(block, [block.q, block.k])
        assert merged.linear.activation_type == "int8" and merged.linear.image is not None
        rounded = activations.round_tokens(x, "int8").double()
        for y, one, layer in zip(block(x), wanted, (block.q, block.k), strict=True):
            values = layer.packed_weight.dequantize().double()
            assert bool(((y - one).abs().double() <= 2 * bound(rounded, values, x.dtype)).all())
        block.k.activation_type = None  # each has its own weight again
        assert block.q.activation_type == "int8" and torch.equal(block.q(x), wanted[0])


def test_a_model_is_tuned_for_the_intervals_of_rounded_activations():
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64)).half()
    ladder.convert(model, "uint4", 64)
    model.cuda()
    ladder.set_activation_type(model, "int8")
    kernels = ladder.warmup(model, m=(1, 16, 100, 2000), budget=10)
    for row in kernels.values():
        assert set(row) == {1, 16, 100, 2000} and all(row.values())
        assert "bytes" in row[100] and "bytes" in row[2000] and "bytes" not in row[16]


def test_weights_without_such_kernels_are_refused_by_name():
    weight = weight_of("nf4,group=64,scale=float16", 64, 512)
    layer = ladder.Linear.from_weight(weight, activation_type="int8").cuda()  # the CPU takes it
    x = whole(80, 512, torch.float16)
    with pytest.raises(Unsupported, match="activation_type int8 does not take nf4"):
        layer(x)
    with pytest.raises(Unsupported, match="0: activation_type int8 does not take nf4"):
        ladder.warmup(nn.Sequential(layer), m=80)
    layer.activation_type = None
    layer(x)
    for activation_type in activations.ACTIVATION_TYPES:
        with pytest.raises(Unsupported, match=f"{activation_type} does not take nf4"):
            layer.activation_type = activation_type
    integers = prepared(weight_of("int8,channel,scale=float16", 64, 512))
    with pytest.raises(Unsupported, match="float8_e4m3 does not take int8"):
        integers.activation_type = "float8_e4m3"


def test_zero_points_that_bytes_do_not_hold_are_refused_with_both_values():
    weight = ladder.quantize(
        torch.randn(64, 512, device="cuda"), "uint4,group=64,scale=float16,zero=integer"
    )
    weight.zeros[3, 1] = 17
    x = whole(80, 512, torch.float16)
    why = "does not take uint4.* with a zero point of 17 on GPUs: .* at most 16 there"
    layer = prepared(weight)
    layer(x)
    for activation_type in HERE:
        with pytest.raises(Unsupported, match=why):
            ladder.Linear.from_weight(weight, activation_type=activation_type)(x)
        with pytest.raises(Unsupported, match=why):
            layer.activation_type = activation_type


@pytest.mark.skipif(E4M3, reason="this GPU multiplies e4m3")
def test_e4m3_is_refused_where_there_are_no_products_of_it():
    layer = prepared(weight_of(TYPES["float8_e4m3"], 64, 512))
    with pytest.raises(Unsupported, match="activation_type float8_e4m3 does not take"):
        layer.activation_type = "float8_e4m3"


@pytest.mark.skipif(E4M3, reason="this GPU multiplies e4m3")
def test_experts_are_refused_where_there_are_no_products_of_e4m3():
    experts = ladder.Experts(2, 512, 256, weight_type="int4,group=32,scale=float16")
    experts.activation_type = "float8_e4m3"
    x = whole(80, 512, torch.float16)
    index = torch.zeros(80, 1, dtype=torch.int64, device="cuda")
    with pytest.raises(Unsupported, match="^gate_up: activation_type float8_e4m3 does not take"):
        experts.cuda()(x, index, torch.ones(80, 1, device="cuda"))
