# SPDX-License-Identifier: Apache-2.0
"""Language models of packed weights with adapters of PEFT other than LoRA."""

import copy

import pytest
import torch
from adapted_nets import adapted, close, moved
from hf_models import load, logits

import ladder
from ladder.errors import Unsupported
from ladder.integrations.transformers import dense

peft = pytest.importorskip("peft")


def language_model(kind, model):
    targets = ["q_proj", "k_proj", "up_proj", "down_proj"]
    options = {"feedforward_modules": ["down_proj"]} if kind == "IA3" else {}
    return moved(adapted(kind, model, targets, **options))


def test_x_lora_is_refused_and_does_not_pass_over_packed_layers(ladder_folder, tmp_path):
    lora = peft.LoraConfig(r=4, target_modules=["q_proj"])
    first = peft.get_peft_model(load(ladder_folder), lora)
    first.save_pretrained(tmp_path)
    model = load(ladder_folder)
    model.config.use_cache = False
    config = peft.XLoraConfig(
        task_type="CAUSAL_LM", hidden_size=model.config.hidden_size, adapters={"0": str(tmp_path)}
    )
    with pytest.raises(Unsupported, match="XLORA does not mix adapters on packed layers"):
        peft.get_peft_model(model, config)


@pytest.mark.parametrize("kind", ("IA3", "LOKR", "OFT", "VERA"))
def test_checkpointed_gradients_are_the_same(kind, ladder_folder):
    gradients = []
    for checkpoints in (False, True):
        model = language_model(kind, load(ladder_folder)).train()
        if checkpoints:
            model.gradient_checkpointing_enable()
            model.enable_input_require_grads()
        tokens = torch.arange(50, 74)[None]
        model(tokens, labels=tokens).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert gradients[0] and all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("kind", ("IA3", "LOKR", "OFT", "VERA"))
def test_layers_are_merged_before_adapters_come_and_after(kind, ladder_folder):
    wanted = logits(language_model(kind, load(ladder_folder)).eval())
    early, late = load(ladder_folder), load(ladder_folder)
    ladder.optimize(early, m=(1,))
    early, late = (language_model(kind, model).eval() for model in (early, late))
    ladder.optimize(late, m=(1,))
    assert close(logits(early), wanted) and close(logits(late), wanted)
    assert not close(wanted, logits(load(ladder_folder)))


@pytest.mark.parametrize("kind", ("DEFT", "IA3", "VERA"))
def test_files_of_packed_layers_load_on_the_conv1d_that_they_were(kind, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=2, vocab_size=128, bos_token_id=1, eos_token_id=2
    )
    packed = GPT2LMHeadModel(config).eval()
    ladder.convert(packed, "uint4", 32)
    unpacked = dense(copy.deepcopy(packed))
    bare = logits(unpacked)
    options = {"feedforward_modules": []} if kind == "IA3" else {}
    model = moved(adapted(kind, packed, ["c_attn"], **options))
    assert isinstance(packed.transformer.h[0].attn.c_attn.get_base_layer(), ladder.Linear)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(unpacked, tmp_path).eval()
    assert type(unpacked.transformer.h[0].attn.c_attn.get_base_layer()).__name__ == "Conv1D"
    assert close(logits(again), logits(model.eval()))
    assert not close(logits(again), bare)


def test_all_linear_means_packed_ones_but_not_the_head(ladder_folder):
    config = peft.OFTConfig(oft_block_size=8, target_modules="all-linear")
    model = peft.get_peft_model(load(ladder_folder), config)
    found = {name.split(".")[-2] for name, _ in model.named_modules() if name.endswith(".oft_R")}
    assert found == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
