# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer, accelerate and PEFT around models with packed layers: what trains, what is
refused, and that what was trained is loaded again."""

import pytest
import torch
from hf_models import load, logits
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

import ladder
from ladder.integrations.transformers import LadderConfig

peft = pytest.importorskip("peft", reason="peft is not installed")
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

ROWS = [
    {"input_ids": torch.arange(low, low + 12) % 100, "labels": torch.tensor(low % 2)}
    for low in range(40, 48)
]


def arguments(folder):
    return TrainingArguments(
        str(folder), use_cpu=True, report_to=[], per_device_train_batch_size=2, max_steps=2,
        save_steps=2, learning_rate=1e-2,
    )  # fmt: skip


def classifier(folder, **options):
    """Its head is in no file, and starts from the same random numbers each time."""
    torch.manual_seed(3)
    options = {"num_labels": 2, "dtype": torch.float32, "pad_token_id": 0} | options
    return AutoModelForSequenceClassification.from_pretrained(folder, **options)


def packed(model):
    return {
        name: module.packed_weight.qweight.clone()
        for name, module in model.named_modules()
        if isinstance(module, ladder.Linear)
    }


def unchanged(model, before):
    now = packed(model)
    return len(now) == len(before) and all(map(torch.equal, now.values(), before.values()))


@pytest.mark.parametrize("quantised_while_loading", [False, True])
def test_a_new_head_trains_beside_adapters(
    ladder_folder, dense_folder, tmp_path, quantised_while_loading
):
    """The head is dense: files have no weight of it."""
    source, options = ladder_folder, {}
    if quantised_while_loading:
        source, options = dense_folder, {"quantization_config": LadderConfig("uint4", 32)}
    model = classifier(source, **options)
    before = packed(model)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=4))
    head = model.base_model.model.score.modules_to_save["default"].weight
    fresh = head.detach().clone()
    Trainer(model, arguments(tmp_path), train_dataset=ROWS).train()
    assert not torch.equal(head, fresh) and unchanged(model, before)
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(classifier(source, **options), tmp_path / "adapter")
    assert torch.equal(logits(again.eval()), logits(model.eval()))


def test_a_packed_model_without_adapters_is_refused_by_transformers(ladder_folder, tmp_path):
    with pytest.raises(ValueError, match="purely quantized models"):
        Trainer(classifier(ladder_folder), arguments(tmp_path), train_dataset=ROWS)


def test_a_head_trains_alone_where_the_model_was_packed_in_memory(dense_folder, tmp_path):
    def frozen():
        model = classifier(dense_folder)
        ladder.convert(model, "uint4", group_size=32, skip=("score",))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name == "score.weight")
        return model

    model = frozen()
    before, fresh = packed(model), model.score.weight.detach().clone()
    trainer = Trainer(model, arguments(tmp_path), train_dataset=ROWS)
    trainer.train()
    assert not torch.equal(model.score.weight, fresh) and unchanged(model, before)
    trainer.save_model(tmp_path / "saved")
    assert torch.equal(logits(classifier(tmp_path / "saved")), logits(model.eval()))
    resumed = Trainer(frozen(), arguments(tmp_path), train_dataset=ROWS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(resumed.model.score.weight, model.score.weight)


def test_accelerate_keeps_states_of_packed_models(ladder_folder, tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(load(ladder_folder), config)
    trained = [p for p in model.parameters() if p.requires_grad]
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(trained, lr=1e-2))
    x = torch.arange(50, 74)[None]

    def step():
        accelerator.backward(model(x, labels=x).loss)
        optimizer.step()
        optimizer.zero_grad()

    step()
    accelerator.save_state(tmp_path)
    kept = logits(model)
    step()
    after = logits(model)
    assert not torch.equal(after, kept)
    accelerator.load_state(tmp_path)
    assert torch.equal(logits(model), kept)
    step()
    assert torch.equal(logits(model), after)


def test_peft_prepares_packed_models_for_training(ladder_folder):
    """It freezes them and makes what is dense float32. Gradient checkpointing stays off: PEFT knows
    by name which methods get it."""
    before = packed(load(ladder_folder))
    model = peft.prepare_model_for_kbit_training(load(ladder_folder, dtype=torch.bfloat16))
    assert not any(p.requires_grad or p.dtype != torch.float32 for p in model.parameters())
    assert unchanged(model, before)
    assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    rounded = load(ladder_folder)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16().float()
    assert torch.equal(logits(model), logits(rounded))
