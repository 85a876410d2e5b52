# SPDX-License-Identifier: Apache-2.0
"""Gradients of layers that have an image, whose kernels are played by torch on the CPU: those of a
dense layer, of any order, without the way through the dispatcher and Python that costs 30 us."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import ladder
from ladder.cuda import linear as image_linear

K, N, M = 32, 8, 3


@pytest.fixture
def layer(monkeypatch):
    """A layer with an image, and the dense one of the same values."""
    packed = ladder.Linear.from_linear(nn.Linear(K, N), "int4", group_size=32)
    dense = packed.dequantize()
    values = dense.weight.detach()
    library = torch.library.Library("ladder", "IMPL")

    def linear(x, image, bias, weight, n):
        return functional.linear(x, values, bias)

    for name in ("linear_image", "linear_image_no_grad"):
        library.impl(name, linear, "CPU")
    library.impl("dequantize_image", lambda image, weight, n, k, dtype: values.to(dtype), "CPU")
    packed._set_image(torch.zeros(1, dtype=torch.int32), 1)
    yield packed, dense
    library._destroy()


def drawn() -> torch.Tensor:
    return torch.randn(M, K).requires_grad_()


def gradients(layer: nn.Module, x: torch.Tensor) -> list:
    y = layer(x)
    grad = torch.arange(y.numel(), dtype=y.dtype).view_as(y)
    return list(torch.autograd.grad(y, [x, layer.bias], grad))


@pytest.mark.parametrize("shape", [(K,), (M, K), (2, M, K)])
def test_gradients_are_those_of_a_dense_layer(layer, shape):
    x = torch.randn(shape, requires_grad=True)
    for got, want in zip(*(gradients(each, x) for each in layer), strict=True):
        torch.testing.assert_close(got, want)


def test_only_what_is_asked_for_has_a_gradient(layer):
    packed, _ = layer
    x = torch.randn(M, K)
    packed(x).sum().backward()
    assert torch.equal(packed.bias.grad, torch.full((N,), float(M))) and x.grad is None
    packed.bias.requires_grad_(False)
    assert not packed(x).requires_grad
    assert packed(drawn()).requires_grad
    with torch.no_grad():
        assert not packed(drawn()).requires_grad


def test_a_gradient_of_a_gradient_is_that_of_a_dense_layer(layer):
    x = drawn()

    def penalty(each):
        (grad,) = torch.autograd.grad(each(x).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    torch.testing.assert_close(penalty(layer[0]), penalty(layer[1]))


def test_hooks_of_tensors_and_of_what_is_saved_run(layer):
    packed, _ = layer
    seen, x = [], drawn()

    def pack(tensor):
        seen.append("saved")
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = packed(x)
    y.register_hook(lambda grad: seen.append("grad"))
    y.sum().backward()
    assert seen == ["saved", "grad"]


def test_a_checkpointed_layer_runs_twice_and_has_the_same_gradients(layer):
    packed, dense = layer
    x = drawn()
    y = checkpoint(packed, x, use_reentrant=False)
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), x), torch.autograd.grad(dense(x).sum(), x)
    )


def test_no_call_of_the_registered_gradient(layer, monkeypatch):
    """Its way costs three times the kernel's host time."""

    def refuse(*_):
        raise AssertionError("the registered op was called")

    monkeypatch.setattr(image_linear, "_differentiable", refuse)
    gradients(layer[0], drawn())
    image_linear.linear_image(drawn(), layer[0].image, layer[0].bias, 1, N).sum().backward()


def test_what_the_kernel_refuses_is_an_argument_of_the_caller(layer, monkeypatch):
    def refuse(*_):
        raise ValueError("x has 3 columns; the weight has 32")

    monkeypatch.setattr(image_linear, "linear_no_grad", refuse)
    with pytest.raises(ladder.InvalidArgument, match="x has 3 columns; the weight has 32"):
        layer[0](drawn()[:, :3])
