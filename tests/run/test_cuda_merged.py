# SPDX-License-Identifier: Apache-2.0
"""Merged layers on a GPU: one image, the numbers of the layers apart."""

import copy

import pytest
import torch
from drawn import TWO_LEVELS, exact_weight, formula, integers
from gpu import MARKS, UINT4
from torch import nn

import ladder
from ladder.nn.merged_layer import MergedLinear

pytestmark = MARKS
K, SIZES = 256, (192, 40, 64)  # a part ends within a block of 64 rows
TYPES = (
    UINT4,
    "uint3,group=64,scale=float16,zero=midpoint",
    "nf4,group=64,scale=float16",
    "mxfp4",
    TWO_LEVELS,
)


class Block(nn.Module):
    def __init__(self, type):
        super().__init__()
        weights = [exact_weight(type, n, K) for n in SIZES]
        self.q, self.k, self.v = map(ladder.Linear.from_weight, weights)
        self.values = torch.cat([formula(weight) for weight in weights]).cuda()

    def forward(self, x):
        return torch.cat((self.q(x), self.k(x), self.v(x)), -1)


def packed(type):
    """A parent whose layers can be seen to get one input."""
    return nn.Sequential(Block(type)).cuda()


def given(m):
    return integers((m, K), torch.float16).cuda()


@pytest.mark.parametrize("type", TYPES)
def test_merged_layers_are_exact(type):
    merged = packed(type)
    state = {name: part.clone() for name, part in merged.state_dict().items()}
    done = ladder.optimize(merged, (1, 8, 16), example=given(1), tune=False)
    assert done.merged == [("0.q", "0.k", "0.v")] and [*done.schedules] == ["0.q"]
    images = {layer.image.data_ptr() for layer in merged[0].children()}
    assert len(images) == 1 and all(layer.qweight is None for layer in merged[0].children())
    for m in (1, 8, 16, 17, 70):
        x = given(m)
        with torch.no_grad():
            y = merged(x)
        want = (x.double() @ merged[0].values.double().T).half()
        if m <= 16 and "nf4" not in type:
            assert torch.equal(y, want)
        ladder.testing.assert_linear_close(y, x, merged[0].values)
    for name, part in merged.state_dict().items():
        assert torch.equal(part, state[name])
    ladder.unoptimize(merged)
    assert all(each.__class__ is ladder.Linear and each.prepare() for each in merged[0].children())
    for name, part in merged.state_dict().items():
        assert torch.equal(part, state[name])


def test_layers_that_kernels_have_already_are_merged():
    merged = packed(UINT4)
    apart, x = copy.deepcopy(merged), given(8)
    ladder.warmup(merged, 8, tune=False)
    with torch.no_grad():
        want = merged(x)
        ladder.optimize(merged, 8, example=x, tune=False)
        assert all(isinstance(layer, MergedLinear) for layer in merged[0].children())
        assert torch.equal(merged(x), want)
    for name, part in merged.state_dict().items():
        assert torch.equal(part, apart.state_dict()[name])


@pytest.mark.parametrize("dependent_launch", [False, True])
def test_merged_layers_are_captured(dependent_launch):
    merged = packed(UINT4)
    ladder.optimize(merged, 8, example=given(1), tune=False, dependent_launch=dependent_launch)
    x = given(8)
    with torch.no_grad():
        merged(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = merged(x)
        for _ in range(3):
            x.copy_(given(8))
            graph.replay()
            assert torch.equal(y, merged(x))


def test_merged_layers_under_reduce_overhead_are_static_inputs_of_the_graph():
    """An image that were copied in each replay would be read before it is whole by a dependent
    launch, and would cost more than the product."""
    merged = packed(UINT4)
    ladder.optimize(merged, 8, example=given(1), tune=False)
    torch._dynamo.reset()
    compiled = torch.compile(merged, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(5):
            x = given(8)
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(x), merged(x))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x)
            torch.cuda.synchronize()
    copies = sum(event.count for event in profile.key_averages() if "Memcpy DtoD" in event.key)
    assert copies <= 1  # that of x


def test_gradients_go_through_one_product():
    merged = packed(UINT4)
    apart = copy.deepcopy(merged)
    ladder.optimize(merged, 1, example=given(1), tune=False)
    x, found = given(24), []
    for each in (apart, merged):
        leaf = x.clone().requires_grad_()
        each(leaf).sum().backward()
        found.append(leaf.grad)
    for grad in found:
        ones = torch.ones((24, sum(SIZES)), dtype=torch.half, device="cuda")
        ladder.testing.assert_linear_close(grad, ones, merged[0].values.T)
