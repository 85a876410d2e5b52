# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from hf_mixtures import experts_of, fresh
from hf_models import built, load, logits

import ladder
from ladder.errors import Unsupported
from ladder.integrations.transformers import dense
from ladder.nn.parallel import ParallelLinear

peft = pytest.importorskip("peft")


def adapted(folder, **options):
    return peft.get_peft_model(load(folder), peft.LoraConfig(r=4, **options))


def test_lora_trains_saves_and_loads_on_packed_weights(ladder_folder, tmp_path):
    model = adapted(ladder_folder, target_modules=["q_proj", "v_proj"])
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert type(layer.base_layer) is ladder.Linear
    assert torch.equal(logits(model), logits(load(ladder_folder)))  # B starts at zero
    stored = layer.base_layer.qweight.clone()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 8
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    x, losses = torch.arange(50, 74)[None], []
    for _ in range(3):
        loss = model(x, labels=x).loss
        loss.backward()
        assert all(p.grad is not None for p in trained)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
    assert torch.equal(layer.base_layer.qweight, stored)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(load(ladder_folder), tmp_path)
    assert torch.equal(logits(again), logits(model))
    with again.disable_adapter():
        assert torch.equal(logits(again), logits(load(ladder_folder)))


@pytest.mark.filterwarnings("ignore:adapters")
def test_a_merged_model_is_saved_and_loaded_as_a_ladder_folder(ladder_folder, tmp_path):
    torch.manual_seed(1)
    model = adapted(ladder_folder, target_modules="all-linear", init_lora_weights=False)
    exact = logits(model)
    merged = model.merge_and_unload()
    assert not any("lora" in name for name, _ in merged.named_modules())
    before = logits(load(ladder_folder))
    assert (logits(merged) - exact).norm() < 0.7 * (before - exact).norm()
    merged.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert torch.equal(logits(again), logits(merged))
    assert (
        again.config.quantization_config.to_dict()
        == load(ladder_folder).config.quantization_config.to_dict()
    )


@pytest.mark.parametrize("which", ["all", "lora_only"])
def test_biases_train_beside_adapters(which, tmp_path):
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], bias=which)
    packed = built("Qwen2")
    models = [packed, dense(copy.deepcopy(packed))]
    for at, model in enumerate(models):
        torch.manual_seed(1)
        models[at] = model = peft.get_peft_model(model, config)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1)
        x = torch.arange(50, 74)[None]
        model(x, labels=x).loss.backward()
        optimizer.step()
    names = [{n for n, p in each.named_parameters() if p.requires_grad} for each in models]
    assert names[0] == names[1] and any(name.endswith("bias") for name in names[0])
    trained, truth = (logits(model) for model in models)
    # Sums of float32 in another order.
    assert (trained - truth).abs().max() <= 1e-5 * truth.abs().max()
    assert not torch.equal(trained, logits(built("Qwen2")))
    models[0].save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(built("Qwen2"), tmp_path)
    assert torch.equal(logits(again), trained)


def test_adapters_come_to_layers_whose_codes_kernels_have(ladder_folder):
    """Those have no qweight, by which PEFT would find the device of an adapter."""
    model = load(ladder_folder)
    packed = [module for module in model.modules() if isinstance(module, ladder.Linear)]
    for module in packed:
        module._set_image(torch.zeros(1, dtype=torch.int32), 1)
        module.register_buffer("qweight", None)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"])
    layer = peft.get_peft_model(model, config).base_model.model.model.layers[0].self_attn.q_proj
    assert type(layer).__module__ == "ladder.integrations.peft"
    weight = layer.base_layer.weight
    assert layer.weight.shape == weight.shape and layer.weight.dtype == weight.dtype
    assert layer.lora_A["default"].weight.device == weight.device


def test_all_linear_means_packed_ones_but_not_the_head(ladder_folder):
    model = adapted(ladder_folder, target_modules="all-linear")
    found = {name.split(".")[-2] for name, _ in model.named_modules() if name.endswith(".lora_A")}
    assert found == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    "options",
    [
        {"init_lora_weights": "pissa"},
        {"use_qalora": True},
        {"alora_invocation_tokens": [7]},
    ],
)
def test_variants_of_lora_are_refused_and_not_left_out(ladder_folder, options):
    with pytest.raises(Unsupported, match=next(iter(options))):
        adapted(ladder_folder, target_modules=["q_proj"], **options)


def test_a_dense_model_is_still_pefts_own(dense_folder):
    model = adapted(dense_folder, target_modules=["q_proj"])
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert type(layer).__module__ == "peft.tuners.lora.layer"


def test_layers_that_are_cut_over_processes_have_no_adapters(ladder_folder):
    model = load(ladder_folder)
    model.model.layers[0].self_attn.q_proj.__class__ = ParallelLinear
    with pytest.raises(Unsupported, match="adapters need whole layers"):
        peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"]))


def test_each_row_of_a_batch_may_have_its_own_adapter(ladder_folder):
    """As with ``adapter_names`` of PEFT. Adapters of integers add integers, so nothing is rounded
    differently; rows without an adapter have the base layer's results."""
    model = adapted(ladder_folder, target_modules=["q_proj"])
    other = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])
    model.add_adapter("other", other)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = torch.randint(-2, 3, parameter.shape).float()
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    x = torch.randint(-3, 4, (4, 5, layer.in_features)).float()
    names = ["other", "default", "__base__", "other"]
    with torch.no_grad():
        base = layer.base_layer(x)
        added = {name: layer.lora_B[name](layer.lora_A[name](x)) for name in ("default", "other")}
        added = {"__base__": torch.zeros_like(base), "default": 2 * added["default"],
                 "other": 2 * added["other"]}  # fmt: skip
        expected = base + torch.stack([added[name][row] for row, name in enumerate(names)])
        assert torch.equal(layer(x, adapter_names=names), expected)
        assert not torch.equal(expected, base + added["default"])
        tokens = torch.arange(50, 90).reshape(4, 10)
        mixed = model.eval()(tokens, adapter_names=["other"] * 4).logits
        model.set_adapter("other")
        assert torch.equal(mixed, model(tokens).logits)
        layer.enable_adapters(False)
        assert torch.equal(layer(x, adapter_names=names), base)


@pytest.mark.parametrize("name", ["down_proj", "mlp"])
def test_packed_modules_to_save_are_refused_because_nothing_would_train(ladder_folder, name):
    """Before an adapter comes to the model."""
    model = load(ladder_folder)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=[name])
    with pytest.raises(Unsupported, match="modules_to_save: .*model.layers.0.mlp.* is packed, and"):
        peft.get_peft_model(model, config)
    assert type(model.model.layers[0].self_attn.q_proj) is ladder.Linear


def test_packed_modules_to_save_are_refused_beside_prompts(ladder_folder):
    """Prompt tuning wraps modules to save without a tuner."""
    linear = load(ladder_folder).model.layers[0].mlp.down_proj
    with pytest.raises(Unsupported, match="modules_to_save: Linear is packed"):
        peft.utils.other.ModulesToSaveWrapper(linear, "default")


def test_dense_modules_to_save_train_beside_packed_weights(ladder_folder):
    model = adapted(ladder_folder, target_modules=["q_proj"], modules_to_save=["lm_head"])
    x = torch.arange(50, 74)[None]
    model(x, labels=x).loss.backward()
    copied = model.base_model.model.lm_head.modules_to_save["default"]
    assert copied.weight.grad.abs().max() > 0


def test_packed_target_parameters_are_refused_and_not_passed_over(ladder_folder):
    model = load(ladder_folder)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj"], target_parameters=["mlp.down_proj.weight"]
    )
    whole = "target_parameters: model.layers.0.mlp.down_proj.weight is packed"
    with pytest.raises(Unsupported, match=whole):
        peft.get_peft_model(model, config)
    assert type(model.model.layers[0].self_attn.q_proj) is ladder.Linear


def test_packed_experts_have_no_target_parameters():
    model = fresh("mixtral")
    ladder.convert(model, "uint4", 32)
    assert experts_of(model)
    config = peft.LoraConfig(r=4, target_parameters=["experts.gate_up_proj"])
    with pytest.raises(Unsupported, match=r"layers.0.mlp.experts.gate_up_proj is packed"):
        peft.get_peft_model(model, config)


def test_layers_that_are_offloaded_are_not_merged(ladder_folder, tmp_path):
    blocks = len(load(ladder_folder).model.layers)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    places |= {"lm_head": "cpu"} | {f"model.layers.{at}": "cpu" for at in range(blocks)}
    places["model.layers.1"] = "disk"
    options = {"device_map": places, "offload_folder": tmp_path, "offload_buffers": True}
    model = load(ladder_folder, **options)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(model, config)
    first = model.base_model.model.model.layers[0].self_attn.q_proj
    stored = first.get_base_layer().packed_weight
    with pytest.raises(Unsupported, match=r"layers.1.self_attn.q_proj: the packed layer is offl"):
        model.merge_adapter()
    assert first.get_base_layer().packed_weight == stored and not first.merged
