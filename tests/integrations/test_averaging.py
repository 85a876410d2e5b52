# SPDX-License-Identifier: Apache-2.0
"""torch.optim.swa_utils.AveragedModel averages what is trained, and leaves packed weights alone."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

import ladder

K = 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, K)
        self.experts = ladder.Experts.from_tensors(torch.randn(2, K, K), torch.randn(2, K, 32))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        y = self.fc(self.norm(self.conv(x)).mean((2, 3)))
        index = torch.zeros(len(y), 1, dtype=torch.int64)
        return self.experts(y, index, torch.ones(len(y), 1))


def packed():
    torch.manual_seed(0)
    model = Net()
    ladder.convert(model, "uint4", group_size=32, convolutions=True)
    return model


def dense_twin(model):
    """With the buffers and parameters that are averaged, and dense weights that stay."""
    twin = copy.deepcopy(model)
    twin.conv, twin.fc = model.conv.dequantize(), model.fc.dequantize()
    twin.experts = nn.Module()
    for layer in (twin.conv, twin.fc):
        layer.weight.requires_grad_(False)
    return twin


AVERAGES = {
    "equal": {},
    "ema": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.75)},
    "own": {"avg_fn": lambda average, given, count: 0.75 * average + 0.25 * given},
}


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("how", AVERAGES)
def test_codes_are_never_averaged_and_all_else_is(how, use_buffers):
    """They became other codes, without a word."""
    model = packed()
    twin = dense_twin(model)
    average, wanted = (
        swa_utils.AveragedModel(each, use_buffers=use_buffers, **AVERAGES[how])
        for each in (model, twin)
    )
    stored = {name: part.clone() for name, part in model.state_dict().items()}
    for step in range(4):
        with torch.no_grad():
            for each in (model, twin):
                each.norm.running_mean += step
                each.norm.num_batches_tracked += 4
                each.seen += 2 * step
                for layer in (each.conv, each.fc, each.norm):
                    layer.bias += step
        average.update_parameters(model)
        wanted.update_parameters(twin)
    assert average.n_averaged == 4
    found, twins = average.module.state_dict(), wanted.module.state_dict()
    moved = {"conv.bias", "fc.bias", "norm.bias"}
    moved |= {"norm.running_mean", "norm.num_batches_tracked", "seen"}
    for name, part in found.items():
        assert torch.equal(part, twins[name] if name in twins else stored[name]), name
        assert torch.equal(part, stored[name]) == (name not in moved), name


def test_a_weight_that_is_loaded_reaches_the_average():
    model = packed()
    average = swa_utils.AveragedModel(model)
    average.update_parameters(model)
    other = ladder.quantize(torch.randn(K, 16), model.fc.weight_type)
    model.load_state_dict({**model.state_dict(), "fc.qweight": other.qweight})
    average.update_parameters(model)
    assert torch.equal(average.module.fc.qweight, other.qweight)


def test_models_without_packed_layers_go_torchs_own_way():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    average = swa_utils.AveragedModel(model, use_buffers=True)
    for value in (1.0, 3.0):
        model[1].running_mean.fill_(value)
        average.update_parameters(model)
    assert average.module[1].running_mean.eq(2).all()
