# SPDX-License-Identifier: Apache-2.0
"""Calibration of experts, convolutions, and layers that some inputs do not reach."""

import copy
import dataclasses

import hf_mixtures
import pytest
import torch
from hf_models import TWO_LEVELS, logits
from sums import squares_bound, sums_of
from torch import nn

import ladder
from ladder.nn.calibration import blocks, calls
from ladder.nn.select import survey
from ladder.nn.select_conv import convolutions, matrix_of

TOKENS = torch.randint(0, 128, (12, 48), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", hf_mixtures.MODELS)
def test_experts_have_the_tokens_that_are_theirs(kind):
    dense = hf_mixtures.fresh(kind)
    wanted, errors = logits(dense), {}
    name = hf_mixtures.FIRST
    for calibration in (None, torch.arange(50, 74)[None], TOKENS):
        model = copy.deepcopy(dense)
        report = ladder.convert(model, TWO_LEVELS, calibration=calibration)
        few = 0 if calibration is None else len(calibration)
        errors[few] = (logits(model) - wanted).square().sum().item()
    assert errors[1] < 0.8 * errors[0]  # calibrated by what is measured
    each = report.errors[name]
    assert each.weights == 2 * dense.get_submodule(name).num_experts
    assert 0 < each.error < each.nearest < each.size


@pytest.mark.parametrize("kind", hf_mixtures.MODELS)
def test_hessians_of_experts_are_those_of_what_they_multiply(kind):
    """The second product's outputs, weighted, are the module's: so are their squares, of experts
    that have their tokens alone."""
    dense = hf_mixtures.fresh(kind)
    layer = survey(dense.model.layers[0].mlp).experts[0]
    module, (e, h, _) = layer.module, layer.layout.shape
    layer = dataclasses.replace(layer, names=("",))
    x = torch.randint(-3, 4, (40, h)).float()  # whose sums are exact
    index = torch.arange(40)[:, None] % (e - 1)  # none has the last expert
    with torch.no_grad():
        found = sums_of(module, layer, x, index, torch.ones(40, 1))
        y = module(x, index, torch.ones(40, 1))
    assert found["down_proj"].of(e - 1) == (None, None) and not found["down_proj"].inputs(e - 1)
    for expert in range(e - 1):
        rows = x[index[:, 0] == expert]
        hessian, cross = found["gate_up_proj"].of(expert)
        assert torch.equal(hessian, rows.T @ rows)
        assert torch.equal(hessian, cross)
        hessian, _ = found["down_proj"].of(expert)
        weight = layer.layout.rows("down_proj", module.down_proj[expert])
        out = y[index[:, 0] == expert]
        bias = module.down_proj_bias[expert].detach() if layer.layout.bias else None
        out = out if bias is None else out - bias
        off = (weight @ hessian @ weight.T).diagonal() - out.square().sum(0)
        assert (off.abs() <= squares_bound(weight, hessian, len(rows), bias)).all()


def test_tokens_that_go_to_modules_of_their_own_are_not_paired_with_others():
    """A router that the dense model and the quantised one make choose otherwise."""

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x):
            x = self.first(x)
            return self.second(x[x[:, 0] > 0])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Routed()])

        def forward(self, x):
            return self.blocks[0](x)

    torch.manual_seed(0)
    net = Net()
    found = {}
    for turn in blocks.in_turn(net, survey(net).found, calls.calls_of([torch.randn(200, 32)])):
        (part,), (sums,) = turn.parts, turn.hessians
        found[part.layer.name] = sums.of()
        part.layer.module.weight.data += 0.1 * torch.randn(32, 32)
    assert found["blocks.0.first"][1] is not None
    hessian, cross = found["blocks.0.second"]
    assert hessian is not None and cross is None


def test_experts_without_tokens_have_their_nearest_codes_and_are_told():
    dense = hf_mixtures.fresh("qwen3_moe")
    for layer in dense.model.layers:
        layer.mlp.gate.weight.data[5:] = -layer.mlp.gate.weight.data[:3]  # none of both is chosen
        layer.mlp.gate.weight.data[7] = 0
    nearest = copy.deepcopy(dense)
    ladder.convert(nearest, "uint4", 32)
    report = ladder.convert(dense, "uint4", 32, calibration=torch.tensor([[3, 4]]))
    unseen = sum(each.unseen for each in report.errors.values())
    assert unseen and f"no calibration data reached {unseen} matrices" in str(report)
    assert "had fewer inputs than columns" in str(report)
    stack, other = (m.get_submodule(hf_mixtures.FIRST).down for m in (dense, nearest))
    same = [torch.equal(a, b) for a, b in zip(stack.qweight, other.qweight, strict=True)]
    assert report.errors[hf_mixtures.FIRST].unseen <= 2 * sum(same) < 2 * len(same)


CONVOLUTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": "same"},
    {"groups": 2, "padding": (1, 2)},
    {"groups": 4, "padding": 1, "padding_mode": "reflect"},
]


@pytest.mark.parametrize("options", CONVOLUTIONS)
def test_hessians_of_convolutions_are_those_of_their_windows(options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, bias=False, **options))
    x = torch.randint(-3, 4, (3, 16, 9, 10)).float()  # sums of integers are exact
    model[0].weight.data = torch.randint(-3, 4, model[0].weight.shape).float()
    ttype = ladder.ttype("uint4,group=32,scale=float16")
    ((layer,), _) = convolutions(model, None, ttype)
    with torch.no_grad():
        found, y = sums_of(model, layer, x), model(x)
    weight, (hessians, _) = matrix_of(model[0], model[0].weight), found[""].of_groups()
    parts = weight.view(model[0].groups, -1, weight.shape[1])
    squares = (parts @ hessians * parts).sum(2).flatten()
    assert torch.equal(squares, y.square().sum((0, 2, 3)))
    errors = []
    for calibration in (None, [x]):
        packed = copy.deepcopy(model)
        ladder.convert(packed, ttype, convolutions=True, calibration=calibration)
        errors.append((packed(x) - y).square().sum())
    assert errors[1] < errors[0]


def test_layers_run_in_turn_and_those_that_are_given_nothing_are_told():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Linear(32, 32)
            self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
            self.unused = nn.Linear(32, 32)

        def forward(self, x):
            x = self.before(x)
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    model = Net()
    order = []
    report = ladder.convert(
        model,
        "uint4",
        32,
        calibration=[torch.randn(64, 32)],
        progress=lambda n, *_: order.append(n),
    )
    assert order == ["before", "blocks.0", "blocks.1", "unused"]
    assert [name for name, each in report.errors.items() if each.unseen] == ["unused"]
