# SPDX-License-Identifier: Apache-2.0
import copy

import checkpoint_oracle as oracle
import pytest
import torch
from torch import nn

import ladder
import ladder.bitblas as bitblas
from ladder import InvalidArgument
from ladder.checkpoints.modules import weight_from_module
from ladder.testing import assert_linear_close

N, K, G = 32, 128, 32


def module_of(truth, **attributes):
    module = nn.Module()
    for name, tensor in truth.tensors.items():
        module.register_buffer(name, tensor)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_a_linear_has_bitblas_buffers_and_attributes():
    layer = bitblas.Linear(
        K,
        N,
        bias=True,
        W_dtype="uint4",
        group_size=G,
        with_scaling=True,
        with_zeros=True,
        zeros_mode="quantized",
    )
    shapes = {name: (list(b.shape), b.dtype) for name, b in layer.named_buffers()}
    assert shapes == {
        "qweight": ([N, K // 2], torch.int8),
        "scales": ([N, K // G], torch.float16),
        "zeros": ([K // G, N // 2], torch.int8),
        "bias": ([N], torch.float16),
    }
    assert (layer.bits, layer.source_format, layer.consistent) == (4, "uint", False)
    assert 1 in bitblas.Linear.opt_M
    dense = bitblas.Linear(K, N)
    assert dense.consistent and dense.weight.shape == (N, K)


@pytest.mark.parametrize("W", ["int1", "int2", "int4", "int8"])
@pytest.mark.parametrize("A", ["float16", "bfloat16"])
def test_loaded_signed_weights_with_scales(W, A):
    bits, dtype = int(W[3:]), getattr(torch, A)
    low, high = (-1, 2) if bits == 1 else (-(1 << bits - 1), 1 << bits - 1)
    weight = torch.randint(low, high, (N, K), dtype=torch.int8)
    if bits == 1:
        weight = torch.where(weight > 0, 1, -1).to(torch.int8)
    layer = bitblas.Linear(
        K, N, bias=True, A_dtype=A, W_dtype=W, out_dtype=A, group_size=G, with_scaling=True
    )
    scales, bias = torch.rand(N, K // G).to(dtype), torch.randn(N).to(dtype)
    layer.load_and_transform_weight(weight, scales=scales, bias=bias)
    values = weight.float() * scales.float().repeat_interleave(G, 1)
    for shape in ((1, K), (2, 3, K)):
        x = torch.randn(shape).to(dtype)
        assert_linear_close(layer(x), x, values, bias)


def test_a_dense_linear_is_a_linear():
    layer = bitblas.Linear(
        K, N, bias=True, A_dtype="float32", W_dtype="float32", out_dtype="float32"
    )
    weight, bias, x = torch.randn(N, K), torch.randn(N), torch.randn(3, K)
    layer.load_and_transform_weight(weight, bias=bias)
    assert torch.equal(layer(x), nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("mode", ["original", "quantized"])
def test_gptq_layers_repack_to_the_weights_they_mean(form, bits, symmetric, order, mode):
    truth = oracle.gptq(N, K, bits=bits, group=G, symmetric=symmetric, form=form, order=order)
    layer = bitblas.Linear(
        K,
        N,
        W_dtype=f"uint{bits}",
        group_size=G,
        with_scaling=True,
        with_zeros=True,
        zeros_mode=mode,
    )
    repack = layer.repack_from_gptq if form == "gptq" else layer.repack_from_gptq_v2
    repack(module_of(truth))
    values = torch.from_numpy(truth.weight)
    assert torch.equal(layer.packed_weight.dequantize(), values)
    x = torch.randn(3, K).half()
    assert_linear_close(layer(x), x, values)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("mode", ["rescale"])
def test_gptq_zeros_multiplied_by_the_scale_are_rounded_once(bits, mode):
    truth = oracle.gptq(N, K, bits=bits, group=G, symmetric=False)
    layer = bitblas.Linear(
        K,
        N,
        W_dtype=f"uint{bits}",
        group_size=G,
        with_scaling=True,
        with_zeros=True,
        zeros_mode=mode,
    )
    layer.repack_from_gptq(module_of(truth))
    error = (layer.packed_weight.dequantize() - torch.from_numpy(truth.weight)).abs().max()
    # A zero is at most 2**bits, and a rounding of its product with the scale 2**-11 of that.
    assert error <= 2.0 ** (bits - 11) * truth.tensors["scales"].double().max()


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("bits", [2, 4])
def test_symmetric_gptq_fits_a_signed_weight_without_zeros(bits, order):
    truth = oracle.gptq(N, K, bits=bits, group=G, symmetric=True, order=order)
    layer = bitblas.Linear(K, N, W_dtype=f"int{bits}", group_size=G, with_scaling=True)
    layer.repack_from_gptq(module_of(truth, bits=bits, group_size=G))
    assert torch.equal(layer.packed_weight.dequantize(), torch.from_numpy(truth.weight))


def test_gptq_layers_that_do_not_fit_are_refused():
    asymmetric = module_of(oracle.gptq(N, K, symmetric=False, group=G))
    for fields, message in (
        ({"W_dtype": "int4"}, "no room"),
        ({"W_dtype": "uint3", "with_zeros": True}, "the module has 4 bits, this layer 3"),
        ({"W_dtype": "uint4", "with_zeros": True, "group_size": 64}, "groups of 32; .* 64"),
        ({"W_dtype": "nf4"}, "W_dtype is nf4; the module holds uint4"),
    ):
        layer = bitblas.Linear(K, N, **{"group_size": G, "with_scaling": True, **fields})
        with pytest.raises(InvalidArgument, match=message):
            if "3" in fields["W_dtype"]:
                asymmetric.bits = 4
            layer.repack_from_gptq(asymmetric)
    with pytest.raises(InvalidArgument, match=r"the module is \[32, 128\], not \[32, 64\]"):
        bitblas.Linear(
            64, N, W_dtype="uint4", with_zeros=True, with_scaling=True, group_size=G
        ).repack_from_gptq(asymmetric)


@pytest.mark.parametrize("symmetric", [False, True])
def test_awq_layers_repack(symmetric):
    truth = oracle.awq(N, K, group=G, symmetric=symmetric)
    layer = bitblas.Linear(
        K,
        N,
        W_dtype="uint4",
        group_size=G,
        with_scaling=True,
        with_zeros=True,
        zeros_mode="quantized",
    )
    layer.repack_from_awq(module_of(truth, w_bit=4, group_size=G))
    assert torch.equal(layer.packed_weight.dequantize(), torch.from_numpy(truth.weight))


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_ladder_linear_repacks_gptq_modules(bits, symmetric, order):
    for form in ("gptq", "gptq_v2"):
        truth = oracle.gptq(N, K, bits=bits, group=G, symmetric=symmetric, form=form, order=order)
        module = module_of(truth, bias=torch.randn(N).half())
        layer = ladder.Linear(K, N, True, f"uint{bits}", G)
        (layer.repack_from_gptq if form == "gptq" else layer.repack_from_gptq_v2)(module)
        assert torch.equal(layer.packed_weight.dequantize(), torch.from_numpy(truth.weight))
        assert torch.equal(layer.bias.half(), module.bias)


def test_ladder_linear_repacks_awq_modules():
    truth = oracle.awq(N, K, group=G)
    layer = ladder.Linear(K, N, False, "uint4", G)
    layer.repack_from_awq(module_of(truth))
    assert torch.equal(layer.packed_weight.dequantize(), torch.from_numpy(truth.weight))


def test_bits_and_groups_are_worked_out_of_the_shapes_or_asked_for():
    for bits in (2, 3, 4, 8):
        truth = oracle.gptq(N, K, bits=bits, group=-1)
        assert weight_from_module(module_of(truth), "gptq", "gptq").type.group_size == -1
        truth = oracle.gptq(N, 100, bits=bits, group=G)  # a shorter last group
        weight = weight_from_module(module_of(truth), "gptq", "gptq")
        assert (weight.type.bits, weight.type.group_size, weight.shape) == (bits, G, (N, 100))
    for version in ("gemv", "gemv_fast"):
        module = module_of(oracle.awq(N, K, group=64, version=version))
        with pytest.raises(InvalidArgument, match="no group_size"):
            weight_from_module(module, "awq", version)
        module.group_size = 64
        assert weight_from_module(module, "awq", version).shape == (N, K)
    with pytest.raises(InvalidArgument, match='family is "hqq"'):
        weight_from_module(module, "hqq", "gptq")
    with pytest.raises(InvalidArgument, match="Linear has no qweight"):
        weight_from_module(nn.Linear(2, 2), "gptq", "gptq")


def test_a_state_dict_and_a_copy_give_the_same_layer():
    truth = oracle.gptq(N, K, symmetric=False, group=G, order=True)
    fields = dict(
        W_dtype="uint4",
        A_dtype="bfloat16",
        out_dtype="bfloat16",
        group_size=G,
        with_scaling=True,
        with_zeros=True,
        zeros_mode="quantized",
    )
    layer = bitblas.Linear(K, N, **fields)
    layer.repack_from_gptq(module_of(truth))
    x = torch.randn(2, K).bfloat16()
    fresh = bitblas.Linear(K, N, **fields)
    fresh.load_state_dict(layer.state_dict())
    assert fresh.scales.dtype == torch.float16, "scales keep the bits of the checkpoint"
    assert torch.equal(fresh(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_zeros_that_change_are_unpacked_again():
    fields = dict(W_dtype="uint4", group_size=G, with_scaling=True, with_zeros=True)
    layer = bitblas.Linear(K, N, zeros_mode="quantized", out_dtype="float32", **fields)
    packed = torch.zeros(K // G, N // 2, dtype=torch.int8)
    layer.load_and_transform_weight(torch.ones(N, K), torch.ones(N, K // G), packed.clone())
    x = torch.ones(1, K).half()
    for change, wanted in (
        (lambda: None, K),
        (lambda: layer.zeros.fill_(0x11), 0),
        (lambda: layer.zeros.fill_(0x22), -K),
        (lambda: layer.load_state_dict({**layer.state_dict(), "zeros": packed}), K),
        (lambda: setattr(layer, "zeros", packed + 0x11), 0),
    ):
        change()
        assert (layer(x) == wanted).all() and (layer(x) == wanted).all()
        assert (copy.deepcopy(layer)(x) == wanted).all()
    with torch.inference_mode():
        assert (layer(x) == 0).all()


def test_parts_that_are_missing_or_misshapen_are_refused():
    layer = bitblas.Linear(K, N, W_dtype="uint4", group_size=G, with_scaling=True)
    weight, scales = torch.ones(N, K, dtype=torch.uint8), torch.ones(N, K // G).half()
    with pytest.raises(InvalidArgument, match="scales is missing"):
        layer.load_and_transform_weight(weight)
    with pytest.raises(InvalidArgument, match=r"scales has shape \[32, 1\], not \[32, 4\]"):
        layer.load_and_transform_weight(weight, scales=scales[:, :1])
    with pytest.raises(InvalidArgument, match=r"zeros has shape \[32, 4\], not None"):
        layer.load_and_transform_weight(weight, scales=scales, zeros=scales)
    with pytest.raises(InvalidArgument, match=r"weight has shape \[2, 128\]"):
        layer.load_and_transform_weight(weight[:2], scales=scales)


def test_parts_beyond_the_dtype_of_their_buffer_are_refused_and_nothing_is_taken():
    layer = bitblas.Linear(64, N, True, W_dtype="int4", with_scaling=True, group_size=64)
    weight, scales = torch.ones(N, 64), torch.full((N, 1), 7e4)
    with pytest.raises(InvalidArgument, match=r"scales has 7e\+04, beyond float16"):
        layer.load_and_transform_weight(weight, scales=scales)
    with pytest.raises(InvalidArgument, match=r"bias has 1e\+06, beyond float16"):
        layer.load_and_transform_weight(weight, scales=scales / 2, bias=torch.full((N,), -1e6))
    assert not layer.qweight.any() and not layer.scales.any()
    dense = bitblas.Linear(64, N)
    with pytest.raises(InvalidArgument, match=r"weight has 7e\+04, beyond float16"):
        dense.load_and_transform_weight(weight * 7e4)
