# SPDX-License-Identifier: Apache-2.0
"""ladder.Conv2d: exact on integers, as torch.nn.Conv2d."""

import copy
import pickle

import pytest
import torch
from drawn import exact_weight, formula, integers, stored_types
from drawn_conv import FILTERS, GEOMETRIES, TYPE, C, exact_conv, wanted_of
from torch import nn
from torch.nn import functional as F

import ladder
from ladder import InvalidArgument
from ladder.nn.conv_products import by_values, padded


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_it_computes_what_torch_does(geometry):
    conv, values = exact_conv(geometry)
    for shape in ((2, C, 9, 7), (1, C, 4, 10), (C, 9, 7), (0, C, 9, 7)):
        x = integers(shape, torch.float32)
        wanted = wanted_of(x, values, conv)
        assert torch.equal(conv(x).double(), wanted)
        if len(shape) == 4:
            y = conv(x.to(memory_format=torch.channels_last))
            assert torch.equal(y.double(), wanted)
            assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_residual_is_added(geometry, groups):
    conv, values = exact_conv(geometry, groups=groups)
    for shape in ((2, C, 9, 7), (C, 9, 7)):
        x = integers(shape, torch.float32)
        sums = wanted_of(x, values, conv)
        residual = integers(tuple(sums.shape), torch.float32, 5).requires_grad_()
        y = conv(x, residual)
        assert torch.equal(y.double(), sums + residual.double())
        assert y.stride() == conv(x).stride()
        y.sum().backward()
        assert torch.equal(residual.grad, torch.ones_like(residual))


def test_torch_compile_adds_a_residual():
    conv, _ = exact_conv(GEOMETRIES[0])
    x, residual = integers((2, C, 9, 7), torch.float32), integers((2, FILTERS, 9, 7), torch.float32)
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, residual), conv(x, residual))


def test_a_residual_that_does_not_fit_is_refused_with_both_values():
    conv, _ = exact_conv(GEOMETRIES[0])
    x = torch.zeros(2, C, 5, 4)
    refused = {
        r"residual has shape \[2, 24, 5, 3\], and y \[2, 24, 5, 4\]": x.new_zeros(2, FILTERS, 5, 3),
        "residual has dtype float16, and y float32": torch.zeros(2, FILTERS, 5, 4).half(),
        "residual is on meta, and y on cpu": torch.zeros(2, FILTERS, 5, 4, device="meta"),
        "residual is of int, not a tensor": 1,
    }  # fmt: skip
    for message, residual in refused.items():
        with pytest.raises(InvalidArgument, match=message):
            conv(x, residual)


@pytest.mark.parametrize("type", stored_types())
def test_every_type_is_exact(type):
    conv, values = exact_conv(GEOMETRIES[0], type)
    x = integers((2, C, 5, 4), torch.float32)
    assert torch.equal(conv(x).double(), wanted_of(x, values, conv))


def test_columns_may_be_in_another_order():
    conv, values = exact_conv(GEOMETRIES[0], act_order=True)
    assert conv.g_idx is not None
    x = integers((2, C, 5, 4), torch.float32)
    assert torch.equal(conv(x).double(), wanted_of(x, values, conv))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_exact(dtype):
    conv, values = exact_conv(GEOMETRIES[0], bias=False)
    x = integers((2, C, 5, 4), dtype)
    assert torch.equal(conv(x), wanted_of(x, values, conv).to(dtype))


@pytest.mark.parametrize("kernel", [3, 4, (2, 5)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_paddings_by_name_are_torchs(kernel, padding):
    conv, values = exact_conv(((3, 3),))
    taps = (kernel, kernel) if isinstance(kernel, int) else kernel
    weight = exact_weight(TYPE, FILTERS, C * taps[0] * taps[1])
    conv = ladder.Conv2d.from_weight(weight, C, kernel, padding=padding, dilation=(1, 2))
    x = integers((2, C, 9, 12), torch.float32)
    values = formula(weight).view(FILTERS, *taps, C).permute(0, 3, 1, 2)
    wanted = F.conv2d(x.double(), values, None, padding=padding, dilation=(1, 2))
    assert torch.equal(conv(x).double(), wanted)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_quantised_convolutions_keep_what_they_are(mode):
    torch.manual_seed(0)
    dense = nn.Conv2d(C, FILTERS, (3, 2), (2, 1), (2, 1), padding_mode=mode).eval()
    conv = ladder.Conv2d.from_float(dense, "uint4", 32)
    assert conv.bias is dense.bias and not conv.training
    rows = dense.weight.permute(0, 2, 3, 1).reshape(FILTERS, -1)
    values = ladder.quantize(rows, "uint4", group_size=32).dequantize(torch.float32)
    again = conv.dequantize()
    assert torch.equal(again.weight, values.view(FILTERS, 3, 2, C).permute(0, 3, 1, 2))
    x = torch.randn(2, C, 9, 7)
    torch.testing.assert_close(conv(x), again(x))  # sums in another order
    assert again.padding_mode == mode and conv.weight.shape == dense.weight.shape


def test_autocast_chooses_the_dtype():
    conv, values = exact_conv(GEOMETRIES[0])
    x = integers((2, C, 5, 4), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x)
    assert torch.equal(y, wanted_of(x, values, conv).to(torch.bfloat16))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_dequantised_weights_give_the_same(geometry):
    """As devices without kernels have it."""
    conv, values = exact_conv(geometry)
    x = integers((2, C, 9, 7), torch.float32)
    wide, of = padded(conv, x)
    y = by_values(conv, wide, conv.bias, of).permute(0, 3, 1, 2)
    assert torch.equal(y.double(), wanted_of(x, values, conv))


def test_windows_of_large_images_are_written_one_image_at_a_time(monkeypatch):
    conv, values = exact_conv(GEOMETRIES[0])
    x = integers((3, C, 9, 7), torch.float32)
    sizes = []
    unfold = F.unfold
    monkeypatch.setattr(F, "unfold", lambda x, *more: sizes.append(len(x)) or unfold(x, *more))
    assert torch.equal(conv(x).double(), wanted_of(x, values, conv))
    monkeypatch.setattr("ladder.nn.conv_products._MOST_NUMBERS", 2 * 63 * 54)
    assert torch.equal(conv(x).double(), wanted_of(x, values, conv))
    assert sizes == [3, 1, 1, 1]


def test_it_round_trips():
    conv, _ = exact_conv(GEOMETRIES[0])
    assert list(conv.state_dict()) == ["bias", "qweight", "scales"]
    other = ladder.Conv2d(C, FILTERS, 3, padding=1, weight_type=TYPE)
    other.load_state_dict(conv.state_dict())
    x = integers((2, C, 5, 4), torch.float32)
    for each in (other, copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(each(x), conv(x))
    half = copy.deepcopy(conv).to(torch.bfloat16)
    assert half.scales.dtype == torch.float16 and half.bias.dtype == torch.bfloat16
    assert "6, 24, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)" in repr(conv)


def test_what_does_not_fit_is_refused_with_the_values():
    conv, _ = exact_conv(GEOMETRIES[0])
    with pytest.raises(InvalidArgument, match=r"x has shape \[2, 5, 9, 9\], not \[N, 6, H, W\]"):
        conv(torch.zeros(2, 5, 9, 9))
    with pytest.raises(InvalidArgument, match=r"x has shape \[6\]"):
        conv(torch.zeros(6))
    valid = ladder.Conv2d(C, FILTERS, 3)
    with pytest.raises(
        InvalidArgument, match=r"images of \[2, 9\], smaller than windows of \[3, 3"
    ):
        valid(torch.zeros(1, C, 2, 9))
    with pytest.raises(InvalidArgument, match='padding is "same", and stride'):
        ladder.Conv2d(C, FILTERS, 3, 2, "same")
    with pytest.raises(InvalidArgument, match="padding is -1|padding is \\(-1"):
        ladder.Conv2d(C, FILTERS, 3, padding=-1)
    with pytest.raises(InvalidArgument, match="kernel_size \\(0, 3\\)"):
        ladder.Conv2d(C, FILTERS, (0, 3))
    with pytest.raises(InvalidArgument, match='padding_mode is "mirror"'):
        ladder.Conv2d(C, FILTERS, 3, padding_mode="mirror")
    with pytest.raises(InvalidArgument, match="conv is of Linear"):
        ladder.Conv2d.from_float(nn.Linear(3, 3))


def test_gradients_are_those_of_the_values():
    conv, values = exact_conv(GEOMETRIES[1])
    x = integers((2, C, 9, 7), torch.float32).requires_grad_()
    conv(x).sum().backward()
    dense = x.detach().double().requires_grad_()
    wanted_of(dense, values, conv).sum().backward()
    assert torch.equal(x.grad.double(), dense.grad)
    assert conv.bias.grad.unique().numel() == 1


def test_torch_compile_takes_it_whole():
    conv, values = exact_conv(GEOMETRIES[0])
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    for shape in ((2, C, 9, 7), (3, C, 9, 7), (2, C, 6, 8)):
        x = integers(shape, torch.float32)
        assert torch.equal(compiled(x).double(), wanted_of(x, values, conv))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.kept = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.kept(self.depthwise(self.first(x))).mean((2, 3)))


def test_models_are_converted_where_one_asks_for_convolutions():
    torch.manual_seed(0)
    model = Net()
    report = ladder.convert(model, "uint4,group=32,scale=float16,zero=midpoint")
    assert isinstance(model.first, nn.Conv2d) and "first.weight" in report.left
    model = Net()
    dense = copy.deepcopy(model)
    report = ladder.convert(
        model, "uint4,group=32,scale=float16,zero=midpoint", skip=("kept",), convolutions=True
    )
    assert isinstance(model.first, ladder.Conv2d) and isinstance(model.head, ladder.Linear)
    assert type(model.kept) is nn.Conv2d and type(model.depthwise) is nn.Conv2d
    assert set(report.packed) == {"first", "head"} and report.convolutions == 1
    assert report.left["depthwise.weight"].reason.startswith("depthwise, 9 weights a filter")
    assert report.left["kept.weight"].reason == "named by skip"
    assert "packed 1 linear layers, 1 convolutions" in str(report)
    x = torch.randn(2, 8, 8, 8)
    dense.first, dense.head = model.first.dequantize(), model.head.dequantize()
    torch.testing.assert_close(model(x), dense(x))  # sums in another order


def test_warmup_on_a_processor_does_nothing():
    conv, _ = exact_conv(GEOMETRIES[0])
    assert ladder.warmup(conv) == {} and conv.warmup((1, C, 8, 8)) == ""
    with pytest.raises(InvalidArgument, match=r"shape is \[1, 5, 8, 8\]"):
        conv.warmup((1, 5, 8, 8))
