# SPDX-License-Identifier: Apache-2.0
"""What ladder.optimize makes of MLPs on a GPU beside layers named gate and up: a function that a
layer takes, and gate and up in one layer."""

import pytest
import torch
from drawn import exact_weight, formula, integers
from gpu import HALVES, MARKS, UINT4, launches
from test_cuda_gated import TYPES, assert_rounded_once, small
from torch import nn
from torch.nn import functional

import ladder
from ladder.ops.gating import Gating

pytestmark = MARKS
H, WIDE = 256, 104  # rows of gate and up end within a block of 64


class Plain(nn.Module):
    def __init__(self, first, down):
        super().__init__()
        self.first, self.act, self.down = first, nn.SiLU(), down

    def forward(self, x):
        return self.down(self.act(self.first(x)))


class GateFirst(Plain):
    def forward(self, x):
        gate, up = self.first(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


class UpFirst(Plain):
    def forward(self, x):
        up, gate = self.first(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


def optimized(kind, type, bias=torch.float32):
    """A model of one module whose sums are exact, and the values of its first layer."""
    rows = WIDE if kind is Plain else 2 * WIDE
    weight, down = (
        exact_weight(type, rows, H, seed=1),
        exact_weight("int8,channel,scale=float16", H, WIDE, seed=2),
    )
    first = ladder.Linear.from_weight(weight, integers((rows,), bias, 3) / 4)
    model = nn.Sequential(kind(first, ladder.Linear.from_weight(down))).cuda()
    done = ladder.optimize(model, 4, example=small((1, H), torch.float16, 0), tune="off")
    assert done.activated + done.gated == (["0.first"] if kind is Plain else ["0"])
    return model, formula(weight).cuda()


@pytest.mark.parametrize("kind", [Plain, GateFirst, UpFirst])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_what_goes_down_is_rounded_once(kind, dtype, type):
    model, values = optimized(kind, type)
    hidden, down = [], model[0].down
    down.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    for m in (1, 8, 33, 257):
        x = small((m, H), dtype, m)
        with torch.no_grad():
            bias = model[0].first.bias.double()
            model(x)
        sums = x.double() @ values.T + bias
        if kind is Plain:  # as of a gate, times an up of 1
            sums = torch.cat((sums, torch.ones_like(sums)), -1)
        elif kind is UpFirst:
            sums = sums.roll(WIDE, -1)
        assert_rounded_once(hidden.pop(), sums, Gating("silu"))


@pytest.mark.parametrize("kind", [Plain, GateFirst, UpFirst])
def test_two_launches_are_all_of_it_captured_and_compiled(kind):
    model, values = optimized(kind, UINT4, torch.float16)  # of another dtype it is converted
    state = {name: part.clone() for name, part in model.state_dict().items()}
    x = small((4, H), torch.float16, 1)
    with torch.no_grad():
        want = model(x)
        assert len(launches(lambda: model(x))) == 2
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
        assert torch.equal(y, want)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, fullgraph=True)(x), want)
        sums = x.double() @ values.T + model[0].first.bias.double()
        # A sum is exact, and rounded once.
        torch.testing.assert_close(model[0].first(x).double(), sums, rtol=2**-11, atol=2**-24)
        ladder.unoptimize(model)
        assert len(launches(lambda: model(x))) > 2
    got = model.state_dict()
    assert all(torch.equal(part, got[name]) for name, part in state.items())


def test_gradients_are_those_of_dense_layers():
    for kind in (Plain, UpFirst):
        model, values = optimized(kind, UINT4)
        bias = model[0].first.bias
        x = small((24, H), torch.bfloat16, 3)
        leaf, dense = x.clone().requires_grad_(), x.double().requires_grad_()
        model(leaf).sum().backward()
        sums = functional.linear(dense, values.double(), bias.detach().double())
        up, gate = sums.chunk(2, -1) if kind is UpFirst else (1, sums)
        down = model[0].down.dequantize().double()
        down(functional.silu(gate) * up).sum().backward()
        scale = dense.grad.abs().max()  # eight roundings to bfloat16, of values and gradients too
        assert (leaf.grad.double() - dense.grad).abs().max() <= 0.03 * scale
