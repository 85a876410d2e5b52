# SPDX-License-Identifier: Apache-2.0
"""torch.utils.flop_counter counts of packed layers what it counts of dense ones."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ladder

K, N = 64, 96
OPS = torch.ops.ladder


def flops(call, *arguments, backward=False):
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        y = call(*(x.clone().requires_grad_(backward) for x in arguments))
        if backward:
            y.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("activation_type", [None, "int8"])
def test_linear_layers_count_as_dense_ones(activation_type, backward):
    dense = nn.Linear(K, N).requires_grad_(False)
    packed = ladder.Linear.from_linear(dense, "uint3", activation_type=activation_type)
    x = torch.randn(2, 5, K)
    want = flops(dense, x, backward=backward)
    assert want == 2 * 10 * K * N * (2 if backward else 1)
    assert flops(packed, x, backward=backward) == want
    assert flops(packed, x, torch.randn(2, 5, N), backward=backward) == want


@pytest.mark.parametrize("backward", [False, True])
def test_gated_mlps_and_convolutions_count_as_dense_ones(backward):
    mlp = ladder.GatedMLP(K, N, group_size=16)
    x = torch.randn(5, K)
    assert flops(mlp, x, backward=backward) == 3 * 2 * 5 * K * N * (2 if backward else 1)
    dense = nn.Conv2d(16, 32, 3, groups=2).requires_grad_(False)
    image = torch.randn(2, 16, 9, 9)
    packed = ladder.Conv2d.from_float(dense, "uint4", group_size=16)
    assert flops(packed, image, backward=backward) == flops(dense, image, backward=backward)


def test_batches_and_experts_count_the_products_that_they_make():
    batched = ladder.BatchedLinear.from_tensor(torch.randn(3, N, K), None, "uint4", 16)
    assert flops(batched, torch.randn(5, 3, K)) == 3 * 2 * 5 * K * N
    experts = ladder.Experts.from_tensors(
        torch.randn(4, 2 * N, K), torch.randn(4, K, N), weight_type="uint4", group_size=16
    )
    index, weights = torch.randint(4, (5, 2)), torch.rand(5, 2)
    assert flops(lambda x: experts(x, index, weights), torch.randn(5, K)) == 10 * 3 * 2 * K * N


@pytest.mark.parametrize(
    "name,others,products",
    [
        ("linear_image", (None, 0, N), 1),
        ("linear_image_no_grad", (None, 0, N), 1),
        ("linear_then", (None, 0, N, "gate", "silu", 0.0, 0.0), 2),
        ("linear_then", (None, 0, N, "activation", "gelu", 0.0, 0.0), 1),
        ("linear_prepacked", (None, "uint4,group=64,scale=float16", N), 1),
        ("linear_prepacked", (None, "uint4,group=64,scale=float16", N, False, "", None, "silu"), 2),
    ],
)
def test_launches_on_images_count_their_sums(name, others, products):
    """As GPUs are asked for them; on the meta device, which computes nothing."""
    x, image = (torch.empty(size, device="meta") for size in ((5, K), (N, K)))
    first = (x, None, image) if name == "linear_then" else (x, image)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        getattr(OPS, name)(*first, *others)
    assert counter.get_total_flops() == products * 2 * 5 * K * N


def test_experts_and_convolutions_of_images_count_theirs():
    meta = {"device": "meta"}
    x, kernel = torch.empty(2, 9, 9, 16, **meta), [3, 3]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        y = OPS.conv2d(x, torch.empty(1, **meta), None, 0, 32, kernel, [1, 1], [0, 0], [1, 1], 2)
    assert y.shape == (2, 7, 7, 32)
    assert counter.get_total_flops() == 2 * y.numel() * 8 * 9
    rows, index = torch.empty(5, K, **meta), torch.empty(5, 2, dtype=torch.int64, **meta)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        OPS.experts(
            rows, index, torch.empty(5, 2, **meta), rows, None, rows, None, [0, 2 * N], [0, K],
            "silu", 0.0, 0.0, "",
        )  # fmt: skip
    assert counter.get_total_flops() == 10 * 3 * 2 * K * N
