# SPDX-License-Identifier: Apache-2.0
"""ladder.optimize on the MLPs of transformers: gate, up and their product are one launch, and
nothing else is to be seen of it."""

import copy
import pickle

import pytest
import torch
from hf_models import built, logits
from torch import nn
from torch.nn import functional

import ladder
from ladder.nn.gated import RunsGated
from ladder.nn.gated_form import Form, form_of
from ladder.nn.merged_layer import MergedLinear
from ladder.ops.gating import Gating

FAMILIES = {
    "Llama": "silu",
    "Mistral": "silu",
    "Qwen2": "silu",
    "Qwen3": "silu",
    "Gemma": "gelu_pytorch_tanh",
    "Gemma2": "gelu_pytorch_tanh",
    "Gemma3": "gelu_pytorch_tanh",
}
PROMPT = torch.arange(50, 60)[None]
MLPS = [f"model.layers.{layer}.mlp" for layer in (0, 1)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_mlp_of_the_family_is_gated_and_gives_the_same(family):
    model = built(family)
    apart = copy.deepcopy(model)
    kind = type(model.model.layers[0].mlp)
    done = ladder.optimize(model)
    assert done.gated == MLPS and not done.ungated
    assert "gated 2 products of gate and up in their launches" in str(done)
    mlp = model.model.layers[0].mlp
    assert isinstance(mlp, (kind, RunsGated)) and type(mlp).__name__ == kind.__name__
    assert mlp._gated.linear.gating == Gating(FAMILIES[family])
    products = []
    mlp._gated.linear.product = lambda x, bias, to=mlp._gated.linear.product: (
        products.append(x) or to(x, bias)
    )
    assert torch.equal(logits(model), logits(apart)) and len(products) == 1
    options = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(PROMPT, **options), apart.generate(PROMPT, **options))
    state, wanted = model.state_dict(), apart.state_dict()
    assert set(state) == set(wanted)
    assert all(torch.equal(part, wanted[name]) for name, part in state.items())
    products.clear()
    ladder.unoptimize(model)
    assert type(mlp) is kind and type(mlp.gate_proj) is ladder.Linear
    assert torch.equal(logits(model), logits(apart)) and not products


@pytest.mark.parametrize("family", ["Phi3", "Glm", "Glm4", "ModernBertDecoder"])
def test_gate_and_up_of_one_layer_are_gated_and_give_the_same(family):
    model = built(family, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    apart = copy.deepcopy(model)
    done = ladder.optimize(model)
    assert done.gated == [name for name, _ in apart.named_modules() if name.endswith(".mlp")]
    assert len(done.gated) == 2 and not done.ungated
    mlp = model.get_submodule(done.gated[0])
    (layer,) = mlp._gated.layers
    assert not any(name.endswith(("gate_up_proj", "Wi")) for name in sum(done.merged, ()))
    assert torch.equal(logits(model), logits(apart)) and isinstance(mlp, RunsGated)
    options = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(PROMPT, **options), apart.generate(PROMPT, **options))
    state, wanted = model.state_dict(), apart.state_dict()
    assert set(state) == set(wanted)
    assert all(torch.equal(part, wanted[name]) for name, part in state.items())
    assert repr(model) == repr(apart)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(logits(compiled), logits(apart))
    peft = pytest.importorskip("peft")
    ends = "gate_up_proj" if hasattr(mlp, "gate_up_proj") else "Wi"
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, target_modules=[ends], init_lora_weights=False)
    found = []
    for each in (model, apart):
        torch.manual_seed(3)
        found.append(logits(peft.get_peft_model(each, config)))
    assert torch.equal(*found) and type(layer) is ladder.Linear


def test_biases_are_added_and_trained_in_place():
    model = built("Llama", mlp_bias=True)
    apart = copy.deepcopy(model)
    ladder.optimize(model)
    assert torch.equal(logits(model), logits(apart))
    for each in (model, apart):  # an optimizer writes into the parameter
        with torch.no_grad():
            each.model.layers[0].mlp.up_proj.bias.add_(1)
    assert torch.equal(logits(model), logits(apart))
    for each in (model, apart):
        each(PROMPT, labels=PROMPT).loss.backward()
    for name in ("gate_proj", "up_proj", "down_proj"):
        got, want = (getattr(each.model.layers[1].mlp, name).bias.grad for each in (model, apart))
        torch.testing.assert_close(got, want)


def test_copies_and_pickles_are_of_the_class_that_it_was():
    model = built("Llama")
    kind = type(model.model.layers[0].mlp)
    ladder.optimize(model)
    mlp = model.model.layers[0].mlp
    x = torch.randn(3, mlp.hidden_size)
    for other in (copy.deepcopy(mlp), pickle.loads(pickle.dumps(mlp))):
        assert type(other) is kind and type(other.gate_proj) is ladder.Linear
        assert torch.equal(other(x), mlp(x))
    assert isinstance(mlp, RunsGated)


def test_one_graph_has_the_gated_product():
    model = built("Qwen3")
    want = logits(model)
    ladder.optimize(model)
    torch._dynamo.reset()
    assert torch.equal(logits(torch.compile(model, backend="eager", fullgraph=True)), want)


def test_what_hooks_watch_is_left_alone_and_the_report_says_why():
    model = built("Llama")
    first, second = (layer.mlp for layer in model.model.layers)
    seen = []
    first.act_fn.register_forward_hook(lambda *_: seen.append("act_fn"))
    want = logits(model)
    done = ladder.optimize(model)
    why = "a hook watches act_fn, or something has replaced its forward"
    assert done.ungated == {MLPS[0]: why} and done.gated == MLPS[1:]
    seen.clear()
    assert f"not gated, {why}: {MLPS[0]}" in str(done)
    assert (f"{MLPS[0]}.gate_proj", f"{MLPS[0]}.up_proj") in done.merged  # one product, ungated
    assert torch.equal(logits(model), want) and seen == ["act_fn"]
    # Later: the sums are there again for whoever asks.
    handle = second.up_proj.register_forward_hook(lambda *_: seen.append("up_proj"))
    assert torch.equal(logits(model), want) and seen[1:] == ["act_fn", "up_proj"]
    assert not isinstance(second, RunsGated)
    handle.remove()
    assert ladder.optimize(model).gated == MLPS[1:]


def test_sums_that_somebody_asks_for_are_right():
    model = built("Llama")
    mlp, other = model.model.layers[0].mlp, copy.deepcopy(model.model.layers[0].mlp)
    ladder.optimize(model)
    x = torch.randn(2, mlp.hidden_size)
    want = other(x)
    assert torch.equal(mlp(x), want) and isinstance(mlp.up_proj, MergedLinear)
    assert torch.equal(mlp.up_proj(x), other.up_proj(x))
    assert not isinstance(mlp, RunsGated) and torch.equal(mlp(x), want)


@pytest.mark.parametrize("what", ["to", "load"])
def test_what_moves_or_loads_the_model_takes_the_weights_apart(what):
    model = built("Llama")
    apart = copy.deepcopy(model)
    ladder.optimize(model)
    if what == "to":
        model.to(torch.float64), apart.to(torch.float64)
        model.to(torch.float32), apart.to(torch.float32)
    else:
        with torch.no_grad():
            apart.model.layers[0].mlp.gate_proj.scales.mul_(2)
        model.load_state_dict(apart.state_dict())
    assert not any(isinstance(module, RunsGated) for module in model.modules())
    assert torch.equal(logits(model), logits(apart))


@pytest.mark.parametrize("first", ["optimize", "adapters"])
def test_adapters_of_gate_and_up_get_their_sums(first):
    peft = pytest.importorskip("peft")
    found = []
    for optimized in (False, True):
        model = built("Llama")
        if optimized and first == "optimize":
            ladder.optimize(model)
        torch.manual_seed(3)
        config = peft.LoraConfig(r=4, target_modules=["up_proj"], init_lora_weights=False)
        model = peft.get_peft_model(model, config)
        if optimized and first == "adapters":
            done = ladder.optimize(model)
            prefix = "base_model.model."
            assert done.ungated == {
                prefix + name: "up_proj is of LoraLinear, not ladder.Linear" for name in MLPS
            }
        assert not any(isinstance(module, RunsGated) for module in model.modules())
        found.append(logits(model))
    assert torch.equal(*found)


class Named(nn.Module):
    """Meta's names, up in front of the gate."""

    def __init__(self, function=functional.silu):
        super().__init__()
        self.w3, self.w1, self.w2 = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 64)
        self.function = function

    def forward(self, hidden):
        return self.w2(self.w3(hidden) * self.function(self.w1(hidden)))


class Scaled(Named):
    def forward(self, hidden):
        return self.w2(self.w3(hidden) * functional.silu(self.w1(hidden)) * 0.5)


class WithSkip(Named):
    def forward(self, hidden):
        return self.w2(self.w3(hidden) * functional.silu(self.w1(hidden))) + hidden


class Dropping(Named):
    def forward(self, hidden):
        product = self.w3(hidden) * functional.silu(self.w1(hidden))
        return self.w2(functional.dropout(product, 0.5, self.training))


class Normed(Named):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, hidden):
        return self.w2(self.norm(self.w3(hidden) * functional.silu(self.w1(hidden))))


class Branching(Named):
    def forward(self, hidden):
        if hidden.shape[0] == 1 and hidden.sum() > 0:
            return self.w2(self.w3(hidden))
        return super().forward(hidden)


def test_the_form_is_seen_whatever_the_names():
    assert form_of(Named()) == Form("w1", "w3", "w2", Gating("silu"))
    assert form_of(Named(lambda x: functional.relu(x) ** 2)).gating == Gating("relu2")
    assert form_of(Named(nn.SiLU(inplace=True))).gating == Gating("silu")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Scaled, "what lies between its layers is no gating that ladder knows"),
        (WithSkip, "its forward uses x 3 times, 2 of them in a layer"),
        (Dropping, "what lies between its layers is no gating that ladder knows"),
        (Normed, "norm lies between its layers"),
        (Branching, "its forward cannot be traced: "),
    ],
)
def test_another_forward_is_left_alone_with_the_reason(kind, why):
    model = nn.Sequential(kind())
    ladder.convert(model, "uint4", group_size=32)
    model.eval()
    x = torch.randn(2, 64)
    want = model(x)
    done = ladder.optimize(model, example=x)
    assert not done.gated and done.ungated["0"].startswith(why)
    assert torch.equal(model(x), want)


def test_rows_that_are_no_eights_are_merged_without_a_gate():
    mlp = Named()
    mlp.w1, mlp.w3, mlp.w2 = nn.Linear(64, 36), nn.Linear(64, 36), nn.Linear(36, 64)
    model = nn.Sequential(mlp)
    ladder.convert(model, "uint4,channel,scale=float16,zero=midpoint")
    x = torch.randn(2, 64)
    done = ladder.optimize(model, example=x)
    assert done.ungated == {"0": "36 rows of each are no multiple of 8"}
    assert done.merged == [("0.w3", "0.w1")] and not done.gated
