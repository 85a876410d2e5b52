# SPDX-License-Identifier: Apache-2.0
"""Gate and up that have an image, whose kernels are played by torch on the CPU: rows and biases in
turn, gradients, and what kernels do not take."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import ladder
from ladder.cuda import image
from ladder.cuda.epilogue import in_turn
from ladder.nn.gated import GatedWeight
from ladder.ops.gating import Gating

H, WIDE, M = 32, 24, 3
GATINGS = (Gating("silu"), Gating("gelu_pytorch_tanh"), Gating("swigluoai", 7.0))


def made(gating, bias):
    torch.manual_seed(0)
    layers = [ladder.Linear.from_linear(nn.Linear(k, n, bias), "int4", group_size=8)
              for k, n in ((H, WIDE), (H, WIDE), (WIDE, H))]  # fmt: skip
    return ladder.GatedMLP.from_layers(*layers, gating=gating)


class Machine:
    """Kernels of one weight of gate and up, by the values that an image would have."""

    def __init__(self, gate, up):
        values = torch.cat([layer.dequantize().weight.detach() for layer in (gate, up)])
        self.values = values[image.gate_rows(2 * WIDE, values.device)]
        self.calls = []
        self.library = torch.library.Library("ladder", "IMPL")
        for name in ("linear_image", "linear_image_no_grad"):
            self.library.impl(name, self.linear, "CPU")
        self.library.impl("dequantize_image", self.dequantize, "CPU")
        self.library.impl("linear_then", self.gated, "CPU")

    def linear(self, x, image, bias, weight, n):
        assert n == WIDE and weight == self.number
        assert x.dtype != torch.float32  # no kernel multiplies it
        self.calls.append(n)
        sums = functional.linear(x, self.values.to(x.dtype), bias)
        return self.gating.of_sums(sums.double()).to(x.dtype)

    def gated(self, x, x_scale, image, bias, weight, n, kind, function, limit, alpha):
        assert kind == "gate"
        assert Gating(function, limit, alpha).least_limit == self.gating.least_limit
        return self.linear(x, image, bias, weight, n)

    def dequantize(self, image, weight, n, k, dtype):
        assert (n, k) == (2 * WIDE, H)
        return self.values.to(dtype)


@pytest.fixture
def machine(request):
    """An MLP whose weight of gate and up has an image, and the same of three layers."""
    gating, bias = request.param
    module, apart = made(gating, bias), made(gating, bias)
    machine = Machine(apart.gate_proj, apart.up_proj)
    machine.gating, type = gating, str(module.gate_proj.weight_type)
    machine.number = image.open_weight(type, 2 * WIDE, H, gating=gating)
    weight = GatedWeight(module, module.form)
    weight.linear._set_image(torch.zeros(1, dtype=torch.int32), machine.number)
    yield machine, module, apart
    machine.library._destroy()


EACH = pytest.mark.parametrize(
    "machine", [(gating, bias) for gating in GATINGS for bias in (False, True)], indirect=True,
    ids=lambda given: f"{given[0]}{' biased' if given[1] else ''}",
)  # fmt: skip
BIASED = pytest.mark.parametrize("machine", [(GATINGS[0], True)], indirect=True)


def close(got, want, dtype):
    """As far as x, values, sums, their product and y are each rounded to ``dtype``; where the sums
    of ``down`` cancel, of numbers below 1, by float16's step."""
    rtol, atol = 8 * torch.finfo(dtype).eps, torch.finfo(torch.half).eps
    torch.testing.assert_close(got, want.to(got.dtype), rtol=rtol, atol=atol)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_call_gives_the_gated_product(machine, dtype):
    machine, module, apart = machine
    x = torch.randn(2, M, H)
    with torch.no_grad():
        close(module(x.to(dtype)), apart(x), dtype)
    assert machine.calls == [WIDE]


@EACH
def test_float32_goes_by_the_values_of_the_weight(machine):
    machine, module, apart = machine
    x = torch.randn(M, H)
    torch.testing.assert_close(module(x), apart(x))
    assert not machine.calls


@EACH
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_three_layers(machine, compiled):
    machine, module, apart = machine
    dtype, found = torch.bfloat16, []
    torch._dynamo.reset()
    run = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
    for each, call in ((module, run), (apart, apart)):
        x = torch.randn(M, H, generator=torch.Generator().manual_seed(1)).to(dtype)
        x.requires_grad_()
        call(x).float().square().sum().backward()
        biases = [layer.bias for layer in each.children() if layer.bias is not None]
        found.append([x.grad, *(bias.grad for bias in biases)])
    assert len(machine.calls) == 1
    for got, want in zip(*found, strict=True):
        scale = want.abs().max()  # both round to bfloat16, at other places
        torch.testing.assert_close(got, want, rtol=0, atol=float(scale) * 8 * 2.0**-8)


@BIASED
def test_biases_are_brought_in_turn_once_until_they_change(machine, monkeypatch):
    machine, module, apart = machine
    turned = []
    monkeypatch.setattr("ladder.nn.gated.in_turn", lambda *args: turned.append(0) or in_turn(*args))
    x = torch.randn(M, H)
    for _ in range(3):
        with torch.no_grad():
            close(module(x.half()), apart(x), torch.half)
    assert len(turned) == 1
    for each in (module, apart):
        each.requires_grad_(False).up_proj.bias.add_(1)
    close(module(x.half()), apart(x), torch.half)
    assert len(turned) == 2


@BIASED
def test_under_transforms_and_compiled_without_gradients(machine):
    machine, module, apart = machine
    x = torch.randn(M, H)
    _, got = torch.func.jvp(module, (x,), (x,))
    _, want = torch.func.jvp(apart, (x,), (x,))
    torch.testing.assert_close(got, want)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        close(compiled(x.half()), apart(x), torch.half)
    assert machine.calls == [WIDE]


@BIASED
def test_the_order_of_rows_and_biases_is_one(machine):
    bias = torch.arange(2.0 * WIDE)
    assert torch.equal(in_turn(bias), bias[image.gate_rows(2 * WIDE, bias.device)])


@BIASED
def test_a_trace_that_asks_for_the_sums_is_refused_by_name(machine):
    _, module, _ = machine
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: module.up_proj(x), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="call ladder.unoptimize"):
        compiled(torch.randn(M, H).half())
