# SPDX-License-Identifier: Apache-2.0
"""Layers that take the activation function behind them (ladder/nn/activated.py) and have an image,
whose kernels torch plays on the CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import ladder
from ladder.cuda import image

K, N, M = 64, 40, 3
HALF = torch.finfo(torch.half).eps


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(K, N), nn.GELU()

    def forward(self, x):
        x = self.fc(x)
        x = self.act(x)
        return x


@pytest.fixture
def played():
    """A module whose layer has an image, the same without, and the numbers that kernels have."""
    torch.manual_seed(0)
    model = nn.Sequential(Plain())
    ladder.convert(model, "uint4", group_size=16)
    module, apart = model[0], Plain()
    apart.fc = module.fc.dequantize()
    assert ladder.optimize(model, example=torch.randn(M, K)).activated == ["0.fc"]
    layer, values = module.fc, apart.fc.weight.detach()
    type = str(layer.weight_type)
    plain, gelu = (image.open_weight(type, N, K, function=name) for name in ("", "gelu"))
    calls, library = [], torch.library.Library("ladder", "IMPL")

    def kernel(x, image, bias, weight, n, *step):
        assert n == N
        calls.append(weight)
        sums = functional.linear(x, values.to(x.dtype), bias).double()
        return (functional.gelu(sums) if weight == gelu else sums).to(x.dtype)

    def then(x, x_scale, image, bias, weight, n, step, function, limit, alpha):
        assert (step, function, weight) == ("activation", "gelu", gelu)
        return kernel(x, image, bias, weight, n)

    for name in ("linear_image", "linear_image_no_grad"):
        library.impl(name, kernel, "CPU")
    library.impl("linear_then", then, "CPU")
    library.impl("dequantize_image", lambda image, weight, n, k, dtype: values.to(dtype), "CPU")
    layer._set_image(torch.zeros(1, dtype=torch.int32), plain)
    yield model, apart, calls, plain, gelu
    library._destroy()


@pytest.mark.parametrize("compiled", [False, True])
def test_the_kernel_of_the_function_is_called_and_no_other(played, compiled):
    model, apart, calls, plain, gelu = played
    torch._dynamo.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    x = torch.randn(M, K).half()
    with torch.no_grad():
        want = apart(x.float())
        # Values, sums and y are rounded to float16.
        torch.testing.assert_close(run(x).float(), want, rtol=2 * HALF, atol=2 * HALF)
        assert calls == [gelu]
        if not compiled:  # one image: the sums are there, too
            sums = apart.fc(x.float())
            torch.testing.assert_close(model[0].fc(x).float(), sums, rtol=2 * HALF, atol=2 * HALF)
            assert calls == [gelu, plain]
            ladder.unoptimize(model)
            torch.testing.assert_close(model(x).float(), want, rtol=2 * HALF, atol=2 * HALF)
            assert calls == [gelu, plain, plain]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_two_modules(played, compiled):
    model, apart, calls, _, gelu = played
    torch._dynamo.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    found = []
    for call, bias in ((run, model[0].fc.bias), (apart, apart.fc.bias)):
        leaf = torch.linspace(-2, 2, M * K).view(M, K).to(torch.half if call is run else None)
        leaf = leaf.requires_grad_()
        call(leaf).float().square().sum().backward()
        found.append((leaf.grad.float(), bias.grad))
    for got, want in zip(*found, strict=True):
        # Sums and gradients on their way are rounded to float16, and are sums of 40 numbers or 3.
        torch.testing.assert_close(got, want, rtol=0, atol=float(want.abs().max()) * 16 * HALF)
    assert calls == [gelu]


def test_what_is_warmed_up_is_the_kernel_that_calls_take(played):
    model, _, _, plain, gelu = played
    layer = model[0].fc
    assert layer.kernel_request(torch.half, [1]).weight == gelu != plain
    layer.activation = "relu"
    relu = image.open_weight(str(layer.weight_type), N, K, function="relu")
    assert layer.kernel_request(torch.half, [1]).weight == relu
    layer.activation = None
    assert layer.kernel_request(torch.half, [1]).weight == gelu
    layer.dependent_launch = True  # another weight number, of which the function has one, too
    assert layer.kernel_request(torch.half, [1]).weight not in (plain, gelu, relu)
    layer.dependent_launch = False
    ladder.unoptimize(model)
    assert layer.kernel_request(torch.half, [1]).weight == plain
    assert "_numbers" not in layer.__dict__


def test_float32_goes_by_the_values_of_the_weight(played):
    model, apart, calls, _, _ = played
    x = torch.randn(M, K)
    torch.testing.assert_close(model(x), apart(x))
    assert not calls
