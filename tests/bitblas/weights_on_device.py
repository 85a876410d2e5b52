# SPDX-License-Identifier: Apache-2.0
"""A device of the test for ladder.bitblas: an "image" is the values of the weight when it was
packed, and the kernel multiplies by those. An image that is out of date gives another number."""

from types import SimpleNamespace

import pytest
import torch

import ladder
import ladder.bitblas as bitblas
import ladder.bitblas.images
import ladder.bitblas.matmul
from ladder.ops import activations
from ladder.ops.codes import CODE_DTYPES

N, K, G = 16, 64, 32


@pytest.fixture
def device(monkeypatch):
    """What was asked of it."""
    torch.manual_seed(0)
    asked = SimpleNamespace(packed=0, multiplied=0, waited=0, objection="", capturing=False,
                            unloadable="", failure="", of_codes=[])  # fmt: skip

    def pack(weight, number, order):
        asked.packed += 1
        return weight.dequantize().clone()

    def linear_image(x, words, bias, number, n):
        assert words.shape == (n, x.shape[-1])
        asked.multiplied += 1
        return torch.nn.functional.linear(x, words.to(x.dtype), bias)

    def number_for_codes(type, n, k, device, dtype):
        objection = activations.objection(CODE_DTYPES[dtype], ladder.ttype(type), k, "cuda")
        return None if objection else 1 + list(CODE_DTYPES).index(dtype)

    def linear_codes_image(x, scale, words, bias, ttype, n, *, plain, number, out_dtype):
        assert number == 1 + list(CODE_DTYPES).index(x.dtype) and scale is None
        asked.of_codes.append(out_dtype)
        assert bias is None
        y = x.double() @ words.double().T
        return (y if bias is None else y + bias.double()).to(out_dtype)

    images, matmul = ladder.bitblas.images, ladder.bitblas.matmul
    monkeypatch.setattr(images, "number_for_codes", number_for_codes)
    monkeypatch.setattr(matmul, "linear_codes_image", linear_codes_image)
    real = images.on_gpu
    monkeypatch.setattr(matmul, "on_gpu", lambda x: real(SimpleNamespace(is_cuda=True)))
    monkeypatch.setattr(matmul, "linear_image", linear_image)
    monkeypatch.setattr(images.images, "pack", pack)
    monkeypatch.setattr(images.kernels, "objection", lambda *_: asked.objection)
    monkeypatch.setattr(images.kernels, "load_transforms", lambda *_: asked.unloadable)
    monkeypatch.setattr(images.kernels, "failure", lambda _: asked.failure)
    monkeypatch.setattr(images, "_capturing", lambda: asked.capturing)
    monkeypatch.setattr(images, "_wait", lambda _: setattr(asked, "waited", asked.waited + 1))
    return asked


def operator(**fields):
    given = {"N": N, "K": K, "W_dtype": "uint4", "group_size": G, "with_scaling": True, **fields}
    return bitblas.Matmul(bitblas.MatmulConfig(**given))


def parts_of(matmul, dtype=torch.float16):
    """Arguments of a call, by name."""
    k = matmul.K
    codes = torch.randint(0, 1 << matmul.bit, (N, k), dtype=torch.uint8)
    parts = {"W": matmul.weight_transform(codes)}
    if matmul.with_scaling:
        parts["scale"] = (torch.rand(N, k // G) + 0.5).to(dtype)
    if matmul.with_zeros and matmul.zeros_mode == "quantized":
        parts["zeros"] = torch.randint(-128, 128, (k // G, N * matmul.bit // 8), dtype=torch.int8)
    elif matmul.with_zeros:
        parts["zeros"] = torch.randint(0, 8, (N, k // G)).to(dtype)
    return parts


def right(matmul, x, parts, bias=None):
    """By the values that the tensors have now."""
    parts = dict(parts)
    weight = matmul.packed_weight(parts.pop("W"), **parts).dequantize()
    y = torch.nn.functional.linear(x, weight.to(x.dtype), bias)
    return y.to(matmul.torch_output_dtype)
