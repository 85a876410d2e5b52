# SPDX-License-Identifier: Apache-2.0
"""ladder.GatedMLP where gate and up are two products, and where they are one weight."""

import copy

import pytest
import torch
from drawn import TWO_LEVELS, grouped, whole
from torch import nn
from torch.nn import functional

import ladder
from ladder.nn.gated import GatedWeight, RunsGated, device_objection, objection
from ladder.ops.gating import ACTIVATIONS, SWIGLU_OAI, Gating

H, WIDE = 64, 96
GATINGS = (*(Gating(name) for name in ACTIVATIONS), Gating(SWIGLU_OAI, 7.0, 1.5))
AMD = "kernels of AMD's GPUs give the product of gate and up for up to 16 tokens only"


class Dense(nn.Module):
    def __init__(self, bias=False, h=H, wide=WIDE):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(h, wide, bias), nn.Linear(h, wide, bias)
        self.down_proj = nn.Linear(wide, h, bias)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def packed(type="uint4,group=16,scale=float16,zero=midpoint", bias=False, **options):
    dense = Dense(bias, whole(type, H), whole(type, WIDE))
    return ladder.GatedMLP.from_dense(dense, type, **options)


def fused(module):
    """``module`` with gate and up in one weight, as on a GPU."""
    assert objection(module, module.form) == ""
    GatedWeight(module, module.form)
    assert isinstance(module, RunsGated) and type(module).__name__ == "GatedMLP"
    return module


def test_gate_and_up_have_one_second_scale_only_where_it_is_of_the_tensor():
    dense = Dense()
    dense.up_proj.weight.data *= 8
    for name, ends in (("nvfp4", 1), (TWO_LEVELS, WIDE)):
        module = ladder.GatedMLP.from_dense(dense, name)
        gate, up = module.gate_proj.packed_weight, module.up_proj.packed_weight
        assert gate.scale2.numel() == up.scale2.numel() == ends
        assert torch.equal(gate.scale2, up.scale2) == (ends == 1)
        assert up == ladder.quantize(dense.up_proj.weight, name)  # the larger one


@pytest.mark.parametrize("name", [*ladder.types.type_names(), TWO_LEVELS])
def test_every_type_gives_what_its_three_layers_give(name):
    torch.manual_seed(0)
    module = packed(grouped(name), bias=True)
    x = torch.randn(5, module.gate_proj.in_features)
    gate, up = (layer.dequantize() for layer in (module.gate_proj, module.up_proj))
    want = module.down_proj(functional.silu(gate(x)) * up(x))
    torch.testing.assert_close(module(x), want)
    one = fused(copy.deepcopy(module))
    assert torch.equal(one(x), module(x))
    got, want = one.state_dict(), module.state_dict()
    assert set(got) == set(want)
    assert all(torch.equal(part, want[key]) for key, part in got.items())


@pytest.mark.parametrize("gating", GATINGS, ids=str)
def test_every_function_of_the_gate(gating):
    module = ladder.GatedMLP(
        H, WIDE, activation=gating.activation, limit=gating.limit, alpha=gating.alpha, group_size=16
    )
    for layer in (module.gate_proj, module.up_proj, module.down_proj):
        dense = torch.randn(layer.out_features, layer.in_features)
        layer.set_weight(ladder.quantize(dense, "uint4", group_size=16))
    x = torch.randn(3, H)
    between = gating.product(module.gate_proj(x), module.up_proj(x))
    assert torch.equal(module(x), module.down_proj(between))
    assert torch.equal(fused(module)(x), module.down_proj(between))


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_those_of_dense_layers(bias):
    module = packed(bias=bias)
    dense = Dense(bias)
    for name in ("gate_proj", "up_proj", "down_proj"):
        setattr(dense, name, getattr(module, name).dequantize())
    module = fused(module)
    grads = []
    x = torch.randn(4, H)
    for each in (module, dense):
        leaf = x.clone().requires_grad_()
        each(leaf).square().sum().backward()
        grads.append([leaf.grad] + [layer.bias.grad for layer in each.children() if bias])
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


def test_act_order_is_taken_where_gate_and_up_have_one_order():
    order = torch.randperm(H)
    g_idx = (torch.arange(H) // 16)[order].to(torch.int32)
    module = ladder.GatedMLP(H, WIDE, weight_type="uint4", group_size=16, act_order=True)
    for layer in (module.gate_proj, module.up_proj):
        layer.g_idx.copy_(g_idx)
        layer.scales.fill_(0.5)
        layer.qweight.random_()
    x = torch.randn(2, H)
    want = module(x)
    assert torch.equal(fused(module)(x), want)
    module._gated.dissolve()
    module.up_proj.g_idx.copy_(g_idx.flip(0))
    assert "g_idx" in objection(module, module.form)


def test_rounded_activations_of_all_three():
    module = packed("int8", activation_type="int8")
    x = torch.randn(3, H)
    want = module(x)
    assert "activation_type=int8" in repr(module) and torch.equal(fused(module)(x), want)
    module._gated.dissolve()
    module.gate_proj.activation_type = None
    assert objection(module, module.form).startswith("activation types differ")


def test_a_state_dict_of_single_layers_loads_into_one_weight():
    module, other = packed(bias=True), packed(bias=True)
    state = other.state_dict()
    fused(module).load_state_dict(state)
    assert not isinstance(module, RunsGated)  # apart again
    x = torch.randn(2, H)
    assert torch.equal(module(x), other(x)) and torch.equal(fused(module)(x), other(x))
    assert sorted(state) == sorted(
        f"{layer}.{part}"
        for layer in ("gate_proj", "up_proj", "down_proj")
        for part in ("qweight", "scales", "bias")
    )


@pytest.mark.parametrize("one", [False, True])
def test_torch_compile_traces_it_in_one_graph(one):
    module = packed(bias=True)
    x = torch.randn(3, H)
    want = module(x)
    if one:
        fused(module)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), want)
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(compiled(leaf).sum(), leaf)
    (wanted,) = torch.autograd.grad(module(leaf).sum(), leaf)
    torch.testing.assert_close(got, wanted)


def test_under_autocast_and_in_both_halves():
    module = packed(bias=True)
    x = torch.randn(3, H)
    one = fused(copy.deepcopy(module))
    with torch.autocast("cpu", torch.bfloat16):
        assert one(x).dtype == torch.bfloat16 and torch.equal(one(x), module(x))
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(one(x.to(dtype)), module(x.to(dtype)))


def test_on_the_cpu_nothing_is_fused():
    module = packed()
    assert module.fuse() == "cpu has no kernels" and type(module) is ladder.GatedMLP
    ladder.warmup(module, 1)
    module(torch.randn(1, H))
    assert type(module) is ladder.GatedMLP
    assert ladder.optimize(module, example=torch.randn(1, H)).gated == [""]


def test_an_activation_of_a_layer_itself_keeps_it_apart():
    module = packed()
    module.gate_proj.activation = module.up_proj.activation = "relu"
    assert objection(module, module.form) == "gate_proj has an activation, relu, of its own"


def test_amds_gpus_keep_them_apart_since_many_tokens_have_no_such_kernels(monkeypatch):
    assert device_objection(torch.device("cuda")) == ("" if not torch.version.hip else AMD)
    monkeypatch.setattr(torch.version, "hip", "6.3")
    assert device_objection(torch.device("cuda")) == AMD
    assert device_objection(torch.device("cpu")) == ""


@pytest.mark.parametrize("whole", [False, True])
def test_a_residual_is_added_by_the_last_layer(whole):
    torch.manual_seed(0)
    module, x, residual = packed(bias=True), torch.randn(3, H), torch.randn(3, H)
    kept = residual.clone()
    between = functional.silu(module.gate_proj(x)) * module.up_proj(x)
    want = module.down_proj(between, residual)
    if whole:
        module = fused(module)
    assert torch.equal(module(x, residual), want)
    assert torch.equal(module(x, residual=residual), want)
    assert torch.equal(module(x=x, residual=None), module(x))
    assert torch.equal(residual, kept)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, residual), want)
    leaf = residual.clone().requires_grad_()
    (grad,) = torch.autograd.grad(module(x, leaf).sum(), leaf)
    assert torch.equal(grad, torch.ones_like(leaf))
    with pytest.raises(ladder.InvalidArgument, match=r"residual has shape \[2, 64\], and y"):
        module(x, residual[:2])
    with pytest.raises(ladder.InvalidArgument, match="residual is of int, not a tensor"):
        module(x, 1)
    # A layer that takes none: torch's own sum of two results.
    module.down_proj = module.down_proj.dequantize()
    assert torch.equal(module(x, residual), module(x) + residual)


def test_what_it_cannot_be_made_of_is_refused():
    with pytest.raises(ladder.InvalidArgument, match="Linear is no gated MLP: its forward"):
        ladder.GatedMLP.from_dense(nn.Linear(4, 4))
    with pytest.raises(ladder.InvalidArgument, match='activation is "swish"'):
        ladder.GatedMLP(H, WIDE, activation="swish")
    with pytest.raises(ladder.InvalidArgument, match="in_features is 0"):
        ladder.GatedMLP(0, WIDE)
    for activation in (nn.SiLU(), torch.nn.functional.silu, None):
        with pytest.raises(ladder.InvalidArgument, match=r'^activation is ".*", not one of gelu'):
            ladder.GatedMLP(H, WIDE, activation=activation)
    for wrong, why in (
        ({"limit": "7"}, "^limit is '7', not positive$"),
        ({"limit": float("nan")}, "^limit is nan, not positive$"),
        ({"alpha": "1"}, "^alpha is '1', not a number$"),
    ):
        with pytest.raises(ladder.InvalidArgument, match=why):
            ladder.GatedMLP(H, WIDE, activation="swigluoai", **wrong)


def test_layers_that_are_no_gated_mlp_are_refused():
    up, down = ladder.Linear(H, WIDE), ladder.Linear(WIDE, H)
    made = ladder.GatedMLP.from_layers
    with pytest.raises(
        ladder.InvalidArgument, match=r"^gating is SiLU\(\), not a ladder.ops.gating"
    ):
        made(up, up, down, gating=nn.SiLU())
    with pytest.raises(ladder.InvalidArgument, match="^up_proj is of int, not torch.nn.Module$"):
        made(up, 3, down, gating=ladder.ops.gating.Gating())
    for layers in ((up, ladder.Linear(H, WIDE + 8), down), (up, up, up)):
        with pytest.raises(
            ladder.InvalidArgument, match=rf"\[{H}, {WIDE}\] of gate_proj, .* not fit"
        ):
            made(*layers, gating=ladder.ops.gating.Gating())
