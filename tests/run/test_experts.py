# SPDX-License-Identifier: Apache-2.0
"""ladder.Experts: exact on integers first, then within the derived bound."""

import copy
import pickle

import pytest
import torch
from drawn import (
    TWO_LEVELS,
    exact_weight,
    formula,
    generator,
    grouped,
    integers,
    stored_types,
    whole,
)
from mixed import TERNARY, E, H, I, exact_experts, fill, limit, routed, truth

import ladder
from ladder import InvalidArgument
from ladder.nn.stack import PackedStack
from ladder.types import parse, type_names
from ladder.weight import PARTS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def same(a: ladder.Experts, b: ladder.Experts) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name])
        for name in first
    )


# --- one product of all experts ---------------------------------------------------------------


@pytest.mark.parametrize("type", stored_types())
def test_a_stack_multiplies_each_row_by_the_weight_of_its_expert(type):
    """Experts differ in every part, so a part of another expert changes an integer."""
    stack = PackedStack(3, 24, 70, parse(type), bias=True)
    fill(stack)
    x, counts = integers((9, 70), torch.float32), [4, 0, 5]
    wanted = [
        rows.double() @ formula(stack.weight_of(e)).T + stack.bias[e].double()
        for e, rows in enumerate(x.split(counts))
    ]
    assert torch.equal(stack(x, counts).double(), torch.cat(wanted))
    values = torch.stack([formula(stack.weight_of(e)) for e in range(3)])
    assert torch.equal(stack.dequantize(torch.float64), values.float().double())


def in_another_order(stack: PackedStack, seed: int = 0) -> None:
    """Weights whose columns are in an order of their own; the second's are in order."""
    text = str(stack.weight_type)
    stack.set_weights(
        exact_weight(text, stack.out_features, stack.in_features, act_order=e != 1, seed=seed + e)
        for e in range(stack.experts)
    )


def test_each_expert_may_have_its_columns_in_an_order_of_its_own():
    stack = PackedStack(3, 24, 70, parse(TERNARY))
    in_another_order(stack)
    assert stack.g_idx.shape == (3, 70) and stack.g_idx.dtype == torch.int32
    assert torch.equal(stack.g_idx[1], (torch.arange(70) // 32).int())
    assert not torch.equal(stack.g_idx[0], stack.g_idx[2])
    x, counts = integers((9, 70), torch.float32), [4, 3, 2]
    wanted = [
        rows.double() @ formula(stack.weight_of(e)).T for e, rows in enumerate(x.split(counts))
    ]
    assert torch.equal(stack(x, counts).double(), torch.cat(wanted))
    assert stack._gathers()
    fill(stack)
    assert stack.g_idx is None and not stack._gathers()


def test_experts_in_another_order_are_exact_round_trip_and_take_no_rounding():
    experts = exact_experts()
    for seed, stack in enumerate((experts.gate_up, experts.down)):
        in_another_order(stack, 10 * seed)
        stack.scales.fill_(1)
        stack.scales[:, :, 1] = 2  # what an order changes
    index, weights = routed(9, 2)
    x = integers((9, H), torch.float32)
    y = experts(x, index, weights)
    assert torch.equal(y.double(), truth(experts, x, index, weights))
    fresh = ladder.Experts(E, H, I, weight_type=TERNARY, activation="relu")
    fresh.load_state_dict(experts.state_dict())
    assert same(fresh, experts)
    for each in (fresh, copy.deepcopy(experts), pickle.loads(pickle.dumps(experts))):
        assert torch.equal(each(x, index, weights), y)
    with pytest.raises(ladder.Unsupported, match="gate_up: .*does not take a weight with g_idx"):
        experts.activation_type = "int8"


def test_static_scales_are_buffers_that_stay_float32_and_round_trip():
    experts = exact_experts()
    scale = torch.tensor([[0.5], [0.1], [0.25], [0.125], [3.0]])
    experts.down.input_scale = scale
    scale.fill_(9)
    assert experts.down.input_scale[:, 0].tolist() == [
        0.5,
        torch.tensor(0.1).item(),
        0.25,
        0.125,
        3,
    ]
    assert experts.gate_up.input_scale is None and experts.down.static_scale() is None
    fresh = exact_experts()
    fresh.load_state_dict(experts.state_dict())
    for each in (fresh, copy.deepcopy(experts), pickle.loads(pickle.dumps(experts)),
                 copy.deepcopy(experts).half()):  # fmt: skip
        assert each.down.input_scale.dtype == torch.float32
        assert torch.equal(each.down.input_scale, experts.down.input_scale)
    experts.down.activation_type = "int8"
    assert experts.down.static_scale().tolist() == [3.0]
    for wrong, why in (
        (torch.ones(5), r"shape \[5\], not \[5, 1\]"),
        (
            torch.tensor([[1.0], [0.0], [1.0], [1.0], [1.0]]),
            r"\[1\]: input_scale is 0.0, not positive",
        ),
    ):
        with pytest.raises(InvalidArgument, match=why):
            experts.down.input_scale = wrong
    state = exact_experts().state_dict() | {"down.input_scale": torch.full((5, 1), -1.0)}
    with pytest.raises(InvalidArgument, match=r"down.input_scale\[0\]: input_scale is -1.0"):
        fresh.load_state_dict(state)


def test_parts_have_the_experts_in_front():
    stack = PackedStack(3, 24, 70, parse("nvfp4"))
    shapes = {name: tuple(part.shape) for name, part in stack.named_buffers()}
    assert shapes == {"qweight": (3, 24, 9), "scales": (3, 24, 5), "scale2": (3, 1)}
    stack = PackedStack(3, 24, 70, parse(TWO_LEVELS))
    shapes = {name: tuple(part.shape) for name, part in stack.named_buffers()}
    assert shapes == {"qweight": (3, 24, 9), "scales": (3, 24, 3), "scale2": (3, 24)}
    stack = PackedStack(3, 24, 70, parse("uint3,group=32,scale=float16,zero=quantized"))
    shapes = {name: tuple(part.shape) for name, part in stack.named_buffers()}
    assert shapes == {"qweight": (3, 24, 7), "scales": (3, 24, 3), "zeros": (3, 24, 1)}


def test_each_expert_is_quantised_in_its_own_right():
    """NVFP4 has one scale for a whole weight: experts of unlike size have unlike ones."""
    gate_up = torch.randn(3, 64, 64) * torch.tensor([0.01, 1.0, 100.0])[:, None, None]
    experts = ladder.Experts.from_tensors(gate_up, torch.randn(3, 64, 32), weight_type="nvfp4")
    for e in range(3):
        alone = ladder.quantize(gate_up[e], "nvfp4")
        for name, part in alone.tensors().items():
            assert torch.equal(getattr(experts.gate_up, name)[e], part)
    assert len(set(experts.gate_up.scale2.flatten().tolist())) == 3


def test_rows_of_experts_have_second_scales_of_their_own():
    gate_up, down = torch.randn(3, 64, 64), torch.randn(3, 64, 32)
    experts = ladder.Experts.from_tensors(gate_up, down, weight_type=TWO_LEVELS)
    values = experts.dequantize()
    for e in range(3):
        for stack, dense in ((experts.gate_up, gate_up), (experts.down, down)):
            alone = ladder.quantize(dense[e], TWO_LEVELS)
            assert stack.weight_of(e) == alone
        assert torch.equal(values["gate_up_proj"][e], experts.gate_up.weight_of(e).dequantize())
    again = ladder.Experts(3, 64, 32, weight_type=TWO_LEVELS)
    again.load_state_dict(experts.state_dict())
    assert torch.equal(again.gate_up.scale2, experts.gate_up.scale2)
    x, (index, weights) = torch.randn(5, 64), routed(5, 2, 3)
    assert torch.equal(again(x, index, weights), experts(x, index, weights))


# --- experts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("k", [1, 2, E])
@pytest.mark.parametrize("tokens", [0, 1, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_go_through_their_experts_exactly(dtype, tokens, k, bias):
    experts = exact_experts(bias)
    x, (index, weights) = integers((tokens, H), dtype), routed(tokens, k)
    y = experts(x, index, weights)
    assert y.dtype == dtype and tuple(y.shape) == (tokens, H)
    assert torch.equal(y, truth(experts, x, index, weights).to(dtype))


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_experts_that_are_never_hit_do_nothing(index_dtype):
    experts, x = exact_experts(True), integers((7, H), torch.float32)
    for never in range(E):
        index, weights = routed(7, 2, never=never)
        for part in (experts.gate_up.scales, experts.down.scales):
            kept, part[never] = part[never].clone(), torch.nan
            y = experts(x, index.to(index_dtype), weights)
            part[never] = kept
            assert torch.equal(y.double(), truth(experts, x, index, weights))


def test_the_index_behind_the_last_expert_is_nobody():
    experts, x = exact_experts(True), integers((6, H), torch.float32)
    index, weights = routed(6, 2)
    index[1, 0] = index[2, 1] = index[4, 0] = index[4, 1] = E
    y = experts(x, index, weights)
    assert torch.equal(y.double(), truth(experts, x, index, weights))
    assert not y[4].any() and y[1].any()


def test_an_expert_may_be_asked_for_twice_by_one_token():
    experts, x = exact_experts(), integers((2, H), torch.float32)
    index, weights = torch.tensor([[3, 3], [0, 3]]), torch.tensor([[1.0, 0.5], [2.0, 0.25]])
    assert torch.equal(experts(x, index, weights).double(), truth(experts, x, index, weights))


def test_tokens_without_an_expert_are_zeros():
    nobody = torch.zeros(3, 0, dtype=torch.int64)
    assert torch.equal(
        exact_experts()(torch.randn(3, H), nobody, nobody.float()), torch.zeros(3, H)
    )


def test_leading_dimensions_are_kept():
    experts, (index, weights) = exact_experts(), routed(6, 2)
    x = integers((2, 3, H), torch.float32)
    y = experts(x, index, weights)
    assert y.shape == x.shape
    assert torch.equal(y.view(6, H), experts(x.view(6, H), index, weights))


@pytest.mark.parametrize("gating", [
    {"activation": "silu"}, {"activation": "silu", "limit": 1.0},
    {"activation": "swigluoai", "limit": 7.0, "alpha": 1.702},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", [*type_names(), "uint4,group=32,scale=float16,zero=integer"])
def test_real_numbers_stay_within_the_bound(name, gating):
    rng = generator(5)
    type = name if "," in name else grouped(name)
    h, i = whole(type, H), whole(type, I)
    gate_up, down = (torch.randn(s, generator=rng) for s in ((E, 2 * i, h), (E, h, i)))
    first, second = (torch.randn(E, n, generator=rng) for n in (2 * i, h))
    experts = ladder.Experts.from_tensors(
        gate_up / 4, down / 4, first, second, weight_type=type, method="nearest", **gating
    )
    x, (index, weights) = torch.randn(3, h, generator=rng), routed(3, 2)
    with torch.no_grad():
        wanted = truth(experts, x.double(), index, weights)  # not rounded to float32 in between
        error = (experts(x, index, weights).double() - wanted).abs()
        allowed = limit(experts, x, index, weights)
    assert bool((error <= allowed).all())
    # Another expert's numbers would be far outside. Bounds grow faster with K than sums do.
    assert allowed.norm() < 0.01 * h / H * wanted.norm()


def test_gradients_reach_tokens_weights_and_biases_exactly():
    experts = exact_experts(True)
    x = integers((7, H), torch.float32).requires_grad_()
    index, weights = routed(7, 2, never=2)
    weights.requires_grad_()
    g = integers((7, H), torch.float32, seed=9)
    wide = [t.detach().double().requires_grad_() for t in (x, weights)]
    wanted = torch.autograd.grad(truth(experts, wide[0], index, wide[1]), wide, g.double())
    bias = [experts.gate_up.bias, experts.down.bias]
    made = torch.autograd.grad(experts(x, index, weights), [x, weights, *bias], g)
    assert all(torch.equal(a.double(), b) for a, b in zip(made, wanted, strict=False))
    of_bias = torch.autograd.grad(truth(experts, wide[0], index, wide[1]), bias, g.double())
    assert all(torch.equal(a, b) for a, b in zip(made[2:], of_bias, strict=True))
    assert made[0].any() and made[1].any() and not made[2][2].any()


def test_autocast_chooses_the_dtype_of_the_products():
    experts, (index, weights) = exact_experts(), routed(5, 2)
    x = integers((5, H), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = experts(x, index, weights)
    assert y.dtype == torch.float32
    half = truth(experts, x.bfloat16(), index, weights)
    assert torch.equal(y.double(), half) and not torch.equal(y, experts(x, index, weights))


def test_compiled_models_call_it():
    experts, (index, weights) = exact_experts(), routed(5, 2)
    x = integers((5, H), torch.float32)
    compiled = torch.compile(lambda x: experts(x + 1, index, weights) * 2, backend="eager")
    assert torch.equal(compiled(x), experts(x + 1, index, weights) * 2)


def test_activations_of_8_bits_go_to_both_products():
    experts = exact_experts(type="int8,group=32,scale=float16", activation_type="int8")
    x, (index, weights) = torch.randn(5, H), routed(5, 2)
    made = experts(x, index, weights)
    experts.activation_type = None
    plain = experts(x, index, weights)
    assert 0 < (made - plain).abs().max() < 0.1 * plain.abs().max()
    stack = experts.down
    stack.activation_type = "int8"
    rows = torch.randn(3, I)
    alone = ladder.Linear.from_weight(stack.weight_of(1), activation_type="int8")
    assert torch.equal(stack(rows, [0, 3, 0, 0, 0]), alone(rows))


# --- state ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [
    copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)),
], ids=["deepcopy", "pickle"])  # fmt: skip
def test_copies_are_equal_and_share_nothing(way):
    experts = exact_experts(True, "uint4,group=32,scale=bfloat16,zero=quantized")
    experts.activation_type = None
    other = way(experts)
    assert same(experts, other) and other.gate_up.weight_type == experts.gate_up.weight_type
    other.gate_up.qweight.zero_()
    assert experts.gate_up.qweight.any()
    x, (index, weights) = integers((3, H), torch.float32), routed(3, 2)
    assert torch.equal(way(experts)(x, index, weights), experts(x, index, weights))


@pytest.mark.parametrize("type", ["nvfp4", "uint4,group=32,scale=float16,zero=integer"])
def test_state_dict_round_trips(type):
    experts = exact_experts(True, type)
    other = ladder.Experts(E, H, I, True, type, activation="relu")
    assert not same(experts, other)
    other.load_state_dict(experts.state_dict())
    assert same(experts, other)
    parts = [p for p in PARTS if getattr(experts.gate_up, p) is not None]
    wanted = {f"{stack}.{part}" for stack in ("gate_up", "down") for part in (*parts, "bias")}
    assert set(experts.state_dict()) == wanted


def test_casts_change_biases_and_leave_scales_as_they_are_stored():
    experts = exact_experts(True, "uint4,group=32,scale=float32,zero=original")
    kept = copy.deepcopy(experts)
    experts.to(torch.bfloat16)
    assert experts.dtype is torch.bfloat16 and experts.down.bias.dtype is torch.bfloat16
    assert experts.down.scales.dtype is torch.float32
    assert torch.equal(experts.down.scales, kept.down.scales)
    assert experts.to("meta").device.type == "meta"


def test_two_types_and_the_printed_form():
    experts = ladder.Experts(
        4, 64, 32, weight_type="nf4", group_size=32, down_type="int8", limit=7, activation="silu"
    )
    assert str(experts.gate_up.weight_type) == "nf4,group=32,scale=float16"
    assert str(experts.down.weight_type) == "int8,group=32,scale=float16"
    text = repr(experts)
    assert "num_experts=4, hidden_size=64, intermediate_size=32, activation=silu, limit=7" in text
    assert "weight_type=int8,group=32,scale=float16" in text


def test_values_come_back_as_they_were_given():
    gate_up, down = torch.randn(3, 16, 40), torch.randn(3, 40, 8)
    experts = ladder.Experts.from_tensors(gate_up, down, weight_type="float32")
    values = experts.dequantize()
    assert torch.equal(values["gate_up_proj"], gate_up) and values.keys() == {
        "gate_up_proj", "down_proj"
    }  # fmt: skip
    assert torch.equal(values["down_proj"], down)
    with pytest.raises(ladder.Unsupported, match="in place of no module of transformers"):
        experts.dense()


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change, why", [
    (lambda x, i, w: (x[:, :-1], i, w), "x has 39 columns; the weight has 40"),
    (lambda x, i, w: (x, i[:-1], w[:-1]), r"top_k_index has shape \[3, 2\], not \[4, k\]"),
    (lambda x, i, w: (x, i, w[:, :1]), r"top_k_weights has shape \[4, 1\], and top_k_index \[4, 2"),
    (lambda x, i, w: (x, i + 6, w), "top_k_index has values from 6 to .*; there are 5 experts"),
    (lambda x, i, w: (x, i - 6, w), "top_k_index has values from -6 to .*; there are 5 experts"),
    (lambda x, i, w: (x, i.float(), w), "top_k_index is torch.float32, not of integers"),
    (lambda x, i, w: (x.double(), i, w), "float64"),
])  # fmt: skip
def test_bad_calls_are_refused_with_both_values(change, why):
    index, weights = routed(4, 2)
    arguments = change(integers((4, H), torch.float32), index, weights)
    with pytest.raises(ladder.InvalidArgument, match=why):
        exact_experts()(*arguments)


@pytest.mark.parametrize("make, why", [
    (lambda: ladder.Experts(0, 8, 8), "num_experts is 0, hidden_size 8 and intermediate_size 8"),
    (lambda: ladder.Experts(2, 8, 8, activation="swish9"), 'activation is "swish9", not one of ge'),
    (lambda: ladder.Experts(2, 8, 8, limit=-1.0), "limit is -1.0, not positive"),
    (lambda: ladder.Experts(2, 8, 8, weight_type="uint4x"), "uint4x"),
    (lambda: ladder.Experts.from_tensors(torch.zeros(2, 8, 4), torch.zeros(2, 4, 8)),
     r"gate_up is \[2, 8, 4\] and down \[2, 4, 8\], not \[E, 2I, H\] and \[E, H, I\]"),
    (lambda: ladder.Experts.from_tensors(torch.zeros(2, 8, 4), torch.zeros(2, 4, 4),
                                         torch.zeros(2, 8)), "down_bias is None"),
    (lambda: ladder.Experts.from_tensors(torch.zeros(2, 8, 4), torch.zeros(2, 4, 4),
                                         torch.zeros(2, 8), torch.zeros(2, 3)),
     r"a bias has shape \[2, 3\], not \[2, 4\]"),
    (lambda: ladder.Experts.from_dense(torch.nn.Linear(8, 8)), "Linear has no gate_up_proj and"),
    (lambda: ladder.Experts.from_dense(ladder.Experts(2, 8, 8)), "module is packed already"),
])  # fmt: skip
def test_what_cannot_be_made_says_why(make, why):
    with pytest.raises(ladder.InvalidArgument, match=why):
        make()


def test_a_weight_that_is_not_finite_is_named():
    gate_up, down = torch.randn(3, 16, 40), torch.randn(3, 40, 8)
    down[2, 7, 5] = torch.inf
    with pytest.raises(ladder.InvalidArgument, match=r"^down_proj\[2\]: .*row 7, column 5 is inf"):
        ladder.Experts.from_tensors(gate_up, down)


def test_activations_that_a_weight_does_not_take_name_the_stack():
    with pytest.raises(ladder.Unsupported, match="^down: "):
        ladder.Experts(2, 64, 64, weight_type="int8", down_type="float16", activation_type="int8")


def test_weights_that_do_not_fit_a_stack_are_refused_with_both_values():
    stack = PackedStack(3, 24, 70, parse("uint4,group=32,scale=float16"))
    weight = ladder.quantize(torch.randn(24, 70), "uint4,group=32,scale=float16")
    for count, why in ((2, "there are 2 weights for 3"), (4, "there are more than 3 weights for")):
        with pytest.raises(ladder.InvalidArgument, match=why):
            stack.set_weights([weight] * count)
    other = ladder.quantize(torch.randn(24, 64), "uint4,group=32,scale=float16")
    with pytest.raises(ladder.InvalidArgument, match=r"weight 1 is \[24, 64\] of type uint4"):
        stack.set_weights([weight, other, weight])
    stack.set_weights([weight] * 3)
    stack.scales[1, 2, 0] = torch.nan
    with pytest.raises(ladder.InvalidArgument, match=r"^w\[1\].scales\[2, 0\] is nan, not finite"):
        stack.check("w")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("k", [1, 2, E])
def test_a_gpu_gives_what_the_processor_gives(k):
    """Products of float32 are torch's own there, and these sums are exact in any order."""
    experts, x = exact_experts(True), integers((9, H), torch.float32)
    index, weights = routed(9, k)
    index[4] = E
    wanted = experts(x, index, weights)
    made = experts.to("cuda")(x.cuda(), index.cuda(), weights.cuda())
    assert made.is_cuda and torch.equal(made.cpu(), wanted)
