# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hf_models import load, logits

import ladder
from ladder.errors import Unsupported
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
    with pytest.raises(Unsupported, match="cannot be merged into a packed weight"):
        again.merge_and_unload()


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


@pytest.mark.parametrize("options", [{"use_dora": True}, {"init_lora_weights": "pissa"}])
def test_adapters_that_need_the_dense_weight_are_refused(ladder_folder, options):
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
