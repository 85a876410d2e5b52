# SPDX-License-Identifier: Apache-2.0
"""``ladder.Linear.weight`` answers what it is, and never stands in for numbers that it lacks."""

import copy
import pickle

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

import ladder

N, K = 32, 64


@pytest.fixture(scope="module")
def layer():
    torch.manual_seed(0)
    return ladder.Linear.from_linear(nn.Linear(K, N, dtype=torch.bfloat16), "uint4", 32)


@pytest.fixture(scope="module")
def x():
    return torch.ones(2, K, dtype=torch.bfloat16)


def test_it_answers_what_a_dense_weight_would(layer):
    weight, dense = layer.weight, layer.dequantize().weight.detach()
    assert isinstance(weight, Tensor) and not isinstance(weight, nn.Parameter)
    for name in (
        *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "is_cuda", "is_meta"),
        *("requires_grad", "is_leaf", "grad", "is_sparse", "is_quantized"),
    ):
        assert getattr(weight, name) == getattr(dense, name), name
    for name in (
        *("size", "dim", "numel", "nelement", "element_size", "stride", "is_contiguous", "type"),
        *("is_floating_point", "is_complex", "get_device", "storage_offset", "__len__"),
    ):
        assert getattr(weight, name)() == getattr(dense, name)(), name
    assert weight.size(-1) == K and torch.is_floating_point(weight) and torch.numel(weight) == N * K
    assert not hasattr(weight, "CB") and not weight.requires_grad_(False).requires_grad
    assert weight.data.dtype == weight.detach().dtype == torch.bfloat16
    text = "WeightMetadata([32, 64], dtype=torch.bfloat16, device='cpu')"
    assert repr(weight) == str(weight) == f"{weight}" == text
    assert ladder.Linear(K, N, device="meta").weight.is_meta


def test_it_takes_that_it_does_not_train_and_refuses_that_it_does(layer):
    """PEFT's AdaLoRA freezes the weight so."""
    weight = layer.weight
    weight.requires_grad = False
    assert not weight.requires_grad
    with pytest.raises(ladder.Unsupported, match="the weight is packed"):
        weight.requires_grad = True


def test_tensors_of_its_shape_and_dtype_can_be_made(layer):
    weight = layer.weight
    made = torch.zeros_like(weight)
    assert type(made) is Tensor and made.is_contiguous() and not made.any()
    assert (made.shape, made.dtype) == ((N, K), torch.bfloat16)
    assert torch.empty_like(weight, dtype=torch.float32, device="meta").dtype == torch.float32
    assert weight.new_ones(3).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "use",
    [
        lambda x, w: functional.linear(x, w, torch.ones(N, dtype=x.dtype)),
        lambda x, w: x @ w.T,
        lambda x, w: x @ w.t(),
        lambda x, w: torch.ops.aten.linear(x, w),
        lambda x, w: functional.embedding(torch.tensor([1]), w),
        lambda x, w: w + 1,
        lambda x, w: 1 - w,
        lambda x, w: w == w,
        lambda x, w: w[0],
        lambda x, w: w.to(torch.float32),
        lambda x, w: w.type(torch.float32),
        lambda x, w: w.float(),
        lambda x, w: w.cpu(),
        lambda x, w: w.clone(),
        lambda x, w: w.view(-1),
        lambda x, w: w.abs().max(),
        lambda x, w: torch.stack([w, w]),
        lambda x, w: torch.zeros(N, K).copy_(w),
        lambda x, w: w.tolist(),
        lambda x, w: list(w),
        lambda x, w: w.numpy(),
        lambda x, w: numpy.asarray(w),
        lambda x, w: w.data_ptr(),
        lambda x, w: w.untyped_storage(),
        lambda x, w: nn.init.zeros_(w),
        lambda x, w: w.data.copy_(torch.zeros(N, K)),
        lambda x, w: setattr(w, "data", torch.zeros(N, K)),
        lambda x, w: setattr(w, "requires_grad", True),
        lambda x, w: w.requires_grad_(),
        lambda x, w: nn.Parameter(w),
        lambda x, w: copy.deepcopy(w),
        lambda x, w: pickle.dumps(w),
        lambda x, w: ladder.quantize(w),
    ],
)
def test_computing_with_it_is_an_error_that_says_what_to_do(layer, x, use):
    with pytest.raises(ladder.Unsupported, match=r"no elements.*layer\.dequantize\(\)"):
        use(x, layer.weight)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: prune.random_structured(layer, "weight", 0.5, dim=0),
        lambda layer: prune.identity(layer, "weight"),
    ],
)
def test_pruning_is_refused_by_name_and_leaves_the_layer_as_it_was(layer, x, change):
    before, parameters = layer(x), dict(layer.named_parameters())
    with pytest.raises(ladder.Unsupported, match=r"weight is packed.*prune the dense layer"):
        change(layer)
    assert dict(layer.named_parameters()).keys() == parameters.keys()
    assert torch.equal(layer(x), before) and not layer._forward_pre_hooks


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_may_ask_and_may_not_compute(layer, x, backend):
    def ask(x):
        weight = layer.weight
        return layer(x.to(weight.device, weight.dtype)) * weight.shape[0]

    compiled = torch.compile(ask, fullgraph=True, backend=backend)
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x) * N)
        compute = torch.compile(lambda x: functional.linear(x, layer.weight), backend=backend)
        with pytest.raises(ladder.Unsupported, match="no elements"):
            compute(x)


def test_fake_tensors_ask_as_well(layer):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        weight = ladder.Linear(K, N, dtype=torch.float16).weight
        assert (weight.shape, weight.dtype) == ((N, K), torch.float16)


def test_an_exported_program_may_ask(layer, x):
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x.to(self.layer.weight.dtype))

    program = torch.export.export(Asks(), (x.float(),)).run_decompositions()
    assert "weight_metadata" not in program.graph_module.code
    assert torch.equal(program.module()(x.float()), layer(x))


def test_a_packed_layer_is_not_quantised_again_from_nothing(layer):
    with pytest.raises(ladder.InvalidArgument, match=r"is packed already.*dequantize\(\)"):
        ladder.Linear.from_linear(layer, "uint4", 32)
    with pytest.raises(ladder.InvalidArgument, match="linear is of Embedding, not nn.Linear"):
        ladder.Linear.from_linear(nn.Embedding(N, K))
    assert ladder.Linear.from_linear(layer.dequantize()).packed_weight.dequantize().any()
