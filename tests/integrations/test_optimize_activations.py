# SPDX-License-Identifier: Apache-2.0
"""ladder.optimize on MLPs without a gate: the activation function goes with the sums of the layer
in front of it, and nothing else is to be seen of it."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from hf_models import PLAIN, plain_model, run
from torch import nn

import ladder
from ladder.nn import activated
from ladder.nn.activated import ActivatedLinear, Passes, RunsActivated

FC1 = "model.decoder.layers.{}.fc1"
OPTS = [FC1.format(layer) for layer in (0, 1)]


@pytest.fixture
def taken(monkeypatch):
    """The results whose function was taken, as they come."""
    found = []

    class Counted(activated.Activated):
        def __init__(self, y):
            super().__init__(y)
            found.append(y)

    monkeypatch.setattr(activated, "Activated", Counted)
    return found


@pytest.mark.parametrize("family", PLAIN)
def test_every_mlp_of_the_family_gives_the_same(family, taken):
    model, inputs = plain_model(family)
    printed, want = repr(model), run(model, inputs)
    apart = copy.deepcopy(model)
    classes = [type(module) for module in model.modules()]
    done = ladder.optimize(model, example=inputs)
    named = [name for name, _ in apart.named_modules()]
    assert done.activated == [name for name in named if name.endswith(PLAIN[family].layers)]
    assert done.activated and not done.unactivated
    assert f"activated {len(done.activated)} layers in their launches" in str(done)
    for name in done.activated:
        assert isinstance(model.get_submodule(name), ActivatedLinear)
    assert torch.equal(run(model, inputs), want) and len(taken) == len(done.activated)
    assert repr(model) == printed
    state, wanted = model.state_dict(), apart.state_dict()
    assert set(state) == set(wanted)
    assert all(torch.equal(part, wanted[name]) for name, part in state.items())
    ladder.unoptimize(model)
    taken.clear()
    assert [type(module) for module in model.modules()] == classes
    assert torch.equal(run(model, inputs), want) and not taken


def test_generation_training_and_its_gradients_are_the_same(taken):
    found = []
    for optimized in (False, True):
        model, inputs = plain_model("OPT", dropout=0.1)
        if optimized:
            ladder.optimize(model)
        tokens = model.generate(**inputs, max_new_tokens=6, do_sample=False)
        torch.manual_seed(1)
        loss = model.train()(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.append((tokens, loss, grads))
    (tokens, loss, grads), (new_tokens, new_loss, new_grads) = found
    assert torch.equal(tokens, new_tokens) and torch.equal(loss, new_loss) and taken
    assert len(grads) > 10
    torch.testing.assert_close(new_grads, grads)


def test_one_graph_has_the_functions(monkeypatch):
    model, inputs = plain_model("OPT")
    want, graphs = run(model, inputs), []
    ladder.optimize(model)
    by_codes = ActivatedLinear._function_by_codes
    # To be found in the graph: relu of twice a number is twice its relu.
    monkeypatch.setattr(
        ActivatedLinear, "_function_by_codes", lambda self, x, b: by_codes(self, x, b) * 2 / 2
    )

    def backend(module, example):
        graphs.append([str(node.target) for node in module.graph.nodes if 2 in node.args])
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.equal(run(compiled, inputs), want)
    assert [sum("truediv" in target for target in graph) for graph in graphs] == [2]
    # Eager calls of the same module, and its layers by themselves, are as before.
    assert torch.equal(run(model, inputs), want)
    layer = model.get_submodule(OPTS[0])
    assert type(layer(torch.randn(2, layer.in_features))) is torch.Tensor


def test_copies_pickles_and_folders_have_no_trace_of_it(tmp_path):
    model, inputs = plain_model("OPT")
    want = run(model, inputs)
    model.save_pretrained(tmp_path / "apart")
    ladder.optimize(model)
    model.save_pretrained(tmp_path / "taken")
    for name in ("model.safetensors", "config.json"):
        texts = [(tmp_path / folder / name).read_bytes() for folder in ("apart", "taken")]
        assert texts[0] == texts[1]
    extra = (ActivatedLinear, Passes, RunsActivated)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not any(isinstance(module, extra) for module in other.modules())
        assert torch.equal(run(other, inputs), want)
    ends = copy.deepcopy(model.get_submodule(OPTS[0]))
    assert type(ends) is ladder.Linear and not {"_taken", "_numbers"} & set(ends.__dict__)
    assert torch.equal(run(model, inputs), want)


def test_moving_and_loading_change_nothing(taken):
    model, inputs = plain_model("OPT")
    other, _ = plain_model("OPT", seed=1)
    ladder.optimize(model)
    model.to(torch.float64).to(torch.float32)
    model.load_state_dict(other.state_dict())
    assert torch.equal(run(model, inputs), run(other, inputs)) and len(taken) == 2
    with torch.no_grad():
        model.get_submodule(OPTS[1]).bias.add_(1), other.get_submodule(OPTS[1]).bias.add_(1)
    assert torch.equal(run(model, inputs), run(other, inputs))


def test_what_hooks_watch_is_left_alone_and_they_see_what_they_saw():
    model, inputs = plain_model("OPT")
    layers = model.model.decoder.layers
    seen = []
    layers[0].activation_fn.register_forward_hook(lambda _, args, y: seen.extend((*args, y)))
    want = run(model, inputs)
    first = list(seen)
    done = ladder.optimize(model)
    why = "a hook watches activation_fn, or something has replaced its forward"
    assert done.unactivated == {OPTS[0]: why} and done.activated == OPTS[1:]
    assert f"not activated, {why}: {OPTS[0]}" in str(done)
    seen.clear()
    assert torch.equal(run(model, inputs), want) and all(map(torch.equal, seen, first))
    assert float(seen[0].min()) < 0 == float(seen[1].min())
    seen.clear()
    for name in ("fc1", "activation_fn"):  # later, on what is taken
        handle = getattr(layers[1], name).register_forward_hook(lambda _, args, y: seen.append(y))
        assert torch.equal(run(model, inputs), want)
        assert (float(seen[-1].min()) < 0) == (name == "fc1")
        handle.remove()
    assert isinstance(layers[1].fc1, ActivatedLinear)
    layers[0].activation_fn._forward_hooks.clear()
    handle = layers[1].fc1.register_forward_hook(lambda *_: None)
    done = ladder.optimize(model)  # again, with what is so now
    assert done.activated == OPTS[:1] and list(done.unactivated) == OPTS[1:]
    assert type(layers[1].fc1) is ladder.Linear
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_layer_that_is_called_by_itself_gives_its_sums(taken):
    model, inputs = plain_model("OPT")
    layer = model.model.decoder.layers[0]
    fc1, act = layer.fc1, layer.activation_fn
    x = torch.randn(3, fc1.in_features)
    sums, y = fc1(x), act(fc1(x))
    ladder.optimize(model)
    taken.clear()
    assert torch.equal(fc1(x), sums) and torch.equal(act(fc1(x)), y) and not taken
    with pytest.raises(TypeError):
        layer("no tensor")
    assert torch.equal(fc1(x), sums)  # the parent's exception has ended its run
    assert torch.equal(fc1.dequantize()(x).relu(), nn.Sequential(fc1.dequantize(), act)(x))


def test_a_layer_that_is_replaced_is_let_go():
    model, inputs = plain_model("OPT")
    ladder.optimize(model)
    layer = model.model.decoder.layers[0]
    packed = weakref.ref(layer.fc1)
    layer.fc1 = layer.fc1.dequantize()
    gc.collect()
    assert packed() is None
    ladder.unoptimize(model)
    assert type(layer.activation_fn) is nn.ReLU and "_activations" not in layer.__dict__


def test_what_replaces_a_part_gets_what_it_would_have_got(taken):
    model, inputs = plain_model("OPT")
    apart = copy.deepcopy(model)
    ladder.optimize(model)
    for each in (model, apart):
        each.model.decoder.layers[0].activation_fn = nn.Tanh()
        dense = each.model.decoder.layers[1].fc1.dequantize()
        each.model.decoder.layers[1].fc1 = dense
    assert torch.equal(run(model, inputs), run(apart, inputs)) and not taken
    assert ladder.optimize(model).activated == OPTS[:1]  # tanh
    assert torch.equal(run(model, inputs), run(apart, inputs)) and len(taken) == 1
    taken.clear()
    model, _ = plain_model("OPT")
    ladder.optimize(model)
    model.get_submodule(OPTS[0]).activation = "relu"  # twice relu is relu
    assert torch.equal(run(model, inputs), run(plain_model("OPT")[0], inputs)) and len(taken) == 1


@pytest.mark.parametrize("first", ["optimize", "adapters"])
def test_adapters_add_to_the_sums(first, taken):
    peft = pytest.importorskip("peft")
    found = []
    for optimized in (False, True):
        model, inputs = plain_model("OPT")
        if optimized and first == "optimize":
            assert ladder.optimize(model).activated == OPTS
        torch.manual_seed(3)
        config = peft.LoraConfig(r=4, target_modules=["fc1"], init_lora_weights=False)
        model = peft.get_peft_model(model, config)
        if optimized and first == "adapters":
            done = ladder.optimize(model)
            why = "fc1 is of LoraLinear, not ladder.Linear"
            assert done.unactivated == {f"base_model.model.{name}": why for name in OPTS}
        found.append(run(model, inputs))
        assert not taken
    assert torch.equal(*found)
    if first == "optimize":  # and without them all is as it was
        assert torch.equal(run(model.unload(), inputs), run(plain_model("OPT")[0], inputs))
        assert len(taken) == 2


class Plain(nn.Module):
    def __init__(self, act=None):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 64)
        self.act = act or nn.GELU()

    def forward(self, x):
        y = self.act(self.fc1(x))
        for _ in range(2):
            y = y + 1
        return self.fc2(y)


class ReadsTwice(Plain):
    def forward(self, x):
        y = self.fc1(x)
        return self.fc2(self.act(y) + y)


class Scales(Plain):
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x) * 2))


class Breaks(nn.GELU):
    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)


def packed(*modules):
    torch.manual_seed(0)
    model = nn.Sequential(*modules)
    ladder.convert(model, "uint4", group_size=32)
    return model.eval().requires_grad_(False)


def optimized(model):
    x = torch.randn(3, 64)
    want = model(x)
    done = ladder.optimize(model, example=x)
    assert torch.equal(model(x), want)
    return done


def test_a_function_that_two_modules_share_is_taken_by_both(taken):
    act = nn.SiLU()
    model = packed(Plain(act), Plain(act))
    assert optimized(model).activated == ["0.fc1", "1.fc1"] and len(taken) == 2
    x = torch.randn(3, 64)
    assert torch.equal(act(x), nn.functional.silu(x)) and isinstance(act, nn.SiLU)
    ladder.unoptimize(model[0])
    assert isinstance(act, Passes) and not isinstance(model[0].fc1, ActivatedLinear)
    taken.clear()
    assert torch.equal(model[0](x), copy.deepcopy(model[0])(x)) and not taken
    assert torch.equal(model[1](x), copy.deepcopy(model[1])(x)) and len(taken) == 1
    ladder.unoptimize(model)
    assert type(act) is nn.SiLU


def test_layers_in_a_sequence(taken):
    model = packed(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Dropout(), nn.Linear(64, 64))
    assert optimized(model).activated == ["0"] and len(taken) == 1
    x = torch.randn(3, 64)
    assert float(model[0](x).min()) < 0 and torch.equal(model[:2](x), model[0](x).relu())
    assert len(taken) == 1
    layer = nn.Linear(64, 64)
    assert not optimized(packed(layer, nn.ReLU(), layer)).activated


@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, nn.Mish])
def test_functions_that_write_in_place(act, taken):
    done = optimized(packed(nn.Linear(64, 64), act(inplace=True), nn.Linear(64, 64)))
    assert done.activated == ["0"] and len(taken) == 1


@pytest.mark.parametrize("mode", ["whole", "eager act", "eager fc1"])
def test_graphs_that_break_in_between_compute_the_same(mode, monkeypatch):
    model, x = packed(Plain(Breaks() if mode == "whole" else nn.GELU())), torch.randn(3, 64)
    want = model(x)
    assert ladder.optimize(model, example=x).activated == ["0.fc1"]
    torch._dynamo.reset()
    if mode != "whole":
        kind = type(model[0].act if mode == "eager act" else model[0].fc1)
        monkeypatch.setattr(kind, "forward", torch._dynamo.disable(kind.forward))
    for _ in range(3):
        assert torch.equal(torch.compile(model, backend="eager")(x), want)
        assert torch.equal(model(x), want)


def test_what_is_printed_and_the_signature_of_a_forward_are_those_of_the_model():
    import inspect

    model = packed(Plain())
    printed, kind = repr(model), type(model[0])
    ladder.optimize(model, example=torch.randn(3, 64))
    assert type(model[0]) is not kind and isinstance(model[0], kind) and repr(model) == printed
    assert [*inspect.signature(model[0].forward).parameters] == ["x"]


def test_what_else_reads_the_sums_keeps_them(taken):
    for kind in (ReadsTwice, Scales):
        done = optimized(packed(kind()))
        assert not done.activated and not done.unactivated
    assert not taken


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (nn.ELU(), "ELU is no function that kernels have"),
        (nn.RReLU(), "RReLU is no function that kernels have"),
        (nn.GLU(), "GLU cannot be tried: RuntimeError"),
        (nn.Softmax(-1), "Softmax is no function that kernels have"),
        (nn.Identity(), ""),
        (nn.Dropout(), ""),
        (nn.PReLU(), ""),  # its slope is learned
    ],
)
def test_other_functions_stay_with_the_reason(act, why):
    model, state = packed(nn.Linear(64, 64), act), torch.random.get_rng_state()
    ladder.optimize(model, merge=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    done = optimized(model)
    assert not done.activated and list(done.unactivated) == (["0"] if why else [])
    assert all(each.startswith(why) for each in done.unactivated.values())
    assert act.training is False


def test_layers_stay_as_they_are_without_merge_and_where_they_are_cut():
    model, _ = plain_model("OPT")
    assert not ladder.optimize(model, merge=False).activated
    model.get_submodule(OPTS[0]).activation = "relu"
    done = ladder.optimize(model)
    assert done.unactivated == {OPTS[0]: "fc1 has an activation, relu, of its own"}
    assert not ladder.optimize(model).activated  # again: nothing is left
