# SPDX-License-Identifier: Apache-2.0
"""Products of gate and up where their sums are made, on a GPU: as far from right as rounding once
leaves them."""

import math

import pytest
import torch
from drawn import TWO_LEVELS, exact_weight, formula, integers
from gpu import E4M3, HALVES, MARKS
from rounded import weight_of, whole
from torch import Tensor

import ladder
from ladder.cuda import experts, image
from ladder.cuda.linear import linear_image
from ladder.ops.gating import ACTIVATIONS, SWIGLU_OAI, Gating

pytestmark = MARKS

TYPES = (
    "uint4,group=64,scale=float16,zero=midpoint",
    "uint3,group=64,scale=bfloat16,zero=original",
    "uint2,group=64,scale=float16,zero=integer",
    "int8,channel,scale=float16",
    "float6_e3m2,group=64,scale=float16",
    "nvfp4",
    TWO_LEVELS,
)
GATINGS = (*(Gating(name) for name in ACTIVATIONS), Gating(SWIGLU_OAI, 7.0), Gating("silu", 3.0))
E, N, K = 4, 208, 256


def assert_rounded_once(y: Tensor, sums: Tensor, gating: Gating) -> None:
    """Of ``sums`` in float64, gate in front of up: f32's functions are some 40 roundings from right
    at most, and where 1 is added, as to erf, 4 of the whole product."""
    info, wanted, whole = torch.finfo(y.dtype), gating(sums), Gating("linear", gating.limit)(sums)
    allowed = wanted.abs() * (info.eps / 2 + 40 * 2**-24) + whole.abs() * 4 * 2**-24
    allowed += info.smallest_normal * info.eps
    wrong = (y.double() - wanted).abs() > allowed
    overflown = wanted.abs() >= info.max
    assert not (wrong & ~overflown).any(), (y.double() - wanted).abs().max()


def small(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Sums of these are about 1, where functions bend, and exact."""
    return integers(shape, dtype, seed).cuda() / 32


def opened(type: str, gating: Gating, n: int = N, **more) -> tuple[int, Tensor, Tensor]:
    """The number and the image of a weight of gate and up, and its values [N, K]."""
    drawn = exact_weight(type, n, K, **more)
    weight = drawn.to("cuda")
    number = image.open_weight(str(weight.type), n, K, gating=gating)
    rows = image.gate_rows(n, weight.qweight.device)
    made = image.pack(weight, number, rows=rows)
    assert torch.equal(image.unpack(made, number, weight.type, n, K, rows), weight.qweight)
    return number, made, formula(drawn).cuda()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_linear_layers_give_the_product_of_gate_and_up(type, dtype):
    gating = Gating()
    number, made, values = opened(type, gating)
    bias = integers((N,), dtype, 5).cuda() / 4
    in_turn = bias[image.gate_rows(N, bias.device)]
    for m in (1, 3, 16, 33, 100, 257, 1500):
        x = small((m, K), dtype, m)
        sums = x.double() @ values.T
        assert_rounded_once(linear_image(x, made, None, number, N // 2), sums, gating)
        y = linear_image(x, made, in_turn, number, N // 2)
        assert_rounded_once(y, sums + bias.double(), gating)


@pytest.mark.parametrize("act_order", (False, True))
def test_a_gated_weight_that_is_named_by_its_type_is_the_same(act_order):
    """As graphs that outlive the process call it."""
    gating, dtype = Gating("silu", 3.0), torch.float16
    drawn = exact_weight(TYPES[0], N, K, act_order=act_order)
    weight, type = drawn.to("cuda"), str(drawn.type)
    order = image.column_order(weight)
    number = image.open_weight(type, N, K, order is not None, gating=gating)
    rows = image.gate_rows(N, weight.qweight.device)
    made, named = image.pack(weight, number, order, rows), torch.ops.ladder.linear_prepacked
    how = (False, "", None, gating.activation, gating.least_limit, gating.alpha)
    for bias in (None, integers((N,), dtype, 5).cuda() / 4):
        for m in (1, 16, 40, 257, 1537):
            x = small((m, K), dtype, m)
            y = linear_image(x, made, bias, number, N // 2)
            assert torch.equal(named(x, made[None], bias, type, N // 2, *how), y)
    with pytest.raises(ValueError, match="image has 2 dimensions: rows of gate and up lie in turn"):
        named(x, made[None], None, type, N)
    with pytest.raises(ValueError, match="image has 1 dimensions: rows .* do not lie in turn"):
        named(x, made, None, type, N // 2, *how)
    with pytest.raises(ValueError, match='the gate is "cube", no activation'):
        named(x, made[None], None, type, N // 2, False, "", None, "cube")


@pytest.mark.parametrize("gating", GATINGS, ids=str)
def test_every_function_of_the_gate(gating):
    number, made, values = opened(TYPES[0], gating)
    for m in (2, 48):
        x = small((m, K), torch.float16, m)
        sums = x.double() @ values.T
        assert_rounded_once(linear_image(x, made, None, number, N // 2), sums, gating)


@pytest.mark.parametrize("type", TYPES)
def test_experts_give_the_product_of_gate_and_up(type):
    gating = Gating("swigluoai", 7.0)
    weights = [exact_weight(type, N, K, seed=seed) for seed in range(E)]
    stack = experts.stacked([weight.to("cuda") for weight in weights], gating)
    assert stack.gated and stack.columns == N // 2
    values = torch.stack([formula(weight) for weight in weights]).cuda()
    bias = integers((E, N), torch.float16, 3).cuda() / 4
    padded = experts.padded_bias(bias, gated=True)
    for tokens in (1, 9, 70, 300):
        x = small((tokens, K), torch.float16, tokens)
        ids = torch.rand(tokens, E, device="cuda").topk(2, dim=1).indices
        sums = torch.einsum("tk,tjnk->tjn", x.double(), values[ids]) + bias.double()[ids]
        for of_item in (8, 32, 64, 128):
            rows, items, places = experts.route(x, ids, E, of_item)
            y = experts.expert_linear(rows, stack, padded, items, of_item)
            assert_rounded_once(y[places.long()], sums, gating)


def test_columns_in_turn_are_gated_by_a_launch_too():
    gating = Gating("gelu_pytorch_tanh", 2.0)
    y = small((40, 2 * 96), torch.bfloat16, 1)
    in_order = y.view(40, -1, 2, 8).transpose(1, 2).reshape(40, -1)
    made = experts.gated(y, gating.activation, gating.least_limit, gating.alpha, True)
    assert_rounded_once(made, in_order.double(), gating)
    with pytest.raises(ValueError, match="eight of the gate and eight of up in turn"):
        experts.gated(y[:, :24].contiguous(), "silu", math.inf, 1.0, True)


@pytest.mark.parametrize("activation_type", ("int8", "float8_e4m3") if E4M3 else ("int8",))
@pytest.mark.parametrize("dtype", HALVES)
def test_layers_of_rounded_activations_are_gated(dtype, activation_type):
    gating = Gating()
    drawn = weight_of("uint4,group=64,scale=float16,zero=integer", N, K)
    weight, values = drawn.to("cuda"), formula(drawn).cuda()
    number = image.open_weight(
        str(weight.type), N, K, activation_type=activation_type, gating=gating
    )
    made = image.pack(weight, number, rows=image.gate_rows(N, weight.qweight.device))
    for m in (4, 17, 80, 300):
        # Codes times a power of two: rounding leaves x as it is, and sums are exact.
        x = whole(m, K, dtype, activation_type) / (512 if activation_type == "int8" else 32)
        y = linear_image(x, made, None, number, N // 2)
        assert_rounded_once(y, x.double() @ values.T, gating)


@pytest.mark.parametrize("width", (104, 100))  # rows in turn, and not
@pytest.mark.parametrize("bias", (False, True))
def test_a_layer_is_as_it_was_on_the_cpu(width, bias):
    torch.manual_seed(0)
    type = "uint4,channel,scale=float16,zero=midpoint"
    module = ladder.Experts(E, K, width, bias, type, dtype=torch.float16)
    module.gate_up.set_weights(exact_weight(type, 2 * width, K, seed=seed) for seed in range(E))
    module.down.set_weights(exact_weight(type, K, width, seed=9 + seed) for seed in range(E))
    if bias:
        with torch.no_grad():
            module.gate_up.bias.copy_(integers((E, 2 * width), torch.float16, 2) / 4)
    before = {name: part.clone() for name, part in module.state_dict().items()}
    x = integers((20, K), torch.float16, 4) / 64
    ids = torch.rand(20, E).topk(2, dim=1).indices
    weights = torch.rand(20, 2)
    wanted = module(x.float(), ids, weights)
    on_gpu = module.cuda()
    with torch.no_grad():
        y = on_gpu(x.cuda(), ids.cuda(), weights.cuda())
    assert on_gpu.gate_up.images is not None and on_gpu.gate_up.gated == (width % 8 == 0)
    scale = wanted.abs().max()
    assert (y.float().cpu() - wanted).abs().max() <= 4e-3 * scale
    after = on_gpu.state_dict()
    assert all(torch.equal(part, after[name].cpu()) for name, part in before.items())
    # With gradients, experts one by one.
    gradient = on_gpu(x.cuda().requires_grad_(), ids.cuda(), weights.cuda())
    assert (gradient.float().cpu() - wanted).abs().max() <= 4e-3 * scale
