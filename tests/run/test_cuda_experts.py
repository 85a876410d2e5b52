# SPDX-License-Identifier: Apache-2.0
"""Layers of experts on a GPU: one launch for all of them, exact on integers, whatever the router
chose."""

import pytest
import torch
from drawn import TWO_LEVELS, exact_weight, formula, generator, integers
from gpu import E4M3, HALVES, MARKS
from rounded import weight_of, whole
from torch import Tensor
from torch.nn import functional as F

import ladder
from ladder.cuda import expert_layer, experts
from ladder.ops import activations
from ladder.ops.activations import MOST_EXPERT_TOKENS_AS_THEY_COME
from ladder.ops.gating import ACTIVATIONS, SWIGLU_OAI, Gating

pytestmark = MARKS

TYPES = (
    "uint4,group=32,scale=float16,zero=midpoint",
    "uint4,group=32,scale=float16,zero=integer",
    "uint3,group=64,scale=bfloat16,zero=original",
    "uint1,group=64,scale=float16,zero=midpoint",
    "uint2,group=64,scale=float16,zero=integer",
    "int8,channel,scale=float16",
    "float6_e3m2,group=32,scale=float16",
    "nf4,group=64,scale=float16",
    "mxfp4",
    "nvfp4",
    TWO_LEVELS,
)
E, N, K = 6, 200, 256
HERE = ("int8", "float8_e4m3") if E4M3 else ("int8",)
ROUNDED = [
    ("int8", "uint4,group=32,scale=float16,zero=integer"),
    ("int8", "int8,channel,scale=float32"),
    *(
        ("float8_e4m3", type)
        for type in (
            "float8_e4m3,group=128,scale=float32",
            "float4_e2m1,group=32,scale=float16",
            "int4,group=128,scale=bfloat16",
            "uint4,group=64,scale=float16,zero=integer",
        )
        if E4M3
    ),
]


def stack_of(type: str, n: int = N, k: int = K, **more) -> tuple[experts.Stack, Tensor]:
    """A stack of E experts, and their values [E, N, K] in float64."""
    weights = [exact_weight(type, n, k, seed=seed, **more) for seed in range(E)]
    return (
        experts.stacked([weight.to("cuda") for weight in weights]),
        torch.stack([formula(weight) for weight in weights]).cuda(),
    )


def chosen(tokens: int, of_token: int, seed: int = 0, count: int = E) -> Tensor:
    """Experts of each token, unevenly: the last is rare."""
    rng = generator(seed)
    odds = torch.ones(tokens, count)
    odds[:, -1] = 0.1
    return torch.multinomial(odds, of_token, generator=rng).cuda()


def routed(x: Tensor, values: Tensor, ids: Tensor) -> Tensor:
    """[T, k, N] float64: x of each token times the values of each of its experts."""
    return torch.einsum("tk,tjnk->tjn", x.double(), values[ids])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("type", TYPES)
def test_products_of_experts_are_exact_on_integers(type, dtype):
    stack, values = stack_of(type)
    bias = integers((E, N), dtype, 3).cuda()
    for tokens in (1, 3, 9, 40, 100, 300):
        ids, x = chosen(tokens, 2, tokens), integers((tokens, K), dtype, tokens).cuda()
        wanted = routed(x, values, ids)
        usual = experts.rows_of_item(stack, stack, ids.numel(), dtype)
        assert usual > 0
        for of_item in {usual, 8, 32, 64}:
            rows, items, places = experts.route(x, ids, E, of_item)
            for b in (None, bias):
                padded = None if b is None else experts.padded_bias(b)
                y = experts.expert_linear(rows, stack, padded, items, of_item)[places.long()]
                right = wanted if b is None else wanted + b[ids].double()
                assert torch.equal(y, right.to(dtype)), (tokens, of_item)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("activation_type,type", ROUNDED)
def test_products_of_rounded_rows_are_exact_on_integers(activation_type, type, dtype):
    weights = [weight_of(type, N, K, seed=seed) for seed in range(E)]
    plain = experts.stacked([weight.to("cuda") for weight in weights])
    stack = experts.rounding(plain, activation_type)
    assert stack.number != plain.number and stack.images is plain.images
    values = torch.stack([formula(weight) for weight in weights]).cuda()
    bias = integers((E, N), dtype, 3).cuda()
    for tokens in (1, 17, 40, 100, 300):
        ids, x = chosen(tokens, 2, tokens), whole(tokens, K, dtype, activation_type)
        wanted = routed(x, values, ids)
        codes, scales = torch.ops.ladder.rounded_codes(x, activation_type)
        usual = experts.rows_of_item(stack, stack, ids.numel(), dtype)
        assert usual > 0
        for of_item in {usual, 8, 32, 64}:
            rows, of_rows, items, places = experts.route_rounded(codes, scales, ids, E, of_item)
            assert torch.equal(of_rows[places.long()], scales[:, None].expand_as(places))
            for b in (None, bias):
                padded = None if b is None else experts.padded_bias(b)
                y = experts.expert_linear_rounded(
                    rows, of_rows, stack, padded, items, of_item, dtype
                )[places.long()]
                right = wanted if b is None else wanted + b[ids].double()
                assert torch.equal(y, right.to(dtype)), (tokens, of_item)


def test_experts_with_an_order_of_columns():
    type = "uint4,group=32,scale=float16,zero=midpoint"
    stack, values = stack_of(type, act_order=True)
    ids, x = chosen(20, 2), integers((20, K), torch.float16).cuda()
    rows, items, places = experts.route(x, ids, E, 16)
    y = experts.expert_linear(rows, stack, None, items, 16)[places.long()]
    assert torch.equal(y, routed(x, values, ids).half())


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("k", [256, 101])
@pytest.mark.parametrize("tokens, of_item", [(1, 16), (5, 64), (64, 16), (3000, 16), (3000, 64)])
def test_rows_lie_side_by_side_in_the_order_of_their_experts(tokens, of_item, k, kind):
    count = 40
    ids = chosen(tokens, 4, 1, count).to(kind)
    ids[::7, 1] = count  # nobody's
    ids[::5, 0] = -1
    x = torch.randn(tokens, k, dtype=torch.bfloat16, device="cuda")
    rows, items, places = experts.route(x, ids, count, of_item)
    assert len(items) % torch.ops.ladder.items_together(of_item) == 0
    flat = ids.flatten().long()
    known = (flat >= 0) & (flat < count)
    order = flat.where(known, count).sort(stable=True).indices[: int(known.sum())]
    wanted = torch.full_like(flat, -1)
    wanted[order] = torch.arange(len(order), device="cuda")
    assert torch.equal(places.flatten().long(), wanted)
    assert torch.equal(rows[: len(order)], x[order // 4])
    counts = torch.bincount(flat[known], minlength=count).tolist()
    listed, first = [], 0
    for expert, has in enumerate(counts):
        for at in range(0, has, of_item):
            listed.append([expert, first + at, min(of_item, has - at)])
        first += has
    assert items[: len(listed)].tolist() == listed
    assert not items[len(listed) :].any()


@pytest.mark.parametrize("dtype", HALVES)
def test_gate_and_up_are_joined_in_float32(dtype):
    x = torch.randn(37, 2 * 136, device="cuda").to(dtype) * 4
    rounding = 2.0 ** -(11 if dtype == torch.float16 else 8)
    for name in (*ACTIVATIONS, SWIGLU_OAI):
        for limit in (None, 7.0):
            wanted = Gating(name, limit)(x.double())
            more = {} if limit is None else {"limit": limit}
            y = experts.gated(x, name, **more)
            # Rounded once. Functions of the device are good to some 2^-20 of gate, in absolute
            # terms where they come near -1; below that are numbers without all their bits.
            gate, up = (part.abs() + 1 for part in x.double().chunk(2, dim=-1))
            allowed = rounding * wanted.abs() + 2.0**-20 * gate * up + 2.0**-24
            assert ((y.double() - wanted).abs() <= allowed).all(), (name, limit)
            odd = torch.cat([x[:, :135], x[:, 136:271]], 1)  # rows of no whole pieces of 16 bytes
            assert torch.equal(experts.gated(odd, name, **more), y[:, :135]), (name, limit)
    with pytest.raises(ladder.InvalidArgument, match="prelu"):
        experts.gated(x, "prelu")


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_choices_are_added_up_in_float32(weight_dtype):
    rows = integers((90, 136), torch.bfloat16).cuda()
    places = torch.randperm(90, generator=generator())[:60].view(20, 3).int().cuda()
    places[3, 1] = -1
    weights = (torch.randint(1, 5, (20, 3), generator=generator()) / 4).to(weight_dtype).cuda()
    wanted = (rows[places.long()].double() * weights[..., None].double()).where(
        places[..., None] >= 0, 0.0
    )
    y = experts.combine(rows, places, weights)
    assert torch.equal(y, wanted.sum(1).to(torch.bfloat16))


def layer(type: str, k: int, width: int):
    """Stacks of a layer, and its values."""
    rng, made = generator(5), []
    for n, columns in ((2 * width, k), (k, width)):
        dense = torch.randn(E, n, columns, generator=rng) / 16
        weights = [ladder.quantize(d, type, method="nearest") for d in dense]
        stack = experts.stacked([weight.to("cuda") for weight in weights])
        made.append((stack, torch.stack([w.dequantize() for w in weights]).double().cuda()))
    return made


@pytest.mark.parametrize("dtype", HALVES)
def test_a_layer_of_experts_is_that_of_its_values(dtype):
    k, width = 256, 320
    (gate_up, a), (down, b) = layer("uint4,group=64,scale=float16,zero=midpoint", k, width)
    for tokens in (1, 7, 64, 500):
        x = torch.randn(tokens, k, device="cuda").to(dtype)
        ids = chosen(tokens, 2, tokens)
        weights = torch.rand(tokens, 2, device="cuda").to(dtype)
        y = expert_layer.forward(x, ids, weights, gate_up, down, "silu")
        gate, up = routed(x, a, ids).to(dtype).chunk(2, dim=-1)
        hidden = (F.silu(gate.float()) * up.float()).to(dtype).double()
        each = torch.einsum("tjk,tjnk->tjn", hidden, b[ids])
        wanted = (each * weights[..., None].double()).sum(1)
        scale = torch.einsum("tjk,tjnk->tjn", hidden.abs(), b[ids].abs())
        allowed = (scale * weights[..., None].double()).sum(1)
        # Two roundings to the dtype in front of the sums, one of each sum, one of y.
        worst = ((y.double() - wanted).abs() / allowed).max().item()
        assert worst <= 4 * 2.0 ** -(11 if dtype == torch.float16 else 8), tokens


@pytest.mark.parametrize("activation_type", HERE)
def test_a_layer_rounds_tokens_and_what_is_between_its_products(activation_type):
    k, width, dtype = 256, 320, torch.bfloat16
    (gate_up, a), (down, b) = layer("int4,group=64,scale=float16", k, width)
    # Tensor cores of Hopper keep 14 bits of sums of e4m3.
    bits = 13 if activation_type == "float8_e4m3" else 22

    def rounded(t: Tensor) -> Tensor:
        return activations.round_tokens(t, activation_type).double()

    for tokens in (MOST_EXPERT_TOKENS_AS_THEY_COME + 1, 130, 500):
        x = torch.randn(tokens, k, device="cuda").to(dtype)
        ids, weights = chosen(tokens, 2, tokens), torch.rand(tokens, 2, device="cuda")
        y = expert_layer.forward(
            x, ids, weights, gate_up, down, "silu", activation_type=activation_type
        )
        # From what the first product gives, whose last bit may decide what the gate is rounded to.
        codes, scales = torch.ops.ladder.rounded_codes(x, activation_type)
        of_item = 32
        rows, of_rows, items, places = experts.route_rounded(codes, scales, ids, E, of_item)
        first = experts.rounding(gate_up, activation_type)
        made = experts.expert_linear_rounded(rows, of_rows, first, None, items, of_item, dtype)
        wanted = routed(rounded(x), a, ids)
        size = routed(rounded(x).abs(), a.abs(), ids)
        off = (made[places.long()].double() - wanted).abs()
        assert (off <= 6 * k**0.5 * 2.0**-bits * size + 2.0**-8 * wanted.abs()).all(), tokens
        hidden = rounded(experts.gated(made, "silu"))[places.long()]
        each = torch.einsum("tjk,tjnk->tjn", hidden, b[ids])
        size = torch.einsum("tjk,tjnk->tjn", hidden.abs(), b[ids].abs())
        # Other items sum in another order: bits of the gate, and of what it is rounded to, differ.
        allowed = (2.0**-4 * size * weights[..., None]).sum(1)
        wanted = (each * weights[..., None].double()).sum(1)
        assert ((y.double() - wanted).abs() <= allowed).all(), tokens
        plain = expert_layer.forward(x, ids, weights, gate_up, down, "silu")
        assert not torch.equal(y, plain)
        few = [part[:MOST_EXPERT_TOKENS_AS_THEY_COME] for part in (x, ids, weights)]
        as_they_come = expert_layer.forward(*few, gate_up, down, "silu")
        assert torch.equal(
            expert_layer.forward(*few, gate_up, down, "silu", activation_type=activation_type),
            as_they_come,
        )


@pytest.mark.parametrize("tokens,activation_type", [(12, ""), *((20, each) for each in HERE)])
def test_a_graph_serves_whatever_the_router_chooses(tokens, activation_type):
    k, width = 256, 192
    type = "mxfp4" if activation_type != "int8" else "int4,group=32,scale=float16"
    (gate_up, _), (down, _) = layer(type, k, width)
    x = torch.randn(tokens, k, dtype=torch.bfloat16, device="cuda")
    ids, weights = chosen(tokens, 2), torch.rand(tokens, 2, device="cuda")

    def call() -> Tensor:
        return expert_layer.forward(
            x, ids, weights, gate_up, down, "silu", activation_type=activation_type
        )

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    for seed in range(5):
        ids.copy_(chosen(tokens, 2, 10 + seed) if seed else torch.zeros_like(ids))
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, call()), seed


def test_what_does_not_fit_is_named():
    stack, _ = stack_of(TYPES[0])
    x = integers((4, K), torch.float16).cuda()
    rows, items, _ = experts.route(x, chosen(4, 2), E, 8)
    with pytest.raises(ladder.InvalidArgument, match="255 columns"):
        experts.expert_linear(rows[:, :255].contiguous(), stack, None, items, 8)
    with pytest.raises(ladder.InvalidArgument, match="items of 7 rows"):
        experts.expert_linear(rows, stack, None, items, 7)
    with pytest.raises(ladder.InvalidArgument, match='rounded to "", and these are codes'):
        codes, scales = torch.ops.ladder.rounded_codes(rows, "int8")
        experts.expert_linear_rounded(codes, scales, stack, None, items, 8, rows.dtype)
    with pytest.raises(ladder.InvalidArgument, match='rounded to "int8", and these are as they'):
        experts.expert_linear(rows, experts.rounding(stack, "int8"), None, items, 8)
    with pytest.raises(ladder.InvalidArgument, match="scales are"):
        experts.route_rounded(codes, scales[1:], chosen(8, 1), E, 8)
    with pytest.raises(ladder.InvalidArgument, match="bias"):
        experts.expert_linear(rows, stack, rows[:, :5].contiguous(), items, 8)
    with pytest.raises(ladder.InvalidArgument, match="int32 or int64"):
        experts.route(x, chosen(4, 2).float(), E, 8)
    with pytest.raises(ladder.InvalidArgument, match="experts are those of 5 tokens"):
        experts.route(x, chosen(5, 2), E, 8)
    weights = [exact_weight(TYPES[0], n, K).to("cuda") for n in (64, 128)]
    with pytest.raises(ladder.InvalidArgument, match="expert 1 is"):
        experts.stacked(weights)
    none, items, places = experts.route(x[:0], chosen(4, 2)[:0], E, 8)
    assert experts.expert_linear(none, stack, None, items, 8).shape == (0, N)
    assert experts.combine(none, places, torch.empty(0, 2, device="cuda")).shape == (0, K)
