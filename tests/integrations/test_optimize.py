# SPDX-License-Identifier: Apache-2.0
"""ladder.optimize on models of transformers: nothing to see but the speed."""

import copy

import pytest
import torch
from hf_models import built, load, logits
from safetensors.torch import load_file, save_file
from torch import nn

import ladder
from ladder.nn.merged_layer import MergedLinear
from ladder.nn.parallel import ParallelLinear

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
WEIGHTS = "model.safetensors"
PROMPT = torch.arange(50, 60)[None]


def names(layer):
    return [
        tuple(f"model.layers.{layer}.self_attn.{name}" for name in ATTENTION),
        tuple(f"model.layers.{layer}.mlp.{name}" for name in MLP),
    ]


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Mistral"])
def test_an_optimised_model_generates_the_same(family):
    model = built(family)
    apart = copy.deepcopy(model)
    done = ladder.optimize(model)
    assert sorted(done.merged) == sorted(names(0) + names(1)) and not done.left
    assert str(done).startswith("merged 10 layers into 4")
    assert torch.equal(logits(model), logits(apart))
    for options in ({}, {"cache_implementation": "static"}):
        options |= {"max_new_tokens": 12, "do_sample": False, "output_logits": True}
        got, want = (
            each.generate(PROMPT, return_dict_in_generate=True, **options)
            for each in (model, apart)
        )
        assert torch.equal(got.sequences, want.sequences)
        assert all(map(torch.equal, got.logits, want.logits))
    assert not ladder.optimize(model).merged  # again: nothing is left to merge


def test_torch_compile_traces_the_merged_layers_in_one_graph():
    model, graphs = built("Llama"), []
    want = logits(model)
    ladder.optimize(model)

    def backend(module, example):
        graphs.append([str(node.target) for node in module.graph.nodes])
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.equal(logits(compiled), want)
    assert [graph.count("ladder.linear") for graph in graphs] == [2 * 4]  # qkv, o, gate_up, down


def test_what_is_saved_has_no_trace_of_it(ladder_folder, tmp_path):
    model = load(ladder_folder)
    model.save_pretrained(tmp_path / "apart")
    assert ladder.optimize(model).merged
    model.save_pretrained(tmp_path / "merged")
    for name in (WEIGHTS, "config.json"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "apart" / name).read_bytes()
    assert torch.equal(logits(load(tmp_path / "merged")), logits(load(ladder_folder)))
    state = {name: part for name, part in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, tmp_path / "state.safetensors")  # refuses tensors that share memory
    state, stored = load_file(tmp_path / "state.safetensors"), load_file(ladder_folder / WEIGHTS)
    assert all(torch.equal(state[name], stored[name]) for name in state)
    dense = model.dequantize()
    assert not any(isinstance(module, ladder.Linear) for module in dense.modules())


def test_layers_of_other_types_stay_apart_and_the_report_says_so():
    model = built("Llama")
    attention = model.model.layers[0].self_attn
    attention.k_proj = ladder.Linear.from_linear(attention.k_proj.dequantize(), "uint3", 32)
    want = logits(model)
    done = ladder.optimize(model)
    (left,) = done.left.items()
    assert left[0] == ", ".join(names(0)[0]) and left[1].startswith("types differ: uint4,group=32")
    assert done.merged == [names(0)[1], *names(1)] and "not merged, types differ" in str(done)
    assert type(attention.q_proj) is ladder.Linear and torch.equal(logits(model), want)


def test_what_gets_the_same_input_is_seen_in_any_model():
    """No name is known: cross-attention merges what comes from the other side."""

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(32, 16) for _ in range(4))

        def forward(self, x, other, write=False):
            y = self.a(x) + self.b(other) + self.c(other)
            if write:
                other.add_(1)
            return y + self.d(other)

    model = nn.Sequential()
    model.cross = Cross()
    model.forward = lambda *args: model.cross(*args)
    ladder.convert(model, "uint4", group_size=32)
    x, other = torch.randn(2, 32), torch.randn(3, 2, 32)
    assert ladder.optimize(model).left == {
        "all layers": "optimize needs an example of what the model is called with"
    }
    failed = ladder.optimize(model, example=x)
    assert not failed.merged and "the model raised TypeError on the example" in str(failed)
    done = ladder.optimize(model, example=(x, other.clone(), True), merge=False)
    assert not done.merged and not done.left
    want = model(x, other)
    assert ladder.optimize(model, example=(x, other.clone(), True)).merged == [
        ("cross.b", "cross.c")
    ]
    assert torch.equal(model(x, other), want)
    ladder.unoptimize(model)
    assert ladder.optimize(model, example=(x, other)).merged == [("cross.b", "cross.c", "cross.d")]
    assert torch.equal(model(x, other), want)


def test_layers_that_do_not_always_get_the_same_input_stay_apart():
    class Often(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(32, 16) for _ in range(3))

        def forward(self, x, other):
            return self.a(x) + self.a(x) + self.b(x) + self.c(other)

    model = nn.Sequential()
    model.often = Often()
    ladder.convert(model, "uint4", group_size=32)
    x = torch.randn(2, 32)
    model.forward = lambda: model.often(x, x)
    (once,) = ladder.optimize(model, example=()).merged
    assert once == ("often.b", "often.c")  # a is called twice
    ladder.unoptimize(model)
    model.forward = lambda: model.often(x, x) + model.often(x, x + 1)
    assert not ladder.optimize(model, example=()).merged


def test_the_example_leaves_no_trace():
    model = built("Llama", attention_dropout=0.5).train()
    model.model.layers[1].eval()
    training = {name: module.training for name, module in model.named_modules()}
    torch.manual_seed(1)
    ladder.optimize(model)
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert training == {name: module.training for name, module in model.named_modules()}
    assert not any("forward" in module.__dict__ for module in model.modules())
    hooked = [n for n, m in model.named_modules() if m._forward_pre_hooks or m._forward_hooks]
    assert sorted(hooked) == sorted(names(i)[0][0].rpartition(".")[0] for i in (0, 1))


@pytest.mark.parametrize("first", ["optimize", "adapters"])
def test_adapters_train_on_merged_layers_as_on_single_ones(first):
    peft = pytest.importorskip("peft")
    gradients, losses = [], []
    for merge in (False, True):
        model = built("Qwen2")
        if merge and first == "optimize":
            ladder.optimize(model)
        torch.manual_seed(2)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"])
        model = peft.get_peft_model(model, config)
        if merge and first == "adapters":
            assert len(ladder.optimize(model).merged) == 4
        base = model.base_model.model.model.layers[0].self_attn.q_proj.base_layer
        assert isinstance(base, MergedLinear) == merge
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        for _ in range(2):
            loss = model(PROMPT, labels=PROMPT).loss
            loss.backward()
            losses.append(loss)
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert len(gradients[0]) == 2 * 2 * 3
    torch.testing.assert_close(losses[2:], losses[:2])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_layers_that_are_cut_over_processes_stay_apart():
    model = built("Llama")
    model.model.layers[0].self_attn.q_proj.__class__ = ParallelLinear
    report = ladder.optimize(model)
    assert not report.merged
    assert report.left == {"all layers": "layers are cut over processes, each in its own way"}
