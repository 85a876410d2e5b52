# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT merged into packed weights on a GPU, beside kernels."""

import copy
import warnings

import pytest
import torch
from gpu import MARKS
from torch import nn

import ladder
from ladder.nn.requantize import requantized

peft = pytest.importorskip("peft")

pytestmark = MARKS
TYPES = ["uint4,group=128,scale=float16,zero=midpoint", "uint3,group=64,scale=float16,zero=integer",
         "nf4,group=64,scale=float16", "mxfp4", "int8,channel,scale=float16"]  # fmt: skip


def adapted(ttype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    ladder.convert(net, ttype)
    config = peft.LoraConfig(r=4, target_modules=["0", "2"], init_lora_weights=False)
    return peft.get_peft_model(net.half().cuda(), config).eval()


def layers(model):
    return [m for m in model.modules() if isinstance(m, ladder.Linear)]


@pytest.mark.parametrize("ttype", TYPES)
@torch.no_grad()
def test_kernels_multiply_by_what_was_merged_and_by_what_was_there_again(ttype):
    model, x = adapted(ttype), torch.randn(8, 256, device="cuda", dtype=torch.float16)
    beside, before = model(x), [layer.packed_weight for layer in layers(model)]
    kernels = [layer.image is not None for layer in layers(model)]
    assert all(kernels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.merge_adapter()
        merged, after = model(x), [layer.packed_weight for layer in layers(model)]
        model.unmerge_adapter()
        assert [layer.packed_weight for layer in layers(model)] == before
        assert torch.equal(model(x), beside)
        unloaded = copy.deepcopy(model).merge_and_unload()
    assert [layer.packed_weight for layer in layers(unloaded)] == after
    assert torch.equal(unloaded(x), merged)
    with model.disable_adapter():
        without = model(x)
    assert (merged - beside).norm() < 0.5 * (without - beside).norm()


@pytest.mark.parametrize("ttype", TYPES)
def test_codes_are_those_of_the_cpu(ttype):
    torch.manual_seed(0)
    weight = ladder.quantize(torch.randn(256, 512), ttype)
    values = weight.dequantize() + 0.02 * torch.randn(256, 512)
    own, other = requantized(values, weight), requantized(values.cuda(), weight.to("cuda"))
    assert own != weight
    same = (own.codes() == other.codes().cpu()).float().mean()
    # Sums along a row come in another order, and the last code of a row may go on or stay.
    assert same > 1 - 2 / 512
    if weight.scales is not None:
        assert torch.equal(own.scales, other.scales.cpu())
