# SPDX-License-Identifier: Apache-2.0
"""ladder.BatchedLinear: exact on integers."""

import copy
import pickle

import pytest
import torch
from drawn import exact_weight, formula, integers, stored_types
from torch import nn

import ladder
from ladder import InvalidArgument, Unsupported
from ladder.types import parse

B, N, K = 3, 24, 70
TYPE = "uint4,group=32,scale=float16,zero=midpoint"


def exact_batch(type=TYPE, bias=True, **more):
    """A module whose weights differ in every part, and their values [B, N, K]."""
    weights = [exact_weight(type, N, K, seed=seed, **more) for seed in range(B)]
    module = ladder.BatchedLinear(B, K, N, bias, parse(type))
    module.set_weights(weights)
    if bias:
        module.bias.data.copy_(integers((B, N), torch.float32, 9))
    return module, torch.stack([formula(weight) for weight in weights])


def wanted_of(x, values, bias):
    y = torch.einsum("...bk,bnk->...bn", x.double(), values)
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("type", stored_types())
def test_each_part_is_multiplied_by_its_own_weight(type):
    module, values = exact_batch(type)
    for shape in ((B, K), (1, B, K), (5, B, K), (2, 3, B, K), (0, B, K)):
        x = integers(shape, torch.float32)
        assert torch.equal(module(x).double(), wanted_of(x, values, module.bias))


def test_a_batch_in_front_is_a_transposed_view():
    module, values = exact_batch(bias=False)
    x = integers((B, 5, K), torch.bfloat16)
    y = module(x.transpose(0, 1)).transpose(0, 1)
    assert y.is_contiguous() and y.dtype == torch.bfloat16
    wanted = torch.bmm(x.double(), values.mT)
    assert torch.equal(y, wanted.to(torch.bfloat16))


def test_a_residual_is_added():
    module, values = exact_batch()
    for shape in ((B, K), (5, B, K), (2, 3, B, K), (0, B, K)):
        x = integers(shape, torch.float32)
        residual = integers((*shape[:-1], N), torch.float32, 5).requires_grad_()
        y = module(x, residual)
        wanted = wanted_of(x, values, module.bias) + residual.double()
        assert torch.equal(y.double(), wanted)
        y.sum().backward()
        assert torch.equal(residual.grad, torch.ones_like(residual))
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, residual), y)
    x = torch.zeros(5, B, K)
    refused = {
        r"residual has shape \[5, 3, 23\], and y \[5, 3, 24\]": x.new_zeros(5, B, N - 1),
        "residual has dtype float16, and y float32": torch.zeros(5, B, N).half(),
        "residual is on meta, and y on cpu": torch.zeros(5, B, N, device="meta"),
    }
    for message, residual in refused.items():
        with pytest.raises(InvalidArgument, match=message):
            module(x, residual)


def test_weights_may_have_their_columns_in_orders_of_their_own():
    module, values = exact_batch(act_order=True)
    x = integers((4, B, K), torch.float32)
    assert torch.equal(module(x).double(), wanted_of(x, values, module.bias))


def test_quantised_tensors_are_those_of_each_weight():
    torch.manual_seed(0)
    weight, bias = torch.randn(B, N, K), nn.Parameter(torch.randn(B, N))
    module = ladder.BatchedLinear.from_tensor(weight, bias, "uint4", 32)
    assert module.bias is bias
    for b in range(B):
        alone = ladder.quantize(weight[b], "uint4", group_size=32)
        assert torch.equal(module.dequantize()[b], alone.dequantize())
    assert module.weight_of(1).shape == (N, K)


def test_what_does_not_fit_is_refused_with_the_values():
    module, _ = exact_batch()
    with pytest.raises(InvalidArgument, match=r"x has shape \[5, 2, 70\], not \[..., 3, 70\]"):
        module(torch.zeros(5, 2, K))
    with pytest.raises(InvalidArgument, match=r"x has shape \[70\], not"):
        module(torch.zeros(K))
    with pytest.raises(InvalidArgument, match=r"weight has shape \[4, 5\], not \[B, N, K\]"):
        ladder.BatchedLinear.from_tensor(torch.zeros(4, 5))
    with pytest.raises(InvalidArgument, match=r"bias has shape \[3\], not \[2, 4\]"):
        ladder.BatchedLinear.from_tensor(torch.zeros(2, 4, 64), torch.zeros(3))
    with pytest.raises(InvalidArgument, match=r"weight\[1\]: "):
        ladder.BatchedLinear.from_tensor(
            torch.tensor([1.0, torch.nan]).view(2, 1, 1).expand(2, 8, 64)
        )
    with pytest.raises(InvalidArgument, match="batch is 0, in_features 8"):
        ladder.BatchedLinear(0, 8, 8)


def test_x_is_not_rounded():
    module, _ = exact_batch()
    with pytest.raises(Unsupported, match='not rounded to "int8"'):
        module.activation_type = "int8"
    module.activation_type = None


def test_autocast_chooses_the_dtype():
    module, values = exact_batch()
    x = integers((4, B, K), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    assert torch.equal(y, wanted_of(x, values, module.bias).to(torch.bfloat16))


def test_it_round_trips():
    module, _ = exact_batch()
    assert list(module.state_dict()) == ["bias", "qweight", "scales"]
    other = ladder.BatchedLinear(B, K, N, weight_type=TYPE)
    other.load_state_dict(module.state_dict())
    x = integers((4, B, K), torch.float32)
    for each in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(each(x), module(x))
    half = copy.deepcopy(module).to(torch.bfloat16)
    assert half.scales.dtype == torch.float16 and half.bias.dtype == torch.bfloat16
    assert "batch=3, in_features=70, out_features=24, bias=True" in repr(module)


def test_gradients_are_those_of_the_values():
    module, values = exact_batch()
    x = integers((4, B, K), torch.float32).requires_grad_()
    module(x).sum().backward()
    dense = x.detach().double().requires_grad_()
    bias = module.bias.detach().double().requires_grad_()
    wanted_of(dense, values, bias).sum().backward()
    assert torch.equal(x.grad.double(), dense.grad)
    assert torch.equal(module.bias.grad.double(), bias.grad)


def test_torch_compile_takes_it_whole():
    module, values = exact_batch()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for tokens in (1, 2, 5):
        x = integers((tokens, B, K), torch.float32)
        assert torch.equal(compiled(x).double(), wanted_of(x, values, module.bias))


def test_warmup_on_a_processor_does_nothing():
    module, _ = exact_batch()
    assert ladder.warmup(module) == {} and module.images is None
