# SPDX-License-Identifier: Apache-2.0
"""ladder.Conv2d of several groups, depthwise too: exact on integers, as torch.nn.Conv2d."""

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
from ladder.nn.select_conv import convolutions

#: Two groups of three channels, three of two, and depthwise with four filters a channel.
GROUPS = (2, 3, 6)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_groups_compute_what_torch_does(geometry, groups):
    conv, values = exact_conv(geometry, groups=groups)
    for shape in ((2, C, 9, 7), (1, C, 4, 10), (C, 9, 7), (0, C, 9, 7)):
        x = integers(shape, torch.float32)
        wanted = wanted_of(x, values, conv)
        assert torch.equal(conv(x).double(), wanted)
        if len(shape) == 4:
            y = conv(x.to(memory_format=torch.channels_last))
            assert torch.equal(y.double(), wanted)
            for each in (y, conv(x)):
                assert not len(y) or each.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("type", stored_types())
def test_every_type_is_exact(type, groups):
    conv, values = exact_conv(groups=groups, type=type)
    x = integers((2, C, 5, 4), torch.float32)
    assert torch.equal(conv(x).double(), wanted_of(x, values, conv))


def test_columns_may_be_in_another_order():
    conv, values = exact_conv(GEOMETRIES[-1], groups=3, act_order=True)
    assert conv.g_idx is not None
    x = integers((2, C, 5, 4), torch.float32)
    assert torch.equal(conv(x).double(), wanted_of(x, values, conv))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("groups", GROUPS)
def test_halves_are_summed_in_float32_and_rounded_once(dtype, groups):
    conv, values = exact_conv(groups=groups, bias=False)
    x = integers((2, C, 5, 4), dtype)
    assert torch.equal(conv(x), wanted_of(x, values, conv).to(dtype))
    # 2**-12 in a weight is lost where weights are rounded to halves beside 1 / 2.
    scales = torch.full((FILTERS, 1), 0.5 + 2**-12)
    codes = torch.full((FILTERS, 9 * C // groups), 9, dtype=torch.uint8)
    type = "uint4,channel,scale=float32,zero=midpoint"
    weight = ladder.Weight.from_codes(codes, type, scales=scales)
    conv = ladder.Conv2d.from_weight(weight, C, 3, groups=groups, bias=False)
    x = torch.full((1, C, 3, 3), 512.0, dtype=dtype)
    wanted = torch.full((1, FILTERS, 1, 1), codes.shape[1] * 256.125, dtype=dtype)
    assert torch.equal(conv(x), wanted)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_paddings_by_name_are_torchs(padding):
    weight = exact_weight(TYPE, FILTERS, 2 * 4 * 3)
    conv = ladder.Conv2d.from_weight(weight, C, (4, 3), padding=padding, dilation=(1, 2), groups=3)
    x = integers((2, C, 9, 12), torch.float32)
    values = formula(weight).view(FILTERS, 4, 3, 2).permute(0, 3, 1, 2)
    wanted = F.conv2d(x.double(), values, None, padding=padding, dilation=(1, 2), groups=3)
    assert torch.equal(conv(x).double(), wanted)


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_of_every_mode_is_exact(mode, groups):
    weight = exact_weight(TYPE, FILTERS, 6 * C // groups)
    conv = ladder.Conv2d.from_weight(
        weight, C, (3, 2), (2, 1), (2, 1), groups=groups, bias=False, padding_mode=mode
    )
    values = formula(weight).view(FILTERS, 3, 2, C // groups).permute(0, 3, 1, 2)
    x = integers((2, C, 9, 7), torch.float32)
    wide = F.pad(x.double(), (1, 1, 2, 2), mode=mode)
    assert torch.equal(conv(x).double(), F.conv2d(wide, values, None, (2, 1), groups=groups))


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_quantised_convolutions_keep_what_they_are(mode, groups):
    torch.manual_seed(0)
    dense = nn.Conv2d(C, FILTERS, (3, 2), (2, 1), (2, 1), 1, groups, padding_mode=mode).eval()
    conv = ladder.Conv2d.from_float(dense, "uint4", 32)
    assert conv.bias is dense.bias and not conv.training and conv.groups == groups
    rows = dense.weight.permute(0, 2, 3, 1).reshape(FILTERS, -1)
    values = ladder.quantize(rows, "uint4", group_size=32).dequantize(torch.float32)
    again = conv.dequantize()
    assert again.groups == groups and again.padding_mode == mode
    assert torch.equal(again.weight, values.view(FILTERS, 3, 2, C // groups).permute(0, 3, 1, 2))
    assert conv.weight.shape == dense.weight.shape
    x = torch.randn(2, C, 9, 7)
    torch.testing.assert_close(conv(x), again(x))  # sums in another order


def test_autocast_chooses_the_dtype():
    conv, values = exact_conv(groups=2)
    x = integers((2, C, 5, 4), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x)
    assert torch.equal(y, wanted_of(x, values, conv).to(torch.bfloat16))


@pytest.mark.parametrize("groups", [2, 6])
def test_it_round_trips(groups):
    conv, _ = exact_conv(groups=groups)
    other = ladder.Conv2d(C, FILTERS, 3, padding=1, groups=groups, weight_type=TYPE)
    other.load_state_dict(conv.state_dict())
    x = integers((2, C, 5, 4), torch.float32)
    for each in (other, copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(each(x), conv(x)) and each.groups == groups
    assert f"groups={groups}" in repr(conv)


def test_what_does_not_fit_is_refused_with_the_values():
    with pytest.raises(InvalidArgument, match="groups is 4, which does not divide in_channels 6"):
        ladder.Conv2d(C, FILTERS, 3, groups=4)
    with pytest.raises(InvalidArgument, match="does not divide.*out_channels 25"):
        ladder.Conv2d(C, 25, 3, groups=2)
    with pytest.raises(InvalidArgument, match="groups 0, not all positive"):
        ladder.Conv2d(C, FILTERS, 3, groups=0)
    conv, _ = exact_conv(groups=2)
    with pytest.raises(InvalidArgument, match=r"x has shape \[2, 3, 9, 9\], not \[N, 6, H, W\]"):
        conv(torch.zeros(2, 3, 9, 9))
    with pytest.raises(InvalidArgument, match="x has dtype float64"):
        conv(torch.zeros(2, C, 9, 9, dtype=torch.float64))
    with pytest.raises(InvalidArgument, match="x is on meta, the weight on cpu"):
        conv(torch.zeros(2, C, 9, 9, device="meta"))
    dense = nn.Conv2d(C, FILTERS, 3, groups=3)
    with pytest.raises(InvalidArgument, match=r"weight is \[24, 27\].* not \[24, 18\]"):
        ladder.Conv2d.in_place_of(dense, exact_weight(TYPE, FILTERS, 27))


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_values(groups, dtype):
    conv, values = exact_conv(GEOMETRIES[1], groups=groups)
    x = integers((2, C, 9, 7), dtype).requires_grad_()
    y = conv(x)
    y.sum().backward()
    assert torch.equal(conv.bias.grad, torch.full((FILTERS,), float(y.numel() // FILTERS)))
    dense = x.detach().double().requires_grad_()
    wanted_of(dense, values, conv).sum().backward()
    assert torch.equal(x.grad, dense.grad.to(dtype))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("groups", [2, 6])
def test_torch_compile_takes_it_whole_with_gradients(groups, backend):
    conv, values = exact_conv(groups=groups)
    compiled = torch.compile(conv, fullgraph=True, backend=backend)
    for shape in ((2, C, 9, 7), (3, C, 9, 7), (2, C, 6, 8)):
        x = integers(shape, torch.float32).requires_grad_()
        y = compiled(x)
        dense = x.detach().double().requires_grad_()
        wanted = wanted_of(dense, values, conv)
        assert torch.equal(y.double(), wanted)
        y.sum().backward()
        wanted.sum().backward()
        assert torch.equal(x.grad.double(), dense.grad)


@pytest.mark.parametrize("groups", [1, *GROUPS])
def test_vmap_gives_what_a_dense_layer_gives(groups):
    conv, values = exact_conv(groups=groups)
    x = integers((3, 2, C, 9, 7), torch.float32)
    wanted = torch.stack([wanted_of(each, values, conv) for each in x])
    assert torch.equal(torch.func.vmap(conv)(x).double(), wanted)
    assert torch.equal(torch.func.vmap(conv, in_dims=2)(x.movedim(0, 2)).double(), wanted)

    def loss(image):
        return conv(image).sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(x[0])
    alone = torch.stack([torch.func.grad(loss)(each) for each in x[0]])
    assert torch.equal(gradients, alone) and alone.abs().max() > 1


def test_an_exported_program_computes_the_same():
    conv, values = exact_conv(groups=3)
    x = integers((2, C, 9, 7), torch.float32)
    program = torch.export.export(conv, (x,))
    assert torch.equal(program.module()(x).double(), wanted_of(x, values, conv))


def test_shapes_can_be_asked_of_the_meta_device():
    conv = ladder.Conv2d(C, FILTERS, 3, stride=2, groups=3, device="meta")
    assert conv(torch.empty(2, C, 9, 7, device="meta")).shape == (2, FILTERS, 4, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.grouped = nn.Conv2d(8, 16, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.tiny = nn.Conv2d(16, 16, 1, groups=8)
        self.line = nn.Conv1d(16, 16, 3)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        y = self.line(self.tiny(self.depthwise(self.grouped(x))).flatten(2))
        return self.head(y.mean(2))


def test_what_packing_does_not_serve_stays_dense_with_the_reason():
    torch.manual_seed(0)
    model = Net().half()
    report = ladder.convert(model, TYPE, convolutions=True)
    assert set(report.packed) == {"grouped", "head"} and report.convolutions == 1
    assert type(model.grouped) is ladder.Conv2d and model.grouped.groups == 2
    assert type(model.depthwise) is nn.Conv2d
    reasons = {name: left.reason for name, left in report.left.items()}
    assert reasons["depthwise.weight"].startswith("depthwise, 9 weights a filter: packing would")
    assert reasons["tiny.weight"] == "2 weights a filter take 24 bits each packed, and 16 dense"
    assert reasons["line.weight"] == "Conv1d: of convolutions nn.Conv2d are packed alone"
    assert set(report.left) == {"depthwise.weight", "tiny.weight", "line.weight"}
    model.depthwise = ladder.Conv2d.from_float(model.depthwise, TYPE)  # as the reason says
    assert model(torch.randn(2, 8, 8, 8).half()).shape == (2, 4)


def test_tied_weights_stay_dense_and_two_names_are_one_module():
    model = nn.ModuleDict({name: nn.Conv2d(16, 16, 3) for name in "abcd"})
    model["b"].weight = model["a"].weight
    model["e"] = model["c"]
    report = ladder.convert(model, TYPE, convolutions=True)
    assert set(report.packed) == {"c", "d"} and model["e"] is model["c"]
    why = "its weight is tied to that of another module"
    assert {name: left.reason for name, left in report.left.items()} == {
        "a.weight": why, "b.weight": why,
    }  # fmt: skip


def test_weights_that_transformers_will_tie_stay_dense():
    with torch.device("meta"):
        model = nn.ModuleDict({name: nn.Conv2d(16, 16, 3) for name in "abc"})
    model.all_tied_weights_keys = {"b.weight": "a.weight"}
    found, left = convolutions(model, (), ladder.ttype(TYPE), loaded=False)
    assert [each.name for each in found] == ["c"] and set(left) == {"a.weight", "b.weight"}


@pytest.mark.parametrize("groups", [2, 6])
def test_the_op_of_gpus_hands_groups_to_torch(groups, monkeypatch):
    """What it does with the values of an image, which only a GPU can tell."""
    from ladder.cuda import convolution

    conv, values = exact_conv(GEOMETRIES[1], groups=groups)
    asked = []

    def of_image(image, weight, n, c, like, kernel):
        asked.append((n, c, kernel))
        return values.to(like.dtype)

    monkeypatch.setattr(convolution, "_values", of_image)
    x = integers((2, C, 9, 7), torch.float32)
    geometry = [list(numbers) for numbers in GEOMETRIES[1]]
    rows = x.permute(0, 2, 3, 1)
    y = convolution._conv2d(rows, x, conv.bias.detach(), 0, FILTERS, *geometry, groups)
    dense = x.double().requires_grad_()
    wanted = wanted_of(dense, values, conv)
    assert torch.equal(y.permute(0, 3, 1, 2).double(), wanted)
    wanted.sum().backward()
    grad = convolution._gradient(torch.ones_like(y), x, 0, list(rows.shape), *geometry, groups)
    assert torch.equal(grad.permute(0, 3, 1, 2).double(), dense.grad)
    assert asked == [(FILTERS, C // groups, [3, 2])] * 2
