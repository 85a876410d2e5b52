# SPDX-License-Identifier: Apache-2.0
"""The calls of BitBLAS' quick start, in its order and with its arguments, on every device here."""

import io

import pytest
import torch
from torch import nn

import ladder.bitblas as bitblas
from ladder.testing import assert_linear_close

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return request.param


def test_int4_weights_without_scales(device):
    bitblas.set_log_level("Debug")
    config = bitblas.MatmulConfig(
        M=1,
        N=1024,
        K=1024,
        A_dtype="float16",
        W_dtype="int4",
        accum_dtype="float16",
        out_dtype="float16",
        layout="nt",
        with_bias=False,
        group_size=None,
        with_scaling=False,
        with_zeros=False,
        zeros_mode=None,
    )
    matmul = bitblas.Matmul(config=config)
    x = torch.rand((1, 1024), dtype=torch.float16).to(device)
    weight = torch.randint(0, 7, (1024, 1024), dtype=torch.int8).to(device)
    output = matmul(x, matmul.transform_weight(weight))
    assert_linear_close(output.cpu(), x.cpu(), weight.cpu())


def test_uint4_weights_with_scales_and_float_zeros(device):
    k = n = 1024
    group = 128
    config = bitblas.MatmulConfig(
        M=1,
        N=n,
        K=k,
        A_dtype="float16",
        W_dtype="uint4",
        accum_dtype="float16",
        out_dtype="float16",
        layout="nt",
        with_bias=False,
        group_size=group,
        with_scaling=True,
        with_zeros=True,
        zeros_mode="original",
    )
    matmul = bitblas.Matmul(config=config)
    scaling = torch.rand((n, k // group), dtype=torch.float16).to(device)
    zeros = torch.rand((n, k // group), dtype=torch.float16).to(device)
    x = torch.rand((1, k), dtype=torch.float16).to(device)
    weight = torch.randint(0, 7, (n, k), dtype=torch.int8).to(device)
    output = matmul(x, matmul.transform_weight(weight), scale=scaling, zeros=zeros)
    spread = [part.float().repeat_interleave(group, 1) for part in (zeros, scaling)]
    values = (weight.float() - spread[0]) * spread[1]
    assert_linear_close(output.cpu(), x.cpu(), values.cpu())


def test_a_linear_is_loaded_saved_and_called(device):
    fields = dict(
        in_features=1024,
        out_features=1024,
        bias=False,
        A_dtype="float16",
        W_dtype="int4",
        accum_dtype="float16",
        out_dtype="float16",
        group_size=None,
        with_scaling=False,
        with_zeros=False,
        zeros_mode=None,
        opt_M=[1, 16, 32, 64, 128],
    )
    model = bitblas.Linear(**fields)
    weight = torch.randint(-7, 7, (1024, 1024), dtype=torch.int8)
    model.load_and_transform_weight(weight)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = bitblas.Linear(**fields)
    again.load_state_dict(torch.load(file))
    again = again.eval().to(device)
    x = torch.randn(1, 1024, dtype=torch.float16)
    assert_linear_close(again(x.to(device)).cpu(), x, weight)


def test_a_gptq_layer_is_repacked(device):
    """As AutoGPTQ packs: qweight along K, zeros - 1 along N."""
    k = n = 256
    group = 128
    _, linear, scales, codes = bitblas.quantization.gen_quant4(k, n, group)
    module = nn.Module()
    fields = (codes.to(torch.int64) + 8).view(k // 8, 8, n)
    words = (fields << (4 * torch.arange(8)).view(1, 8, 1)).sum(1)
    module.qweight = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    module.qzeros = torch.full((k // group, n // 8), 0x77777777, dtype=torch.int32)
    module.scales = scales
    module.bias = None
    layer = bitblas.Linear(
        in_features=k,
        out_features=n,
        bias=False,
        A_dtype="float16",
        W_dtype="uint4",
        accum_dtype="float16",
        out_dtype="float16",
        group_size=group,
        with_scaling=True,
        with_zeros=True,
        zeros_mode="quantized",
    )
    layer.repack_from_gptq(module)
    layer = layer.to(device)
    x = torch.rand(1, k, dtype=torch.float16, device=device)
    values = codes.t().float() * scales.t().float().repeat_interleave(group, 1)
    # What AutoGPTQ's reference layer has is the same, rounded once to float16.
    assert torch.equal(values.half(), linear.weight.detach())
    assert_linear_close(layer(x).cpu(), x.cpu(), values)


def test_ternary_weights_times_int8_activations_as_in_bitnet(device):
    config = bitblas.MatmulConfig(
        M=1, N=64, K=256, A_dtype="int8", W_dtype="int2", accum_dtype="int32", out_dtype="int32"
    )
    matmul = bitblas.Matmul(config=config, enable_tuning=False)
    weight = torch.randint(-1, 2, (64, 256), dtype=torch.int8)
    x = torch.randint(-128, 128, (1, 256), dtype=torch.int8)
    output = matmul(x.to(device), matmul.weight_transform(weight + 2).to(device))
    assert torch.equal(output.cpu(), x.int() @ weight.int().t())
