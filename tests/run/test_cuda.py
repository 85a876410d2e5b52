# SPDX-License-Identifier: Apache-2.0
"""The kernels on a GPU: exact on integers first, then within the derived bound."""

import copy
import math
import pickle

import pytest
import torch
from drawn import exact_weight, integers
from gpu import HALVES, MARKS, on_gpu, spelled
from torch import nn

import ladder
from ladder.cuda import image
from ladder.testing import bound

pytestmark = MARKS
# n and k: whole blocks; ragged rows; ragged columns; both, with fewer rows than a block.
SHAPES = ((256, 512), (200, 256), (128, 200), (40, 1000))


@pytest.mark.parametrize("n,k", SHAPES)
@pytest.mark.parametrize("bits", range(1, 9))
def test_packing_on_the_device_is_that_of_the_core(bits, n, k):
    """Against the place of every single bit, and back."""
    rng = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 2**bits, (n, k), dtype=torch.uint8, generator=rng)
    weight = ladder.Weight.from_codes(codes, f"uint{bits}").to("cuda")
    number = image.open_weight(str(weight.type), n, k)
    packed = image.pack(weight, number)
    host = torch.ops.ladder.pack_image_host(weight.qweight.cpu(), k, bits)
    assert torch.equal(packed.cpu()[: len(host)], host)
    assert torch.equal(image.unpack(packed, number, weight.type, n, k), weight.qweight)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n,k", SHAPES)
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_is_exact_on_integers_in_every_interval(bits, n, k, dtype):
    layer, wanted = on_gpu(spelled(bits, dtype), n, k)
    for m in (1, 3, 8, 9, 16, 17, 32, 40, 64, 65, 100, 192, 257, 500, 1537):
        x = integers((m, k), dtype).cuda()
        exact = (x.double() @ wanted.T).to(dtype)
        assert torch.equal(layer(x), exact), (m, layer.compile_for(dtype, m))


@pytest.mark.parametrize(
    "type",
    [
        "int4,group=64,scale=float16",
        "int8,channel,scale=float16",
        "uint4,channel,scale=float16",
        "uint3,tensor,scale=float16",
    ],
)
def test_signs_and_blocks_of_scales_are_exact_on_integers(type):
    layer, wanted = on_gpu(type, 192, 256)
    for m in (1, 12, 20):
        x = integers((m, 256), torch.float16).cuda()
        assert torch.equal(layer(x), (x.double() @ wanted.T).half())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n,k", [(4096, 4096), (1024, 14336), (200, 1000)])
def test_real_numbers_stay_within_the_bound(n, k, dtype):
    torch.manual_seed(0)
    dense = nn.Linear(k, n, bias=False)
    type = spelled(4, dtype, 128 if k % 128 == 0 else 0)
    layer = ladder.Linear.from_linear(dense, type, method="nearest").cuda()
    values = layer.packed_weight.dequantize().double()
    assert layer.prepare()
    for m in (1, 7, 16):
        x = torch.randn(m, k, device="cuda", dtype=dtype)
        error = (layer(x).double() - x.double() @ values.T).abs()
        assert bool((error <= bound(x, values, dtype)).all())


@pytest.mark.parametrize(
    "shape", [(256,), (1, 256), (2, 3, 256), (0, 256), (2, 0, 256), (4, 5, 256)]
)
def test_leading_dimensions_are_kept_also_empty_ones(shape):
    layer, wanted = on_gpu(spelled(4, torch.float16), 128, 256)
    x = integers(shape, torch.float16).cuda()
    y = layer(x)
    assert y.shape == (*shape[:-1], 128)
    assert torch.equal(y, (x.double() @ wanted.T).half())


def test_strides_and_addresses_of_the_input_do_not_matter():
    layer, _ = on_gpu(spelled(4, torch.float16), 128, 256)
    x = integers((6, 256), torch.float16).cuda()
    wanted = layer(x)
    shifted = torch.empty(6 * 256 + 1, dtype=x.dtype, device="cuda")[1:].view(6, 256).copy_(x)
    for view in (x.t().contiguous().t(), torch.cat((x, x), 1)[:, :256], shifted):
        assert torch.equal(layer(view), wanted)


@pytest.mark.parametrize(
    "x,why",
    [
        (torch.zeros(2, 255), "255"),
        (torch.zeros(2, 256, dtype=torch.float64), "float64"),
        (torch.zeros((), dtype=torch.float16), "columns"),
    ],
)
def test_activations_that_do_not_fit_are_refused_with_the_values(x, why):
    layer, _ = on_gpu(spelled(4, torch.float16), 128, 256)
    with pytest.raises(ladder.InvalidArgument, match=why):
        layer(x.cuda())
    with pytest.raises(ladder.InvalidArgument, match="device"):
        layer(torch.zeros(2, 256, dtype=torch.float16))


@pytest.mark.parametrize("first", [0, 1])  # of a longer one: an odd address
def test_a_bias_is_added_in_every_way(first):
    layer, wanted = on_gpu(spelled(4, torch.float16), 128, 256)
    bias = integers((129,), torch.float16).cuda()[first : first + 128]
    layer.bias = nn.Parameter(bias)
    for m in (1, 16, 64):
        x = integers((m, 256), torch.float16).cuda()
        exact = (x.double() @ wanted.T + bias.double()).half()
        assert torch.equal(layer(x), exact)
        with torch.inference_mode():
            assert torch.equal(layer(x), exact)


def test_opcheck_of_the_ops_on_images():
    layer, _ = on_gpu(spelled(4, torch.float16), 128, 256)
    number, check = layer._weight_number, torch.library.opcheck
    bias = torch.randn(128, device="cuda").half().requires_grad_()
    for m in (0, 5):
        x = torch.randn(m, 256, device="cuda").half().requires_grad_()
        args = (x, layer.image, bias, number, 128)
        check(torch.ops.ladder.linear_image.default, args)
    check(torch.ops.ladder.unpack_image.default, (layer.image, number, 128, 32))


def test_gradients_flow_to_the_input_and_the_bias():
    layer, wanted = on_gpu(spelled(4, torch.float16), 128, 256)
    layer.bias = nn.Parameter(integers((128,), torch.float16).cuda())
    for m in (2, 20):
        x = integers((m, 256), torch.float16).cuda().requires_grad_()
        grad = integers((m, 128), torch.float16, 5).cuda()
        layer.bias.grad = None
        layer(x).backward(grad)
        assert torch.equal(x.grad, (grad.double() @ wanted).half())
        assert torch.equal(layer.bias.grad, grad.sum(0))


@pytest.mark.parametrize("type", [spelled(4, torch.float16), "int3,group=64,scale=bfloat16"])
def test_the_canonical_form_comes_back(type):
    weight = exact_weight(type, 200, 256)
    layer = ladder.Linear.from_weight(weight).cuda()
    x = integers((3, 256), weight.scales.dtype).cuda()
    y = layer(x)
    assert layer.qweight is None and layer.image is not None
    forms = (
        layer.packed_weight.qweight,
        layer.state_dict()["qweight"],
        copy.deepcopy(layer).qweight,
        pickle.loads(pickle.dumps(layer)).qweight,
        copy.deepcopy(layer).cpu().qweight,
    )
    for qweight in forms:
        assert torch.equal(qweight.cpu(), weight.qweight)
    assert "image" not in layer.state_dict()
    fresh = ladder.Linear(256, 200, bias=False, weight_type=weight.type, device="cuda")
    fresh(x)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), y)
    assert torch.equal(layer.dequantize().weight.cpu(), weight.dequantize())
    assert torch.equal(layer.cpu().cuda()(x), y)


def test_the_codes_are_held_once():
    weight = exact_weight(spelled(4, torch.float16), 4096, 4096)
    layer = ladder.Linear.from_weight(weight).cuda()
    before = torch.cuda.memory_allocated()
    x = torch.zeros(1, 4096, device="cuda", dtype=torch.float16)
    layer.prepare()
    codes, scales = weight.qweight.numel() * 4, weight.scales.numel() * 2
    grown = torch.cuda.memory_allocated() - before - x.numel() * 2
    assert grown <= scales + 4096, (grown, codes)
    assert math.isfinite(layer(x).sum().item())
