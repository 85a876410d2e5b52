# SPDX-License-Identifier: Apache-2.0
"""The torch implementation for other devices gives what the C++ one gives."""

import subprocess
import sys

import pytest
import torch
from drawn import KINDS, TWO_LEVELS, exact_weight, grouped, integers, whole
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ladder
from ladder.ops import fallback
from ladder.types import parse, type_names


def parts(w):
    return w.scales, w.zeros, w.scale2, w.g_idx, str(w.type)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("k", [1, 7, 32, 33, 95])
def test_packing_is_the_same_words(bits, k, monkeypatch):
    codes = torch.randint(0, 1 << bits, (3, k), dtype=torch.uint8)
    words = ladder.ops.pack(codes, bits)
    for most in (1 << 26, 2 * k * bits, 1):  # all rows at a time, two, one
        monkeypatch.setattr(fallback, "_MOST_BITS", most)
        assert torch.equal(fallback.pack(codes, bits), words)
    assert torch.equal(fallback.unpack(words, k, bits), codes)


def test_a_code_that_does_not_fit_is_refused():
    with pytest.raises(ladder.InvalidArgument, match="code 4 does not fit 2 bits"):
        fallback.pack(torch.tensor([[4]], dtype=torch.uint8), 2)
    with pytest.raises(ladder.InvalidArgument, match="not uint8 and 2"):
        fallback.pack(torch.tensor([4]), 2)


@pytest.mark.parametrize("name", type_names())
def test_every_type_has_the_same_values_bit_for_bit(name):
    k = whole(name, 70)
    w = ladder.quantize(torch.randn(24, k), grouped(name), method="nearest")
    assert torch.equal(fallback.dequantize(w.qweight, *parts(w), k), w.dequantize())


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("type", KINDS)
def test_every_kind_of_metadata_has_the_same_values_and_products(type, act_order):
    w = exact_weight(type, 24, 70, act_order=act_order)
    assert torch.equal(fallback.dequantize(w.qweight, *parts(w), 70), w.dequantize())
    x, bias = integers((3, 70), torch.float32), integers((24,), torch.float32)
    scales, zeros, scale2, g_idx, text = parts(w)
    y = fallback.linear(x, w.qweight, scales, zeros, scale2, g_idx, bias, text)
    assert torch.equal(y, w.linear(x, bias))


@pytest.mark.parametrize("n, k", [(0, 64), (3, 0)])
@pytest.mark.parametrize("type", [t for t in KINDS if parse(t).rows == 1])
def test_nothing_has_no_values(type, n, k):
    """As of an embedding that is asked for no rows."""
    ttype = parse(type)

    def part(shape, dtype):
        return None if shape is None or dtype is None else torch.ones(shape, dtype=dtype)

    empty = (
        torch.zeros(n, ttype.words(k), dtype=torch.int32),
        part((ttype.block_rows(n), ttype.groups(k)), ttype.scale_dtype),
        part(ttype.zeros_shape(n, k), ttype.zeros_dtype),
        part(ttype.scale2_shape(n, k), ttype.scale2_dtype),
    )
    assert fallback.dequantize(*empty, None, type, k).shape == (n, k)
    assert torch.ops.ladder.dequantize(*empty, None, type, k).shape == (n, k)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("k", [7, 8])
def test_wide_types_have_the_same_values(name, k):
    w = ladder.quantize(torch.randn(3, k), name)
    assert torch.equal(fallback.dequantize(w.qweight, *parts(w), k), w.dequantize())


class AppleGpu(TorchDispatchMode):
    """Meta tensors stand for those of MPS, which has neither float64 nor floats of 8 bits."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor) and each.is_meta:
                assert each.dtype.itemsize < 8 or not each.is_floating_point(), func
                assert "float8" not in str(each.dtype), func
        return out


@pytest.mark.parametrize("name", [*type_names(), *KINDS])
def test_apple_s_gpus_have_the_numbers_that_every_type_needs(name):
    k = 70 if name in KINDS else whole(name, 70)
    if name in KINDS:
        w = exact_weight(name, 24, k, act_order=True)
    else:
        w = ladder.quantize(torch.randn(24, k), grouped(name), method="nearest")
    qweight, scales, zeros, scale2, g_idx = (
        None if part is None else part.to("meta") for part in (w.qweight, *parts(w)[:4])
    )
    x = torch.empty(3, k, dtype=torch.float16, device="meta")
    with AppleGpu():
        y = fallback.linear(x, qweight, scales, zeros, scale2, g_idx, None, str(w.type))
    assert y.is_meta and y.dtype == torch.float16
    with AppleGpu(), pytest.raises(AssertionError):
        x.double()


@pytest.mark.parametrize("type", ["nvfp4", TWO_LEVELS])
def test_quantising_gives_the_same_parts(type):
    weight = torch.randn(8, 64)
    for got, want in zip(
        fallback.quantize(weight, type, True),
        torch.ops.ladder.quantize(weight, type, True),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_a_k_that_does_not_fit_is_refused():
    w = exact_weight("uint4", 8, 64)
    with pytest.raises(ladder.InvalidArgument, match="qweight has 8 words a row; 65 columns"):
        fallback.linear(torch.randn(1, 65), w.qweight, *parts(w)[:4], None, "uint4")


def test_what_is_no_activation_is_refused():
    w, x = exact_weight("uint4", 8, 64), torch.ones(1, 64, dtype=torch.int32)
    with pytest.raises(ladder.InvalidArgument, match="x has dtype int32, not float32, float16 or"):
        fallback.linear(x, w.qweight, *parts(w)[:4], None, "uint4")


#: In a process of its own: the kernels of CUDA, XPU and MPS, which are torch's ops on any tensor,
#: called on tensors of the CPU.
EVERY_FALLBACK = """
import sys, torch, ladder
from torch._C import DispatchKey, DispatchKeySet

def call(op, key, *arguments):
    return op.default.redispatch(DispatchKeySet(getattr(DispatchKey, key)), *arguments)

ops, codes = torch.ops.ladder, torch.ones(2, 64, dtype=torch.uint8)
w = ladder.quantize(torch.randn(2, 64), "uint4,group=32,scale=float16,zero=midpoint")
parts = w.scales, None, None, None
for key in ("CUDA", "XPU", "MPS"):
    words = call(ops.pack, key, codes, 4)
    assert call(ops.unpack, key, words, 64, 4).equal(codes)
    call(ops.dequantize, key, w.qweight, *parts, str(w.type), 64)
    call(ops.linear, key, torch.randn(1, 64), w.qweight, *parts, None, str(w.type))
call(ops.quantize, "XPU", torch.randn(2, 64), "mxfp4", True)
ladder.quantize(torch.randn(2, 64, device="meta"), "mxfp4")
layer = ladder.Linear(64, 8)
layer(torch.randn(2, 64)).sum().backward()
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""


def test_no_op_imports_the_compiler_of_torch():
    """Which takes seconds."""
    command = [sys.executable, "-c", EVERY_FALLBACK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
