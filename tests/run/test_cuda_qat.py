# SPDX-License-Identifier: Apache-2.0
"""ladder.qat on a GPU, whose kernels quantise to the bit as the CPU does."""

import copy

import pytest
import torch
from torch import nn

import ladder

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
TYPES = (
    "uint2,group=64,scale=float16,zero=midpoint", "uint4,group=128,scale=bfloat16,zero=integer",
    "float6_e3m2,group=128,scale=float16", "nf4,group=64,scale=float16", "mxfp4", "nvfp4",
    "ternary,channel,scale=float16",
)  # fmt: skip


def model(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 128)).to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("type", TYPES)
def test_products_see_the_values_that_are_packed(type, dtype):
    prepared, packed = model(dtype), model(dtype)
    on_cpu = copy.deepcopy(prepared).cpu()
    for each in (prepared, on_cpu):
        ladder.qat.prepare(each, type)
    ladder.convert(packed, type)
    eye = torch.eye(256, device="cuda", dtype=dtype)
    with torch.no_grad():
        prepared[0].bias.zero_()
        on_cpu[0].bias.zero_()
        values = packed[0].packed_weight.dequantize().to(dtype)
        assert torch.equal(prepared[0](eye).T, values)
        assert torch.equal(on_cpu[0](eye.cpu()).T, values.cpu())


@pytest.mark.parametrize("activation_type", [None, "int8", "float8_e4m3"])
def test_training_and_what_is_packed_agree(activation_type):
    made, dense = model(torch.bfloat16), model(torch.bfloat16)
    x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    target = dense(x).detach()
    ladder.qat.prepare(made, "uint2", 64, activation_type=activation_type)
    optimizer = torch.optim.AdamW(made.parameters(), 2e-3, weight_decay=0)
    losses = []
    for _ in range(60):
        loss = (made(x) - target).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]  # 0.2 on a CPU
    trained = made(x).detach().float()
    ladder.qat.convert(made)
    assert made[0].activation_type == activation_type
    difference = (made(x).float() - trained).abs().max() / trained.abs().max()
    assert difference < 0.02  # bfloat16, and codes of x that fall to the other side


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("type", TYPES)
def test_learned_scales_are_packed_as_products_saw_them(type, dtype):
    made = model(dtype)
    ladder.qat.prepare(made, type, learned_scales=True)
    with torch.no_grad():
        for each in ladder.qat.scale_parameters(made).values():
            each *= 1 + 0.2 * torch.randn_like(each)
        made[0].bias.zero_()
    values = made[0](torch.eye(256, device="cuda", dtype=dtype)).T
    values.square().sum().backward()
    assert all(
        each.grad.any()
        for name, each in ladder.qat.scale_parameters(made).items()
        if name[0] == "0"
    )
    ladder.qat.convert(made)
    assert torch.equal(made[0].packed_weight.dequantize().to(dtype), values)
