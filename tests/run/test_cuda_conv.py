# SPDX-License-Identifier: Apache-2.0
"""ladder.Conv2d on a GPU: kernels read windows where they lie, exact on integers."""

import copy

import pytest
import torch
from drawn import exact_weight, formula, integers
from drawn_conv import GEOMETRIES, wanted_of
from gpu import HALVES, MARKS
from torch.nn import functional as F

import ladder
from ladder.nn.conv_products import padded

pytestmark = MARKS

TYPES = (
    "uint4,group=32,scale=float16,zero=midpoint",
    "uint4,group=64,scale=float16,zero=integer",
    "uint2,channel,scale=float16,zero=midpoint",
    "int8,channel,scale=float16",
    "float6_e3m2,group=32,scale=float16",
    "mxfp4",
)
FILTERS = 72


def conv_of(geometry, c: int, type: str = TYPES[0], n: int = FILTERS, **more):
    """A module on the GPU, in the form of kernels, and its values [F, C, Y, X]."""
    kernel = geometry[0]
    weight = exact_weight(type, n, c * kernel[0] * kernel[1], **more)
    conv = ladder.Conv2d.from_weight(weight, c, *geometry)
    conv.bias.data.copy_(integers((n,), torch.float32, 9))
    conv.cuda()
    assert conv.prepare()
    return conv, formula(weight).view(n, *kernel, c).permute(0, 3, 1, 2).cuda()


def served(conv: ladder.Conv2d, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Most rows of an item of a call; 0 where there are no kernels."""
    _, geometry = padded(conv, torch.empty(shape, device="meta"))
    windows = geometry.windows(shape[2], shape[3], shape[1])
    rows = shape[0] * windows.y.positions * windows.x.positions
    of = conv._weight_number
    return torch.ops.ladder.item_rows(of, 1, rows, dtype, 0, windows.spelled)


def test_a_bias_may_begin_anywhere():
    conv, values = conv_of(GEOMETRIES[0], 32)
    longer = integers((FILTERS + 1,), torch.float16, 3).cuda()
    conv.bias = torch.nn.Parameter(longer[1:])
    x = integers((1, 32, 9, 7), torch.float16).cuda()
    with torch.no_grad():
        assert torch.equal(conv(x), wanted_of(x, values, conv).half())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_kernels_are_exact_on_integers(type, dtype):
    conv, values = conv_of(GEOMETRIES[0], 32, type)
    for shape in ((1, 32, 5, 3), (2, 32, 9, 7), (3, 32, 17, 20)):
        x = integers(shape, dtype).cuda()
        assert served(conv, shape, dtype)
        with torch.no_grad():
            assert torch.equal(conv(x), wanted_of(x, values, conv).to(dtype)), shape


@pytest.mark.parametrize("channels", [16, 24, 64, 13])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_geometry_is_exact(geometry, channels):
    """13 channels come one by one, the others in pieces of 16 bytes."""
    conv, values = conv_of(geometry, channels)
    for shape in ((2, channels, 13, 11), (5, channels, 8, 32)):
        x = integers(shape, torch.float16).cuda()
        y = conv(x)
        assert torch.equal(y, wanted_of(x, values, conv).half()), shape
        assert y.is_contiguous(memory_format=torch.channels_last)
        last = x.to(memory_format=torch.channels_last)
        assert torch.equal(conv(last), y)
        if geometry[0] != (1, 1) and geometry[0][0] * geometry[0][1] * channels > 64:
            assert served(conv, shape, torch.float16)


def test_many_windows_are_exact():
    conv, values = conv_of(GEOMETRIES[0], 16)
    x = integers((2, 16, 150, 140), torch.float16).cuda()
    assert torch.equal(conv(x), wanted_of(x, values, conv).half())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_residual_is_added_where_the_sums_are_made(geometry, dtype):
    """1x1 windows are rows of a linear layer, of which a library multiplies many where that is
    faster; then the residual is added to rounded sums."""
    conv, values = conv_of(geometry, 24)
    pointwise = geometry == ((1, 1), (1, 1), (0, 0), (1, 1))
    for shape in ((2, 24, 13, 11), (5, 24, 8, 32)):
        x = integers(shape, dtype).cuda()
        sums = wanted_of(x, values, conv)
        residual = integers(tuple(sums.shape), dtype, 5).cuda()
        for given in (residual, residual.to(memory_format=torch.channels_last)):
            with torch.no_grad():
                y = conv(x, given)
            once = torch.equal(y, (sums + residual.double()).to(dtype))
            assert once or (pointwise and torch.equal(y, sums.to(dtype) + residual)), shape


def test_residuals_have_gradients_and_an_op_that_is_one():
    conv, values = conv_of(GEOMETRIES[1], 16)
    x = integers((2, 16, 9, 7), torch.float16).cuda()
    sums = wanted_of(x, values, conv)
    residual = integers(tuple(sums.shape), torch.float16, 5).cuda().requires_grad_()
    y = conv(x, residual)
    assert torch.equal(y, (sums + residual.double()).half())
    y.sum().backward()
    assert torch.equal(residual.grad, torch.ones_like(residual))
    whole = conv(x.float(), residual.detach().float())
    assert torch.equal(whole.double(), sums + residual.double())
    geometry = [list(numbers) for numbers in GEOMETRIES[1]]
    rows, added = x.permute(0, 2, 3, 1), residual.detach().permute(0, 2, 3, 1).requires_grad_()
    arguments = (rows, conv.image, None, conv._weight_number, FILTERS, *geometry, 1, added)
    torch.library.opcheck(torch.ops.ladder.conv2d.default, arguments)
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, residual), y)


def test_columns_may_be_in_another_order():
    conv, values = conv_of(GEOMETRIES[0], 16, act_order=True)
    x = integers((2, 16, 9, 7), torch.float16).cuda()
    assert torch.equal(conv(x), wanted_of(x, values, conv).half())


def test_float32_and_gradients_go_through_dense_weights():
    conv, values = conv_of(GEOMETRIES[1], 16)
    x = integers((2, 16, 9, 7), torch.float32).cuda().requires_grad_()
    assert torch.equal(conv(x).double(), wanted_of(x, values, conv))
    dense = x.detach().double().requires_grad_()
    wanted_of(dense, values, conv).sum().backward()
    for given in (x, x.detach().half().requires_grad_()):
        conv(given).sum().backward()
        assert torch.equal(given.grad, dense.grad.to(given.dtype))


def test_opcheck():
    conv, _ = conv_of(GEOMETRIES[1], 16)
    geometry = [list(numbers) for numbers in GEOMETRIES[1]]
    x = integers((2, 9, 7, 16), torch.float16).cuda().requires_grad_()
    arguments = (x, conv.image, conv.bias.half(), conv._weight_number, FILTERS, *geometry)
    torch.library.opcheck(torch.ops.ladder.conv2d.default, arguments)


def test_compiled_and_captured_calls_are_exact():
    conv, values = conv_of(GEOMETRIES[0], 32)
    x = integers((2, 32, 9, 7), torch.float16).cuda()
    wanted = wanted_of(x, values, conv).half()
    with torch.no_grad():
        assert torch.equal(conv(x), wanted)
        assert torch.equal(torch.compile(conv, fullgraph=True)(x), wanted)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = conv(x)
        x.copy_(integers((2, 32, 9, 7), torch.float16, 5))
        graph.replay()
    assert torch.equal(y, wanted_of(x, values, conv).half())


def test_capture_without_kernels_says_what_to_do():
    conv, _ = conv_of(GEOMETRIES[0], 40)
    x = torch.zeros(1, 40, 6, 6, device="cuda", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="a convolution of uint4.*before the capture"):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            conv(x)
    torch.cuda.synchronize()


def test_tuned_kernels_are_exact_and_kept():
    conv, values = conv_of(GEOMETRIES[0], 64)
    assert conv.warmup((2, 64, 12, 12))
    assert conv.warmup((2, 64, 12, 12)) == ""  # it is a plan
    x = integers((2, 64, 12, 12), torch.float16).cuda()
    assert torch.equal(conv(x), wanted_of(x, values, conv).half())


def test_saving_and_moving_give_the_canonical_form():
    conv, values = conv_of(GEOMETRIES[0], 32)
    x = integers((2, 32, 9, 7), torch.float16)
    wanted = wanted_of(x.cuda(), values, conv).half()
    state = conv.state_dict()
    assert state["qweight"].shape[0] == FILTERS and conv.qweight is None
    assert torch.equal(copy.deepcopy(conv)(x.cuda()), wanted)
    assert torch.equal(conv.cpu()(x).cuda(), wanted)


@pytest.mark.parametrize("groups", [2, 8, 32])
def test_groups_go_through_dense_weights(groups):
    """32 groups of one channel are depthwise, with 9 columns."""
    weight = exact_weight(TYPES[0], 64, 9 * 32 // groups)
    conv = ladder.Conv2d.from_weight(weight, 32, 3, 2, 1, groups=groups)
    conv.bias.data.copy_(integers((64,), torch.float32, 9))
    conv.cuda()
    values = formula(weight).view(64, 3, 3, -1).permute(0, 3, 1, 2).cuda()
    x = integers((2, 32, 9, 7), torch.float32).cuda()
    dense = x.double().requires_grad_()
    wanted = F.conv2d(dense, values, conv.bias.double(), 2, 1, 1, groups)
    wanted.sum().backward()
    for dtype in (torch.float32, *HALVES):
        given = x.detach().to(dtype).requires_grad_()
        y = conv(given)
        # torch may round the exact sums before it adds the bias, and then once more.
        sums = wanted - conv.bias.double()[:, None, None]
        unit = torch.finfo(dtype).eps / 2
        apart = (y.double() - wanted).abs()
        assert (apart <= unit * (1 + unit) * (sums.abs() + wanted.abs())).all()
        y.sum().backward()
        assert torch.equal(given.grad, dense.grad.to(dtype))
    state = conv.state_dict()
    assert torch.equal(state["qweight"].cpu(), weight.qweight)
    assert conv.warmup((2, 32, 9, 7)) == ""


def test_opcheck_of_groups():
    weight = exact_weight(TYPES[0], 64, 9 * 16)
    conv = ladder.Conv2d.from_weight(weight, 32, 3, groups=2).cuda()
    assert conv.prepare()
    x = integers((2, 9, 7, 32), torch.float16).cuda().requires_grad_()
    geometry = [[3, 3], [1, 1], [0, 0], [1, 1]]
    arguments = (x, conv.image, conv.bias.half(), conv._weight_number, 64, *geometry, 2)
    torch.library.opcheck(torch.ops.ladder.conv2d.default, arguments)
