# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers on ladder folders, and on models that are quantised while they are loaded."""

import peft
import pytest
import torch
from hf_models import load, logits

import ladder
from ladder.integrations.transformers import LadderConfig

trl = pytest.importorskip("trl", reason="trl is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

PROMPT, CHOSEN, REJECTED = "In the beginning", " there was light", " there was a cat"
ROWS = {
    "SFT": {"text": [PROMPT + CHOSEN] * 4},
    "DPO": {"prompt": [PROMPT] * 4, "chosen": [CHOSEN] * 4, "rejected": [REJECTED] * 4},
    "Reward": {"chosen": [PROMPT + CHOSEN] * 4, "rejected": [PROMPT + REJECTED] * 4},
    "GRPO": {"prompt": [PROMPT] * 4},
}
OPTIONS = {
    "GRPO": {"num_generations": 2, "max_completion_length": 4},
    "Reward": {"center_rewards_coefficient": 0.1},
}


def trainer(kind, model, folder, **options):
    task = "SEQ_CLS" if kind == "Reward" else "CAUSAL_LM"
    saved = ["score"] if kind == "Reward" else None
    if kind == "GRPO":
        options["reward_funcs"] = lambda completions, **_: [float(len(c)) for c in completions]
    arguments = getattr(trl, f"{kind}Config")(
        str(folder), use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=2,
        max_steps=2, save_steps=2, learning_rate=1e-2, gradient_checkpointing=True,
        **OPTIONS.get(kind, {}),
    )  # fmt: skip
    return getattr(trl, f"{kind}Trainer")(
        model, args=arguments, train_dataset=datasets.Dataset.from_dict(ROWS[kind]),
        peft_config=peft.LoraConfig(
            r=4, target_modules="all-linear", task_type=task, modules_to_save=saved
        ),
        **options,
    )  # fmt: skip


def layers(model):
    return [module for module in model.modules() if isinstance(module, ladder.Linear)]


@pytest.mark.parametrize("kind", ROWS)
def test_adapters_are_trained_on_a_folder_by_its_name(kind, ladder_folder, tmp_path):
    run = trainer(kind, str(ladder_folder), tmp_path)
    before = [layer.qweight.clone() for layer in layers(run.model)]
    start = {n: p.detach().clone() for n, p in run.model.named_parameters() if p.requires_grad}
    assert len(before) == 56 and all("lora" in name or "score" in name for name in start)
    run.train()
    now = dict(run.model.named_parameters())
    assert any(not torch.equal(now[name], value) for name, value in start.items())
    assert all(map(torch.equal, before, (layer.qweight for layer in layers(run.model))))


def test_what_was_trained_is_loaded_again(ladder_folder, tmp_path):
    run = trainer("SFT", str(ladder_folder), tmp_path)
    run.train()
    run.save_model(tmp_path / "adapter")
    kind = peft.AutoPeftModelForCausalLM
    again = kind.from_pretrained(tmp_path / "adapter", dtype=run.model.dtype)
    assert torch.equal(logits(again), logits(run.model.eval()))


@pytest.mark.parametrize("way", ["by the trainer", "before"])
def test_adapters_are_trained_on_what_is_quantised_while_loading(way, dequantised_folder, tmp_path):
    options = {"quantization_config": LadderConfig("nf4", 64)}
    source = str(dequantised_folder)
    if way == "before":
        source, options = load(source, **options), {}
    run = trainer("SFT", source, tmp_path, **options)
    assert {str(layer.weight_type) for layer in layers(run.model)} == {"nf4,group=64,scale=float16"}
    run.train()


def test_a_packed_model_without_adapters_is_refused_by_transformers(ladder_folder, tmp_path):
    rows = datasets.Dataset.from_dict(ROWS["SFT"])
    arguments = trl.SFTConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    with pytest.raises(ValueError, match="purely quantized models"):
        trl.SFTTrainer(str(ladder_folder), args=arguments, train_dataset=rows)
