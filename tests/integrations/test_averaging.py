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


class Wrapped(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def test_a_model_that_is_wrapped_since_gives_each_layer_its_own_weight():
    """As DistributedDataParallel does: the modules of both are one place apart."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(K, K) for _ in range(3)))
    ladder.convert(model, "uint4", group_size=32)
    average = swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(2):
        average.update_parameters(Wrapped(model))
    x = torch.randn(2, K)
    assert torch.equal(average(x), model(x))


class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(K, K), nn.GELU(), nn.Linear(K, K)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


def test_buffers_that_an_optimized_module_holds_beside_its_layers_are_averaged():
    torch.manual_seed(0)
    model = Held()
    ladder.convert(model, "uint4", group_size=32)
    assert ladder.optimize(model).activated == ["fc1"]
    average = swa_utils.AveragedModel(model, use_buffers=True)
    for seen in (1.0, 3.0):
        model.seen.fill_(seen)
        average.update_parameters(model)
    x = torch.randn(2, K)
    assert average.module.seen == 2 and torch.equal(average(x), model(x))


def test_models_without_packed_layers_go_torchs_own_way():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    average = swa_utils.AveragedModel(model, use_buffers=True)
    for value in (1.0, 3.0):
        model[1].running_mean.fill_(value)
        average.update_parameters(model)
    assert average.module[1].running_mean.eq(2).all()


def test_codes_of_bitblas_layers_are_not_averaged():
    from ladder import bitblas

    layer = bitblas.Linear(K, 32, W_dtype="int4", enable_tuning=False)
    layer.qweight.random_(-128, 127, generator=torch.Generator().manual_seed(0))
    more = {"avg_fn": lambda average, given, count: average + 1}
    average = swa_utils.AveragedModel(layer, use_buffers=True, **more)
    for _ in range(3):
        average.update_parameters(layer)
    assert torch.equal(average.module.qweight, layer.qweight)
