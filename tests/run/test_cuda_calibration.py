# SPDX-License-Identifier: Apache-2.0
"""Calibration on a GPU: sums of inputs, codes by a graph, a model."""

import copy

import pytest
import torch
from gpu import HALVES, MARKS
from torch import Tensor, nn

import ladder
from ladder import compensation
from ladder.nn.calibration.hessians import Hessians

pytestmark = MARKS


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_sums_of_whole_numbers_are_exact(dtype):
    torch.manual_seed(0)
    batches = [torch.randint(-8, 9, (3, 100, 192)) for _ in range(6)]
    hessians = Hessians()
    for x, before in zip(batches[::2], batches[1::2], strict=True):
        hessians.add(0, x.to("cuda", dtype), before.to("cuda", dtype))
    hessian, cross = hessians.of()
    rows = [batch.reshape(-1, 192).double() for batch in batches]
    assert hessian is not None and cross is not None
    assert hessian.dtype == cross.dtype == torch.float32
    assert torch.equal(hessian.double().cpu(), sum(x.T @ x for x in rows[::2]))
    expected = sum(y.T @ x for x, y in zip(rows[::2], rows[1::2], strict=True))
    assert torch.equal(cross.double().cpu(), expected)


# Whole blocks of columns, and a last one that is narrower.
@pytest.mark.parametrize("k", [128, 768, 800])
def test_a_graph_of_columns_gives_the_codes_of_its_kernels_one_by_one(k, monkeypatch):
    torch.manual_seed(0)
    weight, x = torch.randn(96, k, device="cuda"), torch.randn(2000, k, device="cuda")
    hessian = x.T @ x
    by_graph = ladder.quantize(weight, "uint3", group_size=32, hessian=hessian)
    made = []

    class OneByOne:
        def __init__(self, like: object, *of: Tensor) -> None:
            self.of = of
            made.append(self)

        def __call__(self, block: compensation._Block) -> tuple[Tensor, Tensor]:
            return compensation._rounded(block, *self.of)

    monkeypatch.setattr(compensation, "_Graph", OneByOne)
    one_by_one = ladder.quantize(weight, "uint3", group_size=32, hessian=hessian)
    assert bool(made) == (k > 128)
    assert torch.equal(by_graph.qweight, one_by_one.qweight)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_a_model_is_calibrated(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to("cuda", dtype)
    batches = [torch.randn(64, 16) @ torch.randn(16, 256) for _ in range(4)]
    batches = [batch.to("cuda", dtype) for batch in batches]
    dense = [model(x) for x in batches]
    calibrated, plain = copy.deepcopy(model), copy.deepcopy(model)
    report = ladder.convert(calibrated, "uint3", group_size=64, calibration=batches)
    assert all(each.error < each.nearest for each in report.errors.values())
    ladder.convert(plain, "uint3", group_size=64)
    assert _moved(calibrated, batches, dense) < _moved(plain, batches, dense)


def _moved(model: nn.Module, batches: list[Tensor], dense: list[Tensor]) -> float:
    pairs = zip(batches, dense, strict=True)
    return sum((model(x).float() - y.float()).square().sum().item() for x, y in pairs)
