# SPDX-License-Identifier: Apache-2.0
"""Experts modules of transformers: recognised by what they compute, and made dense again."""

import copy
import importlib
import pickle

import pytest
import torch
from hf_models import TINY

import ladder
from ladder.nn.dense_experts import layout_of, shell_of

#: Classes with fields of their configs; each names what is unlike the others.
CLASSES = {
    "mixtral.MixtralExperts": {},
    "qwen3_moe.Qwen3MoeExperts": {"hidden_act": "gelu_pytorch_tanh"},
    "qwen2_moe.Qwen2MoeExperts": {"hidden_act": "relu2"},
    "olmoe.OlmoeExperts": {"hidden_act": "gelu"},
    "gpt_oss.GptOssExperts": {"swiglu_limit": 3.0, "swiglu_alpha": 1.5},
}


def module_of(path: str, **fields):
    part, name = path.split(".")
    found = importlib.import_module(f"transformers.models.{part}.modeling_{part}")
    kind = getattr(found, name.replace("Experts", "Config"))
    fields |= {"num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 48}
    config = kind(**TINY | {"intermediate_size": 48} | fields)
    config._experts_implementation = "eager"
    torch.manual_seed(1)
    module = getattr(found, name)(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def routed(tokens: int, k: int):
    index = torch.stack([torch.randperm(4)[:k] for _ in range(tokens)])
    return torch.randn(tokens, 64), index, torch.rand(tokens, k)


@pytest.mark.parametrize("path", CLASSES)
def test_unrounded_experts_compute_what_the_module_computes(path):
    """float32 weights lose nothing, so what differs is the order of float32 sums."""
    module = module_of(path, **CLASSES[path])
    experts = ladder.Experts.from_dense(module, "float32")
    values = experts.dequantize()
    assert values.keys() == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        assert torch.equal(values[name], parameter)
    for k in (1, 2):
        x, index, weights = routed(9, k)
        with torch.no_grad():
            wanted, made = module(x, index, weights), experts(x, index, weights)
        # Sums of 64, 48 and k terms: 6 sqrt(64 + 48) 2^-24 = 4e-6 of the largest, and cancellation.
        assert (made - wanted).abs().max() < 2e-5 * wanted.abs().max()


def test_activations_are_found_by_what_they_compute():
    for path, fields in CLASSES.items():
        layout = layout_of(module_of(path, **fields))
        wanted = fields.get("hidden_act", "swigluoai" if "gpt" in path else "silu")
        assert layout.gating.activation == wanted
        assert (layout.transposed, layout.interleaved, layout.bias) == (("gpt" in path,) * 3)
    assert (layout.gating.limit, layout.gating.alpha) == (3.0, 1.5)


def test_what_another_module_computes_stays_dense_with_a_reason():
    class Clamped(type(module_of("mixtral.MixtralExperts"))):
        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return self.act_fn(gate).clamp(max=3) * up

    class Replaced(type(module_of("mixtral.MixtralExperts"))):
        def forward(self, x, index, weights):
            return super().forward(x, index, weights) + x

    for change, why in {
        lambda m: setattr(m, "__class__", Clamped): "is none that ladder knows",
        lambda m: setattr(m, "__class__", Replaced): "Replaced does not say what it computes",
        lambda m: setattr(m, "has_post_expert_norm", True): "has no gate, or norms after",
        lambda m: m.register_buffer("scale", torch.ones(4)): "has scale as well",
        lambda m: setattr(m, "down_proj", torch.nn.Parameter(torch.zeros(3, 64, 48))):
            "gate_up_proj has 4 experts and down_proj 3",
        lambda m: setattr(m, "down_proj", torch.nn.Parameter(torch.zeros(4, 64, 47))):
            "no two products in a row",
    }.items():  # fmt: skip
        model = torch.nn.Module()
        model.experts, model.body = module_of("mixtral.MixtralExperts"), torch.nn.Linear(32, 8)
        change(model.experts)
        report = ladder.convert(model, "uint4", 32)
        assert report.packed.keys() == {"body"}
        assert report.left["experts.gate_up_proj"].reason.startswith("experts in one parameter of")
        assert why in report.left["experts.gate_up_proj"].reason


def test_biases_stay_the_parameters_that_an_optimizer_holds():
    module = module_of("gpt_oss.GptOssExperts")
    experts = ladder.Experts.from_dense(module, "uint4", 32)
    assert experts.down.bias is module.down_proj_bias
    first = module.gate_up_proj_bias  # gate and up in turn, so it becomes another
    assert torch.equal(experts.gate_up.bias[:, :48], first[:, ::2])
    assert torch.equal(experts.gate_up.bias[:, 48:], first[:, 1::2])


def test_code_may_ask_for_the_shape_of_what_is_packed():
    """As the initialisation of some models does, which must leave packed weights alone."""
    for path in ("mixtral.MixtralExperts", "gpt_oss.GptOssExperts"):
        module = module_of(path)
        experts = ladder.Experts.from_dense(module, "uint4", 32)
        for name in ("gate_up_proj", "down_proj"):
            asked, dense_one = getattr(experts, name), getattr(module, name)
            assert asked.shape == dense_one.shape and asked.dtype == dense_one.dtype
            importlib.import_module("transformers.initialization").normal_(asked)
            with pytest.raises(ladder.Unsupported, match="has a shape, a dtype and a device"):
                asked + 1


def test_a_dense_module_is_made_again_without_what_hooked_into_it():
    module = module_of("gpt_oss.GptOssExperts")
    module.register_forward_hook(lambda *_: None)
    shell = shell_of(module)
    assert all(parameter.is_meta for parameter in shell.parameters()) and not shell._forward_hooks
    experts = ladder.Experts.from_dense(module, "int8", 32).eval()
    again = experts.dense()
    assert type(again) is type(module) and not again.training and again.alpha == module.alpha
    assert next(iter(module.parameters())).device.type == "cpu"
    x, index, weights = routed(5, 2)
    made = experts(x, index, weights)
    assert (again(x, index, weights) - made).abs().max() < 2e-5 * made.abs().max()


@pytest.mark.parametrize("way", [
    copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)),
], ids=["deepcopy", "pickle"])  # fmt: skip
def test_copies_can_be_made_dense_too(way):
    experts = ladder.Experts.from_dense(module_of("gpt_oss.GptOssExperts"), "int8", 32)
    values = experts.dequantize()
    for name, parameter in way(experts).dense().named_parameters():
        assert torch.equal(parameter, values[name])
